"""topk_logprobs: the reference against its definition, and the cases against their claims."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdtr import case
from kdtr import numerics as nx
from kdtr.cases import topk_logprobs as cases
from kdtr.reference.topk_logprobs import lse_budget, reference

INF, NAN = math.inf, math.nan


def run(rows: Any, k: int) -> dict[str, NDArray[Any]]:
    x = np.asarray(rows, np.float64)
    return reference({"logits": x.reshape((1, *x.shape) if x.ndim == 2 else x.shape)}, {"K": k}, "")


def test_ties_go_to_the_lowest_id_and_zeros_are_equal() -> None:
    out = run([[1.0, -0.0, 0.0, 3.0, -0.0, 3.0, -2.0]], 6)
    assert out["ids"].tolist() == [[[3, 5, 0, 1, 2, 4]]]


def test_known_log_sum_exps() -> None:
    out = run([[0.0] * 8, [math.log(2.0)] + [-INF] * 7, [2.5] + [-INF] * 7, [-INF] * 8], 2)
    assert out["lse"][0].tolist() == [math.log(8.0), math.log(2.0), 2.5, -INF]
    assert out["logprobs"][0, 2].tolist() == [0.0, -INF]
    assert out["ids"][0, 2:].tolist() == [[0, -1], [-1, -1]]
    assert out["status"].tolist() == [0]


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_bad_value_refuses_its_request_only(bad: float) -> None:
    x = np.zeros((3, 2, 4))
    x[1, 1, 3] = bad
    out = run(x, 1)
    assert out["status"].tolist() == [0, 1, 0]
    assert out["ids"].tolist() == [[[0], [0]], [[-1], [-1]], [[0], [0]]]
    assert out["lse"][1].tolist() == [-INF, -INF]
    assert out["logprobs"][1].tolist() == [[-INF], [-INF]]


def test_lse_agrees_with_forty_digits() -> None:
    for shift in (0.0, -1000.0, 30.0):
        x = nx.normal(5, (500,), 18, 4.0) + shift
        with mpmath.workdps(40):
            exact = mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(v)) for v in x.tolist()))
            error = abs(mpmath.mpf(float(run([x], 1)["lse"][0, 0])) - exact)
        assert error <= abs(exact) * 2.0**-50


small_floats = st.sampled_from(
    [-INF, -3.5, -1.0, -(2.0**-149), -0.0, 0.0, 2.0**-149, 0.5, 0.5000000596, 2.0, 65504.0]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(small_floats, max_size=40), st.integers(0, 12))
def test_candidates_are_a_sorted_prefix(row: list[float], k: int) -> None:
    values = [float(np.float32(v)) for v in row]
    ranked = sorted((-v, i) for i, v in enumerate(values) if v > -INF)[:k]
    out = run(np.asarray([values]).reshape(1, 1, -1), k)
    want = [i for _, i in ranked] + [-1] * (k - len(ranked))
    assert out["ids"][0, 0].tolist() == want
    lse = np.float32(out["lse"][0, 0])
    for got, (negated, _) in zip(out["logprobs"][0, 0].tolist(), ranked, strict=False):
        assert got == float(np.float32(-negated) - lse)
        assert got <= 0


def test_the_budget_takes_the_nearest_f32_and_nothing_below_the_maximum() -> None:
    top = np.asarray([8.0, 8.0, 8.0, 8.0, -16.0, 1.0])
    ulp = np.asarray([2.0**-20] * 4 + [2.0**-20, 2.0**-23])
    gap = np.asarray([0.0, 2.0**-40, 0.3, 0.9, 0.6, 0.25]) * np.asarray([1, 1, *ulp[2:]])
    lse = top + gap
    budget = lse_budget(lse, top)
    nearest = lse.astype(np.float32).astype(np.float64)
    below = np.nextafter(top.astype(np.float32), np.float32(-INF)).astype(np.float64)
    assert (np.abs(nearest - lse) <= budget).all()
    assert (np.abs(below - lse) > budget).all()
    assert (budget <= ulp).all()


def test_recorded_rows_keep_the_ties_of_the_recording() -> None:
    one = next(c for c in case.cases("topk_logprobs") if c.name == "recorded_bf16")
    x = np.sort(one.inputs()["logits"], axis=-1)[0, :, ::-1][:, :65]
    assert (x[:, 1:64] == x[:, :63]).mean() > 0.3
    assert (x[:, 64] < x[:, 63]).all()


@pytest.mark.parametrize("label", cases.WRONG)
def test_every_known_wrong_convention_is_stored_by_a_case(label: str) -> None:
    assert any(label in c.wrong for c in case.cases("topk_logprobs"))
