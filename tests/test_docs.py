"""The documents are run: what a page says happens, happens, and its links lead somewhere.

A fenced block is an order, from the top of its page in one folder:
`console` runs each `$` line and looks for the lines below it in the output ("..." skips some);
`sh` and `python` run; a block with a title is written to that file; `text` is only shown.
A comment before a block says what else holds: "not run: ...", "compiled only: ...", "needs: ...".
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kdtr import contract, op_page

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(p for p in (ROOT / "docs").rglob("*.md") if "decisions" not in p.parts)
BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^\n]*) -->\n)?```(?P<kind>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
NOTES = ("not run: installs", "not run: needs", "compiled only: needs", "needs: the source tree")
SHOWN = {"", "text", "json", "js", "sh", "cpp", "c", "cmake", "yaml", "toml"}
REFUSALS = ("FAIL", "error:", "different", "differs")
"""A command may exit with a status other than 0 where the page shows one of these."""


@dataclass
class Block:
    note: str
    kind: str
    title: str
    body: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fences = len(re.findall(r"^```", text, re.MULTILINE))
    found = [
        Block(
            m["note"] or "", m["kind"], m["title"] or "", m["body"], text.count("\n", 0, m.start())
        )
        for m in BLOCK.finditer(text)
    ]
    assert fences == 2 * len(found), f"{page.name}: a fence that is not understood"
    return found


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """Environment of a reader who has kdtr installed, in a folder with the goldens."""
    programs = tmp_path / ".bin"
    programs.mkdir()
    for name, call in (
        ("kdtr", "-m kdtr"),
        ("kdtr-conform", "-c 'from kdtr.engine import exec_conform; exec_conform()'"),
        ("python", ""),
    ):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        (programs / name).chmod(0o755)
    for name in ("goldens", "tests", "readers", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": path,
        "PYTEST_PLUGINS": "kdtr.pytest_plugin",
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }


def run(
    command: str, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def sessions(body: str) -> list[tuple[str, list[str]]]:
    """(command, expected lines) of a console block."""
    found: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def missing_line(expected: list[str], output: str) -> str:
    """The first expected line that the output lacks, in order, or ""."""
    lines = iter(" ".join(line.split()) for line in output.splitlines())
    for want in (" ".join(line.split()) for line in expected if line != "..."):
        if not any(want in line for line in lines):
            return want
    return ""


@pytest.mark.engine
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT / "docs")))
def test_what_a_page_shows_happens(page: Path, tmp_path: Path, shell: dict[str, str]) -> None:
    follow(page, tmp_path, shell)


@pytest.mark.engine
def test_what_the_readme_shows_happens(tmp_path: Path, shell: dict[str, str]) -> None:
    follow(ROOT / "README.md", tmp_path, shell)


def follow(page: Path, folder: Path, shell: dict[str, str]) -> None:
    """Do what a page says, in a folder and an environment."""
    for block in blocks(page):
        where = f"{page.name}:{block.line + 1}"
        assert not block.note or block.note.startswith(NOTES), where
        if block.title:
            (folder / block.title).write_text(block.body, encoding="utf-8")
        if block.note.startswith("not run"):
            continue
        if block.kind == "console":
            for command, expected in sessions(block.body):
                done = run(command, folder, shell)
                may_refuse = any(word in line for line in expected for word in REFUSALS)
                assert done.returncode == 0 or may_refuse, f"{where}: {command}\n{done.stdout}"
                lacks = missing_line(expected, done.stdout)
                assert not lacks, f"{where}: {command}\nno line: {lacks}\n{done.stdout}"
        elif block.kind == "sh" and not block.title:
            done = run(f"set -e\n{block.body}", folder, shell)
            assert done.returncode == 0, f"{where}\n{done.stdout}"
        elif block.kind == "python":
            compile(block.body, where, "exec")
            if not block.title and not block.note:
                done = run(f"python - <<'END'\n{block.body}\nEND", folder, shell)
                assert done.returncode == 0, f"{where}\n{done.stdout}"
        else:
            assert block.kind in SHOWN | {"cuda", "rust"}, f"{where}: {block.kind} is not run"


def test_untitled_code_of_other_languages_is_only_the_formats_example() -> None:
    """What cannot be run from a page alone is compiled elsewhere, or is listed here."""
    shown = [
        f"{page.relative_to(ROOT / 'docs')}:{block.kind}"
        for page in PAGES
        for block in blocks(page)
        if not block.title and block.kind in {"js", "cpp", "c", "cuda", "rust"}
    ]
    assert shown == ["format.md:cpp"]


@pytest.mark.slow
@pytest.mark.engine
def test_the_cuda_example_compiles(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc on this machine")
    (block,) = (b for b in blocks(ROOT / "docs/howto/cuda.md") if b.kind == "cuda")
    (tmp_path / "mine.cu").write_text(block.body)
    flags = ["-std=c++20", "-arch=sm_90", "-shared", "-Xcompiler=-fPIC", '-DKDTR_BACKEND="cuda"']
    sources = ["mine.cu", str(ROOT / "engine/src/engine.cpp")]
    include = f"-I{ROOT / 'engine/include'}"
    done = subprocess.run(
        ["nvcc", *flags, include, *sources, "-o", "libmine.so"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rust_page_shows_the_example() -> None:
    (block,) = (b for b in blocks(ROOT / "docs/howto/rust.md") if b.kind == "rust")
    assert block.body == (ROOT / "examples/rust_engine/src/main.rs").read_text(encoding="utf-8")


@pytest.mark.engine
def test_the_rust_example_is_certified(
    tmp_path: Path, shell: dict[str, str], argmax_cases: int
) -> None:
    if shutil.which("cargo") is None:
        pytest.skip("no cargo on this machine")
    manifest = ROOT / "examples/rust_engine/Cargo.toml"
    build = f"cargo build -q --release --offline --target-dir target --manifest-path {manifest}"
    certify = "kdtr certify --engine cmd:target/release/rust_engine --ops argmax"
    done = run(f"set -e; {build}; {certify}", tmp_path, shell)
    assert done.returncode == 0, done.stdout
    assert f"{argmax_cases} PASS" in done.stdout


def anchor(heading: str) -> str:
    """The anchor that mkdocs gives a heading."""
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def committed(pattern: str) -> list[str]:
    """Files that a clone has."""
    listed = subprocess.run(
        ["git", "ls-files", pattern], cwd=ROOT, capture_output=True, check=True, text=True
    )
    return listed.stdout.splitlines()


@pytest.mark.parametrize("name", committed("*.md"))
def test_links_lead_to_what_a_clone_has(name: str) -> None:
    """Pages that are only made for the site are none of it: a forge shows the folder as it is."""
    page = ROOT / name
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    files = {ROOT / file for file in committed("*")}
    there = files | {folder for file in files for folder in file.parents}
    dead = []
    for link in LINK.findall(text):
        if link.startswith(("https://", "http://")):
            continue
        target, _, fragment = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if path not in there:
            dead.append(link)
        elif fragment and path.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            if fragment not in map(anchor, headings):
                dead.append(link)
    assert dead == []


def test_an_op_page_has_the_whole_contract(op: str) -> None:
    """Every argument, attribute, convention and profile has a row; no row has a stray bar."""
    rules, text = contract.load(op), op_page.page(op)
    for name in (
        *(t.name for t in rules.tensors),
        *(a.name for a in rules.attrs),
        *rules.conventions,
        *rules.profiles,
    ):
        assert f"| `{name}` |" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = table.splitlines()
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1, rows


def test_the_site_builds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # a warning too
    assert (tmp_path / "site/ops/tree_build/index.html").exists()
