"""rmsnorm: the reference against hand values and its own laws."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kdtr import numerics as nx
from kdtr.reference.rmsnorm import reference

F32 = {"eps": 0.0, "variant": "f32_then_round"}


def test_hand_values() -> None:
    x = np.array([[4.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, -1.0]])
    out = reference({"x": x, "weight": np.array([1.0, 2.0, 1.0, 1.0])}, F32, "f32")["out"]
    assert out.tolist() == [[2.0, 0.0, 0.0, 0.0], [1.0, 2.0, 1.0, -1.0]]


def test_eps_stands_inside_the_root() -> None:
    x = np.array([[1.0, 1.0]])
    attrs = {"eps": 3.0, "variant": "f32_then_round"}
    assert reference({"x": x, "weight": np.ones(2)}, attrs, "f32")["out"].tolist() == [[0.5, 0.5]]


def test_the_second_rounding_is_the_difference_of_the_variants() -> None:
    x = nx.round_bf16(nx.normal(1, (3, 64), 18))
    inputs = {"x": x, "weight": nx.round_bf16(nx.normal(2, (64,), 18) + 1.0)}
    once, twice = (
        reference(inputs, {"eps": 1e-5, "variant": v}, "bf16_f32acc")["out"]
        for v in ("f32_then_round", "round_then_multiply")
    )
    unit = reference({**inputs, "weight": np.ones(64)}, F32 | {"eps": 1e-5}, "f32")["out"]
    assert np.array_equal(twice, inputs["weight"] * nx.round_bf16(unit))
    assert not np.array_equal(once, twice)


def test_a_failed_row_is_zero_and_leaves_its_neighbours() -> None:
    x = nx.normal(3, (3, 8), 18)
    attrs = F32 | {"eps": 1e-5}
    alone = reference({"x": x[[0, 2]], "weight": np.ones(8)}, attrs, "f32")["out"]
    x[1, 7] = np.nan
    out = reference({"x": x, "weight": np.ones(8)}, attrs, "f32")
    assert out["status"].tolist() == [0, 1, 0]
    assert not out["out"][1].any()
    assert not out["out/hard"][1].any()
    assert np.array_equal(out["out"][[0, 2]], alone)


@given(st.integers(0, 2**32 - 1), st.integers(-20, 20))
def test_a_power_of_two_cancels_when_eps_is_zero(seed: int, shift: int) -> None:
    x = nx.normal(seed, (2, 19), 18)
    w = np.ones(19)
    scaled = reference({"x": np.ldexp(x, shift), "weight": w}, F32, "f32")["out"]
    assert np.array_equal(scaled, reference({"x": x, "weight": w}, F32, "f32")["out"])
