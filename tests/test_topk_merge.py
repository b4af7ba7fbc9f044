"""topk_merge: the reference against hand derivation and against the vocabulary that was split."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdtr import case
from kdtr.cases import topk_merge as cases
from kdtr.reference import topk_logprobs
from kdtr.reference.topk_merge import lse_budget, reference

ROOT = Path(__file__).resolve().parent.parent
INF, NAN = np.inf, np.nan
PAD = (-1, NAN)


def merge(
    shards: list[list[tuple[int, float]]], first: list[int], lse: list[float] | None = None
) -> dict[str, NDArray[Any]]:
    """One row of shards, each a list of (id, value)."""
    table = np.asarray(shards, np.float64).reshape(len(shards), 1, 1, -1, 2)
    return reference(
        {
            "part_ids": table[..., 0].astype(np.int32),
            "part_values": table[..., 1],
            "part_lse": np.asarray(lse or [0.0] * len(shards)).reshape(-1, 1, 1),
            "part_status": np.zeros((len(shards), 1), np.int32),
            "first": np.asarray(first, np.int32),
        },
        {},
        "f32",
    )


def test_ties_go_to_the_lowest_id_of_the_whole_vocabulary() -> None:
    # Ids 107, 102 | 3, 6 | 54: values 2 and 1 | 2 and -0 | 0.
    out = merge(
        [[(7, 2.0), (2, 1.0), PAD], [(3, 2.0), (6, -0.0), PAD], [(4, 0.0), PAD, PAD]], [100, 0, 50]
    )
    assert out["ids"].tolist() == [[[3, 107, 102]]]
    out = merge([[(4, 0.0), PAD, PAD], [(3, 2.0), (6, -0.0), PAD]], [50, 0])
    assert out["ids"].tolist() == [[[3, 6, 54]]]


def test_known_log_sum_exps_and_log_probabilities() -> None:
    out = merge([[(0, 1.0)], [(0, 3.0)]], [0, 9], [1.0, 3.0])
    lse = 3 + np.log1p(np.exp(-2.0))
    assert abs(out["lse"][0, 0] - lse) <= 2.0**-50
    assert out["logprobs"][0, 0, 0] == np.float32(3) - np.float32(lse)
    assert merge([[(0, 1.5)], [PAD]], [0, 1], [1.5, -INF])["lse"].tolist() == [[1.5]]
    empty = merge([[PAD, PAD]] * 3, [0, 1, 2], [-INF] * 3)
    assert (empty["lse"].item(), empty["ids"].tolist()) == (-INF, [[[-1, -1]]])
    assert empty["logprobs"].tolist() == [[[-INF, -INF]]]
    assert empty["status"].tolist() == [0]


@pytest.mark.parametrize("lse", [NAN, INF])
def test_a_bad_part_refuses_its_request(lse: float) -> None:
    out = merge([[(0, 1.0)], [(0, 3.0)]], [0, 9], [1.0, lse])
    assert (out["status"].tolist(), out["ids"].tolist()) == ([1], [[[-1]]])
    assert (out["lse"].item(), out["logprobs"].item()) == (-INF, -INF)


values = st.sampled_from([-INF, -3.5, -(2.0**-149), -0.0, 0.0, 0.5, 0.50000006, 2.0, 65504.0, NAN])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(values, min_size=12, max_size=12), min_size=1, max_size=4),
    st.lists(st.integers(0, 12), max_size=5),
    st.integers(0, 15),
    st.randoms(use_true_random=False),
)
def test_shards_merge_to_the_whole(
    rows: list[list[float]], cuts: list[int], k: int, random: Any
) -> None:
    x = np.asarray(rows, np.float32).astype(np.float64)[:, None, :]
    edges = [0, *sorted(cuts), 12]
    spans = list(pairwise(edges))
    random.shuffle(spans)
    whole = topk_logprobs.reference({"logits": x}, {"K": k}, "f32")
    out = reference(cases.split(x, spans, k), {}, "f32")
    for name in ("ids", "status"):
        assert np.array_equal(out[name], whole[name])
    finite = np.isfinite(whole["lse"])
    assert np.array_equal(finite, np.isfinite(out["lse"]))
    error = np.abs(out["lse"][finite] - whole["lse"][finite])
    assert (error <= 2.0**-50 * np.maximum(np.abs(whole["lse"][finite]), 1)).all()


def test_the_budget_takes_the_nearest_f32_and_nothing_below_the_greatest_part() -> None:
    top = np.asarray([8.0, 8.0, 8.0 + 2.0**-22, 0.1, 1.0, -16.0])
    gap = np.asarray([0.0, 2.0**-40, 0.0, 0.0, 0.9 * 2.0**-23, 0.3])
    lse = top + gap
    budget = lse_budget(lse, top)
    nearest = lse.astype(np.float32)
    assert (np.abs(nearest - lse) <= budget).all()
    greatest = top.astype(np.float32)  # a logit is an f32, and the part is at least it
    greatest = np.where(greatest > top, np.nextafter(greatest, np.float32(-INF)), greatest)
    below = np.nextafter(greatest, np.float32(-INF)).astype(np.float64)
    assert (np.abs(below - lse) > budget).all()
    alone = gap == 0
    above = np.nextafter(nearest, np.float32(INF)).astype(np.float64)
    assert (np.abs(above - lse) > budget)[alone].all()
    assert (budget <= 2.0**-23 * np.exp2(np.floor(np.log2(np.maximum(np.abs(lse), 1))))).all()


ENGINE = """
import numpy as np
from kdtr.reference.topk_merge import reference

def topk_merge(call):
    names = ("part_ids", "part_values", "part_lse", "part_status", "first")
    inputs = {{name: np.array(call.inputs[name].numpy()) for name in names}}
    inputs["part_values"] = inputs["part_values"].astype(np.float64)
    out = reference(inputs, {{}}, "f32")
    lse = out["lse"].astype(np.float32)
    moved = np.nextafter(lse, np.float32(np.inf))
    moved = np.where(np.abs(moved - out["lse"]) <= out["lse/hard"], moved, lse)
    at = {{
        (r, l, int(i + f)): v
        for s, f in enumerate(inputs["first"])
        for (r, l, _), i, v in zip(
            np.ndindex(inputs["part_ids"].shape[1:]),
            inputs["part_ids"][s].flat, inputs["part_values"][s].flat)
    }}
    logprobs = np.zeros(out["ids"].shape, np.float32)
    for r, l, k in np.ndindex(out["ids"].shape):
        logprobs[r, l, k] = np.float32(at[r, l, int(out["ids"][r, l, k])]) - {lse}[r, l]
    for name, value in (("ids", out["ids"]), ("logprobs", logprobs), ("lse", moved)):
        call.outputs[name].write(value)
    call.outputs["status"].write(out["status"])
"""


@pytest.mark.engine
@pytest.mark.parametrize(("lse", "code"), [("moved", 0), ("lse", 1)])
def test_log_probabilities_are_exact_given_the_engines_own_lse(
    tmp_path: Path, lse: str, code: int
) -> None:
    """An lse one ulp off is legal; log-probs against another than the engine's own are not."""
    (tmp_path / "mine.py").write_text(ENGINE.format(lse=lse))
    done = subprocess.run(
        [sys.executable, "-m", "kdtr", "certify", "--engine", "mine", "--ops", "topk_merge",
         "--case", "unequal_shards"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, "logprobs: " in done.stdout) == (code, code == 1), done.stdout


@pytest.mark.parametrize("label", cases.WRONG)
def test_every_known_wrong_convention_is_stored_by_a_case(label: str) -> None:
    assert any(label in c.wrong for c in case.cases("topk_merge"))
