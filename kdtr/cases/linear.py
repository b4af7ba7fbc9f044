"""Cases of `linear@1`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Array = NDArray[Any]
BF16 = dict.fromkeys(("x", "weight", "residual", "out"), "bf16")


def matrices(
    seed: int, t: int, k: int, n: int, residual: bool = False, bf16: bool = False
) -> dict[str, Array]:
    """Random rows, weights of size 1/sqrt(k) or so, and a residual where asked."""
    w = nx.normal(seed + 1, (n, k), 18, 0.25)
    x = {"x": nx.normal(seed, (t, k), 18), "weight": nx.round_bf16(w) if bf16 else w}
    if residual:
        x["residual"] = nx.normal(seed + 2, (t, n), 18, 2.0)
    return x


def halves(seed: int, t: int, k: int, n: int, residual: bool = False) -> dict[str, Array]:
    """`matrices` with all of them in bf16."""
    x = matrices(seed, t, k, n, residual)
    return {name: nx.round_bf16(value) for name, value in x.items()}


def _residual_cancels() -> dict[str, Array]:
    x = halves(30, 4, 72, 24)
    product = nx.linear(nx.exact(x["x"]), x["weight"]).value
    return x | {"residual": -nx.round_bf16(product)}


def _bad_among_many() -> dict[str, Array]:
    x = halves(36, 70, 32, 24, residual=True)
    x["x"][69, 0], x["residual"][2, 23] = np.nan, np.inf
    return x


def _bad_halves() -> dict[str, Array]:
    x = halves(31, 12, 64, 24, residual=True)
    x["x"][1, 63], x["x"][8, 0], x["residual"][3, 5] = np.nan, np.inf, -np.inf
    return x


def _cancelling() -> dict[str, Array]:
    x = matrices(20, 3, 64, 5)
    x["x"][:, 32:] = nx.round_f32(x["x"][:, :32] * (1.0 + 2.0**-10))
    x["weight"][:, 32:] = -x["weight"][:, :32]
    return x


def _one_hot() -> dict[str, Array]:
    x = matrices(21, 17, 17, 9)
    x["x"] = np.eye(17)
    return x


def _bad_rows() -> dict[str, Array]:
    x = matrices(22, 5, 40, 6, residual=True)
    x["x"][1, 39], x["residual"][3, 5] = np.nan, -np.inf
    return x


def _transposed(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    n, k = inputs["weight"].shape
    w = inputs["weight"].reshape(k, n).T
    out = nx.linear(nx.exact(inputs["x"]), w).value
    return {"out": nx.round_bf16(out) if profile == "bf16_f32acc" else out}


def _no_residual(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"out": nx.linear(nx.exact(inputs["x"]), inputs["weight"]).value}


WRONG: Mapping[str, Reference] = {"transposed": _transposed, "no_residual": _no_residual}


def cases() -> Iterator[Case]:
    """Odd sizes, one-hot rows that read the weights back, cancellation, more tokens than a tile."""
    yield Case(
        "random",
        "Weights read as [in, out]; rows or products rounded to bf16.",
        partial(matrices, 1, 5, 96, 33),
        profile="f32",
        family="random",
        seed=1,
        wrong=("transposed",),
        kills=("transposed", "bf16_rows", "bf16_sum", "row_zero"),
    )
    yield Case(
        "residual",
        "A residual that is forgotten or added twice.",
        partial(matrices, 2, 4, 48, 20, True),
        profile="f32",
        family="random",
        seed=2,
        wrong=("no_residual",),
        kills=("no_residual", "residual_twice", "last_column"),
    )
    yield Case(
        "one_hot",
        "Each weight read back on its own.",
        _one_hot,
        profile="f32",
        family="needle",
        seed=21,
        kills=("transposed", "tail", "last_column"),
    )
    yield Case(
        "inputs_513",
        "A tail of one input.",
        partial(matrices, 4, 2, 513, 7),
        profile="f32",
        family="random",
        seed=4,
        kills=("tail",),
    )
    yield Case(
        "one_by_one",
        "A single input and output.",
        partial(matrices, 5, 3, 1, 1),
        profile="f32",
        family="random",
        seed=5,
        kills=("last_column",),
    )
    yield Case(
        "tokens_65",
        "One token more than a tile of 64.",
        partial(matrices, 6, 65, 20, 9),
        profile="f32",
        family="random",
        seed=6,
        kills=("token_limit",),
    )
    yield Case(
        "cancelling",
        "Sums a thousandth of their terms, where low precision shows.",
        _cancelling,
        profile="f32",
        family="scaled",
        seed=20,
        kills=("bf16_rows",),
    )
    yield Case(
        "bf16_weights",
        "bf16 weights read as f16, or rows rounded to match them.",
        partial(matrices, 7, 5, 130, 12, True, True),
        profile="f32",
        dtypes={"weight": "bf16"},
        family="random",
        seed=7,
        kills=("bf16_rows", "tail"),
    )
    yield Case(
        "bad_rows",
        "A NaN or infinity that reaches other tokens, or is written out.",
        _bad_rows,
        profile="f32",
        family="extreme",
        seed=22,
        kills=("keeps_bad_rows",),
    )
    yield Case(
        "bf16",
        "bf16 rows or weights read in another type; partial sums kept in bf16; a cut result.",
        partial(halves, 32, 5, 96, 33),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="random",
        seed=32,
        wrong=("transposed",),
        kills=("transposed", "bf16_partial", "cut_store", "row_zero", "last_column"),
    )
    yield Case(
        "bf16_residual_cancels",
        "The product rounded to bf16 before the residual is added: here it is nearly its negative.",
        _residual_cancels,
        profile="bf16_f32acc",
        dtypes=BF16,
        family="scaled",
        seed=30,
        kills=("bf16_sum", "bf16_partial", "no_residual", "residual_twice"),
    )
    yield Case(
        "bf16_to_f32",
        "A result that passed through bf16 on its way to f32.",
        partial(halves, 33, 3, 264, 17, True),
        profile="bf16_f32acc_f32out",
        dtypes={"x": "bf16", "weight": "bf16"},
        family="random",
        seed=33,
        kills=("bf16_sum", "bf16_partial", "cut_store", "no_residual"),
    )
    for tokens, k, n in ((1, 2056, 40), (8, 776, 24), (17, 512, 17), (64, 136, 50), (65, 128, 48)):
        yield Case(
            f"bf16_tokens_{tokens}",
            "A group of tokens, of inputs or of outputs that is not whole.",
            partial(halves, 40 + tokens, tokens, k, n),
            profile="bf16_f32acc",
            dtypes=BF16,
            family="random",
            seed=40 + tokens,
            kills=("bf16_partial", "last_column", *(("token_limit",) if tokens > 64 else ())),
        )
    yield Case(
        "bf16_tokens_130",
        "More tokens than two tiles of 64, with a residual, stored as f32.",
        partial(halves, 34, 130, 96, 40, True),
        profile="bf16_f32acc_f32out",
        dtypes={"x": "bf16", "weight": "bf16"},
        family="random",
        seed=34,
        kills=("token_limit", "bf16_sum", "no_residual"),
    )
    yield Case(
        "bf16_inputs_513",
        "Rows that start at no multiple of 16 bytes, and a tail of one input.",
        partial(halves, 35, 3, 513, 7),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="random",
        seed=35,
        kills=("tail", "bf16_partial"),
    )
    yield Case(
        "bf16_bad_rows",
        "A NaN or infinity that reaches other tokens of its tile, or is written out.",
        _bad_halves,
        profile="bf16_f32acc",
        dtypes=BF16,
        family="extreme",
        seed=31,
        kills=("keeps_bad_rows",),
    )
    yield Case(
        "bf16_bad_rows_of_many",
        "A NaN among more than 64 tokens, with a residual.",
        _bad_among_many,
        profile="bf16_f32acc",
        dtypes=BF16,
        family="extreme",
        seed=36,
        kills=("keeps_bad_rows", "token_limit"),
    )
    yield Case(
        "no_inputs",
        "K = 0: the residual alone.",
        partial(matrices, 8, 3, 0, 5, True),
        profile="f32",
        seed=8,
        kills=("no_residual",),
        null_ok="the residual is the answer, so a copy of it passes",
    )
    yield Case(
        "no_tokens",
        "A launch with an empty grid.",
        partial(matrices, 9, 0, 8, 4),
        profile="f32",
        null_ok="no tokens: nothing is written",
    )
