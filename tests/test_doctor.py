"""`kdtr doctor` tells the truth, and `kdtr textconv` lets git show what changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kdtr import container, engine, textconv
from kdtr.cli import cli

ROOT = Path(__file__).resolve().parent.parent


def doctor() -> tuple[int, dict[str, tuple[bool | None, str]]]:
    done = CliRunner().invoke(cli, ["doctor", "--json"])
    return done.exit_code, {c["name"]: (c["ok"], c["text"]) for c in json.loads(done.stdout)}


@pytest.mark.engine
def test_a_complete_installation_is_well() -> None:
    code, found = doctor()
    assert code == 0, found
    assert found["judge"][0] is True
    assert found["cpu"][0] is True
    assert "kdtr-cpu" in found["cpu"][1]
    if not engine.has_gpu():
        assert found["cuda"][0] is None
        assert found["cuda"][1].startswith("off: ")


def test_what_was_not_built_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDTR_BIN", str(tmp_path))
    monkeypatch.delenv("KDTR_REQUIRE_ENGINE", raising=False)  # make's own, which doctor lists too
    code, found = doctor()
    assert code == 1
    assert found["judge"] == (False, f"{tmp_path}/kdtr-conform is missing: run make build")
    assert found["cpu"][0] is False
    assert "no CUDA engine was built" in found["cuda"][1]
    assert found["environment"] == (None, f"KDTR_BIN={tmp_path}")


def test_a_judge_that_does_not_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = tmp_path / "kdtr-conform"
    judge.write_text("#!/bin/sh\nexit 7\n")
    judge.chmod(0o755)
    monkeypatch.setenv("KDTR_BIN", str(tmp_path))
    assert doctor()[1]["judge"] == (False, f"{judge}: exit status 7")


@pytest.mark.parametrize("option", ["--include-dir", "--cmake-dir", "--plugin-source"])
def test_places_exist(option: str) -> None:
    done = CliRunner().invoke(cli, [option])
    assert done.exit_code == 0
    assert Path(done.stdout.strip()).exists()


def test_equal_content_gives_equal_text_and_a_change_is_one_line(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a.kdtr", tmp_path / "b.kdtr", tmp_path / "c.kdtr"
    x = np.arange(6, dtype=np.int32).reshape(3, 2)
    container.write(a, {"x": x}, {"case": "one"})
    container.write(b, {"x": x}, {"case": "one"})
    y = x.copy()
    y[1, 0] = -7
    container.write(c, {"x": y}, {"case": "one"})
    assert list(textconv.lines(a)) == list(textconv.lines(b))
    pairs = zip(textconv.lines(a), textconv.lines(c), strict=True)
    changed = [(old, new) for old, new in pairs if old != new and "sha256" not in old]
    assert changed == [("  2 3", "  -7 3")]


def test_a_large_tensor_is_summed_up(tmp_path: Path) -> None:
    path = tmp_path / "a.kdtr"
    container.write(path, {"x": np.ones((100, 100), np.float32)})
    lines = list(textconv.lines(path))
    assert "  low 1.0" in lines
    assert len(lines) < 20


def test_a_damaged_file_gives_its_rules(tmp_path: Path) -> None:
    path = tmp_path / "a.kdtr"
    path.write_bytes(b"KDTR\r\r\n\x1a" + bytes(300))
    assert next(textconv.lines(path)) == "E_MAGIC_TEXTMODE at byte 0"


def test_git_diff_shows_values(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    git("init", "-q")
    git("config", "diff.kdtr.textconv", f"'{sys.executable}' -m kdtr textconv")
    (tmp_path / ".gitattributes").write_bytes((ROOT / ".gitattributes").read_bytes())
    container.write(tmp_path / "a.kdtr", {"x": np.array([0.5, 2.0], np.float32)})
    git("add", ".")
    git("commit", "-qm", "one")
    container.write(tmp_path / "a.kdtr", {"x": np.array([0.5, -2.0], np.float32)})
    shown = git("diff")
    assert "-  0.5 2.0" in shown
    assert "+  0.5 -2.0" in shown


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a terminal: click strips colours elsewhere by itself."""
    monkeypatch.setenv("KDTR_BIN", "nowhere")
    coloured = CliRunner().invoke(cli, ["doctor"], color=True).stdout
    assert "\x1b[" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in CliRunner().invoke(cli, ["doctor"], color=True).stdout
