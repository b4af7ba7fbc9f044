"""The command line: what it prints, its one-line errors and its exit codes."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from kdtr import container, engine, goldens
from kdtr.cli import cli

ROOT = Path(__file__).resolve().parent.parent


def kdtr(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.kdtr"
    container.write(
        path,
        {
            "out/y": np.array([[1.5, np.nan, -0.0], [np.inf, 1e-45, 2.0]], np.float32),
            "ids": np.array([3, 3, 7], np.int32),
            "h": ("bf16", np.array([0x3F80, 0xC000], np.uint16)),
            "u": ("u4", np.array([0x21, 0x0F], np.uint8), (3,)),
            "bell\u202e": np.array(True),
        },
        {"op": "toy@1", "text": "a\x1b[31mb", "n": 3},
        {"ids": {"role": "input"}},
    )
    return path


def test_module_runs_as_a_program() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "kdtr", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    commands = ["certify", "convert", "diff", "generate", "inspect", "list", "validate"]
    assert all(f"\n  {name} " in run.stdout for name in commands)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (MemoryError(), 2, "error: not enough memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device", "x"), 2, "error: x: No space left on device"),
    ],
)
def test_what_stops_a_command_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def stop(*_: object) -> None:
        raise error

    monkeypatch.setattr("kdtr.textconv.lines", stop)
    result = kdtr("textconv", "x.kdtr")
    assert (result.exit_code, result.stderr) == (code, said + "\n")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("inspect PATH", "/dev/zero"),
        ("inspect PATH", "pipe"),
        ("textconv PATH", "pipe"),
        ("validate PATH", "pipe"),
        ("convert PATH out.npz", "a.kdtr"),
        ("diff PATH PATH", "pipe"),
        ("verify PATH", "pipe"),
        pytest.param(
            "decode --prompt-ids 1 --model FOLDER", "model.safetensors", marks=pytest.mark.engine
        ),
    ],
)
def test_what_has_no_end_is_refused_at_once(tmp_path: Path, command: str, name: str) -> None:
    path = tmp_path / name  # an absolute name stays what it is
    if not path.exists():
        os.mkfifo(path)
    places = {"PATH": str(path), "FOLDER": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "kdtr", *(places.get(word, word) for word in command.split())],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)),
    )
    want = f"error: {path}: cannot be read twice, want a file, got a pipe or a device\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", want)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--help", "--version", "describe argmax"])
def test_a_full_disk_is_one_line(words: str, unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kdtr", *words.split()],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=-1,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, "error: No space left on device\n")


def test_an_interrupt_while_python_still_loads_is_no_traceback() -> None:
    program = (
        "import runpy, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'click':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "runpy.run_module('kdtr', run_name='__main__')\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, stderr=-1, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_help_imports_no_numpy() -> None:
    program = "import sys; from kdtr.cli import cli; cli(['--help'], standalone_mode=False); "
    program += "sys.exit('numpy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert run.returncode == 0


def test_inspect_shows_statistics(file: Path) -> None:
    result = kdtr("inspect", file)
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines()[3:]}
    # Of the finite values 1.5, -0, 2^-149 and 2: mean 0.875, std sqrt(0.796875).
    assert rows["out/y"][:8] == ["out/y", "f32", "2x3", "24", "-0", "2", "0.875", "0.892679"]
    assert rows["ids"][:5] == ["ids", "i32", "3", "12", "input"]
    assert rows["u"][:4] == ["u", "u4", "3", "2"]


def test_inspect_json_counts_what_is_special(file: Path) -> None:
    shown = json.loads(kdtr("inspect", "--json", file).stdout)
    tensors = {t["name"]: t for t in shown["tensors"]}
    stats = tensors["out/y"]["stats"]
    assert {k: stats[k] for k in ("nan", "inf", "subnormal", "zero")} == {
        "nan": 1,
        "inf": 1,
        "subnormal": 1,
        "zero": 1,
    }
    assert (stats["low"], stats["high"]) == (0.0, 2.0)
    assert tensors["ids"]["stats"]["distinct"] == [3, 7]
    assert (tensors["h"]["stats"]["low"], tensors["h"]["stats"]["high"]) == (-2.0, 1.0)
    assert shown["meta"]["n"] == 3
    assert shown["identity"] == container.open(file).identity


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["out/y"], ["[0]   1.5   nan  -0.0", "[1]   inf 1e-45   2.0"]),
        (["out/y[1, ::2]"], ["inf 2.0"]),
        (["out/y[..., -1]"], ["-0.0  2.0"]),
        (["out/y[0]", "--format", "hex"], ["0x3fc00000 0x7fc00000 0x80000000"]),
        (["h", "--format", "bits"], ["0011111110000000 1100000000000000"]),
        (["h", "--format", "float"], [" 0x1.0000000000000p+0 -0x1.0000000000000p+1"]),
        (["u"], [" 1  2 15"]),
        (["ids[2]"], ["7"]),
    ],
)
def test_inspect_slices(file: Path, arguments: list[str], lines: list[str]) -> None:
    result = kdtr("inspect", file, *arguments)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == lines


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ("none", "E_NOT_FOUND: no such tensor, want bell"),
        ("ids[9]", "index does not fit, want shape [3], got ids[9]"),
        ("ids[::0]", "index does not fit, want shape [3], got ids[::0]"),
        ("ids[0", "slice, want NAME[index"),
        ("ids[a]", "index, want an integer, a:b:c or ..., got 'a'"),
    ],
)
def test_inspect_says_what_is_wrong_with_a_slice(file: Path, tensor: str, message: str) -> None:
    result = kdtr("inspect", file, tensor)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_inspect_hex_gives_offset_bytes_and_values(file: Path) -> None:
    lines = kdtr("inspect", file, "ids", "--hex").stdout.splitlines()
    offset = container.open(file).info("ids").offset
    assert lines == [
        f"{offset:08x}           [0]  03 00 00 00 03 00 00 00 07 00 00 00              3 3 7"
    ]


def test_inspect_meta_and_names_are_safe_on_a_terminal(file: Path) -> None:
    meta = kdtr("inspect", "--meta", file).stdout
    assert "file: text = a\\x1b[31mb" in meta
    assert "ids: role = input" in meta
    names = kdtr("inspect", "--names", file).stdout.splitlines()
    assert names == ["bell\\u202e", "h", "ids", "out/y", "u"]


def test_inspect_of_a_damaged_file_lists_its_faults(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[container.open(file).info("ids").offset] ^= 1
    file.write_bytes(data)
    assert kdtr("inspect", "--names", file).exit_code == 0
    result = kdtr("inspect", "--verify", "--names", file)
    assert result.exit_code == 2
    codes = [line.split(": ")[2] for line in result.stderr.splitlines()]
    assert codes == ["E_TENSOR_CRC", "E_TENSOR_DIGEST"]


def test_validate_prints_one_line_a_file(file: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.kdtr"
    bad.write_bytes(b"")
    good = kdtr("validate", file)
    assert (good.exit_code, good.stdout) == (0, f"{file} OK\n")
    both = kdtr("validate", file, bad, tmp_path / "none.kdtr")
    assert both.exit_code == 1
    assert both.stdout.splitlines() == [
        f"{file} OK",
        f"{bad} E_TRUNCATED",
        f"{tmp_path / 'none.kdtr'} E_IO",
    ]


def test_validate_deep_finds_a_wrong_digest(file: Path) -> None:
    import struct
    import zlib

    data = bytearray(file.read_bytes())
    data[128 + 96] ^= 1  # SHA-256 of the first tensor; then both seals over the index
    end = 128 + sum(
        n * k for n, k in zip(struct.unpack("<III", data[56:68]), (128, 24, 1), strict=True)
    )
    data[12:16] = struct.pack("<I", zlib.crc32(data[16:end]))
    file.write_bytes(data)
    assert kdtr("validate", file).stdout == f"{file} OK\n"
    deep = kdtr("validate", "--deep", file)
    assert (deep.exit_code, deep.stdout) == (1, f"{file} E_TENSOR_DIGEST\n")


def test_list_names_cases_and_what_they_catch(toy: Path) -> None:
    assert not list(toy.iterdir())
    lines = kdtr("list", "toy").stdout.splitlines()
    assert lines[1:] == [
        "  plain: a lost factor",
        "  half: a lost factor",
        "  large (full): a lost factor",
    ]
    listed = json.loads(kdtr("list", "toy", "--json").stdout)
    assert [(one["op"], one["case"], one["tier"]) for one in listed] == [
        ("toy@1", "plain", "small"),
        ("toy@1", "half", "small"),
        ("toy@1", "large", "full"),
    ]


def test_generate_then_check(toy: Path) -> None:
    made = kdtr("generate", "toy", "--tier", "full")
    assert made.exit_code == 0
    assert made.stdout.splitlines() == [
        "new toy@1/plain",
        "new toy@1/half",
        "new toy@1/large",
        "3 fixtures made, 3 new, 0 changed",
    ]
    assert kdtr("generate", "toy").stdout == "2 fixtures made, 0 new, 0 changed\n"
    assert kdtr("generate", "toy", "--check").stdout == "2 fixtures equal to LOCK\n"
    (toy / "toy@1" / "plain.kdtr").unlink()
    gone = kdtr("generate", "toy", "--check")
    assert gone.exit_code == 1
    assert len(gone.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["list", "nothing"], 2, "error: nothing: no such op, want "),
        (["list", "tree_build@99"], 2, "error: tree_build@99: no such version, want tree_build@"),
        (["inspect", "none.kdtr"], 2, "error: none.kdtr: E_IO: No such file"),
        (["generate", "--check", "--amend"], 2, "leave out --out and --amend"),
        (["check", "--engine", "cpu", "--timeout", "nan"], 2, "nan is not a finite number"),
        (["certify", "--engine", "cpu", "--timeout", "1e300"], 2, "1e+300 is not in the range"),
        (["bench", "memory", "--config", "x", "--card-gib", "inf"], 2, "inf is not in the range"),
        (["certify", "--engine", "cpu", "--case", "no_such_case"], 2, "error: certify: "),
    ],
)
def test_errors_are_one_line(arguments: list[str], code: int, message: str) -> None:
    result = kdtr(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.engine
def test_certify_judges_the_cpu_engine(tmp_path: Path) -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "kdtr", "certify", "--engine", "cpu", "--ops", "tree_build"),
            *("--case", "wide", "--out", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 PASS" in run.stdout
    assert (tmp_path / "cpu" / "certificate.json").exists()


@pytest.mark.engine
def test_an_installed_kdtr_says_where_it_makes_fixtures(tmp_path: Path) -> None:
    site, folder, other = tmp_path / "site", tmp_path / "work", tmp_path / "other"
    shutil.copytree(ROOT / "kdtr", site / "kdtr", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "kdtr" / "data").mkdir()
    shutil.copy(goldens.LOCK, site / "kdtr" / "data")
    folder.mkdir()

    def said(**more: str) -> str:
        words = ["support", "--engine", "cpu", "--ops", "argmax", "--case", "ties"]
        run = subprocess.run(
            [sys.executable, "-m", "kdtr", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(site), "KDTR_BIN": str(engine.folder()), **more},
            capture_output=True,
            text=True,
            check=True,
        )
        return run.stderr

    line = f"making 1 fixture in {folder}/goldens (KDTR_GOLDENS names another folder)\n"
    assert said() == line
    assert said() == ""
    assert (folder / "goldens" / "argmax@1" / "ties.kdtr").exists()
    assert said(KDTR_GOLDENS="") == ""
    assert said(KDTR_GOLDENS=str(other)) == line.replace(f"{folder}/goldens", str(other))
    assert (other / "argmax@1" / "ties.kdtr").exists()


@pytest.mark.engine
def test_certify_fails_for_a_planted_fault() -> None:
    fixture = str(goldens.HOME / "tree_build@1")
    run = subprocess.run(
        [
            *(sys.executable, "-c", "from kdtr.engine import exec_conform; exec_conform()"),
            *("run", "--engine", engine.resolve("mutants:tree_build@1:insertion_order_ties")),
            fixture,
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "FAIL" in run.stdout
