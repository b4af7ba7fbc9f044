"""Cases of `mla_output@1`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.mla_output import Convention, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Array = NDArray[Any]
BF16 = dict.fromkeys(("latent", "kv_b", "o", "residual", "out"), "bf16")
ROWS: dict[str, Any] = {"profile": "bf16_f32acc", "dtypes": BF16}


def layer(
    seed: int,
    t: int,
    *,
    h: int = 4,
    n: int = 16,
    v: int = 8,
    c: int = 32,
    d: int = 40,
    residual: bool = False,
    cut: Callable[[Any], Array] = nx.round_f32,
) -> dict[str, Array]:
    """Latents and weights of one layer. v differs from n on purpose."""
    x = {
        "latent": nx.normal(seed, (t, h, c), 18),
        "kv_b": cut(nx.normal(seed + 1, (h, n + v, c), 18, 0.25)),
        "o": cut(nx.normal(seed + 2, (d, h * v), 18, 0.25)),
    }
    if residual:
        x["residual"] = nx.normal(seed + 3, (t, d), 18)
    return x


def halves(seed: int, t: int, **sizes: Any) -> dict[str, Array]:
    """`layer` with everything in bf16."""
    return {name: nx.round_bf16(x) for name, x in layer(seed, t, **sizes).items()}


def _heavy_end(
    axis: str, end: int, make: Callable[..., dict[str, Array]], long: dict[str, int]
) -> dict[str, Array]:
    """One axis longer than `end`; what lies past it counts 16 times."""
    x = make(**{"h": 1, "n": 1, "v": 2, "c": 3, "d": 2} | long, residual=True)
    if axis == "values":
        x["o"][:, end:] *= 16.0
    elif axis == "latents":
        x["latent"][..., end:] *= 16.0
    return x


def _bad_among_131(make: Callable[..., dict[str, Array]]) -> dict[str, Array]:
    x = make(70, 131, h=35, n=1, v=1, c=1, d=2, residual=True)
    x["latent"][100, 34, 0], x["residual"][130, 1] = np.nan, -np.inf
    return x


def _bad_far(make: Callable[..., dict[str, Array]]) -> dict[str, Array]:
    """With sizes that f16 does not hold in o."""
    x = make(80, 3, h=17, n=1, v=1, c=10, d=73, residual=True)
    x["latent"][0, 16, 9], x["residual"][1, 72] = np.nan, np.inf
    x["o"] *= np.ldexp(1.0, np.array([0, 20, -30]))[np.arange(73) % 3, None]
    return x


def _bad_of_two_heads(
    make: Callable[..., dict[str, Array]], t: int, residual: bool
) -> dict[str, Array]:
    x = make(90, t, h=2, n=1, v=2, c=3, d=1, residual=residual)
    x["latent"][1, 1, 2], x["latent"][t - 2, 0, 0] = np.nan, np.inf
    return x


def _past_f16() -> dict[str, Array]:
    """Latents and rows of o of sizes 2^20 and 2^-30."""
    x = halves(40, 3, h=2, n=4, v=8, c=16, d=12)
    x["latent"] *= np.ldexp(1.0, np.array([0, 20, -30]))[:, None, None]
    x["o"] *= np.ldexp(1.0, np.array([0, 20, -30]))[np.arange(12) % 3, None]
    return x


def _values_past_f16() -> dict[str, Array]:
    """Value rows of size 2^20 and columns of o that bring them back."""
    x = halves(41, 3, h=2, n=4, v=8, c=16, d=12)
    x["kv_b"] *= np.ldexp(1.0, np.array([20, -30]))[:, None, None]
    x["o"] *= np.ldexp(1.0, np.repeat([-20, 30], 8))
    return x


def _bad_halves() -> dict[str, Array]:
    x = halves(30, 67, h=2, n=8, v=16, c=32, d=24, residual=True)
    x["latent"][1, 1, 31], x["residual"][66, 0] = np.nan, np.inf
    return x


def _bad_tokens() -> dict[str, Array]:
    x = layer(20, 5, residual=True)
    x["latent"][1, 3, 31], x["residual"][3, 0] = np.nan, np.inf
    return x


def _wrong(how: Convention, inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"out": reference(inputs, attrs, profile, how=how)["out"]}


def _no_residual(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    plain = {name: x for name, x in inputs.items() if name != "residual"}
    return {"out": reference(plain, attrs, profile)["out"]}


def _through_f16(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"out": nx.round_f16(reference(inputs, attrs, profile)["out"])}


WRONG: Mapping[str, Reference] = {
    "key_rows": partial(_wrong, Convention(key_rows=True)),
    "heads_innermost": partial(_wrong, Convention(heads_inner=True)),
    "no_residual": _no_residual,
    "through_f16": _through_f16,
}


def cases() -> Iterator[Case]:
    """Key rows against value rows, head order, residual, odd sizes, bf16 weights, failures."""
    yield Case(
        "random",
        "Key rows taken as value rows; heads innermost; o_proj transposed.",
        partial(layer, 1, 5, d=32),
        profile="f32",
        family="random",
        seed=1,
        wrong=("key_rows", "heads_innermost"),
        kills=(
            "key_rows",
            "heads_inner",
            "head_zero",
            "last_head_dropped",
            "bf16_values",
            "token_zero",
            "o_transposed",
            "next_head_latent",
        ),
    )
    yield Case(
        "residual",
        "A residual that is forgotten.",
        partial(layer, 2, 4, residual=True),
        profile="f32",
        family="random",
        seed=2,
        wrong=("no_residual",),
        kills=("no_residual",),
    )
    yield Case(
        "one_head_odd_sizes",
        "Sizes off every tile; one head.",
        partial(layer, 3, 3, h=1, n=5, v=11, c=19, d=13),
        profile="f32",
        family="random",
        seed=3,
        kills=("key_rows", "bf16_values"),
    )
    yield Case(
        "wide_heads",
        "Real proportions: 512 latents, 128 nope and 128 value rows.",
        partial(layer, 4, 1, h=1, n=16, v=32, c=512, d=24, residual=True),
        profile="f32",
        family="random",
        seed=4,
        kills=("key_rows", "no_residual"),
    )
    yield Case(
        "bf16_weights",
        "bf16 weights read in another type, or values rounded to match them.",
        partial(layer, 5, 3, residual=True, cut=nx.round_bf16),
        profile="f32",
        dtypes={"kv_b": "bf16", "o": "bf16"},
        family="random",
        seed=5,
        kills=("bf16_values",),
    )
    yield Case(
        "bf16",
        "bf16 latents or weights read in another type; the wrong rows or heads in bf16.",
        partial(halves, 6, 5),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="random",
        seed=6,
        kills=("key_rows", "heads_inner", "head_zero", "token_zero", "next_head_latent"),
    )
    yield Case(
        "bf16_odd_sizes",
        "Sizes off every tile and off 16 bytes, with a residual.",
        partial(halves, 7, 3, h=1, n=5, v=11, c=19, d=13, residual=True),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="random",
        seed=7,
        kills=("key_rows", "no_residual"),
    )
    yield Case(
        "bf16_tokens_67",
        "More tokens than a tile of 64, of which two fail.",
        _bad_halves,
        profile="bf16_f32acc",
        dtypes=BF16,
        family="extreme",
        seed=30,
        kills=("last_head_dropped", "token_zero", "no_residual", "keeps_bad_rows"),
    )
    yield Case(
        "bf16_wide_heads",
        "Real proportions in bf16: 512 latents, 128 nope and 128 value rows.",
        partial(halves, 8, 2, h=2, n=8, v=64, c=256, d=24),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="random",
        seed=8,
        kills=("key_rows", "heads_inner", "o_transposed"),
    )
    make: Callable[..., dict[str, Array]]
    rows: dict[str, Any]
    long: dict[str, int]
    end: int
    for prefix, make, rows in (("", layer, {"profile": "f32"}), ("bf16_", halves, ROWS)):
        yield Case(
            f"{prefix}heads_65",
            "Heads past 16 and past 64, or the residual of one.",
            partial(make, 50, 2, h=65, n=2, v=4, c=6, d=9, residual=True),
            **rows,
            family="random",
            seed=50,
            kills=("past_16_heads", "past_64_heads", "head_zero", "last_head_dropped"),
        )
        for axis, end, long in (
            ("outputs", 512, {"d": 521}),
            ("values", 1024, {"v": 1037}),
            ("latents", 512, {"c": 525}),
        ):
            yield Case(
                f"{prefix}many_{axis}",
                f"A stage that ends at {end} {axis}, or before; a residual that does.",
                partial(_heavy_end, axis, end, partial(make, 60, 1), long),
                **rows,
                family="needle",
                seed=60,
                kills=(
                    f"past_{end}_{axis}",
                    "no_residual",
                    *(("residual_of_64_outputs",) if axis == "outputs" else ()),
                    *(("past_1024_inputs",) if axis == "values" else ()),
                ),
            )
        yield Case(
            f"{prefix}bad_among_131",
            "Tokens past 64 and 128 of 35 heads, those that fail, the residual of the others.",
            partial(_bad_among_131, make),
            **rows,
            family="extreme",
            seed=70,
            kills=(
                "past_64_tokens",
                "past_128_tokens",
                "checks_64_tokens",
                "past_16_heads",
                "residual_of_64_tokens",
                "token_zero",
                "keeps_bad_rows",
            ),
        )
    yield Case(
        "bf16_past_f16",
        "Latents, o or results that pass through f16, or are clamped to its range.",
        _past_f16,
        **ROWS,
        family="extreme",
        seed=40,
        wrong=("through_f16",),
        kills=("clamps_to_f16", "rows_in_f16", "o_in_f16"),
    )
    yield Case(
        "bf16_values_past_f16",
        "Values kept in f16 between the two products.",
        _values_past_f16,
        **ROWS,
        family="extreme",
        seed=41,
        kills=("values_in_f16", "o_in_f16"),
    )
    mixed: dict[str, Any] = {"profile": "f32", "dtypes": {"kv_b": "bf16", "o": "bf16"}}
    wide = partial(layer, cut=nx.round_bf16)
    for prefix, make, rows in (
        ("", layer, {"profile": "f32"}),
        ("bf16_weights_", wide, mixed),
        ("bf16_", halves, ROWS),
    ):
        yield Case(
            f"{prefix}bad_tokens_far",
            "A NaN in the last of 17 heads, an infinity in a residual past 64 outputs.",
            partial(_bad_far, make),
            **rows,
            family="extreme",
            seed=80,
            kills=(
                "checks_64_outputs",
                "keeps_bad_rows",
                "clamps_to_f16",
                "checks_128_latents",
                *(
                    ("checks_128_latents_bf16_weights_residual", "o_in_f16_bf16_weights_residual")
                    if prefix == "bf16_weights_"
                    else ()
                ),
            ),
        )
        for residual in (False, True):
            if residual and prefix != "bf16_weights_":
                continue  # `bad_among_131` has both
            name = "residual" if residual else "alone"
            yield Case(
                f"{prefix}bad_tokens_{name}",
                f"A NaN or infinity that is accepted {'with' if residual else 'without'} a "
                "residual; tokens past 128.",
                partial(_bad_of_two_heads, make, 131, residual),
                **rows,
                family="extreme",
                seed=90,
                kills=(
                    "keeps_bad_rows",
                    f"accepts_bad_{prefix or 'f32_'}{name}",
                    f"past_128_tokens_{prefix or 'f32_'}{name}",
                ),
            )
    yield Case(
        "bad_tokens",
        "A NaN or infinity that reaches other tokens, or is written out.",
        _bad_tokens,
        profile="f32",
        family="extreme",
        seed=20,
        kills=("keeps_bad_rows",),
    )
    yield Case(
        "no_tokens",
        "A launch with an empty grid.",
        partial(layer, 6, 0),
        profile="f32",
        null_ok="no tokens: nothing is written",
    )
