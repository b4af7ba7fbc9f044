"""`kdtr inspect` and `kdtr diff` on other formats, folders, damaged files, and as bars."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from kdtr import container, convert, file_map, inspection
from kdtr.cli import cli
from kdtr.errors import KdtrError

X = np.array([[0.5, -2.0, 3.0], [1e-40, math.inf, math.nan]], np.float32)


def kdtr(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.kdtr"
    container.write(path, {"x": X, "ids": np.array([3, 1, 3], np.int32)}, {"case": "one"})
    return path


@pytest.fixture(params=[".kdtr", ".npz", ".safetensors", ".npy"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """One tensor in every format; `array`, for npy has no names."""
    plain, path = tmp_path / "plain.kdtr", tmp_path / f"b{request.param}"
    container.write(plain, {"array": X})
    if request.param == ".npy":
        np.save(path, X)
    elif request.param == ".kdtr":
        path = plain
    else:
        convert.convert(plain, path)
    return path


# --- other formats ------------------------------------------------------------------------------


def test_every_format_is_shown_alike(other: Path) -> None:
    shown = kdtr("inspect", other)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[0].startswith(f"{other}  kdtr1:")
    assert "array  f32    2x3       24   -2    3" in shown.stdout
    assert kdtr("inspect", other, "array[0]").stdout.split() == ["0.5", "-2.0", "3.0"]


def test_every_format_is_compared_with_every_other(other: Path, tmp_path: Path) -> None:
    changed = X.copy()
    changed[0, 1] = np.nextafter(changed[0, 1], np.float32(0))
    np.save(tmp_path / "changed.npy", changed)
    same, differs = tmp_path / "same.kdtr", kdtr("diff", other, tmp_path / "changed.npy")
    container.write(same, {"array": X})
    assert kdtr("diff", other, same).exit_code == 0
    assert differs.exit_code == 1
    assert (
        "first [0, 1]: want -2.0 (0xc0000000), got -1.9999998807907104 (0xbfffffff), 0.5 ulp"
        in (differs.stdout)
    )


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors"])
def test_a_damaged_foreign_file_is_one_line(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(b"\x93NUMPY but no more")
    for command in (("inspect", path), ("diff", path, path)):
        done = kdtr(*command)
        assert done.exit_code == 2
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1


def test_an_npy_of_objects_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], object))
    with pytest.raises(KdtrError, match="npy"):
        convert.from_npy(tmp_path / "o.npy", tmp_path / "o.kdtr")


def test_npy_in_other_orders_and_ranks(tmp_path: Path) -> None:
    for array in (np.asfortranarray(X), X.astype(">f4"), np.float32(0.5).reshape(())):
        np.save(tmp_path / "a.npy", array)
        convert.from_npy(tmp_path / "a.npy", tmp_path / "a.kdtr")
        with container.open(tmp_path / "a.kdtr") as read:
            want = np.ascontiguousarray(array, "<f4").reshape(array.shape)
            assert read["array"].tobytes() == want.tobytes()
            assert read["array"].shape == array.shape


def test_integers_beyond_f64_keep_their_digits_in_a_diff(tmp_path: Path) -> None:
    container.write(tmp_path / "a.kdtr", {"x": np.array([2**60 + 1, -1], np.int64)})
    container.write(tmp_path / "b.kdtr", {"x": np.array([2**60 + 3, -1], np.int64)})
    text = kdtr("diff", tmp_path / "a.kdtr", tmp_path / "b.kdtr").stdout
    assert f"want {2**60 + 1} (" in text
    assert f"got {2**60 + 3} (" in text


# --- folders ------------------------------------------------------------------------------------


def test_a_folder_is_a_line_a_file_and_damage_is_seen(file: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    np.savez(tmp_path / "sub/n.npz", x=X)
    (tmp_path / "sub/bad.kdtr").write_bytes(b"KDTR")
    (tmp_path / "ignored.txt").write_text("x")
    done = kdtr("inspect", tmp_path)
    assert done.exit_code == 1
    rows = [line.split() for line in done.stdout.splitlines()]
    with container.open(file) as opened:
        identity = opened.identity[6:18]
    assert rows[1] == ["a.kdtr", identity, "2", str(file.stat().st_size), "one"]
    assert rows[2][:2] == ["sub/bad.kdtr", "DAMAGED"]
    assert rows[2][-1] == "E_TRUNCATED"
    assert rows[3][0] == "sub/n.npz"
    assert len(rows) == 4
    (tmp_path / "sub/bad.kdtr").unlink()
    assert kdtr("inspect", tmp_path).exit_code == 0


@pytest.mark.parametrize("option", ["x", "--json", "--meta", "--names", "--identity", "--map"])
def test_what_a_folder_cannot_answer_is_refused(file: Path, option: str) -> None:
    done = kdtr("inspect", file.parent, option)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "a folder gives a line a file: name one in" in done.stderr


def test_a_folder_without_files_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "ignored.txt").write_text("x")
    done = kdtr("inspect", tmp_path)
    want = f"{tmp_path}: no file to inspect is in the folder, want .kdtr .npz .npy .safetensors"
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"error: {want}\n")


# --- maps and damage ----------------------------------------------------------------------------


def test_the_map_covers_every_byte_once(file: Path) -> None:
    data = file.read_bytes()
    found = file_map.regions(data)
    assert [r.start for r in found[1:]] == [r.stop for r in found[:-1]]
    assert (found[0].start, found[-1].stop) == (0, len(data))
    assert {r.state for r in found} == {"ok"}
    with container.open(file) as opened:
        for name, info in opened.tensors.items():
            (region,) = (r for r in found if r.what.startswith(f"{name} "))
            assert (region.start, region.stop) == (info.offset, info.offset + info.nbytes)


@pytest.mark.parametrize("name", ["x", "ids"])
def test_a_broken_payload_is_marked_and_the_other_is_not(file: Path, name: str) -> None:
    data = bytearray(file.read_bytes())
    data[container.open(file).info(name).offset] ^= 1
    states = {r.what.split()[0]: r.state for r in file_map.regions(bytes(data))}
    assert states[name] == "E_TENSOR_CRC"
    assert states["ids" if name == "x" else "x"] == "ok"


def test_a_cut_file_shows_what_is_left(file: Path) -> None:
    with container.open(file) as opened:
        data = file.read_bytes()[: opened.info("x").offset]
    found = {r.what.split()[0]: r.state for r in file_map.regions(data)}
    assert "E_TRUNCATED" in found["header:"]
    assert found["ids"] == "ok"
    assert found["x"] == "MISSING"
    file.write_bytes(data)
    done = kdtr("inspect", file)
    assert done.exit_code == 2
    assert "MISSING           x f32[2, 3]" in done.stdout
    assert "E_TRUNCATED" in done.stderr


@pytest.mark.parametrize(
    "damage",
    [b"", b"KDTR", bytes(300), b"KDTR\r\n\x1a\n\1\0\0\0" + b"\xff" * 300],
)
def test_the_map_of_nonsense_ends(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.kdtr").write_bytes(damage)
    done = kdtr("inspect", "--map", tmp_path / "bad.kdtr")
    assert done.exit_code == 2
    assert done.stdout.count("\n") < 10


def test_the_first_twenty_errors_or_all(tmp_path: Path) -> None:
    path = tmp_path / "many.kdtr"
    container.write(path, {f"t{i:02}": np.arange(i + 1) for i in range(30)})
    data = bytearray(path.read_bytes())
    with container.open(path) as file:
        for info in file.tensors.values():
            data[info.offset] ^= 255
    path.write_bytes(data)
    few = kdtr("inspect", "--verify", path).stderr.splitlines()
    assert len(few) == 21
    assert few[-1] == "40 more: --all-errors"
    every = kdtr("inspect", "--all-errors", path)
    assert len(every.stderr.splitlines()) == 60  # a CRC and a digest each
    assert every.exit_code == 2


# --- histograms ---------------------------------------------------------------------------------


def bars(file: Path, name: str) -> list[list[str]]:
    with container.open(file) as opened:
        return [line.split() for line in inspection.histogram(opened, name, bins=4, width=8)]


def test_few_integers_are_counted_one_by_one(file: Path) -> None:
    assert bars(file, "ids") == [["1", "1", "####"], ["3", "2", "########"]]


def test_floats_fall_into_equal_bins_and_specials_apart(file: Path) -> None:
    # -2, 0, 0.5 and 3 in bins that start at -2, -0.75, 0.5 and 1.75.
    assert bars(file, "x") == [
        ["-2", "1", "########"],
        ["-0.75", "1", "########"],
        ["0.5", "1", "########"],
        ["1.75", "1", "########"],
        ["+inf", "1", "########"],
        ["nan", "1", "########"],
    ]


def test_extremes_do_not_overflow_a_histogram(tmp_path: Path) -> None:
    top = np.finfo(np.float64).max
    container.write(tmp_path / "a.kdtr", {"x": np.array([-top, 0.0, top]), "e": np.zeros((0, 2))})
    assert [row[1] for row in bars(tmp_path / "a.kdtr", "x")] == ["1", "0", "1", "1"]
    assert bars(tmp_path / "a.kdtr", "e") == []


def test_a_histogram_needs_a_tensor(file: Path) -> None:
    done = kdtr("inspect", "--histogram", file)
    assert done.exit_code == 2
    assert "needs a TENSOR" in done.stderr
    assert kdtr("inspect", "--histogram", file, "ids").stdout.startswith("1          1  ####")
