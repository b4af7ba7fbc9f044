"""Cases of `merge_state@1`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr import recorded
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.merge_state import reference
from kdtr.reference.verify_attn import attention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Array = NDArray[Any]
EVERY_LEVEL = ("odd_empty_side_read", "no_max_shift", "sentinel_is_empty", "light_side_dropped")
INF, NAN = np.inf, np.nan
BF16 = {"o_a": "bf16", "o_b": "bf16", "o": "bf16"}
F16 = {"o_a": "f16", "o_b": "f16", "o": "f16"}


def state(
    seed: int, shape: tuple[int, int, int, int], *, spread: float = 2.0, grid: int = 18
) -> dict[str, Array]:
    """Two random states of shape [R, N, H, Dv]; log-sum-exps N(3, spread^2)."""
    rows = shape[:3]
    return {
        "o_a": nx.normal(seed, shape, grid),
        "o_b": nx.normal(seed + 1, shape, grid),
        "lse_a": nx.normal(seed + 2, rows, 18, spread) + 3.0,
        "lse_b": nx.normal(seed + 3, rows, 18, spread) + 3.0,
    }


def _wide(seed: int, rounded: Callable[[Array], Array]) -> dict[str, Array]:
    """More vectors in a row than two for each thread of a warp."""
    x = state(seed, (1, 1, 1, 520))
    x["o_a"], x["o_b"] = rounded(x["o_a"]), rounded(x["o_b"])
    return x


def _many_rows() -> dict[str, Array]:
    """The last row of the second request is bad."""
    x = state(130, (2, 257, 1, 1))
    x["lse_a"][1, 256, 0] = NAN
    return x


def _layout() -> dict[str, Array]:
    x = state(20, (3, 7, 4, 8), spread=6.0)
    x["lse_a"] += np.arange(3)[:, None, None] * 4.0  # a wrong request shows at once
    return x


def _both_empty() -> dict[str, Array]:
    x = state(30, (2, 3, 2, 16))
    for r, n, h in ((0, 0, 0), (0, 2, 1), (1, 2, 1), (1, 1, 0)):
        x["lse_a"][r, n, h] = x["lse_b"][r, n, h] = -INF
        x["o_a"][r, n, h], x["o_b"][r, n, h] = 1.5, -2.5
    return x


def _one_empty(
    poison: float,
    rounded: Callable[[Any], Array] | None = None,
    columns: int = 16,
    requests: int = 2,
) -> dict[str, Array]:
    x = state(40, (requests, 4, 3, columns))
    if rounded is not None:
        x["o_a"], x["o_b"] = rounded(x["o_a"]), rounded(x["o_b"])
        x["o_a"][..., 0] = x["o_b"][..., 0] = float(rounded(2.0**-133)) or 2.0**-24  # subnormal
    for r, n, h in ((0, 0, 0), (0, 1, 2), (1, 3, 2)):
        x["lse_a"][r, n, h] = -INF
        x["o_a"][r, n, h] = poison
    for r, n, h in ((0, 3, 1), (1, 0, 0), (1, 2, 2)):
        x["lse_b"][r, n, h] = -INF
        x["o_b"][r, n, h] = poison
    for n in range(2):  # both empty, both poisoned
        x["lse_a"][1, n, 1] = x["lse_b"][1, n, 1] = -INF
        x["o_a"][1, n, 1] = x["o_b"][1, n, 1] = poison
    x["lse_a"][2:, 1, 1] = INF
    return x


def _refused(rounded: Callable[[Array], Array] = nx.round_f32) -> dict[str, Array]:
    x = state(50, (6, 2, 2, 8))
    x["o_a"], x["o_b"] = rounded(x["o_a"]), rounded(x["o_b"])
    x["lse_a"][0, 1, 1] = NAN
    x["lse_b"][2, 0, 1] = INF
    x["lse_a"][3, 0, 0], x["lse_b"][3, 0, 0] = -INF, NAN
    x["lse_a"][4, 1, 0], x["lse_b"][4, 1, 0] = INF, -INF
    return x


def _extreme() -> dict[str, Array]:
    pairs = [
        (2000.0, 1999.0), (-6e4, -6e4 - 2), (2000.0, -2000.0), (120.0, 119.5), (-120.0, -119.5),
        (1e38, 1e38), (-1e38, -1e38), (-1e38, 1e38), (88.9, 88.8), (-1e-40, 1e-40),
    ]  # fmt: skip
    x = state(60, (1, len(pairs), 2, 8))
    for n, (a, b) in enumerate(pairs):
        x["lse_a"][0, n, :] = nx.round_f32([a, b])
        x["lse_b"][0, n, :] = nx.round_f32([b, a])
    return x


def _sentinels() -> dict[str, Array]:
    values = (-1e4, -1e9, -1e30, -1e38)
    x = state(70, (1, len(values), 2, 8))
    for n, v in enumerate(values):
        x["lse_a"][0, n], x["lse_b"][0, n] = nx.round_f32([v, v]), nx.round_f32([v, v])
    x["lse_b"][0, :, 1] = -INF
    return x


def _small_weight() -> dict[str, Array]:
    """Gaps of 1 to 30 nats; the lighter side is so large that it still decides the result."""
    x = state(80, (1, 16, 2, 8))
    gap = np.arange(16) * 2.0
    x["lse_a"][0, :, 0], x["lse_b"][0, :, 0] = 5.0, 5.0 - gap
    x["lse_a"][0, :, 1], x["lse_b"][0, :, 1] = 5.0 - gap, 5.0
    size = np.ldexp(1.0, np.rint(gap * 1.4427).astype(np.int32))[None, :, None]
    x["o_b"][:, :, 0] *= size
    x["o_a"][:, :, 1] *= size
    return x


def _tie() -> dict[str, Array]:
    x = state(90, (2, 3, 2, 16))
    x["lse_b"] = x["lse_a"].copy()
    x["o_b"][0] = -x["o_a"][0]
    x["o_b"][1] = x["o_a"][1]
    return x


def _subnormal() -> dict[str, Array]:
    x = state(100, (1, 4, 2, 8))
    x["o_a"] = np.ldexp(np.rint(x["o_a"] * 64), -149)
    x["o_b"] = np.where(x["o_b"] < 0, -0.0, 2.0**125)
    x["lse_b"][0, :3] = -INF
    x["lse_a"][0, 3, 1] = -INF
    return x


def _sized(seed: int, shape: tuple[int, int, int, int]) -> Callable[[], Arrays]:
    return lambda: state(seed, shape)


def _odd(rounded: Callable[[Array], Array]) -> dict[str, Array]:
    """33 columns: rows that begin at every place of a vector; all kinds of log-sum-exps."""
    x = state(150, (2, 3, 2, 33))
    x["o_a"], x["o_b"] = rounded(x["o_a"]), rounded(x["o_b"])
    x["lse_a"][0, 0], x["lse_b"][0, 0] = (2000.0, -(2.0**100)), (1999.0, -(2.0**100))
    x["lse_a"][0, 2, 0], x["lse_b"][0, 2, 0] = 10.0, 0.0
    x["o_b"][0, 2, 0] *= 2.0**14
    x["lse_a"][0, 1] = x["lse_b"][0, 1:, 1] = -INF
    x["o_a"][0, 1] = x["o_b"][0, 1:, 1] = NAN
    x["lse_b"][1, 2, 1] = NAN
    return x


def _many_requests(grid: int = 8) -> dict[str, Array]:
    """Requests 100 and 256 are refused, 100 by a NaN whose sign is set."""
    x = state(160, (257, 1, 1, 1), grid=grid)
    x["lse_a"][256, 0, 0] = NAN
    lse = x["lse_b"].astype(np.float32)
    lse[100, 0, 0] = NAN
    lse.view(np.uint32)[100, 0, 0] |= 1 << 31
    return {**x, "lse_b": lse}


def _last_column() -> dict[str, Array]:
    x = state(120, (1, 2, 2, 512), grid=10)
    x["lse_a"] = x["lse_b"] + 0.5
    return x


def _recorded(layer: int) -> dict[str, Array]:
    """Two splits of recorded attention: the sink token's block and the rest, 8 value columns."""
    taken = recorded.load(f"mla_layer{layer}")
    q, kv = taken["q"].astype(np.float64), taken["kv"].astype(np.float64)
    grid = np.ldexp(np.rint(np.ldexp(kv, 14)), -14)
    n = len(q)
    side: dict[str, Array] = {}
    for name, first, end in (("a", 0, 64), ("b", 64, 512)):
        part = attention(
            {
                "q": np.ldexp(np.rint(np.ldexp(q, 14)), -14)[None],
                "kv_pool": grid[first:end],
                "n_nodes": np.array([n], np.int32),
                "page_table": np.arange(end - first, dtype=np.int32)[None],
                "prefix_len": np.array([end - first], np.int32),
            },
            {"scale": 0.125, "page_size": 1, "part": "prefix", "Dv": 8},
        )
        side[f"o_{name}"] = nx.round_f32(part["out"])
        side[f"lse_{name}"] = nx.round_f32(part["lse"])
    return side


def cases() -> Iterator[Case]:
    """All cases, in order."""
    yield Case(
        name="random",
        catches="wrong weights: lse read as base 2, weights not normalised, sides swapped",
        inputs=_sized(1, (2, 5, 3, 32)),
        profile="f32",
        family="random",
        seed=1,
        kills=("lse_base_2", "swapped_weights", "not_normalised", "lse_is_max", "bf16_weights"),
        wrong=("lse_base_2", "swapped_sides", "mean_of_sides"),
    )
    yield Case(
        name="random_bf16",
        catches="bf16 states merged in bf16 arithmetic instead of f32; columns past 256 or 512",
        inputs=partial(_wide, 5, nx.round_bf16),
        dtypes=BF16,
        profile="bf16",
        family="random",
        seed=5,
        kills=("bf16_sum", "lse_base_2", "columns_past_256", "columns_past_512"),
        wrong=("lse_base_2",),
    )
    yield Case(
        name="random_f16",
        catches="f16 states merged in narrower arithmetic than f32; columns past 256 or 512",
        inputs=partial(_wide, 9, nx.round_f16),
        dtypes=F16,
        profile="f16",
        family="random",
        seed=9,
        kills=("lse_base_2", "columns_past_256", "columns_past_512"),
        wrong=("lse_base_2",),
    )
    for dtype, fault in (("bf16", "bf16_sum"), ("f16", "lse_base_2")):
        yield Case(
            name=f"f32_parts_to_{dtype}",
            catches=f"f32 parts rounded to {dtype} before the merge instead of once after it; "
            "columns past 256 or 512",
            inputs=partial(_wide, 13, nx.round_f32),
            dtypes={"o": dtype},
            profile=dtype,
            family="random",
            seed=13,
            kills=(fault, "columns_past_256", "columns_past_512"),
        )
    yield Case(
        name="heads_and_requests",
        catches="lse indexed as [R, H, N], or by request 0, or by one head for all",
        inputs=_layout,
        profile="f32",
        family="random",
        seed=20,
        kills=("lse_heads_first", "request_0_weights", "head_0_weights"),
        flags=("ragged",),
    )
    yield Case(
        name="both_empty",
        catches="two empty states: NaN, a copy of one side, or lse +inf instead of (0, -inf)",
        inputs=_both_empty,
        profile="f32",
        family="extreme",
        seed=30,
        kills=("both_empty_nan", "both_empty_copies_b", "empty_lse_is_plus_inf"),
        wrong=("both_empty_nan", "both_empty_copies_b", "empty_lse_is_plus_inf"),
    )
    yield Case(
        name="one_empty",
        catches="an empty side whose o holds NaN is read, or the other side is not copied exactly",
        inputs=lambda: _one_empty(NAN),
        profile="f32",
        family="poison",
        seed=40,
        flags=("poison",),
        kills=("empty_side_read", "lone_side_recomputed", "lone_side_through_bf16"),
        wrong=("empty_side_read",),
    )
    yield Case(
        name="one_empty_inf",
        catches="an empty side whose o holds infinities is multiplied by a weight of zero",
        inputs=lambda: _one_empty(INF),
        profile="f32",
        family="poison",
        seed=40,
        flags=("poison",),
        kills=("empty_side_read",),
    )
    for name, dtype, rounded in (
        ("bf16", "bf16", nx.round_bf16), ("f16", "f16", nx.round_f16)
    ):  # fmt: skip
        yield Case(
            name=f"one_empty_{name}",
            catches=f"an empty side read, or a copied {name} side changed",
            inputs=partial(_one_empty, NAN, rounded, 8),
            dtypes={"o_a": dtype, "o_b": dtype, "o": dtype},
            profile=dtype,
            family="poison",
            seed=40,
            flags=("poison",),
            kills=(
                "empty_side_read",
                "lone_side_recomputed",
                "lone_side_flushed",
                *(("f16_empty_b_read",) if name == "f16" else ()),
            ),
        )
        yield Case(
            name=f"one_empty_f32_to_{name}",
            catches="a lone f32 side cut to the narrower output instead of rounded; a +inf "
            "log-sum-exp taken as valid there",
            inputs=partial(_one_empty, NAN, columns=8, requests=3),
            dtypes={"o": dtype},
            profile=dtype,
            family="poison",
            seed=40,
            flags=("poison",),
            kills=("empty_side_read", f"f32_to_{name}_unchecked"),
        )
        yield Case(
            name=f"columns_33_{name}",
            catches="rows of an odd length read or written by vectors of 16-bit values, or with "
            "empty sides read and bad log-sum-exps taken",
            inputs=partial(_odd, rounded),
            dtypes={"o_a": dtype, "o_b": dtype, "o": dtype},
            profile=dtype,
            family="random",
            seed=150,
            kills=("tail_columns_unmerged", "lse_base_2", *EVERY_LEVEL),
        )
        yield Case(
            name=f"columns_33_f32_to_{name}",
            catches="rows of an odd length: the output's vectors are not the inputs'; with empty "
            "sides read and bad log-sum-exps taken",
            inputs=partial(_odd, nx.round_f32),
            dtypes={"o": dtype},
            profile=dtype,
            family="random",
            seed=150,
            kills=("tail_columns_unmerged", "lse_base_2", *EVERY_LEVEL),
        )
        yield Case(
            name=f"refused_requests_{name}",
            catches="NaN or +inf log-sum-exps taken as valid, beside 16-bit outputs",
            inputs=partial(_refused, rounded),
            dtypes={"o_a": dtype, "o_b": dtype, "o": dtype},
            profile=dtype,
            family="extreme",
            seed=50,
            flags=("ragged",),
            kills=("nan_lse_accepted", "inf_lse_accepted", "bad_request_fails_batch",
                   "bad_rows_only", "bad_empty_pair_accepted"),
        )  # fmt: skip
        yield Case(
            name=f"batch_257_{name}",
            catches="more requests than a block has threads: the last of them is refused",
            inputs=partial(_many_requests, 4),
            dtypes={"o_a": dtype, "o_b": dtype, "o": dtype},
            profile=dtype,
            family="random",
            seed=160,
            flags=("ragged",),
            kills=("requests_past_64", "requests_past_256", "negative_nan_accepted"),
        )
        yield Case(
            name=f"columns_1025_{name}",
            catches="value columns past 256, 512 or 1,024 left unmerged",
            inputs=lambda: state(180, (1, 1, 1, 1025), grid=4),
            dtypes={"o_a": dtype, "o_b": dtype, "o": dtype},
            profile=dtype,
            family="random",
            seed=180,
            kills=("columns_past_256", "columns_past_512", "columns_past_1024"),
        )
    yield Case(
        name="batch_257",
        catches="more requests than a block has threads: the last of them is refused",
        inputs=_many_requests,
        profile="f32",
        family="random",
        seed=160,
        flags=("ragged",),
        kills=("requests_past_64", "requests_past_256", "negative_nan_accepted"),
    )
    for name, shape in (("nodes", (2, 0, 3, 4)), ("heads", (2, 3, 0, 4))):
        yield Case(
            name=f"no_{name}",
            catches=f"no {name}: only the status is written, and must be",
            inputs=_sized(170, shape),
            profile="f32",
            seed=170,
            null_ok="the one output with elements is status, and 0 is its right value",
        )
    yield Case(
        name="refused_requests",
        catches="NaN or +inf log-sum-exps taken as valid, or one bad request failing its batch",
        inputs=_refused,
        profile="f32",
        family="extreme",
        seed=50,
        flags=("ragged",),
        kills=(
            "nan_lse_accepted",
            "inf_lse_accepted",
            "bad_request_fails_batch",
            "bad_rows_only",
            "bad_empty_pair_accepted",
        ),
        wrong=("nan_lse_accepted", "bad_rows_only"),
    )
    yield Case(
        name="extreme_lse",
        catches="exp without the shift by the maximum; finite lse of any size is legal",
        inputs=_extreme,
        profile="f32",
        family="extreme",
        seed=60,
        kills=("no_max_shift",),
        wrong=("lse_base_2",),
    )
    yield Case(
        name="finite_sentinels",
        catches="a very negative but finite lse taken for the empty marker",
        inputs=_sentinels,
        profile="f32",
        family="extreme",
        seed=70,
        kills=("sentinel_is_empty",),
    )
    yield Case(
        name="small_weight",
        catches="a side dropped because its weight is small (recorded splits differ by 15 nats)",
        inputs=_small_weight,
        profile="f32",
        family="needle",
        seed=80,
        kills=("light_side_dropped", "lse_base_2"),
    )
    yield Case(
        name="equal_weights",
        catches="ties: equal log-sum-exps need lse + ln 2 and the plain mean",
        inputs=_tie,
        profile="f32",
        family="tie",
        seed=90,
        kills=("lse_is_max",),
        wrong=("lse_base_2",),
    )
    yield Case(
        name="subnormals_and_signs",
        catches="copied subnormals flushed by a multiplication by one",
        inputs=_subnormal,
        profile="f32",
        family="extreme",
        seed=100,
        kills=("lone_side_flushed",),
    )
    yield Case(
        name="columns_33",
        catches="value columns past the last full vector of 32; rows of an odd length with empty "
        "sides read and bad log-sum-exps taken",
        inputs=partial(_odd, nx.round_f32),
        profile="f32",
        family="random",
        seed=150,
        kills=("tail_columns_unmerged", *EVERY_LEVEL),
    )
    for columns in (1, 31, 65):
        yield Case(
            name=f"columns_{columns}",
            catches="value columns past the last full vector of 32",
            inputs=_sized(110 + columns, (1, 2, 3, columns)),
            profile="f32",
            family="random",
            seed=110 + columns,
            kills=("tail_columns_unmerged",) if columns != 1 else (),
        )
    yield Case(
        name="columns_512",
        catches="value columns past 256 threads left unmerged",
        inputs=_last_column,
        profile="f32",
        family="random",
        seed=120,
        kills=("columns_past_256",),
    )
    yield Case(
        name="columns_1025",
        catches="value columns past 512 or 1,024 left unmerged",
        inputs=lambda: state(180, (1, 1, 1, 1025), grid=6),
        profile="f32",
        family="random",
        seed=180,
        kills=("columns_past_512", "columns_past_1024"),
    )
    yield Case(
        name="rows_257",
        catches="rows past a block of 256, and one of those that fail",
        inputs=_many_rows,
        profile="f32",
        family="random",
        seed=130,
        kills=("rows_past_256", "checks_256_rows"),
    )
    for layer in (0, 29):
        yield Case(
            name=f"recorded_layer_{layer}",
            catches="splits of real attention: log-sum-exps apart by nats, a sink in one of them",
            inputs=partial(_recorded, layer),
            profile="f32",
            family="real",
            seed=layer,
            kills=("lse_base_2", "swapped_weights", "bf16_weights"),
            provenance=recorded.provenance(f"mla_layer{layer}"),
        )
    yield Case(
        name="no_requests",
        catches="an empty batch that crashes or fails",
        inputs=_sized(140, (0, 3, 2, 8)),
        profile="f32",
        seed=140,
        null_ok="there is nothing to write",
    )
    yield Case(
        name="no_columns",
        catches="Dv 0: the log-sum-exps are still merged",
        inputs=_sized(141, (1, 3, 2, 0)),
        profile="f32",
        seed=141,
        kills=("lse_base_2",),
    )


def _change(
    inputs: Arrays, attrs: Attrs, profile: str, edit: Callable[[dict[str, Array]], None]
) -> dict[str, Array]:
    found = reference(inputs, attrs, profile)
    edit(found)
    return {name: found[name] for name in ("o", "lse", "status")}


def _lse_base_2(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    ln2 = 0.6931471805599453
    x = dict(inputs)
    x["lse_a"], x["lse_b"] = inputs["lse_a"] * ln2, inputs["lse_b"] * ln2
    y = reference(x, attrs, profile)
    return {"o": y["o"], "lse": y["lse"] / ln2, "status": y["status"]}


def _swapped(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    x = dict(inputs)
    x["lse_a"], x["lse_b"] = inputs["lse_b"], inputs["lse_a"]
    return _change(x, attrs, profile, lambda _: None)


def _mean(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    def edit(found: dict[str, Array]) -> None:
        found["o"] = (inputs["o_a"] + inputs["o_b"]) * 0.5

    return _change(inputs, attrs, profile, edit)


def _both_empty_rows(inputs: Arrays) -> Array:
    return np.asarray((inputs["lse_a"] == -INF) & (inputs["lse_b"] == -INF))


def _nan(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    def edit(found: dict[str, Array]) -> None:
        rows = _both_empty_rows(inputs)
        found["o"][rows] = NAN
        found["lse"][rows] = NAN

    return _change(inputs, attrs, profile, edit)


def _copies_b(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    def edit(found: dict[str, Array]) -> None:
        rows = _both_empty_rows(inputs)
        found["o"][rows] = inputs["o_b"][rows]

    return _change(inputs, attrs, profile, edit)


def _plus_inf(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    def edit(found: dict[str, Array]) -> None:
        found["lse"][_both_empty_rows(inputs)] = INF

    return _change(inputs, attrs, profile, edit)


def _empty_side_read(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    """A weight of 0 times what an empty side holds: NaN where that is not finite."""
    out = reference(inputs, attrs, profile)
    empty_a, empty_b = inputs["lse_a"] == -INF, inputs["lse_b"] == -INF
    read = np.where((empty_a & ~empty_b)[..., None], inputs["o_a"], 0.0)
    read = np.where((empty_b & ~empty_a)[..., None], inputs["o_b"], read)
    return {"o": np.where(np.isfinite(read), out["o"], NAN)}


def _nan_lse_accepted(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    """The status alone: a refused request has no budget that another result could be within."""
    infinite = [(inputs[name] == INF).any(axis=(1, 2)) for name in ("lse_a", "lse_b")]
    return {"status": np.any(infinite, axis=0).astype(np.int32)}


def _bad_rows_only(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    """The other rows of a refused request are merged."""
    bad = ~((inputs["lse_a"] < INF) & (inputs["lse_b"] < INF))
    x = dict(inputs)
    x["lse_a"], x["lse_b"] = (np.where(bad, -INF, inputs[n]) for n in ("lse_a", "lse_b"))
    found = reference(x, attrs, profile)
    return {"o": found["o"], "lse": found["lse"]}


WRONG: Mapping[str, Reference] = {
    "lse_base_2": _lse_base_2,
    "swapped_sides": _swapped,
    "mean_of_sides": _mean,
    "both_empty_nan": _nan,
    "both_empty_copies_b": _copies_b,
    "empty_lse_is_plus_inf": _plus_inf,
    "empty_side_read": _empty_side_read,
    "nan_lse_accepted": _nan_lse_accepted,
    "bad_rows_only": _bad_rows_only,
}
