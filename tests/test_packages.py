"""The sdist and the wheel build offline from what is in git, and the wheel is complete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from test_docs import follow

from kdtr import __version__

ROOT = Path(__file__).resolve().parent.parent


def test_the_version_is_written_once() -> None:
    """What cannot read it from the package repeats it, and is held to it here."""
    cargo = (ROOT / "readers/rust/Cargo.toml").read_text()
    assert f'version = "{__version__}"' in cargo
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


def run(folder: Path, *command: str | Path, **environment: str) -> str:
    """Run without a network for pip, and without this source tree or its build in the way."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "KDTR_BIN")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**clean, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the sdist of a clean copy."""
    folder = tmp_path_factory.mktemp("packages")
    clone = folder / "clone"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    make = "from scikit_build_core.build import build_sdist; print(build_sdist('../dist'))"
    run(clone, sys.executable, "-c", make)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    assert sdist.name == f"kdtr-{__version__}.tar.gz"
    build = ["-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", "dist"]
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2")
    run(
        folder,
        *(sys.executable, *build, str(sdist), "-C", "cmake.define.KDTR_CUDA=OFF"),
        *("-C", "cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"),  # as certain, and sooner
        CMAKE_BUILD_PARALLEL_LEVEL=jobs,
    )
    (made,) = (folder / "dist").glob("*.whl")
    return made


@pytest.mark.slow
def test_the_wheel_holds_what_is_needed(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "kdtr/py.typed",
        "kdtr/_core.pyi",
        "kdtr/bin/kdtr-conform",
        "kdtr/bin/libkdtr_cpu.so",
        "kdtr/bin/libkdtr_mutants.so",
        "kdtr/include/kdtr/plugin.h",
        "kdtr/cmake/kdtrConfig.cmake",
        "kdtr/cmake/kdtrConfigVersion.cmake",
        "kdtr/cmake/engine.cpp",
        "kdtr/data/LOCK",
    ):
        assert wanted in names
    assert any(re.match(r"kdtr/_core\..*\.so", name) for name in names)
    assert not [name for name in names if name.endswith((".kdtr", ".cu"))]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH that begins with the programs of an environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("installed")
    run(folder, sys.executable, "-m", "venv", "--system-site-packages", "venv")
    here = next(p for p in map(Path, sys.path) if (p / "numpy").is_dir())
    site = next((folder / "venv").glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text(f"{here}\n")  # numpy, click and pytest of this one
    run(folder, folder / "venv/bin/python", "-m", "pip", "install", "--no-deps", str(wheel))
    return f"{folder}/venv/bin{os.pathsep}{os.environ['PATH']}"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.md", "tutorial.md", "howto/cpp.md", "howto/pytest.md"])
def test_a_page_comes_true_with_the_wheel_alone(page: str, installed: str, tmp_path: Path) -> None:
    """As for someone who has the wheel and the page, and no source tree."""
    drop = ("PYTHONPATH", "KDTR_BIN")
    clean = {k: v for k, v in os.environ.items() if k not in drop}
    environment = {**clean, "PATH": installed, "NO_COLOR": "1", "COLUMNS": "200"}
    follow(ROOT / "docs" / page, tmp_path, environment)
    assert not (tmp_path / "tests").exists()


@pytest.mark.slow
def test_a_user_of_the_wheel_certifies_from_python_cmake_and_pytest(
    installed: str, tmp_path: Path, argmax_cases: int
) -> None:
    path = installed
    assert f"{__version__}, " in run(tmp_path, "kdtr", "doctor", PATH=path)
    command = ("kdtr", "certify", "--engine", "cpu", "--ops", "argmax", "--out", "certificate")
    assert f"{argmax_cases} PASS" in run(tmp_path, *command, PATH=path)
    assert (tmp_path / "goldens/argmax@1/ties.kdtr").exists()
    assert (tmp_path / "certificate/cpu/certificate.json").exists()

    shutil.copytree(ROOT / "examples/cmake_project", tmp_path / "project")
    place = run(tmp_path, "kdtr", "--cmake-dir", PATH=path).strip()
    project = tmp_path / "project"
    run(project, "cmake", "-B", "build", f"-Dkdtr_DIR={place}", PATH=path)
    run(project, "cmake", "--build", "build", PATH=path)
    assert f"out of {argmax_cases}" in run(project, "ctest", "--test-dir", "build", PATH=path)

    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.kdtr('argmax', case='ties')\n"
        "def test_it(kdtr_case):\n"
        "    kdtr_case.judge_engine('cpu')\n"
    )
    assert "1 passed" in run(tmp_path, "python", "-m", "pytest", "-q", "test_it.py", PATH=path)
