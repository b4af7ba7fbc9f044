"""What tests share: the tool's own op for testing the tool, and parametrisation over ops."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdtr import contract, engine, goldens

# A shell's background jobs ignore Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `op` runs once for each op; for `op_case`, once for each small case."""
    if "op_case" in metafunc.fixturenames:
        pairs = goldens.select()
        metafunc.parametrize("op_case", pairs, ids=[f"{op}-{case.name}" for op, case in pairs])
    elif "op" in metafunc.fixturenames:
        metafunc.parametrize("op", sorted({op for op, _ in goldens.select()}))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say why a test cannot run here.

    `make` sets KDTR_REQUIRE_ENGINE: an engine that was not built is then an error, not a skip.
    """
    missing = engine.missing()
    if missing and os.environ.get("KDTR_REQUIRE_ENGINE"):
        raise pytest.UsageError(f"KDTR_REQUIRE_ENGINE is set: {missing}")
    for item in items:
        if item.get_closest_marker("engine") and missing:
            item.add_marker(pytest.mark.skip(reason=missing))
        if item.get_closest_marker("cuda") and not engine.has_gpu():
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))


@pytest.fixture(scope="session")
def argmax_cases() -> int:
    """How many small fixtures there are of `argmax`, which tests take as an example."""
    return len([*(goldens.HOME / "argmax@1").glob("*.kdtr")])


_CONTRACT = """
    from kdtr.contract import Attr, Contract, Tensor

    CONTRACT = Contract(
        op="toy", version=1, summary="", formula="y = k x; best = argmax", source="",
        tensors=(
            Tensor("x", ("f32", "bf16"), ("R", "N"), ""),
            Tensor("ids", ("i32",), ("R", "N+1"), ""),
            Tensor("count", ("i32",), ("R",), "", "inout", "E"),
            Tensor("y", ("f32", "bf16"), ("R", "N"), "", "out", "B"),
            Tensor("best", ("i32",), ("R",), "", "out", "S"),
            Tensor("status", ("i32",), ("R",), "", "out", "E"),
        ),
        attrs=(Attr("k", "f64", "factor"), Attr("mode", "utf-8", "", ("up", "down"))),
        conventions={"sign": "kept"},
        profiles={"f32": "one rounding"},
    )
"""
_REFERENCE = """
    import numpy as np

    def reference(inputs, attrs, profile):
        x = inputs["x"]
        y = x * attrs["k"]
        budget = np.abs(y) * 2.0**-24
        return {
            "y": y, "y/gate": budget, "y/hard": 2 * budget,
            "count": (inputs["count"] + inputs["ids"].sum(1)).astype(np.int32),
            "best": x.argmax(1).astype(np.int32),
            "best/allowed": x == x.max(1, keepdims=True),
            "status": np.zeros(len(x), np.int32),
        }
"""
_CASES = """
    import numpy as np
    from kdtr.case import Case
    from kdtr.reference.toy import reference

    def inputs():
        return {
            "x": np.array([[1.5, -2.0, 1.5], [0.25, 3.0, 0.5]], np.float32),
            "ids": np.arange(8, dtype=np.int32).reshape(2, 4),
            "count": np.array([5, 6], np.int32),
        }

    def negated(inputs, attrs, profile):
        return {"y": -reference(inputs, attrs, profile)["y"]}

    WRONG = {"negated": negated, "same": reference}
    CASES = {}

    def case(name="plain", **changes):
        return Case(name, "a lost factor", **{
            "inputs": inputs, "attrs": {"k": 2.0, "mode": "up"}, "profile": "f32",
            "wrong": ("negated",), "kills": ("no_factor",), "seed": 7, **changes})

    def cases():
        yield case()
        yield case("half", dtypes={"x": "bf16", "y": "bf16"})
        yield case("large", tier="full")
        yield from CASES.values()
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An op `toy` beside the real ones, and an empty goldens folder, which is returned."""
    for part, text in (("contracts", _CONTRACT), ("reference", _REFERENCE), ("cases", _CASES)):
        folder = tmp_path / part
        folder.mkdir()
        (folder / "toy.py").write_text(textwrap.dedent(text))
        package = __import__(f"kdtr.{part}", fromlist=["__path__"])
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    home = tmp_path / "goldens"
    home.mkdir()
    monkeypatch.setattr(goldens, "HOME", home)
    monkeypatch.setattr(goldens, "FULL", tmp_path / "full")
    monkeypatch.setattr(goldens, "LOCK", home / "LOCK")
    assert "toy" in contract.ops()
    yield home
    for part in ("contracts", "reference", "cases"):
        sys.modules.pop(f"kdtr.{part}.toy", None)
