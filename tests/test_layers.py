"""Who may include or name whom. The Python side is held by import-linter (`make lint`)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
SOURCES = {".h", ".cpp", ".cu", ".cuh"}


def tracked(*folders: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def includes(*folders: str) -> list[tuple[str, str]]:
    """(file, included name) of the sources in these folders."""
    found = [
        (str(path.relative_to(ROOT)), name)
        for path in tracked(*folders)
        if path.suffix in SOURCES
        for name in INCLUDE.findall(path.read_text(encoding="utf-8"))
    ]
    assert found
    return found


def test_pybind11_is_in_one_file() -> None:
    users = {file for file, name in includes("engine", "conformance") if name.startswith("pybind")}
    assert users == {"engine/python/module.cpp"}


def test_cuda_headers_are_in_cuda_h_and_device_code_only() -> None:
    users = {file for file, name in includes("engine", "conformance") if "cuda_" in name}
    assert {f for f in users if not f.endswith((".cu", ".cuh"))} <= {"engine/include/kdtr/cuda.h"}


def test_engine_never_includes_the_judge() -> None:
    conformance = {path.name for path in tracked("conformance") if path.suffix == ".h"}
    guilty = [
        (file, name)
        for file, name in includes("engine")
        if file != "engine/python/module.cpp"
        and not ((ROOT / file).parent / name).exists()
        and (name.startswith("conformance/") or name in conformance)
    ]
    assert guilty == []


def test_kernels_never_include_each_other() -> None:
    guilty = [
        (file, name)
        for file, name in includes("engine/kernels")
        if name.endswith((".cpp", ".cu"))
        or ("kernels/" in name and "detail/" not in name and not name.startswith("kdtr/"))
    ]
    assert guilty == []


def test_plugin_header_needs_no_other() -> None:
    names = [name for file, name in includes("engine/include") if file.endswith("plugin.h")]
    assert sorted(names) == ["stddef.h", "stdint.h"]


def test_no_path_of_one_machine_is_named() -> None:
    path = re.compile(rb"(?<![\w.$}/])/(?:home|root|Users|work)/[A-Za-z0-9_.-]+")
    guilty = [
        (str(file.relative_to(ROOT)), match.group().decode())
        for file in tracked()
        if file.suffix != ".kdtr"
        for match in path.finditer(file.read_bytes())
    ]
    assert guilty == []


@pytest.mark.parametrize("pattern", [r"\ballclose\b", r"\bassert_almost_equal\b", r"\bapprox\("])
def test_no_tolerance_lives_in_a_test(pattern: str) -> None:
    here = Path(__file__).name
    guilty = [
        str(file.relative_to(ROOT))
        for file in tracked("tests")
        if file.suffix == ".py"
        and file.name != here
        and re.search(pattern, file.read_text(encoding="utf-8"))
    ]
    assert guilty == []
