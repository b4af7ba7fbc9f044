"""merge_state: the reference against hand derivation, exact sums and its own laws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdtr import case as kdtr_case
from kdtr import contract, ops
from kdtr.reference.merge_state import reference

Array = NDArray[Any]
INF = np.inf


def merge(o_a: Any, lse_a: Any, o_b: Any, lse_b: Any) -> dict[str, Array]:
    """Merge one row: o_a, o_b [Dv], lse_a, lse_b scalars."""
    inputs = {
        "o_a": np.asarray(o_a, np.float64).reshape(1, 1, 1, -1),
        "o_b": np.asarray(o_b, np.float64).reshape(1, 1, 1, -1),
        "lse_a": np.full((1, 1, 1), lse_a),
        "lse_b": np.full((1, 1, 1), lse_b),
    }
    found = reference(inputs, {}, "f32")
    return {name: a.reshape(-1) for name, a in found.items()}


levels = st.one_of(st.just(-INF), st.integers(-40, 40).map(lambda n: n / 4.0))
outputs = st.lists(st.integers(-64, 64).map(lambda n: n / 16.0), min_size=2, max_size=2)
states = st.tuples(outputs, levels)


def test_hand_derived_merge() -> None:
    # weights 3/4 and 1/4: lse apart by log 3
    found = merge([4.0], math.log(3.0), [8.0], 0.0)
    assert abs(found["o"][0] - 5.0) <= 2.0**-50
    assert abs(found["lse"][0] - math.log(4.0)) <= 2.0**-50


def test_two_empty_sides_are_an_empty_side() -> None:
    found = merge([np.nan], -INF, [np.inf], -INF)
    assert found["o"].tolist() == [0.0]
    assert found["lse"].tolist() == [-INF]
    assert found["status"].tolist() == [0]


@given(states)
def test_an_empty_side_leaves_the_other_bit_for_bit(state: tuple[list[float], float]) -> None:
    o, lse = state
    for found in (merge(o, lse, [np.nan] * 2, -INF), merge([np.nan] * 2, -INF, o, lse)):
        expected = o if lse > -INF else [0.0, 0.0]
        assert found["o"].tolist() == expected
        assert found["lse"].tolist() == [lse]
        assert not found["o/hard"].any()
        assert not found["lse/hard"].any()


@given(states, states)
def test_sides_may_be_swapped(a: tuple[list[float], float], b: tuple[list[float], float]) -> None:
    one, two = merge(*a, *b), merge(*b, *a)
    for name in ("o", "lse", "o/hard", "lse/hard"):
        assert one[name].tolist() == two[name].tolist()


@given(states, states, states)
def test_merging_is_associative_within_summed_budgets(
    a: tuple[list[float], float],
    b: tuple[list[float], float],
    c: tuple[list[float], float],
) -> None:
    ab, bc = merge(*a, *b), merge(*b, *c)
    left = merge(ab["o"], ab["lse"][0], *c)
    right = merge(*a, bc["o"], bc["lse"][0])
    if left["lse"][0] == -INF:
        assert right["lse"][0] == -INF
        return
    assert np.all(np.abs(left["o"] - right["o"]) <= left["o/hard"] + right["o/hard"])
    assert abs(left["lse"][0] - right["lse"][0]) <= left["lse/hard"][0] + right["lse/hard"][0]


@given(st.lists(st.integers(-30, 30).map(lambda n: n / 4.0), min_size=2, max_size=8))
def test_merging_single_keys_is_softmax(scores: list[float]) -> None:
    values = [float((7 * i) % 5 - 2) for i in range(len(scores))]
    o, lse = np.array([0.0]), -INF
    for score, value in zip(scores, values, strict=True):
        found = merge(o, lse, [value], score)
        o, lse = found["o"], float(found["lse"][0])
    weights = [math.exp(s) for s in scores]
    total = math.fsum(weights)
    mean = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / total
    assert abs(lse - math.log(total)) <= 2.0**-40
    assert abs(o[0] - mean) <= 2.0**-40


@pytest.mark.parametrize("bad", [np.nan, INF])
@pytest.mark.parametrize("other", [0.0, -INF])
def test_a_bad_lse_refuses_its_request_alone(bad: float, other: float) -> None:
    inputs = {
        "o_a": np.ones((2, 2, 1, 3)),
        "o_b": np.ones((2, 2, 1, 3)),
        "lse_a": np.full((2, 2, 1), other),
        "lse_b": np.zeros((2, 2, 1)),
    }
    inputs["lse_b"][0, 1, 0] = bad
    found = reference(inputs, {}, "f32")
    assert found["status"].tolist() == [1, 0]
    assert not found["o"][0].any()
    assert np.all(found["lse"][0] == -INF)
    assert np.all(np.isfinite(found["lse"][1]))


def test_narrow_outputs_have_wider_budgets() -> None:
    case = next(c for c in kdtr_case.cases("merge_state") if c.name == "random")
    inputs = {name: kdtr_case.widen(a) for name, a in case.inputs().items()}
    wide, narrow = (reference(inputs, {}, profile) for profile in ("f32", "bf16"))
    assert wide["o"].tobytes() == narrow["o"].tobytes()
    assert np.all(narrow["o/hard"] >= wide["o/hard"])


def test_profiles_are_those_of_the_contract() -> None:
    assert {c.profile for c in kdtr_case.cases("merge_state")} == set(
        contract.load("merge_state").profiles
    )


@pytest.mark.engine
def test_the_cpu_kernel_merges_a_row_alone_as_in_a_batch() -> None:
    case = next(c for c in kdtr_case.cases("merge_state") if c.name == "heads_and_requests")
    inputs: dict[str, Any] = {n: np.asarray(a, np.float32) for n, a in case.inputs().items()}
    engine = ops.Engine("cpu")
    whole = engine.call("merge_state", **inputs)
    for r in range(3):
        one: dict[str, Any] = {
            name: np.ascontiguousarray(a[r : r + 1]) for name, a in inputs.items()
        }
        alone = engine.call("merge_state", **one)
        assert alone["o"].tobytes() == whole["o"][r].tobytes()
        assert alone["lse"].tobytes() == whole["lse"][r].tobytes()
