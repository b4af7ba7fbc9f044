"""Conversion: the safetensors library and numpy are the oracles for their own formats."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from click.testing import CliRunner

from kdtr import container, convert, dtypes
from kdtr.cli import cli
from kdtr.errors import FormatError, KdtrError
from malformed.generate import CASES
from malformed.mutate import mutants

FORMATS: dict[str, tuple[Callable[..., None], Callable[..., str]]] = {
    "safetensors": (convert.to_safetensors, convert.from_safetensors),
    "npz": (convert.to_npz, convert.from_npz),
}
BOTH = pytest.mark.parametrize("suffix", FORMATS)


@BOTH
@pytest.mark.parametrize("target", ["folder", "pipe"])
@pytest.mark.parametrize("to", ["", "kdtr"])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, suffix: str, target: str, to: str) -> None:
    container.write(tmp_path / "a.kdtr", {"x": np.arange(3)})
    FORMATS[suffix][0](tmp_path / "a.kdtr", tmp_path / f"a.{suffix}")
    given, place = ("a.kdtr", f"b.{suffix}") if not to else (f"a.{suffix}", "b.kdtr")
    path = tmp_path / place
    path.mkdir() if target == "folder" else os.mkfifo(path)
    before = sorted(os.listdir(tmp_path)), path.stat().st_mode
    got = "a folder" if target == "folder" else "a pipe or a device"
    with pytest.raises(KdtrError) as caught:
        convert.convert(tmp_path / given, path)
    assert str(caught.value) == f"{path}: cannot be replaced, want a file, got {got}"
    assert (sorted(os.listdir(tmp_path)), path.stat().st_mode) == before


def there_and_back(data: bytes, suffix: str, folder: Path) -> bytes:
    there, back = FORMATS[suffix]
    (folder / "a.kdtr").write_bytes(data)
    there(folder / "a.kdtr", folder / f"a.{suffix}")
    identity = back(folder / f"a.{suffix}", folder / "b.kdtr")
    assert sorted(os.listdir(folder)) == sorted(["a.kdtr", "b.kdtr", f"a.{suffix}"])
    result = (folder / "b.kdtr").read_bytes()
    assert container.loads(result).identity == identity
    return result


@BOTH
@pytest.mark.parametrize("case", [c for c in CASES if c.code == "OK"], ids=lambda c: c.name)
def test_every_valid_corpus_file_comes_back_the_same(
    case: Any, suffix: str, tmp_path: Path
) -> None:
    assert there_and_back(case.data, suffix, tmp_path) == case.data


@BOTH
def test_odd_but_valid_files_come_back_the_same(suffix: str, tmp_path: Path) -> None:
    found = 0
    for file in mutants(5, 3_000):
        try:
            container.validate(file, deep=True)
        except FormatError:
            continue
        found += 1
        assert there_and_back(file, suffix, tmp_path) == file
    assert found > 300


@BOTH
def test_awkward_names_and_values_come_back(suffix: str, tmp_path: Path) -> None:
    names = ["__metadata__", "__kdtr__.json", "kdtr", "a.npy", "a", "a/b", "é 𝛑", "%2E", "c:d"]
    data = container.dumps(
        {name: np.array([i], "u2") for i, name in enumerate(names)},
        {
            "kdtr": "text",
            "u": (1 << 64) - 1,
            "i": -(1 << 63),
            "z": -0.0,
            "nan": float("nan"),
            "inf": float("-inf"),
            "b": False,
            "raw": bytes(range(256)),
            "s": 'quote " \u2028 \x00',
        },
        {"__metadata__": {"role": "input"}},
    )
    assert there_and_back(data, suffix, tmp_path) == data


@BOTH
def test_the_command_goes_by_suffix(suffix: str, tmp_path: Path) -> None:
    identity = container.write(tmp_path / "a.kdtr", {"x": np.arange(3)})
    for source, target in (("a.kdtr", f"a.{suffix}"), (f"a.{suffix}", "b.kdtr")):
        done = CliRunner().invoke(cli, ["convert", str(tmp_path / source), str(tmp_path / target)])
        assert done.output == f"{identity}  {tmp_path / target}\n"
    with pytest.raises(KdtrError, match=r"got \.npz to \.txt"):
        convert.convert("a.npz", "a.txt")


SAMPLE = {
    "b": np.array([True, False]),
    "f": np.arange(6, dtype="f4").reshape(2, 3),
    "h": np.array([[1.5], [-0.0]], "f2"),
    "i": np.array(-3, "i8"),
    "u": np.zeros((0, 4), "u1"),
    "w": np.arange(1000.0),
}
NAN = np.array([0x7F800001, 0xFFC00000], "u4").view("f4")


def test_the_safetensors_library_reads_our_export(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0xFF81, 0x8000], np.uint16)
    content: dict[str, Any] = {**SAMPLE, "nan": NAN, "bf": ("bf16", bits)}
    container.write(tmp_path / "a.kdtr", content, {"case": "x"})
    convert.to_safetensors(tmp_path / "a.kdtr", tmp_path / "a.safetensors")
    got = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    assert sorted(got) == sorted(content)
    for name, want in {**SAMPLE, "nan": NAN}.items():
        assert got[name].dtype == want.dtype
        assert got[name].shape == want.shape
        assert got[name].tobytes() == want.tobytes()
    assert got["bf"].dtype == ml_dtypes.bfloat16
    assert got["bf"].tobytes() == bits.tobytes()


def test_the_safetensors_library_knows_our_types(tmp_path: Path) -> None:
    content: dict[str, Any] = {
        name: (name, np.arange(12, dtype="u1").view(dtype.storage), (96 // dtype.bits,))
        for name, dtype in dtypes.DTYPES.items()
        if dtype.bits < 128 and dtype.name not in ("bool", "u1", "u2", "u4", "i2", "i4")
        if 96 % dtype.bits == 0
    }
    container.write(tmp_path / "a.kdtr", content)
    convert.to_safetensors(tmp_path / "a.kdtr", tmp_path / "a")
    deserialize: Any = safetensors.deserialize
    got = dict(deserialize((tmp_path / "a").read_bytes()))
    assert sorted(got) == sorted(content)
    for name, (_, _, shape) in content.items():
        assert got[name]["data"] == bytes(range(12))
        if name in convert.SAFETENSORS:
            assert (got[name]["dtype"], got[name]["shape"]) == (convert.SAFETENSORS[name], [*shape])


def test_our_reader_reads_the_safetensors_library(tmp_path: Path) -> None:
    content = {**SAMPLE, "nan": NAN, "bf": np.array([1, -2], ml_dtypes.bfloat16)}
    safetensors.numpy.save_file(content, tmp_path / "a.safetensors", {"format": "np", "by": "é"})
    convert.from_safetensors(tmp_path / "a.safetensors", tmp_path / "a.kdtr")
    with container.open(tmp_path / "a.kdtr", verify="deep") as file:
        assert dict(file.meta) == {"format": "np", "by": "é"}
        assert sorted(file) == sorted(content)
        for name, want in content.items():
            assert file[name].shape == want.shape
            assert file[name].tobytes() == want.tobytes()
        assert file.tensors["bf"].dtype.name == "bf16"


def test_numpy_reads_our_npz(tmp_path: Path) -> None:
    packed = dtypes.encode(np.array([1, 2, 15]), "u4")
    content: dict[str, Any] = {**SAMPLE, "nan": NAN, "p/q": ("u4", packed, (3,))}
    container.write(tmp_path / "a.kdtr", content, {"case": "x"})
    convert.to_npz(tmp_path / "a.kdtr", tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as got:
        assert sorted(got.files) == sorted([*content, "__kdtr__.json"])
        for name, want in {**SAMPLE, "nan": NAN, "p/q": packed}.items():
            assert got[name].dtype == want.dtype
            assert got[name].shape == want.shape
            assert got[name].tobytes() == want.tobytes()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_our_reader_reads_numpys_npz(save: Callable[..., None], tmp_path: Path) -> None:
    content = {
        **SAMPLE,
        "nan": NAN,
        "fortran": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
        "big": np.arange(3, dtype=">i4"),
    }
    save(tmp_path / "a.npz", **content)
    identity = convert.from_npz(tmp_path / "a.npz", tmp_path / "a.kdtr")
    assert identity == container.loads(container.dumps(content)).identity


@BOTH
def test_payloads_start_on_64_byte_boundaries(suffix: str, tmp_path: Path) -> None:
    container.write(tmp_path / "a.kdtr", {"a": np.arange(3, dtype="u1"), "bcd": np.arange(9.0)})
    FORMATS[suffix][0](tmp_path / "a.kdtr", tmp_path / "out")
    raw = (tmp_path / "out").read_bytes()
    if suffix == "safetensors":
        assert (8 + struct.unpack_from("<Q", raw)[0]) % 64 == 0
        assert raw.find(bytes([0, 1, 2, 0])) % 64 == 0
    else:
        assert raw.find(np.arange(9.0).tobytes()) % 64 == 0
        assert raw.find(b"\x93NUMPY") % 64 == 0


@BOTH
def test_equal_content_gives_equal_exports(suffix: str, tmp_path: Path) -> None:
    outs = []
    for order in (1, -1):
        content = dict(list(SAMPLE.items())[::order])
        container.write(tmp_path / "a.kdtr", content, {"k": 1})
        FORMATS[suffix][0](tmp_path / "a.kdtr", tmp_path / f"out{order}")
        outs.append((tmp_path / f"out{order}").read_bytes())
    assert outs[0] == outs[1]


@BOTH
def test_a_damaged_source_is_refused_and_the_target_kept(suffix: str, tmp_path: Path) -> None:
    data = bytearray(container.dumps({"a": np.arange(3.0)}))
    data[512] ^= 1
    (tmp_path / "a.kdtr").write_bytes(data)
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(FormatError, match="E_TENSOR_CRC"):
        FORMATS[suffix][0](tmp_path / "a.kdtr", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"old"
    with pytest.raises(KdtrError, match="No such file"):
        FORMATS[suffix][1](tmp_path / "none", tmp_path / "out")


# --- hostile safetensors ------------------------------------------------------------------------


def safetensors_file(header: str, body: bytes = b"") -> bytes:
    raw = header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw + body


def entry(start: int, stop: int, dtype: str = "U8", shape: Any = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape or [stop - start], "data_offsets": [start, stop]}


def note(text: Any) -> bytes:
    """A file of one tensor [1] with this kdtr note."""
    header = {"__metadata__": {"kdtr": json.dumps(text)}, "a": entry(0, 1)}
    return safetensors_file(json.dumps(header), b"x")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "8 bytes or more"),
        (b"\0" * 7, "8 bytes or more"),
        (struct.pack("<Q", 1 << 63), "header length"),
        (struct.pack("<Q", 3) + b"{}", "header length"),
        (safetensors_file(""), "bad JSON"),
        (safetensors_file("[]"), "an object"),
        (safetensors_file("{" * 100_000), "bad JSON"),
        (safetensors_file("[" * 100_000), "bad JSON"),
        (safetensors_file('{"a":NaN}'), "NaN"),
        (struct.pack("<Q", 4) + b'"\xff"}', "bad JSON"),
        (safetensors_file('{"a":1,"a":1}'), "duplicate"),
        (safetensors_file('{"a":1}'), "bad entry"),
        (safetensors_file(json.dumps({"a": {**entry(0, 1), "more": 1}}), b"x"), "bad entry"),
        (safetensors_file(json.dumps({"a": entry(0, 2)}), b"x"), "bad entry"),
        (safetensors_file(json.dumps({"a": entry(1, 0, shape=[1])}), b"x"), "bad entry"),
        (safetensors_file(json.dumps({"a": entry(-1, 0)}), b"x"), "bad entry"),
        (safetensors_file(json.dumps({"a": entry(0, 1, shape=[-1])}), b"x"), "shape"),
        (safetensors_file(json.dumps({"a": entry(0, 1, shape=[1.0])}), b"x"), "shape"),
        (safetensors_file(json.dumps({"a": entry(0, 1, shape=[True])}), b"x"), "shape"),
        (safetensors_file(json.dumps({"a": entry(0, 1, shape=[1 << 60, 0])}), b"x"), "shape"),
        (safetensors_file(json.dumps({"a": entry(0, 1, shape=[2])}), b"x"), "size in bits"),
        (safetensors_file(json.dumps({"a": entry(0, 1, "F4", [1])}), b"x"), "size in bits"),
        (safetensors_file(json.dumps({"a": entry(0, 1, "Q4")}), b"x"), "unknown type, got Q4"),
        (safetensors_file(json.dumps({"a": entry(0, 2), "b": entry(1, 3)}), b"xyz"), "overlap"),
        (safetensors_file(json.dumps({"a": entry(0, 1), "b": entry(2, 3)}), b"xyz"), "gap"),
        (safetensors_file(json.dumps({"a": entry(0, 1)}), b"xy"), "after the last"),
        (safetensors_file('{"__metadata__":[]}'), "__metadata__"),
        (safetensors_file('{"__metadata__":{"k":1}}'), "__metadata__"),
        (safetensors_file(json.dumps({"../a": entry(0, 1)}), b"x"), "E_NAME_PATH"),
        (safetensors_file(json.dumps({"\ud800": entry(0, 1)}), b"x"), "E_NAME_UTF8"),
        (safetensors_file('{"__metadata__":{"date":"now"}}'), "date"),
        (note([]), "unknown kdtr note"),
        (note({"version": 2}), "unknown kdtr note"),
        (note({"version": 1, "tensors": {"b": {}}}), "not there"),
        (note({"version": 1, "tensors": {"a": []}}), "bad entry"),
        (note({"version": 1, "tensors": {"a": {"dtype": "u8", "shape": [2]}}}),
         "too short"),
        (note({"version": 1, "tensors": {"a": {"dtype": "u9", "shape": [1]}}}),
         "u9"),
        (note({"version": 1, "meta": []}), "bad metadata"),
        (note({"version": 1, "meta": {"k": ["f64", "x"]}}), "bad value"),
        (note({"version": 1, "meta": {"k": ["int", "9" * 30]}}), "bad value"),
        (note({"version": 1, "meta": {"k": ["bytes", "0"]}}), "bad value"),
    ],
)  # fmt: skip
def test_hostile_safetensors_are_refused(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(KdtrError, match=words):
        convert.from_safetensors(tmp_path / "a", tmp_path / "b")
    assert os.listdir(tmp_path) == ["a"]


def test_rename_makes_foreign_names_fit(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"date": "now", "a\nb": "x"},
        "../a\\%": entry(0, 1),
        "/": entry(1, 2),
    }
    (tmp_path / "a").write_bytes(safetensors_file(json.dumps(header), b"xy"))
    convert.from_safetensors(tmp_path / "a", tmp_path / "b", rename=True)
    file = container.open(tmp_path / "b")
    assert sorted(file) == ["%/%", "%2E%2E/a%5C%25"]
    assert dict(file.meta) == {"foreign/date": "now", "a%0Ab": "x"}


# --- hostile npz --------------------------------------------------------------------------------


def npz(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


def npy(array: Any, **kwargs: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **kwargs)
    return out.getvalue()


def bomb() -> bytes:
    """A stored member whose size says 1 TiB."""
    head = npy(np.zeros(1, "u1")).replace(b"(1,), }            ", b"(1099511627648,), }")[:128]
    raw = bytearray(npz(("a.npy", head + b"\0")))
    directory = raw.rfind(b"PK\1\2")
    raw[directory + 24 : directory + 28] = struct.pack("<I", 0xFFFFFFF0)
    return bytes(raw)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a readable npz"),
        (b"PK\5\6" + bytes(17), "not a readable npz"),
        (npy(np.zeros(3)), "not a readable npz"),
        (npz(("a.txt", b"x")), "member is no array"),
        (npz(("a.npy", b"x")), "not a readable npz"),
        (npz(("a.npy", npy(np.array([None]), allow_pickle=True))), "Python objects"),
        (npz(("a.npy", npy(np.zeros(1, "M8[s]")))), "datetime64"),
        (npz(("a.npy", npy(np.zeros(1, [("x", "f4")])))), "no KDTR type"),
        (npz(("a.npy", npy(np.zeros(3))[:-1])), "bytes in its member"),
        (npz(("a.npy", npy(np.zeros(3)) + b"\0")), "bytes in its member"),
        (npz(("a.npy", npy(np.zeros(3)).replace(b"(3,)", b"(-3)"))), "not a readable npz"),
        (npz(("../a.npy", npy(np.zeros(3)))), "E_NAME_PATH"),
        (npz(("__kdtr__.json", b"{}")), "unknown kdtr note"),
        (npz(("__kdtr__.json", b"\xff")), "bad JSON"),
        (bomb(), "impossible size"),
    ],
)
def test_hostile_npz_are_refused(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(KdtrError, match=words):
        convert.from_npz(tmp_path / "a", tmp_path / "b")
    assert os.listdir(tmp_path) == ["a"]


def test_duplicate_npz_members_are_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        data = npz(("a.npy", npy(np.zeros(1))), ("a.npy", npy(np.ones(1))))
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(KdtrError, match="occurs twice"):
        convert.from_npz(tmp_path / "a", tmp_path / "b")


@BOTH
def test_random_damage_never_escapes_as_another_exception(suffix: str, tmp_path: Path) -> None:
    container.write(
        tmp_path / "a.kdtr", {**SAMPLE, "p": ("u4", np.array([1], "u1"), (1,))}, {"k": 1}
    )
    there, back = FORMATS[suffix]
    there(tmp_path / "a.kdtr", tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    end = data.find(np.arange(1000.0).tobytes()[:64])
    rng = random.Random(1)  # noqa: S311 (damage, not secrets)
    refused = 0
    for _ in range(1_500):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 3))):
            at = rng.choice((rng.randrange(min(end, len(data))), -rng.randrange(1, 1200)))
            damaged[at] = rng.choice((damaged[at] ^ (1 << rng.randrange(8)), rng.randrange(256)))
        if rng.random() < 0.1:
            del damaged[rng.randrange(len(damaged)) :]
        (tmp_path / "x").write_bytes(damaged)
        try:
            back(tmp_path / "x", tmp_path / "b")
        except KdtrError:
            refused += 1
    assert refused > 200
