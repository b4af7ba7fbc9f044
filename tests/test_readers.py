"""Readers in other languages give the documented code on every hostile file."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from kdtr import container
from kdtr.errors import FormatError
from malformed.generate import CASES
from malformed.mutate import mutants

READERS = Path(__file__).resolve().parent.parent / "readers"
MUTATIONS = 10_000


def _javascript(_: Path) -> list[str]:
    return ["node", str(READERS / "js" / "validate.mjs")]


def _rust(folder: Path) -> list[str]:
    build = ["cargo", "build", "--release", "--offline", "--quiet", "--target-dir", str(folder)]
    subprocess.run([*build, "--manifest-path", str(READERS / "rust" / "Cargo.toml")], check=True)
    return [str(folder / "release" / "kdtr-validate")]


@pytest.fixture(scope="module", params=["node", "cargo"])
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param} on this machine")
    make = {"node": _javascript, "cargo": _rust}[request.param]
    return make(tmp_path_factory.mktemp(request.param))


def _codes(reader: list[str], files: list[bytes]) -> list[str]:
    stream = b"".join(struct.pack("<I", len(f)) + f for f in files)
    done = subprocess.run([*reader, "--stream"], input=stream, capture_output=True, check=True)
    return done.stdout.decode().split()


def test_hostile_corpus(reader: list[str]) -> None:
    got = _codes(reader, [case.data for case in CASES])
    want = [case.code for case in CASES]
    wrong = {c.name: (w, g) for c, w, g in zip(CASES, want, got, strict=True) if w != g}
    assert wrong == {}


def _python(file: bytes) -> str:
    try:
        container.validate(file, deep=True)
    except FormatError as error:
        return error.code
    return "OK"


@pytest.mark.slow
def test_random_damage_gets_the_code_that_python_gives(reader: list[str]) -> None:
    files = list(mutants(20261, MUTATIONS))
    got = _codes(reader, files)
    pairs = zip((_python(f) for f in files), got, strict=True)
    assert [(i, w, g) for i, (w, g) in enumerate(pairs) if w != g] == []


def test_file_arguments_print_path_and_code(reader: list[str], tmp_path: Path) -> None:
    good, bad = tmp_path / "good.kdtr", tmp_path / "bad.kdtr"
    container.write(good, {}, {}, {})
    bad.write_bytes(b"")
    done = subprocess.run([*reader, str(good), str(bad)], capture_output=True, check=False)
    assert done.stdout.decode() == f"{good}\tOK\n{bad}\tE_TRUNCATED\n"
    assert done.returncode == 1
