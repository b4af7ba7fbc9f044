"""Cases of `moe_experts@1`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.moe_experts import Convention, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Array = NDArray[Any]
NAMES = ("gate", "up", "down")


def tokens(
    seed: int, t: int, d: int, k: int, e: int, cut: Callable[[Any], Array] = nx.round_f32
) -> dict[str, Array]:
    """Random tokens with k distinct experts each, weights that sum to about 2.5."""
    order = np.argsort(nx.normal(seed + 1, (t, e), 40), axis=1, kind="stable")
    return {
        "x": cut(nx.normal(seed, (t, d), 18)),
        "ids": order[:, :k].astype(np.int32),
        "weights": (nx.integers(seed + 2, (t, k), 64, 256) / 256.0),
    }


def dense(
    seed: int,
    t: int,
    d: int,
    i: int,
    e: int,
    k: int,
    *,
    shared: int = 0,
    residual: bool = False,
    cut: Callable[[Any], Array] = nx.round_f32,
    rows: Callable[[Any], Array] = nx.round_f32,
) -> dict[str, Array]:
    """Tokens, dense experts of hidden size i, a shared expert of size `shared`, a residual."""
    x = tokens(seed, t, d, k, e, rows)
    shapes = {"gate": (e, i, d), "up": (e, i, d), "down": (e, d, i)}
    for n, name in enumerate(NAMES):
        x[name] = cut(nx.normal(seed + 3 + n, shapes[name], 18, 0.25))
    if shared:
        for n, name in enumerate(NAMES):
            shape = (d, shared) if name == "down" else (shared, d)
            x[f"shared_{name}"] = cut(nx.normal(seed + 6 + n, shape, 18, 0.25))
    if residual:
        x["residual"] = rows(nx.normal(seed + 9, (t, d), 18))
    return x


def words(codes: NDArray[np.int64]) -> NDArray[np.int32]:
    """int4 codes 0..15 [..., n] to words [..., n/8], lowest nibble first."""
    lanes = codes.reshape(*codes.shape[:-1], -1, 8) << (4 * np.arange(8))
    packed: NDArray[np.int32] = lanes.sum(axis=-1).astype(np.uint32).view(np.int32)
    return packed


def powers(seed: int, shape: tuple[int, ...], spread: int = 5) -> Array:
    """Distinct neighbouring powers of two: scales that tell group, row and expert apart."""
    index = np.arange(int(np.prod(shape))).reshape(shape)
    exponent = (index * 3 + seed + index // shape[-1]) % spread - 6
    return np.asarray(np.ldexp(1.0, exponent))


def mantissas(seed: int, shape: tuple[int, ...]) -> Array:
    """Scales near 2^-5 with full bf16 mantissas, so that a product of int4 and scale rounds."""
    return np.asarray(np.ldexp(129.0 + 2.0 * nx.integers(seed, shape, 0, 63), -13))


def packed(
    seed: int,
    t: int,
    d: int,
    i: int,
    e: int,
    k: int,
    group: int,
    *,
    shared: int = 0,
    scales: Callable[[int, tuple[int, ...]], Array] = powers,
    rows: Callable[[Any], Array] = nx.round_f32,
) -> dict[str, Array]:
    """Tokens and int4 experts with random codes."""
    x = tokens(seed, t, d, k, e, rows)
    shapes = {"gate": (e, i, d), "up": (e, i, d), "down": (e, d, i)}
    for n, name in enumerate(NAMES):
        *head, cols = shapes[name]
        x[f"{name}_packed"] = words(nx.integers(seed + 3 + n, shapes[name], 0, 16))
        x[f"{name}_scale"] = scales(seed + n, (*head, cols // group))
    if shared:
        other = dense(seed + 20, t, d, 1, 1, 1, shared=shared, cut=rows)
        x |= {name: other[name] for name in other if name.startswith("shared")}
    return x


def _all_codes() -> dict[str, Array]:
    """One-hot tokens pick single columns; the rows have all 16 codes in all 8 lanes."""
    d = i = 64
    x = packed(30, d, d, i, 1, 1, 32)
    x["x"] = np.eye(d) * 2.0
    x["ids"], x["weights"] = np.zeros((d, 1), np.int32), np.ones((d, 1))
    column = np.arange(d)
    codes = (column // 8 + 3 * (column % 8) + column[:, None]) % 16
    for name in NAMES:
        x[f"{name}_packed"] = words(codes.astype(np.int64))[None]
    return x


def _pads() -> dict[str, Array]:
    x = dense(31, 5, 32, 24, 4, 3)
    x["ids"][0, 1] = x["ids"][2, 0] = -1
    x["ids"][3] = -1
    for name in NAMES:  # expert 3 is named by nobody
        x[name][3] = 2.0**100
    x["ids"][x["ids"] == 3] = -1
    return x


def _bad_tokens(cut: Callable[[Any], Array] = nx.round_f32) -> dict[str, Array]:
    x = dense(32, 7, 16, 8, 3, 2, residual=True, cut=cut, rows=cut)
    x["x"][1, 15], x["weights"][2, 1], x["residual"][3, 0] = np.nan, np.inf, -np.inf
    x["ids"][4, 1], x["ids"][5, 0] = 3, -2
    return x


def _shared_only() -> dict[str, Array]:
    x = dense(33, 3, 32, 8, 2, 2, shared=48)
    x["ids"][:] = -1
    return x


def _positive(seed: int, shape: tuple[int, ...], low: int, high: int) -> Array:
    """bf16 values (128 + n) / 128, n in [low, high): nothing cancels in their sums."""
    return np.asarray((128.0 + nx.integers(seed, shape, low, high)) / 128.0)


def _cancelled(x: dict[str, Array], form: str = "dense", group: int = 0) -> dict[str, Array]:
    """x with a residual that leaves a 16th of the sum: an early rounding of it shows."""
    attrs = {"format": form, "group": group}
    x["residual"] = -nx.round_bf16(reference(x, attrs, "bf16_f32acc")["out"] * 0.9375)
    return x


def _open_gates(seed: int, t: int, e: int, shared: int = 0) -> dict[str, Array]:
    """gate = 64 x0, where silu is the identity, and up = a bf16 value: hidden is one as well."""
    d, i = 16, 64
    x = dense(seed, t, d, i, e, e, shared=shared)
    x["x"] = np.zeros((t, d))
    x["x"][:, 0] = np.ldexp(1.0, np.arange(t) % 2)
    for prefix, rows in (("", i), ("shared_", shared)):
        head = (e,) if not prefix else ()
        if rows:
            for n, name in enumerate(NAMES):
                shape = (*head, d, rows) if name == "down" else (*head, rows, d)
                x[prefix + name] = _positive(seed + n + len(prefix), shape, 0, 32)
            x[f"{prefix}gate"][:] = 64.0
    x["weights"] = np.ones((t, e))
    return x


def _products_off_the_grid() -> dict[str, Array]:
    """gate and up are bf16 values plus 15/16 of half a step: rounded, they all shrink."""
    x = _open_gates(70, 2, 1)
    x["x"][:, 1] = x["x"][:, 0]
    x["gate"][..., 1] = 64.0 * np.ldexp(15.0, -12)
    x["up"][..., 1] = np.ldexp(15.0, -12)
    return _cancelled(x)


def _one_rounding() -> dict[str, Array]:
    """Sums of 64 exact hidden elements, experts of both signs, a residual that takes most."""
    x = _open_gates(74, 4, 2, shared=64)
    x["down"][1] *= -1.0
    return _cancelled(x)


def _codes_that_round_down(form: str) -> dict[str, Array]:
    """Positive weights 7 * scale that rounding to bf16 makes smaller, all of them."""
    t, d, i = 2, 64, 64
    x = packed(82, t, d, i, 1, 1, 32)
    x["x"] = _positive(83, (t, d), 0, 126)
    for n, name in enumerate(NAMES):
        x[f"{name}_packed"] = words(np.full((1, 64, 64), 15))
        # 7 (8 m + 5) has eleven bits, the last three of them 3: it rounds down by 3.
        m = nx.integers(84 + n, x[f"{name}_scale"].shape, 18, 32)
        x[f"{name}_scale"] = np.ldexp(8.0 * m + 5.0, -15)
    return _cancelled(x, form, 32)


def _full_factors(seed: int, shape: tuple[int, ...]) -> Array:
    """f32 factors in 1/8 .. 1/4 with all their bits."""
    return np.asarray(np.ldexp(nx.integers(seed, shape, 2**23, 2**24) * 1.0, -26))


def _top_8(seed: int, t: int, d: int, i: int, e: int, rows: Callable[[Any], Array]) -> Arrays:
    """8 of e experts a token, the last expert among them, with factors of 24 bits."""
    x = dense(seed, t, d, i, e, 8, cut=nx.round_bf16, rows=rows)
    x["weights"] = _full_factors(seed + 10, (t, 8)) * np.where(np.arange(8) % 3 == 1, -1.0, 1.0)
    for row in x["ids"]:
        row[:] = np.where(row == e - 1, row[7], row)
    x["ids"][:, 7] = e - 1
    return x


def _top_12_of_389(cut: Callable[[Any], Array], d: int, i: int) -> dict[str, Array]:
    """12 of 389 experts a token, the last one in its last slot; some factors below 0."""
    x = dense(111, 3, d, i, 389, 12, cut=cut, rows=cut)
    x["ids"][:, 9:] = np.array([388, 387, 300])[(np.arange(3) + np.arange(3)[:, None]) % 3]
    x["ids"][:, :9] = np.minimum(x["ids"][:, :9], 299 - np.arange(9))
    x["weights"][:, ::2] *= -1.0
    return x


def _int4_top_8() -> dict[str, Array]:
    """8 of 17 int4 experts a token, a pad before the others, scales below 0, a residual."""
    x = packed(112, 3, 32, 32, 17, 8, 32, rows=nx.round_bf16)
    x["ids"][1, 0] = x["ids"][2, 3] = -1
    for name in NAMES:
        x[f"{name}_scale"] *= np.where(np.arange(32) % 3 == 2, -1.0, 1.0)[:, None]
    return x | {"residual": nx.round_bf16(nx.normal(113, (3, 32), 18))}


def _gates_of_thousands(rows: Callable[[Any], Array]) -> dict[str, Array]:
    """Gates from -10^4 to 10^4: 128 x0 times what each hidden row holds."""
    x = dense(114, 4, 5, 11, 2, 2, cut=nx.round_bf16, rows=rows)
    x["x"][:, 0] = np.array([1.0, -1.0, 0.75, -0.5])
    x["gate"][:, :, 1:] = 0.0
    x["gate"][:, :, 0] = np.array([-9984, -704, -108, -92, -89, -60, 20, 60, 92, 704, 9984])
    return x


def _bad_columns() -> dict[str, Array]:
    x = dense(115, 2, 133, 1, 1, 1, residual=True)
    x["x"][1, 132] = np.nan
    return x


def _bad_far() -> dict[str, Array]:
    """What is bad lies past 128 columns, or in the ninth slot."""
    x = dense(115, 6, 133, 1, 9, 9, residual=True, cut=nx.round_bf16, rows=nx.round_bf16)
    x["x"][1, 132], x["weights"][2, 8], x["residual"][3, 131] = np.nan, np.inf, -np.inf
    x["ids"][4, 8], x["ids"][5, 8] = 9, -2
    return x


def _bad_of_many(cut: Callable[[Any], Array], int4: bool = False) -> dict[str, Array]:
    """Bad tokens past 512."""
    if int4:
        x = packed(134, 523, 32, 32, 3, 1, 32, rows=cut)
        x["residual"] = cut(nx.normal(135, (523, 32), 18))
    else:
        x = dense(116, 523, 2, 3, 3, 1, residual=True, cut=cut, rows=cut)
    x["x"][515, 1], x["weights"][130, 0], x["residual"][70, 1] = np.nan, np.inf, -np.inf
    x["ids"][522, 0] = 3
    return x


def _groups(group: int, **rest: Any) -> dict[str, Array]:
    """int4 experts of several groups a row; one of three tokens has a NaN past 128 columns."""
    x = packed(40 + group, 3, 256, 128, 3, 2, group, **rest)
    x["x"][2, 200] = np.nan
    return x


def _heavy_hidden(cut: Callable[[Any], Array]) -> dict[str, Array]:
    """The last 13 of 653 hidden elements count 16 times; results past f16."""
    x = dense(119, 2, 1, 653, 1, 1, cut=cut, rows=cut)
    x["down"] *= np.where(np.arange(653) < 640, 2.0**20, 2.0**24)
    return x


def _factors_off_the_grid() -> dict[str, Array]:
    """Factors that rounding to bf16, or to f16, makes smaller, all of them."""
    x = _open_gates(78, 3, 2)
    x["weights"] = np.tile(1.0 + np.ldexp(np.array([55.0, 39.0]), -14), (3, 1))
    sums = reference(x, {"format": "dense", "group": 0}, "bf16_f32acc")["out"]
    return x | {"residual": -nx.round_bf16(sums)}


def _all_kinds(form: str, profile: str, both: bool, more: int = 0) -> dict[str, Array]:
    """Two opposite experts in slots 0 and 11; good tokens, one of pads, and a bad one of each kind.

    gate is 64 or more, where silu is the identity, so hidden elements and their sums are exact; one
    token is past f16, its factors small without `both`; one's gate is below -127; a bad one first.
    With `both`, a shared expert too, and a residual that takes all but the rounding of the sums.
    `more`: good tokens more.
    """
    bad, shared = (9, 8) if both else (8, 0)
    t = bad + more
    if form == "dense":
        x = dense(130, t, 8, 8, 2, 2, shared=shared, cut=nx.round_bf16)
        x["gate"][:] = 64.0
        x["up"][:] = _positive(131, (8, 8), 0, 32)
        x["down"][1] = -x["down"][0]
    else:
        x = packed(130, t, 32, 32, 2, 2, 32, shared=shared, rows=nx.round_bf16)
        codes = {name: nx.integers(131, (2, 32, 32), 9, 16) for name in NAMES}
        codes["gate"][:], codes["up"][1] = 9, codes["up"][0]
        codes["down"][1] = 16 - codes["down"][0]
        for name in NAMES:
            x[f"{name}_packed"] = words(codes[name])
        odd = np.arange(32)[:, None] % 2 == 1
        x["gate_scale"][:], x["up_scale"][:] = 2.0**17, np.where(odd, -(2.0**17), 2.0**19)
        x["down_scale"][:] = np.where(odd, 99840.0, -0.5)
    if both:
        x["shared_gate"][:] = 64.0
        x["shared_up"] = _positive(132, x["shared_up"].shape, 0, 32)
    d = x["x"].shape[1]
    x["x"] = np.eye(1, d) * np.ldexp(1.0, np.arange(t) % 2 * 17)[:, None]
    x["x"][7, 0] = -2.0
    x["ids"] = np.full((t, 12), -1, np.int32)
    x["ids"][:, 0], x["ids"][:, 11] = 0, 1
    x["ids"][2] = -1
    x["weights"] = np.ones((t, 12))
    x["weights"][:2, 0] = 1.0 + 2.0**-9 + 2.0**-12, -0.5
    if not both:
        x["weights"][1] *= 2.0**-20
    x["weights"][bad:, 0] = 2.0
    if both:
        attrs = {"format": form, "group": 0 if form == "dense" else 32}
        x["residual"] = -nx.round_bf16(reference(x, attrs, profile)["out"])
        x["residual"][[2, 7]], x["residual"][8, 0] = 1.0, -np.inf
    x["x"][3, d - 1], x["weights"][4, 11] = (np.inf, np.nan) if both else (np.nan, np.inf)
    x["ids"][4, 11], x["ids"][5, 11], x["ids"][6, 0] = -1, 2, -2
    return x | {n: np.roll(x[n], -3, 0) for n in ("x", "ids", "weights", "residual") if n in x}


def _past_f16(packed_up: bool = False) -> dict[str, Array]:
    """Rows of size 2^18 and 2^-30, each with an expert whose gate brings them back to 1."""
    if packed_up:
        x = packed(101, 6, 32, 32, 2, 1, 32, rows=nx.round_bf16)
        gate = x["gate_scale"]
    else:
        x = dense(100, 6, 16, 12, 2, 1, cut=nx.round_bf16, rows=nx.round_bf16)
        gate = x["gate"]
    x["ids"] = np.arange(6, dtype=np.int32)[:, None] % 2
    x["x"] *= np.ldexp(1.0, np.array([18, -30]))[x["ids"]]
    gate *= np.ldexp(1.0, np.array([-18, 30]))[:, None, None]
    return x


def _on_one(x: dict[str, Array]) -> dict[str, Array]:
    """All tokens on expert 1."""
    return x | {"ids": np.ones_like(x["ids"])}


def _int4_on_one() -> dict[str, Array]:
    x = _on_one(packed(102, 130, 32, 32, 3, 1, 32, rows=nx.round_bf16))
    x["x"][100, 31] = np.nan
    return x


def _crowd(rows: Callable[[Any], Array] = nx.round_f32) -> dict[str, Array]:
    x = dense(90, 70, 32, 24, 2, 2, shared=16, cut=nx.round_bf16, rows=rows)
    x["ids"][3, 0] = x["ids"][69, 1] = -1
    return x


def _wrong(how: Convention, inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    cut = nx.round_f32 if profile == "f32" else nx.round_bf16
    return {"out": cut(reference(inputs, attrs, profile, how=how)["out"])}


def _other_rounding(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return _wrong(Convention(round_weights=attrs["format"] == "w4_exact"), inputs, attrs, profile)


def _through_f16(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"out": nx.round_f16(reference(inputs, attrs, profile)["out"])}


WRONG: Mapping[str, Reference] = {
    "gate_up_swapped": partial(_wrong, Convention(gate_up_swapped=True)),
    "unweighted": partial(_wrong, Convention(weighted=False)),
    "no_shared": partial(_wrong, Convention(shared=False)),
    "shared_divided_by_scaling": partial(_wrong, Convention(shared_factor=0.4)),
    "high_nibble_first": partial(_wrong, Convention(high_nibble_first=True)),
    "twos_complement": partial(_wrong, Convention(twos_complement=True)),
    "scale_of_next_group": partial(_wrong, Convention(scale_shift=1)),
    "other_rounding": _other_rounding,
    "rounded_products": partial(_wrong, Convention(round_products=True)),
    "rounded_experts": partial(_wrong, Convention(round_experts=True)),
    "rounded_sum": partial(_wrong, Convention(round_sum=True)),
    "factors_in_bf16": partial(_wrong, Convention(factors_in="bf16")),
    "factors_in_f16": partial(_wrong, Convention(factors_in="f16")),
    "through_f16": _through_f16,
}


def _case(
    name: str,
    catches: str,
    inputs: Callable[[], Arrays],
    *,
    form: str = "dense",
    group: int = 0,
    profile: str = "f32",
    **rest: Any,
) -> Case:
    attrs: Attrs = {"format": form, "group": group}
    return Case(name, catches, inputs, attrs, profile=profile, **rest)


BF16 = dict.fromkeys((*NAMES, *(f"shared_{n}" for n in NAMES)), "bf16")
ROWS: dict[str, Any] = {
    "profile": "bf16_f32acc",
    "dtypes": {**BF16, **dict.fromkeys(("x", "residual", "out"), "bf16")},
}


ONLY: Mapping[str, tuple[str, ...]] = {  # faults that `all_kinds` alone sees in a type
    "f32": ("past_eight_slots", "exp_overflows", "bad_first_of_eight"),
    "bf16_weights": ("checks_two_slots",),
    "int4_exact": ("past_eight_slots",),
    "int4_bf16": ("past_eight_slots", "past_eight_tokens", "residual_of_8_tokens", "no_shared"),
    "bf16_int4_exact": ("checks_two_slots", "exp_overflows"),
    "bf16_int4_bf16": ("past_eight_slots", "past_eight_tokens", "rows_in_f16"),
}


def cases() -> Iterator[Case]:
    """Dense and int4 experts: every code in every lane, scales that tell groups apart, pads."""
    yield _case(
        "routed_shared_residual",
        "Experts, weights, shared expert or residual mixed up.",
        partial(dense, 1, 6, 64, 40, 5, 3, shared=56, residual=True),
        family="random",
        seed=1,
        wrong=("gate_up_swapped", "unweighted", "no_shared", "shared_divided_by_scaling"),
        kills=(
            "gate_up_swapped",
            "no_weights",
            "weights_shifted",
            "no_shared",
            "shared_scaled",
            "no_residual",
            "token_zero_only",
            "last_expert_missing",
            "no_activation",
        ),
    )
    yield _case(
        "routed_only",
        "A shared expert or residual that the call does not have.",
        partial(dense, 2, 4, 32, 24, 4, 2),
        family="random",
        seed=2,
        kills=("gate_up_swapped", "no_weights", "last_hidden_dropped"),
    )
    yield _case(
        "shared_only",
        "A shared expert scaled by 1 / routed scaling, where nothing else shows.",
        _shared_only,
        family="random",
        seed=33,
        wrong=("shared_divided_by_scaling",),
        kills=("no_shared", "shared_scaled", "expert_zero_for_pad"),
    )
    yield _case(
        "pads_and_unnamed_experts",
        "Expert 0 run for an id of -1; an expert that nobody named.",
        _pads,
        family="needle",
        seed=31,
        kills=("expert_zero_for_pad",),
    )
    yield _case(
        "odd_sizes",
        "Sizes off every vector width.",
        partial(dense, 3, 3, 37, 23, 3, 2, shared=5),
        family="random",
        seed=3,
        kills=("last_hidden_dropped", "last_expert_missing"),
    )
    yield _case(
        "tokens_on_one_expert",
        "A scatter that keeps only the first token of an expert.",
        lambda: {**dense(4, 9, 24, 16, 2, 1), "ids": np.ones((9, 1), np.int32)},
        family="random",
        seed=4,
        kills=("token_zero_only", "last_expert_missing"),
    )
    yield _case(
        "bf16_weights",
        "bf16 weights read in another type.",
        partial(dense, 5, 4, 48, 32, 4, 2, shared=32, residual=True, cut=nx.round_bf16),
        dtypes=BF16,
        family="random",
        seed=5,
        kills=("gate_up_swapped", "no_shared"),
    )
    yield _case(
        "bad_tokens",
        "A bad id, NaN or infinity in one token, seen in others or read as an id.",
        _bad_tokens,
        family="extreme",
        seed=32,
        kills=("keeps_bad_rows",),
    )
    yield _case(
        "int4_all_codes_all_lanes",
        "Nibble order, sign or offset: one-hot tokens pick single weights of gate and up.",
        _all_codes,
        form="w4_exact",
        group=32,
        family="needle",
        seed=30,
        wrong=("high_nibble_first", "twos_complement"),
        kills=("high_nibble_first", "awq_nibble_order", "twos_complement", "offset_missing"),
    )
    for group in (32, 64, 128):
        yield _case(
            f"int4_group_{group}",
            "The scale of another group, row or expert.",
            partial(_groups, group),
            form="w4_exact",
            group=group,
            family="scaled",
            seed=40 + group,
            wrong=("scale_of_next_group",),
            kills=(
                "scale_of_next_group",
                "scale_of_first_group",
                "scale_of_first_expert",
                "scale_transposed",
                "checks_128_columns_of_int4_exact",
            ),
        )
    yield _case(
        "int4_one_group",
        "A row of a single group, and rows not a multiple of 256.",
        partial(packed, 50, 4, 32, 32, 4, 2, 32, shared=24),
        form="w4_exact",
        group=32,
        family="scaled",
        seed=50,
        kills=("scale_of_first_expert", "high_nibble_first"),
    )
    yield _case(
        "int4_rows_of_96",
        "Three groups a row: no power of two.",
        partial(packed, 51, 4, 96, 160, 2, 1, 32),
        form="w4_bf16",
        group=32,
        family="scaled",
        seed=51,
        kills=("scale_of_first_group", "scale_of_next_group"),
    )
    for form, seed in (("w4_exact", 60), ("w4_bf16", 61)):
        yield _case(
            f"int4_{form[3:]}_products",
            "Dequantised weights rounded when they should not be, or "
            "kept when they should be rounded.",
            partial(packed, seed, 3, 64, 64, 2, 2, 32, scales=mantissas),
            form=form,
            group=32,
            family="random",
            seed=seed,
            wrong=("other_rounding",),
            kills=("other_rounding",),
        )
    yield _case(
        "no_tokens",
        "A launch with an empty grid.",
        partial(dense, 6, 0, 16, 8, 2, 1),
        null_ok="no tokens: nothing is written",
    )
    yield _case(
        "bf16_rows",
        "bf16 rows read as f32, or experts, shared expert or residual mixed up.",
        partial(
            dense, 1, 6, 64, 40, 5, 3, shared=56, residual=True, cut=nx.round_bf16,
            rows=nx.round_bf16,
        ),
        **ROWS,
        family="random",
        seed=1,
        wrong=("gate_up_swapped", "unweighted", "no_shared", "shared_divided_by_scaling"),
        kills=(
            "gate_up_swapped",
            "no_weights",
            "weights_shifted",
            "no_shared",
            "no_residual",
            "token_zero_only",
            "last_expert_missing",
            "no_activation",
        ),
    )  # fmt: skip
    yield _case(
        "bf16_odd_sizes",
        "bf16 rows that start off every vector.",
        partial(dense, 3, 3, 37, 23, 3, 2, shared=5, cut=nx.round_bf16, rows=nx.round_bf16),
        **ROWS,
        family="random",
        seed=3,
        kills=("last_hidden_dropped", "last_expert_missing"),
    )
    yield _case(
        "bf16_bad_tokens",
        "A bad id, NaN or infinity in one bf16 token.",
        partial(_bad_tokens, nx.round_bf16),
        **ROWS,
        family="extreme",
        seed=32,
        kills=("keeps_bad_rows",),
    )
    yield _case(
        "bf16_products_kept",
        "gate and up rounded to bf16 before silu.",
        _products_off_the_grid,
        **ROWS,
        family="needle",
        seed=70,
        wrong=("rounded_products",),
        kills=("rounds_products",),
    )
    yield _case(
        "bf16_one_rounding",
        "Experts, or their sum, rounded to bf16 before the residual is added.",
        _one_rounding,
        **ROWS,
        family="needle",
        seed=74,
        wrong=("rounded_experts", "rounded_sum"),
        kills=("rounds_experts", "rounds_sum", "no_shared"),
    )
    for form in ("w4_exact", "w4_bf16"):
        yield _case(
            f"bf16_int4_{form[3:]}_products",
            "With bf16 rows, weights rounded when they should not be, or kept.",
            partial(_codes_that_round_down, form),
            form=form,
            group=32,
            **ROWS,
            family="needle",
            seed=82,
            wrong=("other_rounding",),
            kills=("other_rounding",),
        )
    for group in (32, 128):
        yield _case(
            f"bf16_int4_group_{group}",
            "With bf16 rows, the scale of another group, row or expert.",
            partial(_groups, group, shared=40, rows=nx.round_bf16),
            form="w4_exact",
            group=group,
            **ROWS,
            family="scaled",
            seed=40 + group,
            kills=(
                "scale_of_next_group",
                "scale_of_first_group",
                "scale_of_first_expert",
                "high_nibble_first",
                "no_shared",
                "checks_128_columns_of_bf16_int4_exact",
            ),
        )
    rows: dict[str, Any]
    for prefix, cut, rows in (
        ("", nx.round_f32, {"dtypes": BF16}),
        ("bf16_", nx.round_bf16, ROWS),
    ):
        yield _case(
            f"{prefix}crowd_on_each_expert",
            "An expert with more tokens than a tile has columns, here 69 and more.",
            partial(_crowd, cut),
            **rows,
            family="random",
            seed=90,
            kills=("past_eight_tokens", "past_64_tokens"),
        )
    yield _case(
        "bf16_long_rows",
        "Rows and results longer than any pipeline of loads, or than 1024, and no multiple of one.",
        partial(dense, 91, 1, 1032, 8, 1, 1, cut=nx.round_bf16, rows=nx.round_bf16),
        **ROWS,
        family="random",
        seed=91,
        kills=("past_640_inputs", "past_1024_columns_of_dense"),
    )
    yield _case(
        "bf16_int4_long_rows",
        "int4 rows longer than any pipeline of loads, and no multiple of one.",
        partial(packed, 92, 1, 2592, 32, 1, 1, 32, rows=nx.round_bf16),
        form="w4_bf16",
        group=32,
        **ROWS,
        family="random",
        seed=92,
        kills=("past_2560_inputs",),
    )
    yield _case(
        "int4_long_hidden",
        "int4 rows of down longer than any pipeline of loads.",
        partial(packed, 93, 2, 32, 2592, 1, 1, 32),
        form="w4_exact",
        group=32,
        family="random",
        seed=93,
        kills=("past_2560_inputs",),
    )
    for prefix, cut, rows in (
        ("", nx.round_f32, {"dtypes": BF16}),
        ("bf16_", nx.round_bf16, ROWS),
    ):
        yield _case(
            f"{prefix}top_8_of_65",
            "Slots past the third, experts past 64, experts without a token; factors of 24 bits.",
            partial(_top_8, 110, 3, 8, 6, 65, cut),
            **rows,
            family="random",
            seed=110,
            wrong=() if prefix else ("factors_in_bf16", "factors_in_f16"),
            kills=(
                "past_three_slots",
                "past_64_experts",
                "last_expert_missing",
                "weights_shifted",
                *(() if prefix else ("factors_in_bf16", "factors_in_f16")),
            ),
        )
    yield _case(
        "bf16_factors_kept",
        "Routing weights rounded to bf16, or to f16: the residual takes nearly all of the sum.",
        _factors_off_the_grid,
        **ROWS,
        family="needle",
        seed=78,
        wrong=("factors_in_bf16", "factors_in_f16"),
        kills=("factors_in_bf16", "factors_in_f16"),
    )
    yield _case(
        "bf16_hidden_200",
        "Hidden elements past 64 and 128, and no multiple of 64.",
        partial(dense, 104, 2, 8, 200, 2, 2, cut=nx.round_bf16, rows=nx.round_bf16),
        **ROWS,
        family="random",
        seed=104,
        kills=("past_64_hidden", "past_128_hidden", "last_hidden_dropped"),
    )
    yield _case(
        "bf16_int4_group_64_shared_residual",
        "Group 64 with bf16 rows: int4 experts, a shared expert of another size, a residual.",
        lambda: {
            **packed(105, 3, 128, 64, 2, 2, 64, shared=8, rows=nx.round_bf16),
            "residual": nx.round_bf16(nx.normal(106, (3, 128), 18, 16.0)),
        },
        form="w4_exact",
        group=64,
        **ROWS,
        family="scaled",
        seed=105,
        kills=(
            "scale_of_next_group",
            "scale_of_first_group",
            "scale_of_first_expert",
            "no_shared",
            "no_residual",
        ),
    )
    yield _case(
        "bf16_int4_hidden_160",
        "int4 hidden elements past 128 that are no multiple of 64, and rows of 96.",
        partial(packed, 107, 2, 96, 160, 1, 1, 32, rows=nx.round_bf16),
        form="w4_bf16",
        group=32,
        **ROWS,
        family="scaled",
        seed=107,
        kills=("past_64_hidden", "past_128_hidden", "scale_of_next_group"),
    )
    yield _case(
        "bf16_all_on_one_of_three",
        "An expert with more than 128 tokens between two without any.",
        lambda: _on_one(dense(103, 135, 9, 7, 3, 1, cut=nx.round_bf16, rows=nx.round_bf16)),
        **ROWS,
        family="random",
        seed=103,
        kills=("past_64_tokens", "past_128_tokens"),
    )
    yield _case(
        "bf16_int4_all_on_one_of_three",
        "An int4 expert with more than 128 tokens between two without any.",
        _int4_on_one,
        form="w4_exact",
        group=32,
        **ROWS,
        family="scaled",
        seed=102,
        kills=(
            "past_32_tokens",
            "past_eight_tokens",
            "past_128_tokens",
            "past_128_tokens_of_int4",
            "scale_of_first_expert",
            "checks_64_tokens_of_bf16_int4_exact",
        ),
    )
    wide: dict[str, Any] = {"dtypes": BF16}
    for branch, form, both, rows in (
        ("f32_alone", "dense", False, {}),
        ("f32_shared", "dense", True, {}),
        ("bf16_weights_alone", "dense", False, wide),
        ("bf16_weights_shared", "dense", True, wide),
        ("bf16_alone", "dense", False, ROWS),
        ("bf16_shared", "dense", True, ROWS),
        ("int4_exact", "w4_exact", True, wide),
        ("int4_bf16", "w4_bf16", True, {}),
        ("bf16_int4_exact", "w4_exact", False, ROWS),
        ("bf16_int4_bf16", "w4_bf16", True, ROWS),
    ):
        int4, f32 = form != "dense", rows is not ROWS
        kind = "int4" if int4 else "f32" if f32 else "bf16"
        kills = [f"accepts_bad_{branch}", "keeps_bad_rows", "pad_factors_unchecked"]
        kills += ["factors_positive", "factors_in_bf16", "factors_in_f16", "past_eight_slots"]
        kills += [
            "checks_two_slots",
            "ends_at_pad",
            "exp_overflows",
            "rows_in_f16",
            "hidden_in_f16",
        ]
        kills += [] if both else ["skips_small_factors"]
        if both:
            kills += [f"{kind}_pads_lose_{what}" for what in ("residual", "shared")]
            kills += [f"factors_{how}_with_shared" for how in ("positive", "in_bf16")]
            kills += ["factors_positive_with_residual"]
        if int4:
            kills += [f"int4_{what}_unchecked" for what in ("rows", "factors", "ids")]
            kills += ["gate_scales_in_f16_of_f32"] if f32 else []
            kills += ["int4_residual_unchecked"] if both else []
            kills += ["scales_positive_of_f32", "scales_in_f16_of_f32"] if f32 else []
        if int4 or not rows:
            kills += [f"factors_{how}_of_{kind}" for how in ("positive", "in_bf16")]
        type_of = branch.removesuffix("_alone").removesuffix("_shared")
        kills += [f"{what}_of_{type_of}" for what in ONLY.get(type_of, ())]
        yield _case(
            f"all_kinds_{branch}",
            f"{'With a shared expert and a residual' if both else 'With neither'}: a bad token "
            "accepted, a token of pads without them, the sign or last bits of a factor lost"
            + (", the sign or range of a scale." if int4 else "."),
            partial(_all_kinds, form, rows.get("profile", "f32"), both, 6 * (form == "w4_bf16")),
            form=form,
            group=32 if int4 else 0,
            **rows,
            family="extreme",
            seed=130,
            kills=tuple(kills),
        )
    for prefix, cut, rows in (("", nx.round_f32, {}), ("bf16_", nx.round_bf16, ROWS)):
        yield _case(
            f"{prefix}bad_tokens_of_523",
            "More tokens than a slice of 512, of which four fail.",
            partial(_bad_of_many, cut),
            **rows,
            family="extreme",
            seed=116,
            kills=("past_512_tokens", "checks_64_tokens", "keeps_bad_rows", "residual_of_8_tokens"),
        )
        yield _case(
            f"{prefix}int4_bad_tokens_of_523",
            "More int4 tokens than a slice of 512, of which four fail.",
            partial(_bad_of_many, cut, True),
            form="w4_bf16",
            group=32,
            **rows,
            family="extreme",
            seed=134,
            tier="full",
            kills=("past_512_tokens", "checks_64_tokens", "keeps_bad_rows"),
        )
    for prefix, cut, rows in (
        ("", nx.round_f32, {"dtypes": BF16}),
        ("bf16_", nx.round_bf16, ROWS),
    ):
        yield _case(
            f"{prefix}gates_of_thousands",
            "NaN where e^-gate overflows, or a clamped gate.",
            partial(_gates_of_thousands, cut),
            **rows,
            family="extreme",
            seed=114,
            kills=("exp_overflows", "no_activation"),
        )
        yield _case(
            f"{prefix}shared_137_residual",
            "Shared hidden elements past 64 and 128; the residual of tokens past the eighth.",
            partial(
                dense, 117, 10, 6, 5, 2, 1, shared=137, residual=True, cut=nx.round_bf16, rows=cut
            ),
            **rows,
            family="random",
            seed=117,
            kills=("past_128_hidden", "residual_of_8_tokens", "no_shared"),
        )
    for prefix, cut, rows in (("", nx.round_f32, {}), ("bf16_", nx.round_bf16, ROWS)):
        yield _case(
            f"{prefix}hidden_653",
            "Hidden elements past 64, 512 and 640, of which the last weigh most; results past f16.",
            partial(_heavy_hidden, cut),
            **rows,
            family="needle",
            seed=119,
            kills=(
                "past_128_hidden",
                "past_512_hidden",
                "past_640_inputs",
                "last_hidden_dropped",
                *(() if prefix else ("past_512_hidden_of_f32", "clamps_to_f16_of_f32")),
            ),
        )
    yield _case(
        "columns_521",
        "Columns past 64 and 512, of x, of the residual and of the result.",
        partial(dense, 118, 1, 521, 1, 1, 1, residual=True, cut=nx.round_bf16),
        dtypes=BF16,
        family="random",
        seed=118,
        kills=("residual_of_64_columns", "past_512_columns"),
    )
    yield _case(
        "bad_columns_133",
        "A NaN past 128 columns; the residual of those past 64.",
        _bad_columns,
        family="extreme",
        seed=115,
        kills=("checks_128_columns_of_f32", "residual_of_64_columns_of_f32", "keeps_bad_rows"),
    )
    yield _case(
        "bf16_bad_tokens_far",
        "A NaN past 128 columns; a bad id or factor in the ninth slot.",
        _bad_far,
        **ROWS,
        family="extreme",
        seed=115,
        kills=("checks_128_columns", "checks_two_slots", "keeps_bad_rows"),
    )
    yield _case(
        "bf16_int4_top_8_of_17",
        "int4 experts past the fourth, slots past a pad, scales below 0, a residual.",
        _int4_top_8,
        form="w4_exact",
        group=32,
        **ROWS,
        family="scaled",
        seed=112,
        kills=(
            "past_eight_experts",
            "past_three_slots",
            "ends_at_pad",
            "scales_positive",
            "no_residual",
        ),
    )
    for prefix, cut, d, rows in (("", nx.round_f32, 1, {}), ("bf16_", nx.round_bf16, 4, ROWS)):
        yield _case(
            f"{prefix}top_12_of_389",
            "Experts past 256, slots past the eighth, factors below 0.",
            partial(_top_12_of_389, cut, d, (d + 1) // 2),
            **rows,
            family="random",
            seed=111,
            kills=(
                "past_eight_slots",
                "factors_positive",
                "past_256_experts" if prefix else "past_256_experts_of_f32",
            ),
        )
    yield _case(
        "int4_crowd",
        "More than 32 tokens on one int4 expert with f32 rows; their residual.",
        lambda: {
            **_on_one(packed(120, 35, 32, 32, 2, 1, 32)),
            "residual": nx.normal(121, (35, 32), 18),
        },
        form="w4_exact",
        group=32,
        family="scaled",
        seed=120,
        kills=("past_32_tokens", "past_eight_tokens", "no_residual", "residual_of_8_tokens"),
    )
    yield _case(
        "bf16_past_f16",
        "Rows, weights, hidden elements or results that pass through f16, or are clamped to it.",
        _past_f16,
        **ROWS,
        family="extreme",
        seed=100,
        wrong=("through_f16",),
        kills=("clamps_to_f16", "rows_in_f16", "hidden_in_f16"),
    )
    yield _case(
        "bf16_int4_past_f16",
        "Group scales, hidden elements or results of int4 experts that pass through f16.",
        partial(_past_f16, True),
        form="w4_exact",
        group=32,
        **ROWS,
        family="extreme",
        seed=101,
        wrong=("through_f16",),
        kills=("clamps_to_f16", "rows_in_f16", "hidden_in_f16", "scales_in_f16"),
    )
