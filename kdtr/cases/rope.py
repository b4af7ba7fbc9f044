"""Cases of `rope@1`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.rope import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Array = NDArray[Any]
FACTOR = float.fromhex("0x1.6a7efap+0")
FAR = (0, 1, 2, 50000, 131071, 163839)
BF16 = {"x": "bf16", "out": "bf16"}
F16 = {"x": "f16", "out": "f16"}


def frequencies(count: int, factor: float = 64.0, low: int = 0, high: int = 0) -> Array:
    """Frequencies like YaRN's: theta^(-i/count), the slow ones divided by `factor`, in f32.

    theta^(1/count) is replaced by 1.375, so that no power function is needed; between `low` and
    `high` the two are mixed linearly.
    """
    plain = np.ones(count)
    for i in range(1, count):
        plain[i] = plain[i - 1] / 1.375
    ramp = np.clip((np.arange(count) - low) / max(high - low, 1), 0.0, 1.0)
    return nx.round_f32(plain * (1.0 - ramp) + plain / factor * ramp)


def heads(
    seed: int,
    t: int,
    h: int,
    w: int,
    f: int,
    positions: tuple[int, ...],
    cut: Callable[[Any], Array] = nx.round_f32,
) -> dict[str, Array]:
    """Random heads [t, h, w]; the positions repeat over the tokens."""
    return {
        "x": cut(nx.normal(seed, (t, h, w), 18)),
        "positions": np.array([positions[i % len(positions)] for i in range(t)], np.int32),
        "inv_freq": frequencies(f, 64.0, f // 4, 3 * f // 4),
    }


def _past_f16() -> dict[str, Array]:
    x = heads(18, 6, 2, 16, 6, FAR, nx.round_bf16)
    x["x"] *= np.ldexp(1.0, np.array([20, -30]))[:, None]
    return x


def _bad_among_259() -> dict[str, Array]:
    x = heads(17, 259, 1, 2, 1, (1, 70, 33, 4000, 5))
    x["positions"][100], x["x"][258, 0, 1] = -1, np.nan
    return x


def _bad_column_129() -> dict[str, Array]:
    x = heads(20, 2, 2, 130, 4, (3, 4))
    x["x"][1, 1, 129] = np.nan
    return x


def _slow_pairs_first() -> dict[str, Array]:
    x = heads(16, 2, 2, 138, 67, (7, 5000))
    return x | {"inv_freq": x["inv_freq"][::-1]}


def _canary() -> dict[str, Array]:
    x = heads(5, 3, 2, 40, 8, (7, 100, 65000))
    x["x"][..., :16] = 7.0 + np.arange(16) / 16  # before the rotated columns
    x["x"][..., 32:] = -3.0 - np.arange(8) / 16
    return x


def _refused() -> dict[str, Array]:
    x = heads(6, 6, 2, 16, 8, (3, -1, 9, 11, -2147483648, 5))
    x["x"][2, 1, 15], x["x"][3, 0, 0] = np.nan, np.inf
    return x


def _refused_beside_copies(t: int, h: int, w: int, cut: Callable[[Any], Array]) -> dict[str, Array]:
    """All columns but the last are turned; in both are bad numbers, and some positions are bad."""
    x = heads(21, t, h, w, w // 2, (3, -1, 9, 11, 70, 0, -2147483648, 5), cut)
    x["x"][2, h - 1, w - 1], x["x"][3, 0, 0] = np.nan, np.inf
    x["x"][4, 0, w - 1], x["x"][t - 1, h - 1, w // 2] = -np.inf, np.nan
    return x


def _with(
    change: Mapping[str, Any], inputs: Arrays, attrs: Attrs, profile: str
) -> dict[str, Array]:
    return {"out": reference(inputs, {**attrs, **change}, profile)["out"]}


def _other_store(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    other = "halves" if attrs["store"] == "interleaved" else "interleaved"
    return _with({"store": other}, inputs, attrs, profile)


def _half_pairs(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"out": reference(inputs, attrs, profile, half_pairs=True)["out"]}


def _sign(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    turned = {**inputs, "inv_freq": -inputs["inv_freq"]}
    return {"out": reference(turned, attrs, profile)["out"]}


def _scale_twice(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return _with({"scale": float(attrs["scale"]) ** 2}, inputs, attrs, profile)


def _through_f16(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"out": nx.round_f16(reference(inputs, attrs, profile)["out"])}


def _negative_accepted(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    """The status alone: a refused row has no budget that another result could be within."""
    accepted = {**inputs, "positions": np.maximum(inputs["positions"], 0)}
    return {"status": reference(accepted, attrs, profile)["status"]}


WRONG: Mapping[str, Reference] = {
    "half_pairs": _half_pairs,
    "other_store": _other_store,
    "opposite_sign": _sign,
    "no_scale": partial(_with, {"scale": 1.0}),
    "scale_twice": _scale_twice,
    "start_ignored": partial(_with, {"start": 0}),
    "negative_accepted": _negative_accepted,
    "through_f16": _through_f16,
}


def _case(
    name: str,
    catches: str,
    inputs: Callable[[], Arrays],
    *,
    start: int = 0,
    scale: float = 1.0,
    store: str = "interleaved",
    profile: str = "f32",
    **rest: Any,
) -> Case:
    attrs: Attrs = {"start": start, "scale": scale, "store": store}
    return Case(name, catches, inputs, attrs, profile=profile, **rest)


def cases() -> Iterator[Case]:
    """Both store orders, far positions, a partial rotation between canaries, factors, failures."""
    for store, seed in (("interleaved", 1), ("halves", 2)):
        yield _case(
            f"store_{store}",
            "The other pairing, the other store order, the other direction.",
            partial(heads, seed, 6, 3, 64, 32, (1, 2, 3, 17, 100, 1000)),
            store=store,
            family="random",
            seed=seed,
            wrong=("half_pairs", "other_store", "opposite_sign"),
            kills=("half_pairs", "sign", "other_store", "head_stride", "last_pair_skipped"),
        )
        yield _case(
            f"far_positions_{store}",
            "Large angles: unreduced fast sine and cosine, angles in f64 or bf16, positions in "
            "16 bits; and position 0, which must copy.",
            partial(heads, seed + 2, 12, 2, 64, 32, FAR),
            store=store,
            family="extreme",
            seed=seed + 2,
            kills=("wide_angle", "fast_trig", "bf16_angle", "int16_position", "position_of_first"),
        )
    yield _case(
        "last_position",
        "The last position of a context of 262,144 tokens.",
        partial(heads, 9, 3, 2, 64, 32, (262143, 262142, 200000)),
        family="extreme",
        seed=9,
        kills=("fast_trig", "wide_angle", "int16_position"),
    )
    yield _case(
        "end_of_range",
        "The last positions that the contract allows.",
        partial(heads, 14, 4, 1, 34, 17, (1048575, 1048574, 524289, 262145)),
        family="extreme",
        seed=14,
        kills=("fast_trig", "wide_angle", "past_262143"),
    )
    yield _case(
        "heads_65",
        "Heads past 16 and past 64.",
        partial(heads, 15, 1, 65, 5, 2, (60,)),
        store="halves",
        family="random",
        seed=15,
        kills=("past_16_heads", "past_64_heads", "head_stride"),
    )
    yield _case(
        "pairs_67",
        "Pairs past 32 and past 64, from an odd column.",
        _slow_pairs_first,
        start=3,
        family="random",
        seed=16,
        kills=("past_32_pairs", "past_64_pairs", "start_ignored"),
    )
    yield _case(
        "bad_among_259",
        "Tokens past 64 and 256, and those of them that fail.",
        _bad_among_259,
        family="extreme",
        seed=17,
        kills=("past_64_tokens", "past_256_tokens", "checks_64_tokens", "position_of_first"),
    )
    yield _case(
        "bad_column_129",
        "A NaN past 128 columns, in one that is only copied.",
        _bad_column_129,
        start=8,
        family="extreme",
        seed=20,
        kills=("checks_128_columns", "checks_turned_columns"),
    )
    yield _case(
        "between_canaries",
        "Columns before and after the rotated ones that lose their bits.",
        _canary,
        start=16,
        family="needle",
        seed=5,
        wrong=("start_ignored",),
        kills=("start_ignored", "rest_zeroed"),
    )
    yield _case(
        "latent_then_rope",
        "The rope part of a row of 512 latent and 64 rope columns.",
        partial(heads, 7, 2, 2, 576, 32, (40000, 5)),
        start=512,
        store="halves",
        family="random",
        seed=7,
        wrong=("start_ignored", "half_pairs"),
        kills=("start_ignored", "half_pairs"),
    )
    yield _case(
        "factor_on_cos_and_sin",
        "YaRN's factor on cos and sin dropped in one path, or squared.",
        partial(heads, 8, 5, 2, 32, 16, (0, 1, 77, 4096, 70000)),
        scale=FACTOR,
        family="random",
        seed=8,
        wrong=("no_scale", "scale_twice"),
        kills=("no_scale", "scale_twice"),
    )
    yield _case(
        "one_pair",
        "A single pair.",
        partial(heads, 10, 7, 1, 2, 1, FAR),
        family="random",
        seed=10,
        kills=("sign",),
    )
    yield _case(
        "refused",
        "A negative position, or a NaN or infinity, in one token only.",
        _refused,
        family="extreme",
        seed=6,
        kills=("negative_accepted",),
        wrong=("negative_accepted",),
    )
    yield _case(
        "bf16",
        "Rounding before the last sum; pairs past 32.",
        partial(heads, 11, 6, 2, 66, 33, FAR, nx.round_bf16),
        profile="bf16_f32acc",
        dtypes=BF16,
        family="random",
        seed=11,
        kills=("bf16_angle", "past_32_pairs"),
    )
    yield _case(
        "f16",
        "Rounding before the last sum, in f16; pairs past 32, stored in halves.",
        partial(heads, 12, 6, 1, 66, 33, FAR, nx.round_f16),
        profile="f16_f32acc",
        dtypes=F16,
        store="halves",
        family="random",
        seed=12,
        kills=("bf16_angle", "past_32_pairs"),
    )
    for dtype, cut, store, scale in (
        ("f32", nx.round_f32, "halves", FACTOR),
        ("bf16", nx.round_bf16, "interleaved", 1.0),
        ("bf16", nx.round_bf16, "halves", FACTOR),
        ("f16", nx.round_f16, "interleaved", 0.75),
        ("f16", nx.round_f16, "halves", 1.0),
    ):
        branches = {dtype: dtype != "f32", "halves": store == "halves", "scaled": scale != 1}
        yield _case(
            f"{dtype}_{store}_bad_tokens",
            "Bad tokens that one branch does not look for: a type, an order, a factor.",
            partial(
                _refused_beside_copies, *((67, 1, 3) if store == "halves" else (8, 17, 3)), cut
            ),
            scale=scale,
            store=store,
            profile=dtype if dtype == "f32" else f"{dtype}_f32acc",
            dtypes=dict.fromkeys(("x", "out"), dtype),
            family="extreme",
            seed=21,
            kills=(
                "minus_inf_accepted",
                *(("scale_at_least_1",) if scale < 1 else ()),
                *(
                    ("past_64_tokens", "checks_64_tokens")
                    if store == "halves"
                    else ("past_16_heads",)
                ),
                *(f"{name}_unchecked" for name, here in branches.items() if here),
                *(f"{name}_negative_accepted" for name, here in branches.items() if here),
            ),
        )
    for name, kind, cut, store in (
        ("bf16", BF16, nx.round_bf16, "halves"),
        ("f16", F16, nx.round_f16, "interleaved"),
    ):
        yield _case(
            f"{name}_factor_and_start",
            f"In {name}, the factor or the columns around the rotated ones forgotten.",
            partial(heads, 19, 2, 2, 23, 9, (77, 1000003), cut),
            start=3,
            scale=FACTOR,
            store=store,
            profile=f"{name}_f32acc",
            dtypes=kind,
            family="random",
            seed=19,
            wrong=("no_scale", "start_ignored"),
            kills=("no_scale", "scale_twice", "start_ignored", "rest_zeroed", "other_store"),
        )
    yield _case(
        "bf16_past_f16",
        "Rows or results that pass through f16, or are clamped to its range.",
        _past_f16,
        profile="bf16_f32acc",
        dtypes=BF16,
        family="extreme",
        seed=18,
        wrong=("through_f16",),
        kills=("clamps_to_f16", "rows_in_f16"),
    )
    yield _case(
        "no_pairs",
        "Rows of which nothing is turned, which are not copied, or whose status is not written.",
        partial(heads, 22, 2, 1, 3, 0, (5, 7)),
        family="random",
        seed=22,
        kills=("nothing_without_pairs",),
    )
    yield _case(
        "no_tokens",
        "A launch with an empty grid.",
        partial(heads, 13, 0, 2, 16, 8, (0,)),
        null_ok="no tokens: nothing is written",
    )
