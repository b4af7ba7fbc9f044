"""find_package(kdtr) from the source tree; from an install it is tested with the wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kdtr import engine

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "cmake_project"
pytestmark = pytest.mark.engine


def run(folder: Path, *command: str | Path) -> str:
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "kdtr").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kdtr "$@"\n')
    (programs / "kdtr").chmod(0o755)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": path,
            "KDTR_BIN": str(engine.folder()),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return f"{done.stdout}\nexit {done.returncode}"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, argmax_cases: int) -> Path:
    """The example, and beside its plug-in one that takes the last of equal maxima."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    right = (folder / "mine.cpp").read_text()
    wrong = right.replace(
        "std::max_element(x, x + vocab)",
        "std::max_element(x, x + vocab, [](float a, float b) { return a <= b; })",
    )
    assert wrong != right
    (folder / "wrong.cpp").write_text(wrong)
    with (folder / "CMakeLists.txt").open("a") as rules:
        rules.write("kdtr_add_plugin(wrong wrong.cpp)\n")
        rules.write('kdtr_discover_fixtures(wrong OPS argmax tree_accept CASES "[is]*"\n')
        rules.write("  GOLDENS ${kdtr_goldens} PREFIX w/ ARGUMENTS --repeat 1)\n")
    text = run(
        folder,
        *("cmake", "-B", "build", f"-Dkdtr_DIR={engine.cmake_dir()}"),
        f"-Dkdtr_goldens={ROOT / 'goldens'}",
    )
    assert text.endswith("exit 0"), text
    before = run(folder, "ctest", "--test-dir", "build", "-N")
    assert "mine.NOT_BUILT" in before
    text = run(folder, "cmake", "--build", "build")
    assert text.endswith("exit 0"), text
    assert f"kdtr: {argmax_cases} cases for" in text
    return folder


def test_a_plugin_is_called_by_its_target(project: Path) -> None:
    arguments = ("certify", "--engine", "build/libmine.so", "--out", "paper")
    fixture = ROOT / "goldens" / "argmax@1" / "random_f32.kdtr"
    text = run(project, f"{engine.folder()}/kdtr-conform", *arguments, fixture)
    assert text.endswith("exit 0"), text
    paper = json.loads((project / "paper" / "certificate.json").read_text())
    assert paper["predicate"]["kdtr"]["engine"]["name"] == "mine"
    assert paper["predicate"]["kdtr"]["engine"]["version"] == "1.0"


def test_every_case_is_a_test_and_what_is_not_supported_is_skipped(
    project: Path, argmax_cases: int
) -> None:
    text = run(project, "ctest", "--test-dir", "build", "-R", "^mine")
    assert text.endswith("exit 0"), text
    assert f"out of {argmax_cases}" in text
    assert "mine.argmax.random_bf16 (Skipped)" in text
    assert re.search(r"mine\.argmax\.random_f32 \.+ +Passed", text)


def test_a_wrong_kernel_fails_and_its_case_is_named(project: Path) -> None:
    text = run(project, "ctest", "--test-dir", "build", "-R", "^w/", "--output-on-failure")
    assert text.endswith("exit 8"), text
    assert "w/argmax.infinite (Failed)" in text
    assert "w/argmax.signed_zeros (Failed)" in text
    assert "w/argmax.subnormals (Failed)" not in text
    assert "w/tree_accept." in text


def test_nothing_to_test_is_an_error(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    rules = tmp_path / "CMakeLists.txt"
    rules.write_text(rules.read_text().replace("OPS argmax)", "OPS argmax CASES no_such)"))
    run(tmp_path, "cmake", "-B", "build", f"-Dkdtr_DIR={engine.cmake_dir()}")
    text = run(tmp_path, "cmake", "--build", "build")
    assert not text.endswith("exit 0")
    assert "no case of 'argmax' matches 'no_such'" in text


def test_the_pages_show_the_example() -> None:
    for page, name in (("cpp.md", "mine.cpp"), ("cmake.md", "CMakeLists.txt")):
        text = (ROOT / "docs" / "howto" / page).read_text(encoding="utf-8")
        assert f'title="{name}"\n{(EXAMPLE / name).read_text()}```' in text
