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


def _huge() -> dict[str, Array]:
    """Products that end in f32's range although gate * up does not, and some near its ends."""
    gate = np.array([[-100.0, -80.0, -60.0, -30.0, -11.0, -2.0, 1.0, 30.0, 200.0, 9000.0]])
    up = np.ldexp(1.0, np.array([[127, 127, 127, 126, 125, 120, 126, 120, 118, 113]]))
    return {"gate": np.tile(gate, (2, 1)), "up": np.concatenate([up, -1.0 / up])}


def _half_edges(cut: Callable[[Any], Array], high: int, low: int) -> dict[str, Array]:
    """Gates where e^-x leaves f16, or f32; up as large as 2^high and as small as 2^low."""
    gate = cut([-9984.0, -200.0, -95.0, -60.0, -20.0, -17.5, -12.0, -9.5, -0.5, 12.0, 20.0, 240.0])
    up = np.ldexp(1.25, np.array([high, low, 6]))
    return {"gate": np.tile(gate, (3, 1)), "up": np.tile(up[:, None], (1, gate.size))}


def _bad_end(seed: int, cut: Callable[[Any], Array]) -> dict[str, Array]:
    """A good row, and one that is bad in its last element."""
    x = pair(seed, 2, 264, cut=cut)
    x["up"][1, 263] = np.nan
    return x


def _bad_rows(t: int, n: int, cut: Callable[[Any], Array]) -> dict[str, Array]:
    """Six bad rows: NaN and both infinities in either tensor, at its ends and between."""
    x = pair(6, t, n, cut=cut)
    x["gate"][1, n - 1], x["gate"][2, 0], x["gate"][3, n // 2] = np.nan, np.inf, -np.inf
    x["up"][4, 0], x["up"][5, n - 1], x["up"][t - 1, n // 2] = np.nan, np.inf, -np.inf
    return x


def _bad_among_1031() -> dict[str, Array]:
    x = pair(8, 1031, 1)
    x["gate"][99, 0], x["up"][1030, 0] = np.nan, np.inf
    return x


def _width_1031() -> dict[str, Array]:
    x = pair(9, 2, 1031, cut=nx.round_bf16)
    x["up"][1, 1030] = np.inf
    return x


def _swapped(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    g, u = inputs["gate"], inputs["up"]
    return {"out": u * nx.sigmoid(u) * g}


def _gelu(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    g = inputs["gate"]
    return {"out": g * nx.sigmoid(1.702 * g) * inputs["up"]}


def _hard(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    g = inputs["gate"]
    return {"out": g * np.clip(g / 6.0 + 0.5, 0.0, 1.0) * inputs["up"]}


def _plain(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"out": nx.sigmoid(inputs["gate"]) * inputs["up"]}


def _through_f16(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"out": nx.round_f16(inputs["gate"] * nx.sigmoid(inputs["gate"]) * inputs["up"])}


WRONG: Mapping[str, Reference] = {
    "swapped": _swapped,
    "gelu": _gelu,
    "hard": _hard,
    "plain_sigmoid": _plain,
    "through_f16": _through_f16,
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
        wrong=("swapped", "gelu", "hard", "plain_sigmoid"),
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
        "bad_among_1031",
        "Tokens past 64, 256 and 1024, and those of them that fail.",
        _bad_among_1031,
        profile="f32",
        family="extreme",
        seed=8,
        kills=("past_64_tokens", "past_1024_tokens", "checks_64_tokens", "row_zero"),
    )
    yield Case(
        "bf16_width_1031",
        "A row longer than a block of 1024 threads, and one with an infinity there.",
        _width_1031,
        profile="bf16_f32acc",
        dtypes=BF16,
        family="extreme",
        seed=9,
        kills=("checks_1024_elements", "past_1024_elements", "keeps_bad_rows"),
    )
    yield Case(
        "huge_values",
        "gate * up before the sigmoid, which overflows; a result clamped to f16's range.",
        _huge,
        profile="f32",
        family="extreme",
        wrong=("through_f16",),
        kills=("product_first", "clamps_to_f16", "rows_in_f16", "clamped"),
    )
    yield Case(
        "edges_of_exp",
        "NaN where e^-x overflows, a clamp, and gates from -10^4 to 10^4.",
        _edges,
        profile="f32",
        family="extreme",
        kills=("overflows", "clamped", "hard"),
    )
    for dtype, cut in (("f32", nx.round_f32), ("bf16", nx.round_bf16), ("f16", nx.round_f16)):
        for width, t, n in (("odd", 67, 3), ("vectors", 8, 16)):
            yield Case(
                f"{dtype}_{width}_bad_rows",
                "A NaN or infinity that reaches other rows, is written out, or is not looked for "
                "in one type or one kind of width.",
                partial(_bad_rows, t, n, cut),
                profile=dtype if dtype == "f32" else f"{dtype}_f32acc",
                dtypes=dict.fromkeys(("gate", "up", "out"), dtype),
                family="extreme",
                seed=6,
                kills=(
                    "keeps_bad_rows",
                    "minus_inf_accepted",
                    "row_zero",
                    f"{dtype}_{width}_unchecked",
                    *(("past_64_tokens", "checks_64_tokens") if width == "odd" else ()),
                    *(("f16_up_unchecked",) if dtype == "f16" else ()),
                ),
            )
    yield Case(
        "bf16",
        "A second rounding between the products; vectors past a warp left out, also of the search "
        "for bad input.",
        partial(_bad_end, 3, nx.round_bf16),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="random",
        seed=3,
        kills=("gelu", "past_256_of_vectors", "checks_256_of_vectors"),
    )
    yield Case(
        "f16",
        "A second rounding between the products; vectors past a warp left out, also of the search "
        "for bad input.",
        partial(_bad_end, 4, nx.round_f16),
        profile="f16_f32acc",
        dtypes=F16,
        family="random",
        seed=4,
        kills=("gelu", "past_256_of_vectors", "checks_256_of_vectors"),
    )
    yield Case(
        "bf16_edges",
        "In bf16, rows, results or exponentials that pass through f16, or are clamped to it; "
        "gate * up before the sigmoid, which overflows.",
        partial(_half_edges, nx.round_bf16, 119, -40),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="extreme",
        wrong=("through_f16",),
        kills=(
            "clamps_to_f16",
            "rows_in_f16",
            "exp_in_f16",
            "overflows",
            "clamped",
            "hard",
            "product_first",
        ),
    )
    yield Case(
        "f16_edges",
        "In f16, an exponential that f16 does not hold, or a clamp.",
        partial(_half_edges, nx.round_f16, 7, -7),
        profile="f16_f32acc",
        dtypes=F16,
        family="extreme",
        kills=("exp_in_f16", "overflows", "clamped", "hard"),
    )
    yield Case(
        "no_columns",
        "Tokens without columns, whose status is not written.",
        partial(pair, 7, 3, 0),
        profile="f32",
        kills=("nothing_without_columns",),
        null_ok="the one output with elements is status, and 0 is its right value",
    )
    yield Case(
        "no_tokens",
        "A launch with an empty grid.",
        partial(pair, 5, 0, 16),
        profile="f32",
        null_ok="no tokens: nothing is written",
    )
