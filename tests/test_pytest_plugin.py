"""The plug-in gives pytest the judge's verdicts, and no wrong use of it passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.engine

HEAD = """
import numpy as np
import pytest
from kdtr.pytest_plugin import QualityWarning

def answer(case):
    x = case.values("logits")
    bad = np.isnan(x).any(axis=(1, 2))
    ids = np.argmax(x, -1) if x.size else np.full(x.shape[:2], -1)
    return {"ids": np.where(bad[:, None], -1, ids), "status": bad.astype(np.int32)}

"""


def run(folder: Path, body: str, *arguments: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(HEAD + body)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "kdtr.pytest_plugin", "-rs"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [*command, "--strict-markers", "-p", "no:cacheprovider", *arguments, "test_it.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_right_arrays_pass_every_case(tmp_path: Path, argmax_cases: int) -> None:
    code, text = run(
        tmp_path,
        """
@pytest.mark.kdtr("argmax")
def test_arrays(kdtr_case):
    assert kdtr_case.op == "argmax@1" and kdtr_case.path.stem == kdtr_case.name
    kdtr_case.judge(**answer(kdtr_case))
""",
    )
    assert code == 0, text
    assert f"{argmax_cases} passed" in text


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("judge(**{**a, 'ids': a['ids'] + 1})", "8 of 8 differ; first at [R=0, N=0]"),
        ("judge(ids=a['ids'])", "output status was not given"),
        ("judge(**a, more=a['ids'])", "argmax@1 has no output more"),
        ("judge(**{**a, 'ids': a['ids'][:, :1]})", "ids: shape, want [2, 4], got [2, 1]"),
        ("judge(**{**a, 'ids': a['ids'] * 1.0})", "ids: type, want i32, got float64"),
        ("judge_function(lambda call: None)", "kernel never used"),
        ("judge_engine('./none.so')", "none.so"),
    ],
)
def test_what_is_wrong_fails_and_is_said(tmp_path: Path, call: str, said: str) -> None:
    code, text = run(
        tmp_path,
        f"""
@pytest.mark.kdtr("argmax", case="ties")
def test_it(kdtr_case):
    a = answer(kdtr_case)
    kdtr_case.{call}
""",
    )
    assert code == 1, text
    assert said in text
    assert "1 failed" in text
    if "engine" not in call:
        assert "again:" not in text  # no engine: no command repeats it


def test_an_engine_is_judged_and_what_it_lacks_is_a_skip(tmp_path: Path) -> None:
    (tmp_path / "partial.py").write_text("def none(call): ...\n")
    code, text = run(
        tmp_path,
        """
@pytest.mark.kdtr("argmax", case="one_token")
@pytest.mark.parametrize("engine", ["cpu", "partial"])
def test_it(kdtr_case, engine):
    kdtr_case.judge_engine(engine)
""",
    )
    assert code == 0, text
    assert "1 passed, 1 skipped" in text
    assert "partial has no function argmax" in text


def test_between_gate_and_hard_budget_is_a_warning_and_beyond_a_failure(tmp_path: Path) -> None:
    """The gold moved by a share of the way from the gate to the hard budget, row 0 alone."""
    code, text = run(
        tmp_path,
        """
def moved(case, share):
    file = case._file
    gold, gate, hard = (file[n].astype(np.float64) for n in ("out", "out/gate", "out/hard"))
    steps = (hard - gate) / np.spacing(np.float32(np.abs(gold)))
    at = np.unravel_index(np.argmax(steps), gold.shape)
    out = gold.copy()
    out[at] += gate[at] + share * (hard[at] - gate[at])
    return {"out": out.astype(np.float32), "status": file["status"]}

@pytest.mark.kdtr("rmsnorm", case="random")
def test_between(kdtr_case):
    with pytest.warns(QualityWarning, match="out"):
        kdtr_case.judge(**moved(kdtr_case, 0.5))

@pytest.mark.kdtr("rmsnorm", case="random")
def test_beyond(kdtr_case):
    with pytest.raises(AssertionError, match="out"):
        kdtr_case.judge(**moved(kdtr_case, 2.0))
""",
    )
    assert code == 0, text
    assert "2 passed" in text


NOTHING = """
@pytest.mark.kdtr()
@pytest.mark.kdtr('argmax', cases='x')
@pytest.mark.kdtr('argmax', case='no_such')
@pytest.mark.kdtr('no_such_op')
"""


@pytest.mark.parametrize("marker", NOTHING.splitlines())
def test_a_marker_that_selects_nothing_is_an_error(tmp_path: Path, marker: str) -> None:
    code, text = run(tmp_path, f"{marker}\ndef test_it(kdtr_case): ...\n")
    assert code not in (0, 5), text
    assert "passed" not in text


def test_the_marker_is_documented(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("")
    _, text = run(tmp_path, "", "--markers")
    assert "@pytest.mark.kdtr(*ops" in text
