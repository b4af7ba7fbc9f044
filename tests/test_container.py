"""The container in Python, and the C++ reader beside it, on hand-made and on damaged files."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdtr import container, dtypes
from kdtr.container import TensorSpec, Writer, dumps, loads
from kdtr.errors import FormatError, KdtrError
from malformed.generate import CASES, DTYPES, Case, one
from malformed.mutate import mutants

ROOT = Path(__file__).parent.parent
FORMAT = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")


def verdict(data: bytes) -> str:
    """What the Python reader says of `data`, in the words of the C++ tool."""
    try:
        container.validate(data, deep=True)
    except FormatError as error:
        return f"{error.code}\t{error.offset}"
    return "OK\t-1"


@pytest.fixture(scope="session")
def cpp_verdicts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function from files to the verdicts of the C++ reader, built with sanitizers.

    Files that it accepts also pass through the C++ writer, which must give the same bytes.
    """
    tool = tmp_path_factory.mktemp("cpp") / "kdtr_validate"
    subprocess.run(
        [
            *os.environ.get("CXX", "c++").split(),
            *["-std=c++20", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
            f"-I{ROOT / 'engine' / 'include'}",
            ROOT / "engine" / "tests" / "kdtr_validate.cpp",
            "-o",
            tool,
        ],
        check=True,
    )

    def run(files: list[bytes]) -> list[str]:
        stream = b"".join(struct.pack("<I", len(f)) + f for f in files)
        done = subprocess.run([tool, "--rewrite"], input=stream, capture_output=True, check=False)
        assert done.returncode in (0, 1), done.stderr.decode()
        return done.stdout.decode().splitlines()

    return run


# --- known answers ------------------------------------------------------------------------------


def test_first_documented_vector() -> None:
    data = dumps({"x": np.float32(1.0)})
    assert len(data) == 768
    assert data[:16].hex() == "4b4454520d0a1a0a" + "01000000cfb5e81a"
    assert data[16:48].hex() == "6429487f7487691bc8508634036f32697e9e37c871faf108484e61328cab0334"
    assert data[128:160].hex() == (
        "0000000001000000022001006a6aa1ac00020000000000000400000000000000"
    )
    assert data[512:516].hex() == "0000803f"


def test_second_documented_vector() -> None:
    data = dumps(
        {"n": ("u4", dtypes.encode(np.array([1, 2, 15]), "u4"), (3,)), "e": np.zeros((0, 3))},
        {"z": -1, "t": ""},
        {"n": {"f": -0.0, "b": True}},
    )
    assert len(data) == 768
    assert struct.unpack_from("<I", data, 12)[0] == 0xFB6E8226
    assert data[16:48].hex() == "235597061c4612c52011c0885a9f2040a961859c45e4cdcdb8d91016a827a8fc"


def test_valid_corpus_file_reads_as_it_was_made() -> None:
    file = loads(next(c.data for c in CASES if c.name == "ok_base"))
    assert list(file) == ["a/x", "b", "n", "z"]
    assert file.values("a/x").tolist() == [[0, 1, -2], [0.5, float("inf"), 3]]
    assert file.values("b").tolist() == [True, False, True]
    assert file.values("n").tolist() == [1, 2, 15]
    assert file.values("z").shape == (0, 3)
    assert dict(file.meta) == {
        "b": True,
        "f": 1.5,
        "i": -1,
        "s": "hé",
        "u": 1 << 63,
        "y": b"\0\xff",
    }
    assert file.tensors["a/x"].meta == {"role": "input"}
    assert file.tensors["n"].shape == (3,)


# --- hostile files ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_corpus(case: Case, tmp_path: Path) -> None:
    want = f"{case.code}\t{case.at}"
    assert verdict(case.data) == want
    first = container.all_errors(case.data)[:1]
    assert [(e.code, e.offset) for e in first] == [(case.code, case.at)] * (case.code != "OK")
    path = tmp_path / "case.kdtr"
    path.write_bytes(case.data)
    for mmap in (False, True):
        if case.code == "OK":
            container.open(path, verify="deep", mmap=mmap)
            continue
        with pytest.raises(FormatError) as caught:
            container.open(path, verify="deep", mmap=mmap)
        assert caught.value.code == case.code
        assert str(caught.value).startswith(f"{path}: {case.code}: ")
        assert "\n" not in str(caught.value)


def test_corpus_hits_every_rule() -> None:
    documented = set(re.findall(r"\bE_[A-Z0-9_]+", FORMAT))
    api_only = {"E_IO", "E_NOT_FOUND", "E_DTYPE_MISMATCH", "E_SHAPE_MISMATCH", "E_HOST"}
    assert {c.code for c in CASES} == documented - api_only | {"OK"}
    assert len({c.name for c in CASES}) == len(CASES) >= 200


def test_cpp_reader_agrees_on_the_corpus(cpp_verdicts: Any) -> None:
    got = dict(zip([c.name for c in CASES], cpp_verdicts([c.data for c in CASES]), strict=True))
    assert got == {c.name: f"{c.code}\t{c.at}" for c in CASES}


def test_readers_know_32_types_and_no_other(cpp_verdicts: Any) -> None:
    pairs = [(code, bits) for code in range(32) for bits in range(256)]
    files = [one(pair, (0,), b"") for pair in pairs]
    want = ["OK\t-1" if pair in DTYPES else "E_DTYPE\t136" for pair in pairs]
    assert len(DTYPES) == want.count("OK\t-1") == 32
    assert [verdict(f) for f in files] == want
    assert cpp_verdicts(files) == want


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_readers_agree_on_damaged_files(seed: int, cpp_verdicts: Any) -> None:
    files = list(mutants(seed, 20_000))
    python = [verdict(f) for f in files]
    for file, ours, theirs in zip(files, python, cpp_verdicts(files), strict=True):
        assert ours == theirs, file.hex()
    assert len({v.split("\t")[0] for v in python}) > 40  # the damage reaches nearly every rule


def test_all_errors_starts_with_the_first() -> None:
    for file in mutants(4, 2_000):
        found = container.all_errors(file)
        ours = f"{found[0].code}\t{found[0].offset}" if found else "OK\t-1"
        assert ours == verdict(file)


def test_all_errors_finds_independent_faults() -> None:
    data = bytearray(dumps({"a": np.zeros(3, bool), "b": np.arange(4.0)}))
    data[512] = 2  # the payload of a
    data[600] = 1  # the padding after it
    data[16] ^= 1  # the root
    codes = [e.code for e in container.all_errors(bytes(data))]
    assert codes == [
        "E_PREFIX_CRC",
        "E_TENSOR_CRC",
        "E_PADDING",
        "E_BOOL_VALUE",
        "E_TENSOR_DIGEST",
        "E_ROOT_DIGEST",
    ]


def test_every_flipped_bit_is_found() -> None:
    data = dumps({"x": np.arange(3, dtype=np.uint8)}, {"k": "v"})
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert verdict(bytes(damaged)) != "OK\t-1", bit


# --- round trips --------------------------------------------------------------------------------

NAMES = st.lists(
    st.text(
        st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"),
        min_size=1,
        max_size=5,
    ).filter(lambda s: s not in (".", "..")),
    min_size=1,
    max_size=3,
).map("/".join)
SCALARS = (
    st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.binary(max_size=8)
)
META = st.dictionaries(
    NAMES.filter(lambda k: k not in container.VOLATILE_KEYS), SCALARS, max_size=4
)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, Any, tuple[int, ...]]:
    dtype = dtypes.DTYPES[draw(st.sampled_from(sorted(dtypes.DTYPES)))]
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    count = int(np.prod(shape, dtype=int))
    if dtype.packed:
        codes = draw(
            st.lists(st.integers(0, (1 << dtype.bits) - 1), min_size=count, max_size=count)
        )
        return dtype.name, dtypes.pack(np.array(codes, np.uint8), dtype.bits), shape
    size = dtype.nbytes(count)
    raw = draw(st.binary(min_size=size, max_size=size))
    if dtype.name == "bool":
        raw = bytes(b & 1 for b in raw)
    return dtype.name, np.frombuffer(raw, dtype.storage).reshape(shape), shape


@given(st.dictionaries(NAMES, tensors(), max_size=4), META, st.data())
@settings(max_examples=300, deadline=None)
def test_content_round_trips_and_order_of_arguments_does_not_matter(
    content: dict[str, Any], meta: dict[str, Any], data: st.DataObject
) -> None:
    notes = {name: data.draw(META) for name in content}
    file = dumps(content, meta, notes)
    container.validate(file, deep=True)

    def shuffled(d: dict[str, Any]) -> dict[str, Any]:
        return dict(data.draw(st.permutations(list(d.items()))))

    again = dumps(shuffled(content), shuffled(meta), {n: shuffled(m) for n, m in notes.items()})
    assert again == file

    got = loads(file, verify="deep")
    assert list(got) == sorted(content, key=str.encode)
    assert dict(got.meta) == meta
    for name, (dtype, array, shape) in content.items():
        info = got.tensors[name]
        assert (info.dtype.name, info.shape, info.nbytes) == (dtype, shape, array.nbytes)
        assert got[name].tobytes() == array.tobytes()
        assert got[name].dtype == array.dtype
        assert dict(info.meta) == notes[name]
        assert got.values(name).shape == shape
    types = {k: type(v) for k, v in meta.items()}
    assert {k: type(v) for k, v in got.meta.items()} == types


def test_write_and_dumps_give_the_same_bytes(tmp_path: Path) -> None:
    content = {"b": np.arange(1000.0).reshape(10, 100).T, "a": np.array([True, False])}
    identity = container.write(tmp_path / "f.kdtr", content, {"k": 1}, {"a": {"role": "input"}})
    data = dumps(content, {"k": 1}, {"a": {"role": "input"}})
    assert (tmp_path / "f.kdtr").read_bytes() == data
    assert identity == "kdtr1:" + data[16:48].hex() == loads(data).identity
    assert os.listdir(tmp_path) == ["f.kdtr"]


def test_big_endian_and_strided_arrays_are_stored_little_endian_in_c_order() -> None:
    x = np.arange(6, dtype=">u4").reshape(2, 3)
    assert dumps({"x": x}) == dumps({"x": x.astype("<u4")})
    assert dumps({"x": x.T}) == dumps({"x": x.T.copy()})
    assert dumps({"x": x[:, ::-2]}) == dumps({"x": np.array([[2, 0], [5, 3]], np.uint32)})


def test_nan_payloads_are_kept() -> None:
    bits = np.array([0x7F800001, 0xFFFFFFFF, 0x80000000], np.uint32)
    assert np.array_equal(loads(dumps({"x": bits.view("f4")}))["x"].view("u4"), bits)


def test_metadata_nan_is_canonical() -> None:
    negative = struct.unpack("<d", struct.pack("<Q", 0xFFF8 << 48))[0]
    assert dumps({}, {"k": negative}) == dumps({}, {"k": float("nan")})
    container.validate(dumps({}, {"k": negative}))


def test_numpy_scalars_are_metadata() -> None:
    meta: Any = {
        "i": np.int32(3),
        "f": np.float32(0.5),
        "b": np.bool_(True),
        "u": np.uint64(1 << 63),
    }
    assert dict(loads(dumps({}, meta)).meta) == {"i": 3, "f": 0.5, "b": True, "u": 1 << 63}


# --- reading ------------------------------------------------------------------------------------


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    container.write(tmp_path / "s.kdtr", {"a": np.arange(5, dtype="i4"), "b": np.arange(300.0)})
    return tmp_path / "s.kdtr"


@pytest.mark.parametrize("mmap", [False, True])
def test_arrays_are_views_read_only_and_aligned(sample: Path, mmap: bool) -> None:
    with container.open(sample, mmap=mmap) as file:
        x = file["b"]
        assert np.shares_memory(x, file["b"])
        assert x.ctypes.data % 256 == 0
        assert not x.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            x[0] = 1
    assert x[299] == 299  # arrays outlive the file


@pytest.mark.parametrize("mmap", [False, True])
def test_a_damaged_payload_is_found_when_it_should_be(sample: Path, mmap: bool) -> None:
    data = bytearray(sample.read_bytes())
    data[-300] ^= 1  # in b
    sample.write_bytes(data)
    file = container.open(sample, mmap=mmap)
    assert file["a"].tolist() == [0, 1, 2, 3, 4]
    for _ in range(2):
        with pytest.raises(FormatError, match="E_TENSOR_CRC: tensor 'b'"):
            _ = file["b"]
    with pytest.raises(FormatError, match="E_TENSOR_CRC"):
        container.open(sample, verify="eager", mmap=mmap)
    assert container.open(sample, verify="none", mmap=mmap)["b"].shape == (300,)


def test_the_index_is_not_read_twice(sample: Path) -> None:
    file = container.open(sample, mmap=True)
    with sample.open("rb+") as f:
        f.seek(128)
        f.write(bytes(256))
    assert list(file) == ["a", "b"]
    assert file.tensors["a"].shape == (5,)


def test_missing_tensors_and_files_are_named(sample: Path, tmp_path: Path) -> None:
    file = container.open(sample)
    with pytest.raises(FormatError, match="E_NOT_FOUND: no such tensor, want a, b, got c"):
        _ = file["c"]
    with pytest.raises(FormatError, match="E_IO"):
        container.open(tmp_path / "none.kdtr")
    with pytest.raises(FormatError, match="E_IO"):
        container.open(tmp_path)
    file.close()
    with pytest.raises(KdtrError, match="closed"):
        _ = file["a"]


def test_a_pipe_is_read_to_its_end(sample: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    feeder = threading.Thread(target=lambda: pipe.write_bytes(sample.read_bytes()))
    feeder.start()
    assert container.open(pipe, verify="deep")["a"].tolist() == [0, 1, 2, 3, 4]
    feeder.join()


def test_a_device_is_refused() -> None:
    """It may have no end, as /dev/zero."""
    with pytest.raises(FormatError, match="/dev/zero: E_IO: a device, not a file"):
        container.open("/dev/zero")


# --- writing ------------------------------------------------------------------------------------


def test_payload_chunks_come_in_any_order(tmp_path: Path) -> None:
    a, b = np.arange(10, dtype="u1"), np.arange(100.0)
    specs = [TensorSpec("b", "f64", (100,), {"k": 1}), TensorSpec("a", "u8", (10,))]
    with Writer(tmp_path / "w.kdtr", specs, {"m": "x"}) as w:
        w.write("a", a[:3])
        w.write("b", b[:70])
        w.write("a", a[3:].tobytes())
        w.write("b", b[70:])
    want = dumps({"a": a, "b": b}, {"m": "x"}, {"b": {"k": 1}})
    assert (tmp_path / "w.kdtr").read_bytes() == want
    assert w.identity == loads(want).identity


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_write_leaves_the_old_file(sample: Path, error: type[BaseException]) -> None:
    before = sample.read_bytes()

    def interrupted() -> None:
        with Writer(sample, [TensorSpec("a", "u8", (4,))]) as w:
            w.write("a", b"\1\2")
            assert len(os.listdir(sample.parent)) == 2
            raise error

    with pytest.raises(error):
        interrupted()
    assert sample.read_bytes() == before
    assert os.listdir(sample.parent) == ["s.kdtr"]


def test_an_unfinished_file_has_no_magic(tmp_path: Path) -> None:
    w = Writer(tmp_path / "w.kdtr", [TensorSpec("a", "u8", (400,))])
    w.write("a", bytes(400))
    (unfinished,) = tmp_path.iterdir()
    with pytest.raises(FormatError, match="E_MAGIC"):
        container.open(unfinished)
    w.abort()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("size", "words"), [(3, "too short, want 4, got 3"), (5, "too long")])
def test_payloads_must_have_their_size(tmp_path: Path, size: int, words: str) -> None:
    def wrong() -> None:
        with Writer(tmp_path / "w.kdtr", [TensorSpec("a", "u8", (4,))]) as w:
            w.write("a", bytes(size))

    with pytest.raises(KdtrError, match=words):
        wrong()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", sorted(container.VOLATILE_KEYS))
def test_metadata_that_varies_is_refused(key: str) -> None:
    with pytest.raises(KdtrError, match=key):
        dumps({}, {key: "x"})
    assert loads(dumps({"t": np.zeros(1)}, {}, {"t": {key: "x"}})).tensors["t"].meta[key] == "x"


U4 = dtypes.encode(np.array([1]), "u4")


@pytest.mark.parametrize(
    ("content", "meta", "notes", "words"),
    [
        ({"a//b": np.zeros(1)}, {}, {}, "E_NAME_PATH"),
        ({"": np.zeros(1)}, {}, {}, "E_NAME_LENGTH"),
        ({"a" * 1025: np.zeros(1)}, {}, {}, "E_NAME_LENGTH"),
        ({"a\n": np.zeros(1)}, {}, {}, "E_NAME_CHAR"),
        ({"\ud800": np.zeros(1)}, {}, {}, "E_NAME_UTF8"),
        ({"a": np.zeros((1,) * 9)}, {}, {}, "E_RANK"),
        ({"a": ("u4", U4, ())}, {"..": 1}, {}, "E_KV_KEY_PATH"),
        ({}, {"k": "\udcff"}, {}, "E_KV_UTF8"),
        ({}, {"k": 1 << 64}, {}, "E_KV_VALUE"),
        ({}, {"k": -(1 << 63) - 1}, {}, "E_KV_VALUE"),
        ({}, {"k": None}, {}, "E_KV_TYPE.*NoneType"),
        ({}, {"k": [1]}, {}, "E_KV_TYPE.*list"),
        ({}, {"k": "x" * ((1 << 26) + 1)}, {}, "E_LIMIT"),
        ({}, {}, {"t": {"k": 1}}, "E_NOT_FOUND"),
        ({"a": np.array([0, 2], "u1").view("?")}, {}, {}, "E_BOOL_VALUE"),
        ({"a": ("u4", np.array([0x11], "u1"), (1,))}, {}, {}, "E_SUBBYTE_TAIL"),
        ({"a": ("u4", U4)}, {}, {}, "logical shape"),
        ({"a": ("u4", U4, (3,))}, {}, {}, "does not store"),
        ({"a": ("bf16", np.zeros(3))}, {}, {}, "does not store"),
        ({"a": ("f99", np.zeros(3))}, {}, {}, "f99"),
        ({"a": np.zeros(1, "M8[s]")}, {}, {}, "datetime64"),
    ],
)
def test_the_writer_refuses_what_a_reader_would(
    content: Any, meta: Any, notes: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(KdtrError, match=words):
        dumps(content, meta, notes)
    with pytest.raises(KdtrError, match=words):
        container.write(tmp_path / "w.kdtr", content, meta, notes)
    assert not list(tmp_path.iterdir())


def test_duplicate_and_negative_specs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="E_NAME_DUP"):
        Writer(tmp_path / "w", [TensorSpec("a", "u8", (1,)), TensorSpec("a", "u8", (1,))])
    with pytest.raises(FormatError, match="E_DIM_RANGE"):
        Writer(tmp_path / "w", [TensorSpec("a", "u8", (-1,))])
    with pytest.raises(FormatError, match="E_NUMEL_OVERFLOW"):
        Writer(tmp_path / "w", [TensorSpec("a", "u8", (1 << 48, 33))])
    assert not list(tmp_path.iterdir())
