"""Cases of `silu_mul@1`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Array = NDArray[Any]
BF16 = {"gate": "bf16", "up": "bf16", "out": "bf16"}
F16 = {"gate": "f16", "up": "f16", "out": "f16"}


def pair(
    seed: int, t: int, n: int, scale: float = 2.0, cut: Callable[[Any], Array] = nx.round_f32
) -> dict[str, Array]:
    """Random gate and up rows."""
    return {
        "gate": cut(nx.normal(seed, (t, n), 18, scale)),
        "up": cut(nx.normal(seed + 1, (t, n), 18)),
    }


def _edges() -> dict[str, Array]:
    gate = np.array(
        [
            -10000.0,
            -500.0,
            -104.0,
            -89.0,
            -88.0,
            -20.0,
            -8.5,
            -0.0,
            0.0,
            1e-30,
            8.5,
            20.0,
            88.0,
            500.0,
            10000.0,
        ]
    )
    return {
        "gate": np.tile(nx.round_f32(gate), (2, 1)),
        "up": np.stack([np.full(gate.size, 3.5), np.linspace(-2.0, 1.5, gate.size) // 0.125]),
    }


def _bad_rows() -> dict[str, Array]:
    x = pair(6, 5, 33)
    x["gate"][1, 32], x["up"][3, 0] = np.nan, np.inf
    return x


def _swapped(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    g, u = inputs["gate"], inputs["up"]
    return {"out": u * nx.sigmoid(u) * g}


def _gelu(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    g = inputs["gate"]
    return {"out": g * nx.sigmoid(1.702 * g) * inputs["up"]}


def _plain(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"out": nx.sigmoid(inputs["gate"]) * inputs["up"]}


WRONG: Mapping[str, Reference] = {
    "swapped": _swapped,
    "gelu": _gelu,
    "plain_sigmoid": _plain,
}


def cases() -> Iterator[Case]:
    """Random rows in each type, sizes off every vector width, and the ends of the exponential."""
    yield Case(
        "random",
        "Another activation, or the activation on up.",
        partial(pair, 1, 5, 96),
        profile="f32",
        family="random",
        seed=1,
        wrong=("swapped", "gelu", "plain_sigmoid"),
        kills=("swapped", "plain_sigmoid", "no_activation", "hard", "gelu", "row_zero", "bf16_exp"),
    )
    yield Case(
        "width_513",
        "A tail of one element.",
        partial(pair, 2, 2, 513),
        profile="f32",
        family="random",
        seed=2,
        kills=("tail",),
    )
    yield Case(
        "edges_of_exp",
        "NaN where e^-x overflows, a clamp, and gates from -10^4 to 10^4.",
        _edges,
        profile="f32",
        family="extreme",
        kills=("overflows", "clamped", "hard"),
    )
    yield Case(
        "bad_rows",
        "A NaN or infinity that reaches other rows, or is written out.",
        _bad_rows,
        profile="f32",
        family="extreme",
        seed=6,
        kills=("keeps_bad_rows",),
    )
    yield Case(
        "bf16",
        "A second rounding between the products.",
        partial(pair, 3, 4, 130, 2.0, nx.round_bf16),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="random",
        seed=3,
        kills=("gelu", "row_zero"),
    )
    yield Case(
        "f16",
        "A second rounding between the products.",
        partial(pair, 4, 4, 130, 2.0, nx.round_f16),
        profile="f16_f32acc",
        dtypes=F16,
        family="random",
        seed=4,
        kills=("gelu", "row_zero"),
    )
    yield Case(
        "no_tokens",
        "A launch with an empty grid.",
        partial(pair, 5, 0, 16),
        profile="f32",
        null_ok="no tokens: nothing is written",
    )
