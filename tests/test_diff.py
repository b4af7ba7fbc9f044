"""`kdtr.diff` says what differs, where, by how much, and why."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdtr import container, diff_report, dtypes
from kdtr.diff import FileDiff, Tolerance, diff, ulp_distance
from kdtr.errors import FormatError

RAMP = np.arange(1, 25, dtype=np.float32).reshape(4, 6)


def compare(
    folder: Path, want: dict[str, Any], got: dict[str, Any], tolerance: Tolerance | None = None
) -> FileDiff:
    container.write(folder / "want.kdtr", want, {}, {})
    container.write(folder / "got.kdtr", got, {}, {})
    with container.open(folder / "want.kdtr") as a, container.open(folder / "got.kdtr") as b:
        return diff(a, b, tolerance)


def test_equal_files_are_identical(tmp_path: Path) -> None:
    outcome = compare(tmp_path, {"x": RAMP}, {"x": RAMP.copy()})
    assert outcome.identical
    assert outcome.exit_code == 0


@pytest.mark.parametrize("other", [{}, {"y": np.zeros(3)}], ids=["same root", "other root"])
def test_a_copy_with_a_flipped_payload_bit_is_refused(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    container.write(tmp_path / "want.kdtr", {"x": RAMP}, {}, {})
    container.write(tmp_path / "got.kdtr", {"x": RAMP, **other}, {}, {})
    with container.open(tmp_path / "got.kdtr") as file:
        at = file.info("x").offset
    damaged = bytearray((tmp_path / "got.kdtr").read_bytes())
    damaged[at] ^= 1
    (tmp_path / "got.kdtr").write_bytes(damaged)
    with (
        container.open(tmp_path / "want.kdtr") as a,
        container.open(tmp_path / "got.kdtr") as b,
        pytest.raises(FormatError, match="E_TENSOR_CRC: tensor 'x'"),
    ):
        diff(a, b)


def test_two_fixtures_are_compared_by_bits(tmp_path: Path) -> None:
    meta = {"kdtr.profile": "fixture/1"}
    hard = np.full(24, 1.0, np.float32).reshape(4, 6)
    for name, x in (("want", RAMP), ("got", RAMP + np.float32(0.5))):
        container.write(tmp_path / f"{name}.kdtr", {"x": x, "x/hard": hard}, meta, {})
    with (
        container.open(tmp_path / "want.kdtr") as a,
        container.open(tmp_path / "got.kdtr") as b,
    ):
        assert diff(a, b).exit_code == 1


def test_what_a_tolerance_lets_pass_is_counted_and_shown(tmp_path: Path) -> None:
    got = RAMP.copy()
    got[2, 3] += np.float32(0.25)
    got[0, 1] += np.float32(0.125)
    outcome = compare(tmp_path, {"x": RAMP}, {"x": got}, Tolerance(atol=0.5))
    (tensor,) = outcome.tensors
    assert (tensor.verdict, tensor.mismatches, tensor.within) == ("within", 0, 2)
    assert tensor.worst is not None
    assert tensor.worst.index == [2, 3]
    text = "\n".join(diff_report.lines(outcome))
    assert "0 of 24 differ (0 %), 2 within tolerance" in text
    assert "worst [2, 3]: want 16.0" in text


def test_one_changed_element_is_named_with_both_bit_patterns(tmp_path: Path) -> None:
    got = RAMP.copy()
    got[2, 3] = np.nextafter(got[2, 3], np.float32(np.inf))  # 16 -> 16 + 2^-19
    outcome = compare(tmp_path, {"x": RAMP}, {"x": got})
    (tensor,) = outcome.tensors
    assert outcome.exit_code == 1
    assert tensor.first is not None
    assert (tensor.mismatches, tensor.first.index, tensor.first.ulp) == (1, [2, 3], 1.0)
    assert (tensor.first.want_bits, tensor.first.got_bits) == ("0x41800000", "0x41800001")
    assert tensor.smallest == {"atol": 2.0**-19, "ulp": 1.0}
    assert tensor.where == ["all in axis 0, index 2", "all in axis 1, index 3"]


def test_signed_zero_differs_in_bits_and_not_in_value(tmp_path: Path) -> None:
    want, got = {"x": np.array([0.0, 1.0])}, {"x": np.array([-0.0, 1.0])}
    assert compare(tmp_path, want, got).exit_code == 1
    assert compare(tmp_path, want, got, Tolerance(values=True)).exit_code == 0


def test_nan_never_passes_a_tolerance(tmp_path: Path) -> None:
    want, got = {"x": np.array([1.0])}, {"x": np.array([np.nan])}
    assert compare(tmp_path, want, got, Tolerance(atol=np.inf)).exit_code == 1


def test_shape_and_dtype_are_not_comparable(tmp_path: Path) -> None:
    outcome = compare(tmp_path, {"x": RAMP, "y": RAMP}, {"x": RAMP.T, "y": RAMP.astype(np.float64)})
    assert outcome.exit_code == 2
    assert [t.reason for t in outcome.tensors] == [
        "shape, want [4, 6], got [6, 4]",
        "dtype, want f32, got f64",
    ]


def test_a_renamed_tensor_is_found_by_its_digest(tmp_path: Path) -> None:
    outcome = compare(tmp_path, {"x": RAMP, "z": RAMP + 1}, {"y": RAMP, "z": RAMP + 1})
    assert outcome.renamed == [("x", "y")]
    assert outcome.exit_code == 1


SPECIMEN = (np.sin(np.arange(240.0)) * 3).astype(np.float32).reshape(4, 6, 10)
MISTAKES = {
    "got is all zeros: the output was not written": np.zeros_like(SPECIMEN),
    "everything from element 200 on is zero or NaN: the tail was not written": np.where(
        np.arange(240).reshape(SPECIMEN.shape) < 200, SPECIMEN, np.float32(0)
    ),
    "shifted by +1 element": np.roll(SPECIMEN.reshape(-1), 1).reshape(SPECIMEN.shape),
    "axis 1 reversed": SPECIMEN[:, ::-1].copy(),
    "rows 1 and 3 of axis 0 swapped": SPECIMEN[[0, 3, 2, 1]],
    "sign flipped": -SPECIMEN,
    "rounded to bf16": dtypes.round_to(SPECIMEN, "bf16").astype(np.float32),
    "rounded to f16": SPECIMEN.astype(np.float16).astype(np.float32),
    "constant factor 3": SPECIMEN * np.float32(3),
    "constant offset 7": SPECIMEN + np.float32(7),
    "byte order swapped": SPECIMEN.byteswap(),
}


@pytest.mark.parametrize("why", MISTAKES)
def test_the_mistake_is_named(tmp_path: Path, why: str) -> None:
    outcome = compare(tmp_path, {"x": SPECIMEN}, {"x": MISTAKES[why]})
    same_digits = ["rounded to tf32"] if why == "rounded to f16" else []
    assert outcome.tensors[0].why == [why, *same_digits]


def test_base_two_logarithms_are_named(tmp_path: Path) -> None:
    got = (SPECIMEN * np.float64(1.4426950408889634)).astype(np.float32)
    (tensor,) = compare(tmp_path, {"lse": SPECIMEN}, {"lse": got}).tensors
    assert any("logarithm in base 2 instead of e" in line for line in tensor.why)


def test_square_transpose_and_nibble_order_are_named(tmp_path: Path) -> None:
    square = np.arange(16.0).reshape(4, 4)
    codes = np.arange(16, dtype=np.uint8)
    swapped = codes.reshape(-1, 2)[:, ::-1].reshape(-1)
    want = {"m": square, "q": ("u4", dtypes.encode(codes, "u4"), (16,))}
    got = {"m": square.T.copy(), "q": ("u4", dtypes.encode(swapped, "u4"), (16,))}
    m, q = compare(tmp_path, want, got).tensors
    assert m.why == ["axes 0 and 1 transposed"]
    assert q.why == ["nibbles of each byte swapped"]


def test_integers_have_a_difference_and_floats_have_ulps(tmp_path: Path) -> None:
    want = {"i": np.array([3, 5], np.int32), "b": np.array([True]), "x": np.array([1.0])}
    got = {"i": np.array([3, 9], np.int32), "b": np.array([False]), "x": np.array([2.0])}
    outcome = compare(tmp_path, want, got)
    text = {t.name: "\n".join(diff_report._tensor_lines(t)) for t in outcome.tensors}
    assert [name for name in text if "ulp" in text[name]] == ["x"]
    assert "got 9 (0x00000009), 4 apart" in text["i"]
    rows = [line for line in diff_report.markdown(outcome).splitlines() if line.startswith("| `")]
    assert [row.split("|")[6].strip() == "" for row in rows] == [True, True, False]
    assert diff_report.page(outcome).count("<caption>differences") == 2


@pytest.mark.parametrize(("dtype", "step"), [("f8_e4m3fnuz", 0.125), ("f8_e8m0fnu", 1.0)])
def test_ulp_is_a_step_of_every_float_type(dtype: str, step: float) -> None:
    assert ulp_distance(np.array([1.0]), np.array([1.0 + step]), dtype).tolist() == [1.0]


def test_ulp_is_measured_on_the_expected_grid() -> None:
    want = np.array([1.0, 2.0**-126, 0.0, 256.0])
    got = np.array([1.0 + 2.0**-7, 2.0**-126 + 2.0**-133, 2.0**-133, 258.0])
    assert ulp_distance(want, got, "bf16").tolist() == [1.0, 1.0, 1.0, 1.0]
    assert ulp_distance(want[:1], got[:1], "f32").tolist() == [65536.0]


def test_a_fixture_is_judged_by_its_own_budgets(tmp_path: Path) -> None:
    gold = np.array([1.0, 2.0, 3.0])
    hard = np.array([0.5, 0.5, 0.5], np.float32)
    meta = {"kdtr.profile": "fixture/1", "op": "x@1"}
    own = {"out": {"actual.dtype": "f32", "role": "expected", "class": "B"}}
    container.write(tmp_path / "w.kdtr", {"out": gold, "out/hard": hard}, meta, own)
    for value, code in ((3.5, 0), (3.75, 1)):
        got = np.array([1.0, 2.0, value], np.float32)
        container.write(tmp_path / "g.kdtr", {"out": got}, {**meta, "engine": "mine"}, {})
        with container.open(tmp_path / "w.kdtr") as a, container.open(tmp_path / "g.kdtr") as b:
            outcome = diff(a, b)
        assert outcome.exit_code == code
        assert outcome.tensors[0].worst_over_budget == (value - 3.0) / 0.5


def test_chunks_do_not_change_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = SPECIMEN.copy()
    got[1, 2, 3] += 1
    got[3, 5, 9] -= 2
    whole = compare(tmp_path, {"x": SPECIMEN}, {"x": got}).tensors[0]
    monkeypatch.setattr("kdtr.diff.CHUNK", 16)
    parts = compare(tmp_path, {"x": SPECIMEN}, {"x": got}).tensors[0]
    assert parts.worst is not None
    assert parts.worst.index == [3, 5, 9]
    assert (parts.mismatches, parts.max_abs, parts.where) == (2, whole.max_abs, whole.where)


def test_the_report_names_the_place_and_the_cause(tmp_path: Path) -> None:
    outcome = compare(tmp_path, {"x": SPECIMEN}, {"x": SPECIMEN[[0, 3, 2, 1]]})
    text = "\n".join(diff_report.lines(outcome))
    assert "why: rows 1 and 3 of axis 0 swapped" in text
    assert "0 equal, 0 within tolerance, 1 different" in text
    assert "rows 1 and 3" in diff_report.markdown(outcome)
    assert next(iter(diff_report.github(outcome))).startswith("::error file=")


def test_the_page_escapes_names_and_holds_the_data(tmp_path: Path) -> None:
    name = "<script>x"
    got = SPECIMEN.copy()
    got[0, 0, 0] = 9
    page = diff_report.page(compare(tmp_path, {name: SPECIMEN}, {name: got}))
    assert "<script>x" not in page
    assert "data:image/png;base64," in page


def test_the_heat_map_is_a_png_of_the_stated_size() -> None:
    image = diff_report.png([[0, 1, 2], [3, 0, 0]], scale=4)
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">2I", image[16:24]) == (12, 8)
    size = int.from_bytes(image[33:37], "big")
    assert len(zlib.decompress(image[41 : 41 + size])) == 8 * (1 + 3 * 12)


def test_an_axis_too_long_to_count_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdtr.diff.LONG", 8)
    got = SPECIMEN.copy()  # [4, 6, 10]: the last axis is too long
    got[2, 5, 9] += 1
    (tensor,) = compare(tmp_path, {"x": SPECIMEN}, {"x": got}).tensors
    assert tensor.where == ["all in axis 0, index 2", "all in axis 1, index 5 (the last)"]
