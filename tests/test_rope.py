"""rope: the reference against mpmath, and the laws of a rotation."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

from kdtr import numerics as nx
from kdtr.cases.rope import heads
from kdtr.errors import ContractError
from kdtr.reference.rope import reference

mpmath.mp.prec = 120
PLAIN = {"start": 0, "scale": 1.0, "store": "interleaved"}


@pytest.mark.parametrize("position", [0, 1, 2, 50000, 131071, 163839, 262143])
def test_sine_and_cosine_are_mpmaths_to_the_last_bits(position: int) -> None:
    angles = nx.round_f32(position * heads(1, 1, 1, 64, 32, (1,))["inv_freq"])
    sin, cos = nx.sincos(angles)
    for a, s, c in zip(angles.tolist(), sin.tolist(), cos.tolist(), strict=True):
        assert abs(mpmath.sin(a) - s) <= 2.0**-52
        assert abs(mpmath.cos(a) - c) <= 2.0**-52


def test_sine_of_a_float_next_to_a_multiple_of_pi_keeps_its_relative_precision() -> None:
    angle = float(np.float32(102943.70))
    near = min(
        (float(np.float32(k * np.pi)) for k in range(1, 80000)), key=lambda a: abs(np.sin(a))
    )
    for x in (angle, near):
        exact = mpmath.sin(mpmath.mpf(x))
        assert abs(mpmath.mpf(float(nx.sincos(np.array([x]))[0][0])) / exact - 1) < 2.0**-50


def test_an_angle_beyond_the_reduction_is_refused() -> None:
    with pytest.raises(ContractError, match=r"sincos: argument, want \|x\| < 2\^20"):
        nx.sincos(np.array([2.0**20]))


def test_position_zero_copies() -> None:
    x = heads(2, 1, 2, 16, 8, (0,))
    assert np.array_equal(reference(x, PLAIN, "f32")["out"], x["x"])


def test_halves_is_interleaved_in_another_order() -> None:
    x = heads(3, 4, 2, 16, 8, (1, 5, 70000))
    one = reference(x, PLAIN, "f32")["out"]
    two = reference(x, PLAIN | {"store": "halves"}, "f32")["out"]
    assert np.array_equal(np.concatenate([one[..., 0::2], one[..., 1::2]], -1), two)


def test_a_quarter_turn_exchanges_the_pair() -> None:
    quarter = float(np.float32(np.pi / 2))
    inputs: dict[str, Any] = {
        "x": np.array([[[3.0, 4.0]]]),
        "positions": np.array([1], np.int32),
        "inv_freq": np.array([quarter]),
    }
    out = reference(inputs, PLAIN, "f32")["out"][0, 0]
    assert np.abs(out - [-4.0, 3.0]).max() < 1e-6
    assert out[0] < 0 < out[1]


def test_scores_depend_on_the_distance_alone() -> None:
    freq = np.array([1.0, 0.5, 0.25, 0.125])  # angles are exact, so the law holds to rounding
    q, k = nx.normal(4, (1, 1, 8), 18), nx.normal(5, (1, 1, 8), 18)

    def turned(x: nx.F64, position: int) -> nx.F64:
        inputs: dict[str, Any] = {
            "x": x,
            "positions": np.array([position], np.int32),
            "inv_freq": freq,
        }
        return np.asarray(reference(inputs, PLAIN, "f32")["out"][0, 0])

    near = nx.total(turned(q, 9) * turned(k, 4))
    far = nx.total(turned(q, 100009) * turned(k, 100004))
    assert abs(near - far) < 2.0**-45
    assert abs(near - nx.total(turned(q, 9) * turned(k, 5))) > 0.01


def test_columns_outside_the_rotation_keep_their_bits_and_have_no_budget() -> None:
    x = heads(6, 2, 2, 24, 4, (3, 9))
    out = reference(x, PLAIN | {"start": 8}, "f32")
    for columns in (np.s_[..., :8], np.s_[..., 16:]):
        assert np.array_equal(out["out"][columns], x["x"][columns])
        assert not out["out/hard"][columns].any()
    assert (out["out/hard"][..., 8:16] > 0).all()
