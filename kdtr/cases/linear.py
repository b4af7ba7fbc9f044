"""Cases of `linear@1`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.linear import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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


def _heavy_tail(
    make: Callable[..., dict[str, Array]], seed: int, t: int, k: int, n: int, heavy: int
) -> dict[str, Array]:
    """The last `heavy` inputs of a row are 16 times the others."""
    x = make(seed, t, k, n)
    x["x"][:, -heavy:] *= 16.0
    return x


def _bad_far() -> dict[str, Array]:
    x = halves(14, 3, 130, 66, residual=True)
    x["x"][1, 129], x["residual"][2, 65] = np.nan, np.inf
    return x


def _bad_of_140(make: Callable[..., dict[str, Array]]) -> dict[str, Array]:
    x = make(15, 140, 3, 2, residual=True)
    x["x"][139, 2], x["residual"][130, 1] = np.nan, -np.inf
    return x


def _bad_alone(
    make: Callable[..., dict[str, Array]], t: int, n: int, residual: bool = False
) -> dict[str, Array]:
    """A NaN and an infinity in x's rows."""
    x = make(17, t, 8, n, residual)
    x["x"][1, 7], x["x"][t - 2, 0] = np.nan, -np.inf
    return x


def _bad_input_512(make: Callable[..., dict[str, Array]], seed: int) -> dict[str, Array]:
    x = make(seed, 3, 513, 7)
    x["x"][2, 512] = np.nan
    return x


def _one_wide_row(make: Callable[..., dict[str, Array]]) -> dict[str, Array]:
    """A row of size 2^20, and 131 outputs of weights of sizes 1, 2^20 and 2^-30."""
    x = make(19, 1, 2, 131)
    x["x"] *= 2.0**20
    x["weight"] *= np.ldexp(1.0, np.array([0, 20, -30]))[np.arange(131) % 3, None]
    return x


def _bad_of_257_inputs(make: Callable[..., dict[str, Array]]) -> dict[str, Array]:
    """The last input counts 16 times; it is a NaN in one row, and another's residual infinite."""
    x = make(18, 3, 257, 1, residual=True)
    x["x"][:, 256] *= 16.0
    x["x"][1, 256], x["residual"][2, 0] = np.nan, np.inf
    return x


def _no_inputs_bad() -> dict[str, Array]:
    x = matrices(16, 3, 0, 5, True)
    x["residual"][1, 4] = np.nan
    return x


def _past_f16() -> dict[str, Array]:
    """Rows and weights of sizes 2^20 and 2^-30, and their products: no f16 holds them."""
    x = halves(51, 6, 24, 21)
    for name in ("x", "weight"):
        x[name] *= np.ldexp(1.0, np.array([0, 20, -30]))[np.arange(len(x[name])) % 3, None]
    return x


def _wide_residual() -> dict[str, Array]:
    return halves(52, 3, 40, 17) | {"residual": nx.normal(53, (3, 17), 18, 2.0)}


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


def _residual_in_bf16(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    half = nx.round_bf16(inputs["residual"])
    return {"out": reference({**inputs, "residual": half}, attrs, profile)["out"]}


def _through_f16(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"out": nx.round_f16(reference(inputs, attrs, profile)["out"])}


def _clamped_to_f16(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"out": np.clip(reference(inputs, attrs, profile)["out"], -65504.0, 65504.0)}


WRONG: Mapping[str, Reference] = {
    "transposed": _transposed,
    "no_residual": _no_residual,
    "residual_in_bf16": _residual_in_bf16,
    "through_f16": _through_f16,
    "clamped_to_f16": _clamped_to_f16,
}


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
        "A tail of one input, and a NaN in it.",
        partial(_bad_input_512, matrices, 4),
        profile="f32",
        family="random",
        seed=4,
        kills=("tail", "checks_128_inputs_f32_alone"),
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
        "tokens_521",
        "Tokens past 256 and 512, or the residual of those past 64.",
        partial(matrices, 10, 521, 2, 1, True),
        profile="f32",
        family="random",
        seed=10,
        kills=("token_limit", "past_128_tokens", "past_512_tokens", "residual_of_64_tokens"),
    )
    yield Case(
        "outputs_1031",
        "Outputs past 256 and 1024, or the residual of those past 64.",
        partial(matrices, 12, 1, 1, 1031, True),
        profile="f32",
        family="random",
        seed=12,
        kills=(
            "past_64_outputs",
            "past_128_outputs",
            "past_1024_outputs",
            "residual_of_64_outputs",
        ),
    )
    yield Case(
        "inputs_1037",
        "Inputs past 1024, which weigh most.",
        partial(_heavy_tail, matrices, 13, 1, 1037, 2, 13),
        profile="f32",
        family="needle",
        seed=13,
        kills=("past_1024_inputs", "tail"),
    )
    yield Case(
        "bad_rows_of_many",
        "A NaN and an infinity among more than 128 tokens.",
        partial(_bad_of_140, matrices),
        profile="f32",
        family="extreme",
        seed=15,
        kills=("checks_128_tokens", "keeps_bad_rows"),
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
        "bf16_outputs_129",
        "Outputs past 64 and 128 in bf16, with a residual; 131 inputs.",
        partial(halves, 50, 2, 131, 129, True),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="random",
        seed=50,
        kills=("past_64_outputs", "past_128_outputs", "no_residual"),
    )
    yield Case(
        "bf16_tiles_of_both",
        "More than one tile of tokens and of outputs: their numbers exchanged or one dropped.",
        partial(halves, 54, 65, 8, 65),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="random",
        seed=54,
        kills=("past_64_outputs", "token_limit"),
    )
    yield Case(
        "bf16_f32_residual",
        "A residual in f32 that is rounded to bf16 between bf16 rows and an f32 result.",
        _wide_residual,
        profile="bf16_f32acc_f32out",
        dtypes={"x": "bf16", "weight": "bf16"},
        family="random",
        seed=52,
        wrong=("residual_in_bf16",),
        kills=("residual_in_bf16", "no_residual", "residual_twice"),
    )
    yield Case(
        "bf16_past_f16",
        "Rows, weights or results that pass through f16, or are clamped to its range.",
        _past_f16,
        profile="bf16_f32acc",
        dtypes=BF16,
        family="extreme",
        seed=51,
        wrong=("through_f16", "clamped_to_f16"),
        kills=("clamps_to_f16", "through_f16", "rows_in_f16", "weights_in_f16"),
    )
    yield Case(
        "bf16_tokens_521",
        "Tokens past 256 and 512 in bf16.",
        partial(halves, 56, 521, 3, 2),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="random",
        seed=56,
        kills=("past_128_tokens", "past_512_tokens"),
    )
    yield Case(
        "bf16_outputs_1031",
        "Outputs past 256 and 1024 in f32 of bf16 rows, or the residual of those past 64.",
        partial(halves, 57, 1, 1, 1031, True),
        profile="bf16_f32acc_f32out",
        dtypes={"x": "bf16", "weight": "bf16"},
        family="random",
        seed=57,
        kills=("past_1024_outputs", "residual_of_64_outputs"),
    )
    yield Case(
        "bf16_inputs_4103",
        "Inputs past 1024 and 4096, which weigh most.",
        partial(_heavy_tail, halves, 58, 1, 4103, 1, 7),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="needle",
        seed=58,
        kills=("past_1024_inputs", "past_4096_inputs", "tail"),
    )
    yield Case(
        "bf16_bad_rows_far",
        "In bf16, a NaN past 128 inputs, an infinity in a residual past 64 outputs.",
        _bad_far,
        profile="bf16_f32acc",
        dtypes=BF16,
        family="extreme",
        seed=14,
        kills=("checks_128_inputs", "checks_64_outputs", "keeps_bad_rows"),
    )
    yield Case(
        "bf16_bad_rows_of_140",
        "In bf16, a NaN and an infinity among more than 128 tokens.",
        partial(_bad_of_140, halves),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="extreme",
        seed=15,
        kills=("checks_128_tokens", "keeps_bad_rows"),
    )
    yield Case(
        "bf16_inputs_513",
        "Rows that start at no multiple of 16 bytes, a tail of one input, and a NaN in it.",
        partial(_bad_input_512, halves, 35),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="random",
        seed=35,
        kills=("tail", "bf16_partial", "checks_128_inputs_bf16_alone"),
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
    make: Callable[..., dict[str, Array]]
    types: dict[str, Any]
    wide = partial(matrices, bf16=True)
    for prefix, make, types in (
        ("", matrices, {"profile": "f32"}),
        ("bf16_weights_", wide, {"profile": "f32", "dtypes": {"weight": "bf16"}}),
        ("bf16_", halves, {"profile": "bf16_f32acc", "dtypes": BF16}),
        (
            "bf16_to_f32_",
            halves,
            {"profile": "bf16_f32acc_f32out", "dtypes": {"x": "bf16", "weight": "bf16"}},
        ),
    ):
        kind = prefix or "f32_"
        yield Case(
            f"{prefix}bad_rows_alone",
            "A NaN or infinity that is accepted where there is no residual"
            + ("; tokens past 128." if prefix else "; outputs past 32 of tokens past 8."),
            partial(_bad_alone, make, *((131, 1) if prefix else (9, 33))),
            **types,
            family="extreme",
            seed=17,
            kills=(
                "keeps_bad_rows",
                f"accepts_bad_{kind}alone",
                *((f"checks_128_tokens_{kind}alone",) if prefix else ("past_8_by_32",)),
            ),
        )
        yield Case(
            f"{prefix}inputs_257_residual",
            "With a residual, a sum that ends at 256 inputs or before the odd one, or a bad row.",
            partial(_bad_of_257_inputs, make),
            **types,
            family="needle",
            seed=18,
            kills=(
                "tail",
                "no_residual",
                "keeps_bad_rows",
                f"past_256_{kind}residual",
                f"accepts_bad_{kind}residual",
            ),
        )
    yield Case(
        "bf16_weights_outputs_131",
        "Outputs past 64 and 128 of bf16 weights, which f16 does not hold.",
        partial(_one_wide_row, wide),
        profile="f32",
        dtypes={"weight": "bf16"},
        family="extreme",
        seed=19,
        kills=("past_128_outputs_bf16_weights", "weights_in_f16_bf16_weights", "clamps_to_f16"),
    )
    yield Case(
        "tokens_131",
        "Tokens past 64 and 128 and those of them that fail, without a residual.",
        partial(_bad_alone, matrices, 131, 1),
        profile="f32",
        family="extreme",
        seed=17,
        kills=("token_limit", "past_128_tokens", "checks_128_tokens_f32_alone", "keeps_bad_rows"),
    )
    yield Case(
        "bf16_weights_tokens_131_residual",
        "Tokens past 128, those of them that fail, and the residual of the others.",
        partial(_bad_alone, wide, 131, 1, True),
        profile="f32",
        dtypes={"weight": "bf16"},
        family="extreme",
        seed=17,
        kills=(
            "checks_128_tokens_bf16_weights_residual",
            "residual_of_64_tokens",
            "keeps_bad_rows",
        ),
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
        "bf16_no_inputs",
        "K = 0 in bf16: the residual alone.",
        partial(halves, 55, 3, 0, 5, True),
        profile="bf16_f32acc",
        dtypes=BF16,
        seed=55,
        kills=("no_residual", "no_inputs_zero"),
        null_ok="the residual is the answer, so a copy of it passes",
    )
    yield Case(
        "no_inputs_bad_residual",
        "K = 0: a residual that nobody looks at before it is copied.",
        _no_inputs_bad,
        profile="f32",
        family="extreme",
        seed=16,
        kills=("keeps_bad_rows", "no_residual", "no_inputs_zero"),
        null_ok="the residual is the answer, so a copy of it passes",
    )
    yield Case(
        "no_tokens",
        "A launch with an empty grid.",
        partial(matrices, 9, 0, 8, 4),
        profile="f32",
        null_ok="no tokens: nothing is written",
    )
