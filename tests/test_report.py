"""`kdtr report`: one page, complete, and alive in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kdtr.cli import cli

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def case(name: str, status: str = "PASS", **more: Any) -> dict[str, Any]:
    return {
        "kind": "case",
        "case": name,
        "op": name.partition("/")[0],
        "status": status,
        "worst_gate": 0,
        "worst_hard": 0,
        "findings": [],
        "diagnosis": [],
        "catches": "a planted mistake",
        "outputs": [],
        **more,
    }


def results() -> list[dict[str, Any]]:
    wrong = {
        "output": "out",
        "class": "B",
        "shape": [2, 3],
        "elements": 6,
        "mismatches": 1,
        "steps": [3, 1, 0, 1, 1],
        "heat": [[0, 0, 0], [0, 0, 1]],
    }
    right = {"output": "out", "shape": [4], "elements": 4, "mismatches": 0, "steps": [4]}
    return [
        {"kind": "engine", "spec": "./lib<mine>.so", "name": "mine", "device": "CPU"},
        case("attn@1/easy", worst_gate=0.5, worst_hard=0.125, outputs=[right]),
        case("attn@1/near", "QUALITY_WARNING", worst_gate=2.0, worst_hard=0.5),
        case(
            "attn@1/hard",
            "FAIL",
            worst_gate="inf",
            worst_hard="inf",
            findings=["out: 1 of 6 beyond <b>"],
            diagnosis=["node 7 sees key 4093"],
            outputs=[wrong],
        ),
        case("tree@1/none", "NOT_SUPPORTED", findings=["no kernel for tree@1"]),
        {"kind": "summary", "text": "", "exit": 1},
    ]


MATRIX = {
    "killed": 1,
    "survived": 0,
    "ops": [
        {
            "op": "attn@1",
            "cases": ["easy", "hard"],
            "mutants": [
                {
                    "mutant": "leak",
                    "what": "sees a sibling",
                    "killed_by": 1,
                    "only": "hard",
                    "cells": [
                        {"status": "PASS", "worst_hard": 0.25},
                        {"status": "FAIL", "worst_hard": 1234.0},
                    ],
                }
            ],
        }
    ],
}


def report(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["report", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    lines, matrix, target = (tmp_path / n for n in ("a.jsonl", "matrix.json", "page.html"))
    lines.write_text("".join(json.dumps(one) + "\n" for one in results()))
    matrix.write_text(json.dumps(MATRIX))
    done = report(lines, "--html", target, "--matrix", matrix)
    assert (done.exit_code, done.stdout) == (0, f"4 results  {target}\n")
    return target


def test_the_page_holds_what_the_results_say(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<b class=bad>1 FAIL</b>" in text
    assert "node 7 sees key 4093" in text
    assert "out: 1 of 6 beyond &lt;b&gt;" in text
    assert "hard 0.125, gate 0.5" in text
    assert "no kernel for tree@1" in text
    assert "1 killed, 0 survived" in text
    assert 'title="hard: FAIL 1.23e+03"' in text
    bars = re.findall(r"<td class=n>(\S+)<td><i style=\"width:(\d+)px\"></i> (\d+)", text)
    # The steps of both outputs, summed: 3 + 4 at 0; bin 3 is 3 to 4 steps, bin 4 is 5 to 8.
    assert [(label, count) for label, _, count in bars] == [
        ("0", "7"),
        ("1", "1"),
        ("2", "0"),
        ("3–4", "1"),
        ("5–8", "1"),
    ]


def test_the_page_needs_nothing_else(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for found in re.findall(r"(?:src|href)\s*=\s*\"([^\"]*)\"|url\(([^)]*)\)|@import", text):
        assert found[0].startswith("data:")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize(("anchor", "rows"), [("", 4), ("#bad", 2)])
def test_the_page_is_alive_in_a_browser(page: Path, anchor: str, rows: int) -> None:
    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--enable-logging=stderr", f"--user-data-dir={page.parent / 'profile'}"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", f"file://{page}{anchor}"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert f'data-shown="{rows}"' in done.stdout
    assert "CONSOLE" not in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a line of kind case"),
        ("{", "is not JSON lines"),
        ("3\n", "none"),
        ('{"kind": "case"}', "is not whole, or of another program, got KeyError: 'status'"),
        (json.dumps(case("a@1/b", outputs=3)), "got TypeError: 'int' object is not iterable"),
        (json.dumps(case("a@1/\ud800")), "got UnicodeEncodeError"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_are_no_results_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a").write_text(text)
    done = report(tmp_path / "a", "--html", tmp_path / "page.html")
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
