"""The package works, and gives the same bytes, on the other Pythons that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MINORS = (10, 11, 12, 13, 14, 15)
OPS = ("argmax", "merge_state", "tree_build", "rope")


def _by_pyenv(name: str) -> str | None:
    """An interpreter that pyenv keeps but does not show on PATH."""
    if shutil.which("pyenv") is None:
        return None
    listed = subprocess.run(
        ["pyenv", "versions", "--bare"], capture_output=True, text=True, check=False
    )
    for version in listed.stdout.split():
        if version.startswith(name.removeprefix("python") + "."):
            prefix = subprocess.run(
                ["pyenv", "prefix", version], capture_output=True, text=True, check=True
            )
            return str(Path(prefix.stdout.strip()) / "bin" / "python")
    return None


def others() -> dict[str, str]:
    """Name to program of each supported Python that runs here, but for the one that tests."""
    found = {}
    for minor in MINORS:
        name = f"python3.{minor}"
        program = shutil.which(name)
        works = (
            program
            and not subprocess.run([program, "-V"], capture_output=True, check=False).returncode
        )
        chosen = program if works else _by_pyenv(name)
        if chosen and minor != sys.version_info.minor:
            found[name] = chosen
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"python3.{minor}" for minor in MINORS])
def test_other_pythons_reproduce_the_goldens(name: str, tmp_path: Path) -> None:
    if name == f"python3.{sys.version_info.minor}":
        pytest.skip("the Python that runs the tests")
    program = others().get(name)
    if program is None:
        pytest.skip(f"no {name} on this machine")
    venv = tmp_path / "venv"
    subprocess.run([program, "-m", "venv", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    install = [
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "numpy>=2",
        "click>=8.1",
    ]
    subprocess.run([python, *install], check=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}

    def kdtr(*arguments: str) -> str:
        done = subprocess.run(
            [python, "-m", "kdtr", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "equal to LOCK" in kdtr("generate", "--check", *OPS)
    fixture = "goldens/tree_build@1/wide.kdtr"
    assert "parents" in kdtr("inspect", fixture, "--names")
    assert kdtr("validate", "--deep", fixture).endswith("OK\n")
    assert kdtr("diff", fixture, fixture).startswith("identical")
    out = tmp_path / "wide.safetensors"
    kdtr("convert", fixture, str(out))
    kdtr("convert", str(out), str(tmp_path / "back.kdtr"))
    assert (tmp_path / "back.kdtr").read_bytes() == (ROOT / fixture).read_bytes()
