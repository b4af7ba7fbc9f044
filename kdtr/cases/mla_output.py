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


WRONG: Mapping[str, Reference] = {
    "key_rows": partial(_wrong, Convention(key_rows=True)),
    "heads_innermost": partial(_wrong, Convention(heads_inner=True)),
    "no_residual": _no_residual,
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
