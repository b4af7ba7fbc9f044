"""Cases of `mla_project@1`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.cases.rope import frequencies
from kdtr.reference.mla_project import Convention, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Array = NDArray[Any]
WEIGHTS = ("q_a", "q_a_norm", "q_b", "kv_a", "kv_a_norm", "kv_b")
BF16 = dict.fromkeys(WEIGHTS, "bf16")
HALVES = BF16 | dict.fromkeys(("x", "q", "kv"), "bf16")
ROWS: dict[str, Any] = {"profile": "bf16_f32acc", "dtypes": HALVES}


def layer(
    seed: int,
    positions: tuple[int, ...],
    *,
    d: int = 64,
    q: int = 48,
    h: int = 3,
    n: int = 16,
    f: int = 4,
    c: int = 32,
    v: int = 8,
    latent_scale: float = 0.125,
    cut: Callable[[Any], Array] = nx.round_f32,
) -> dict[str, Array]:
    """One layer's weights and one token for each position. v differs from n on purpose."""
    t = len(positions)

    def w(k: int, shape: tuple[int, ...], scale: float, at: float = 0.0) -> Array:
        return cut(nx.normal(seed + k, shape, 24, scale) + at)

    return {
        "x": nx.normal(seed, (t, d), 18),
        "positions": np.array(positions, np.int32),
        "inv_freq": frequencies(f, 4.0, 0, f // 2),
        "q_a": w(1, (q, d), latent_scale),
        "q_a_norm": w(2, (q,), 0.2, 1.0),
        "q_b": w(3, (h * (n + 2 * f), q), 0.25),
        "kv_a": w(4, (c + 2 * f, d), latent_scale),
        "kv_a_norm": w(5, (c,), 0.2, 1.0),
        "kv_b": w(6, (h, n + v, c), 0.25),
    }


def halves(seed: int, positions: tuple[int, ...], **sizes: Any) -> dict[str, Array]:
    """`layer` with x and the weights in bf16."""
    x = layer(seed, positions, cut=nx.round_bf16, **sizes)
    return x | {"x": nx.round_bf16(x["x"])}


def _heavy_end(
    axis: str, end: int, make: Callable[..., dict[str, Array]], long: dict[str, int]
) -> dict[str, Array]:
    """One axis longer than `end`; what lies past it counts 16 times."""
    x = make(**{"h": 1, "d": 6, "q": 3, "n": 3, "f": 1, "c": 4, "v": 1} | long)
    if axis == "inputs":
        x["x"][:, end:] *= 16.0
    elif axis == "ranks":
        x["q_b"][:, end:] *= 16.0
    elif axis == "nope":
        x["kv_b"][:, end : long["n"]] *= 16.0
    elif axis == "latents":
        x["kv_a"][end : long["c"]] *= 16.0
    else:
        x["inv_freq"] = x["inv_freq"][::-1]
    return x


def _bad_among_131(make: Callable[..., dict[str, Array]]) -> dict[str, Array]:
    x = make(180, (*range(100), -1, *range(101, 131)), d=4, q=3, h=1, n=2, f=1, c=2, v=1)
    x["x"][129, 3] = np.inf
    return x


def _bad_input_130(make: Callable[..., dict[str, Array]]) -> dict[str, Array]:
    x = make(190, (1, 2, 3), d=131, q=4, h=1, n=2, f=1, c=3, v=1)
    x["x"][1, 130] = np.nan
    return x


def _interleaved(make: Callable[..., dict[str, Array]]) -> dict[str, Array]:
    """Positions past 16 bits and one below 0, a NaN, an infinity; latents of variance 2^-10.

    The last token, q_b and kv_b have values that f16 does not hold; a norm has weights below 0.
    """
    sizes = {"d": 16, "q": 6, "h": 1, "n": 2, "f": 2, "c": 4, "v": 1}
    x = make(200, (70000, -1, 3, 131071, 5, 262145), **sizes, latent_scale=2.0**-7)
    x["x"][5] *= 2.0**24
    x["q_b"] *= 2.0**-50
    x["kv_b"] *= np.ldexp(1.0, np.array([50, -20, 70, 50]))
    x["q_a_norm"][::2] *= -1.0
    x["x"][2, 15], x["x"][4, 0] = np.nan, np.inf
    return x


def _past_f16() -> dict[str, Array]:
    """Rows of size 2^20 and 2^-30, a norm's weight of 2^20, queries of 2^-30 and heads of either.

    The rotated query is as small, the absorbed one of size 1 and 2^-50.
    """
    x = halves(140, (5, 6, 7, 8), d=32, q=16, h=2, n=8, f=2, c=16)
    x["x"] *= np.ldexp(1.0, np.array([20, -30, 20, -30]))[:, None]
    x["q_a_norm"] *= np.ldexp([1.0, -1.0], 20)[np.arange(16) % 2]
    x["kv_a_norm"][::3] *= -1.0
    x["q_b"] *= 2.0**-50
    x["kv_b"] *= np.ldexp(1.0, np.array([50, -20]))[:, None, None]
    return x


def _one_hot_latents() -> dict[str, Array]:
    """Each row of x picks a column of kv_a: the latents before their norm are bf16 values."""
    x = halves(150, tuple(range(8)), d=8, q=8, h=1, n=8, f=1, c=40)
    return x | {"x": np.eye(8)}


def _bad_halves() -> dict[str, Array]:
    x = halves(110, (*range(30, 95), -1, 7), d=32, q=24, h=2, n=8, f=4, c=16, v=8)
    x["x"][2, 31] = np.nan
    return x


def _bad_tokens() -> dict[str, Array]:
    x = layer(20, (4, -1, 6, 7, 100))
    x["x"][2, 63], x["x"][3, 0] = np.nan, np.inf
    return x


def _wrong(how: Convention, inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    out = reference(inputs, attrs, profile, how=how)
    return {name: out[name] for name in ("q", "kv")}


def _model_eps(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return _wrong(Convention(eps=10 * float(attrs["eps"])), inputs, attrs, profile)


def _no_rope_scale(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return _wrong(Convention(), inputs, {**attrs, "rope_scale": 1.0}, profile)


def _other_store(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    store = "halves" if attrs["store"] == "interleaved" else "interleaved"
    return _wrong(Convention(), inputs, {**attrs, "store": store}, profile)


def _through_f16(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    out = reference(inputs, attrs, profile)
    return {name: nx.round_f16(out[name]) for name in ("q", "kv")}


WRONG: Mapping[str, Reference] = {
    "half_pairs": partial(_wrong, Convention(half_pairs=True)),
    "opposite_sign": partial(_wrong, Convention(rope_sign=-1.0)),
    "rope_before_latent": partial(_wrong, Convention(rope_first=True)),
    "value_rows_absorbed": partial(_wrong, Convention(value_rows=True)),
    "no_latent_norms": partial(_wrong, Convention(norms=False)),
    "model_eps": _model_eps,
    "no_eps": partial(_wrong, Convention(eps=0.0)),
    "no_rope_scale": _no_rope_scale,
    "through_f16": _through_f16,
    "other_store": _other_store,
}


def _case(
    name: str,
    catches: str,
    inputs: Callable[[], Arrays],
    *,
    eps: float = 1e-6,
    rope_scale: float = 1.0,
    store: str = "halves",
    profile: str = "f32",
    **rest: Any,
) -> Case:
    attrs: Attrs = {"eps": eps, "rope_scale": rope_scale, "store": store}
    return Case(name, catches, inputs, attrs, profile=profile, **rest)


def cases() -> Iterator[Case]:
    """Both stores, small latents, far positions, one head, odd sizes, bf16 weights, failures."""
    for store, seed in (("halves", 1), ("interleaved", 2)):
        yield _case(
            f"store_{store}",
            "Rope pairs, direction or store order; latent and rope exchanged; "
            "key and value rows of kv_b exchanged; a norm left out.",
            partial(layer, seed * 10, (1, 2, 3, 100)),
            store=store,
            family="random",
            seed=seed * 10,
            wrong=(
                "half_pairs",
                "opposite_sign",
                "rope_before_latent",
                "value_rows_absorbed",
                "no_latent_norms",
                "other_store",
            ),
            kills=(
                "no_q_norm",
                "no_kv_norm",
                "half_pairs",
                "sign",
                "other_store",
                "rope_first",
                "value_rows",
                "key_unrotated",
                "query_unrotated",
                "position_zero",
                "head_zero",
                "keys_transposed",
                "rope_before_nope",
                "norm_over_row",
            ),
        )
    yield _case(
        "latent_variance_near_eps",
        "The model's eps used for the latent norms: their variance is near 1e-5.",
        partial(layer, 30, (5, 6, 7), latent_scale=2.0**-11),
        family="scaled",
        seed=30,
        wrong=("model_eps",),
        kills=("other_eps",),
    )
    yield _case(
        "far_positions",
        "Positions to the end of the context.",
        partial(layer, 40, (0, 1, 2, 50000, 131071, 163839)),
        family="extreme",
        seed=40,
        kills=("position_zero", "key_unrotated", "query_unrotated"),
    )
    yield _case(
        "factor_on_cos_and_sin",
        "YaRN's factor on cos and sin dropped.",
        partial(layer, 50, (0, 9)),
        rope_scale=float.fromhex("0x1.6a7efap+0"),
        family="random",
        seed=50,
        kills=("no_rope_scale",),
    )
    yield _case(
        "one_head_odd_sizes",
        "Sizes off every tile; one head.",
        partial(layer, 60, (3, 8, 11), d=37, q=21, h=1, n=7, f=3, c=19, v=11),
        family="random",
        seed=60,
        kills=("keys_transposed", "value_rows"),
    )
    yield _case(
        "wide_heads",
        "A prefix of real proportions: 128 nope, 64 rope, 128 value rows.",
        partial(layer, 70, (12345,), d=48, q=24, h=2, n=128, f=32, c=64, v=128),
        family="random",
        seed=70,
        kills=("value_rows", "head_zero"),
    )
    yield _case(
        "bf16_weights",
        "bf16 weights read in another type, or rows rounded to match them.",
        partial(layer, 80, (17, 18, 1900), cut=nx.round_bf16),
        dtypes=BF16,
        family="random",
        seed=80,
        kills=("no_kv_norm", "rope_first"),
    )
    yield _case(
        "bf16",
        "bf16 rows or weights read in another type; an angle in bf16.",
        partial(halves, 100, (1, 700, 30000, 131071)),
        profile="bf16_f32acc",
        dtypes=HALVES,
        family="random",
        seed=100,
        kills=(
            "no_q_norm",
            "no_kv_norm",
            "half_pairs",
            "sign",
            "other_store",
            "rope_first",
            "value_rows",
            "key_unrotated",
            "query_unrotated",
            "head_zero",
            "keys_transposed",
            "bf16_angle",
        ),
    )
    yield _case(
        "bf16_odd_sizes",
        "Sizes off every tile and off 16 bytes; one head.",
        partial(halves, 120, (3, 8, 11), d=37, q=21, h=1, n=7, f=3, c=19, v=11),
        profile="bf16_f32acc",
        dtypes=HALVES,
        store="interleaved",
        family="random",
        seed=120,
        kills=("keys_transposed", "value_rows", "other_store"),
    )
    yield _case(
        "bf16_tokens_67",
        "More tokens than a tile of 64, of which two fail.",
        _bad_halves,
        profile="bf16_f32acc",
        dtypes=HALVES,
        family="extreme",
        seed=110,
        kills=("keeps_bad_rows", "position_zero", "head_zero"),
    )
    yield _case(
        "bf16_wide_heads",
        "Real proportions in bf16: 128 nope, 64 rope, 128 value rows.",
        partial(halves, 130, (12345, 12346), d=128, q=64, h=2, n=128, f=32, c=64, v=16),
        profile="bf16_f32acc",
        dtypes=HALVES,
        family="random",
        seed=130,
        kills=("value_rows", "head_zero", "rope_before_nope"),
    )
    rows: dict[str, Any]
    long: dict[str, int]
    end: int
    for prefix, make, rows in (("", layer, {}), ("bf16_", halves, ROWS)):
        yield _case(
            f"{prefix}heads_65",
            "Heads past the third, past 16 and past 64; a far position, another eps.",
            partial(make, 160, (1000003,), d=8, q=6, h=65, n=4, f=1, c=4, v=1),
            **rows,
            family="random",
            seed=160,
            eps=2.0**-10,
            kills=(
                "past_16_heads",
                "past_64_heads",
                "head_zero",
                "position_in_18_bits",
                *(() if prefix else ("eps_1e_6",)),
            ),
        )
        for axis, end, long in (
            ("inputs", 512, {"d": 521}),
            ("ranks", 512, {"q": 521}),
            ("latents", 256, {"c": 265}),
            ("nope", 256, {"n": 265}),
            ("pairs", 32, {"f": 40}),
        ):
            yield _case(
                f"{prefix}many_{axis}",
                f"A stage that ends at {end} {axis}, or before.",
                partial(_heavy_end, axis, end, partial(make, 170, (41,)), long),
                **rows,
                family="needle",
                seed=170,
                kills=(f"past_{end}_{axis}",),
            )
        yield _case(
            f"{prefix}bad_among_131",
            "Tokens past 64 and 128, and those of them that fail.",
            partial(_bad_among_131, make),
            **rows,
            family="extreme",
            seed=180,
            kills=(
                "past_64_tokens",
                "past_128_tokens",
                "checks_64_tokens",
                "position_zero",
                "keeps_bad_rows",
            ),
        )
        yield _case(
            f"{prefix}bad_input_130",
            "A NaN past 128 inputs.",
            partial(_bad_input_130, make),
            **rows,
            family="extreme",
            seed=190,
            kills=("checks_128_inputs", "keeps_bad_rows"),
        )
    for prefix, make, rows in (
        ("", layer, {}),
        ("bf16_weights_", partial(layer, cut=nx.round_bf16), {"dtypes": BF16}),
        ("bf16_", halves, ROWS),
    ):
        yield _case(
            f"{prefix}interleaved_bad_and_far",
            "Stored interleaved, of one head: bad tokens accepted, a position past 65,535 cut, "
            "another eps, the factor or a norm's sign dropped, what passes through f16.",
            partial(_interleaved, make),
            **rows,
            eps=2.0**-10,
            rope_scale=float.fromhex("0x1.6a7efap+0"),
            store="interleaved",
            family="extreme",
            seed=200,
            kills=(
                "other_store",
                "keeps_bad_rows",
                "position_in_16_bits_interleaved",
                "position_in_16_bits_of_one_head",
                f"accepts_bad_{prefix or 'f32_'}interleaved",
                "eps_1e_6",
                "no_rope_scale_interleaved",
                "no_key_rope_scale_interleaved",
                "norm_weight_positive_interleaved",
                "clamps_to_f16_interleaved",
                *(("eps_1e_6_in_bf16", "rows_in_f16_interleaved") if prefix == "bf16_" else ()),
                *(("q_in_f16_interleaved",) if prefix == "bf16_" else ()),
                *(("kv_b_in_f16_of_bf16_weights",) if prefix == "bf16_weights_" else ()),
            ),
        )
    yield _case(
        "bf16_latent_variance_near_eps",
        "In bf16, eps ignored or the model's used for the latent norms.",
        partial(halves, 30, (5, 6), d=64, q=16, h=1, n=8, f=2, c=16, latent_scale=2.0**-14),
        **ROWS,
        family="scaled",
        seed=30,
        wrong=("model_eps", "no_eps"),
        kills=("other_eps", "no_eps", "no_eps_of_q", "no_eps_of_kv"),
    )
    yield _case(
        "bf16_factor_on_cos_and_sin",
        "In bf16, YaRN's factor on cos and sin dropped, from the query, the key or both.",
        partial(halves, 50, (0, 1000003), d=24, q=16, h=2, n=8, f=3, c=16),
        **ROWS,
        rope_scale=float.fromhex("0x1.6a7efap+0"),
        family="random",
        seed=50,
        wrong=("no_rope_scale",),
        kills=("no_rope_scale", "no_key_rope_scale"),
    )
    yield _case(
        "bf16_norm_rounded_once",
        "The normalised latent rounded to bf16 before it is multiplied by its weight.",
        _one_hot_latents,
        **ROWS,
        family="needle",
        seed=150,
        kills=("norm_rounded_inside",),
    )
    yield _case(
        "bf16_past_f16",
        "Rows, weights, latents or results that pass through f16, or are clamped to its range.",
        _past_f16,
        **ROWS,
        family="extreme",
        seed=140,
        wrong=("through_f16",),
        kills=(
            "clamps_to_f16",
            "rows_in_f16",
            "kv_b_in_f16",
            "latents_in_f16",
            "a_in_f16",
            "norm_weight_positive",
            "q_in_f16",
        ),
    )
    yield _case(
        "bad_tokens",
        "A negative position, NaN or infinity that reaches other tokens.",
        _bad_tokens,
        family="extreme",
        seed=20,
        kills=("keeps_bad_rows",),
    )
    yield _case(
        "no_tokens",
        "A launch with an empty grid.",
        partial(layer, 90, ()),
        null_ok="no tokens: nothing is written",
    )
