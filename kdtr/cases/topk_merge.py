"""Cases of `topk_merge@1`."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference import topk_logprobs
from kdtr.reference.topk_merge import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Array = NDArray[Any]

INF, NAN = np.inf, np.nan
# What a fault takes for a candidate shows as the best one; what it reads and adds shows as NaN.
HUGE = 2.0**127


def split(
    x: Array, spans: Sequence[tuple[int, int]], k: int, pad: float = HUGE
) -> dict[str, Array]:
    """The parts that ranks make of logits [R, L, V]: shard s holds the ids [begin, end) of a span.

    `pad` stands in the values where a shard has no candidate.
    """
    shape = (len(spans), *x.shape[:2], k)
    ids, values = np.full(shape, -1, np.int32), np.full(shape, pad)
    lse, status = np.empty(shape[:3]), np.empty(shape[:2], np.int32)
    for s, (begin, end) in enumerate(spans):
        shard = x[..., begin:end]
        out = topk_logprobs.reference({"logits": shard}, {"K": k}, "f32")
        ids[s], lse[s], status[s] = out["ids"], out["lse"], out["status"]
        if end > begin:
            taken = np.take_along_axis(shard, np.maximum(ids[s], 0), -1)
            values[s] = np.where(ids[s] >= 0, taken, pad)
    return {
        "part_ids": ids,
        "part_values": values,
        "part_lse": lse,
        "part_status": status,
        "first": np.asarray([begin for begin, _ in spans], np.int32).reshape(len(spans)),
    }


def even(vocabulary: int, shards: int) -> list[tuple[int, int]]:
    """Spans of nearly equal size."""
    cuts = [vocabulary * s // shards for s in range(shards + 1)]
    return list(pairwise(cuts))


def _f32(seed: int, shape: tuple[int, int, int], scale: float = 3.0) -> Array:
    return nx.round_f32(nx.normal(seed, shape, 18, scale))


def _bf16(seed: int, shape: tuple[int, int, int], scale: float = 3.0) -> Array:
    return nx.round_bf16(nx.normal(seed, shape, 18, scale))


def _edge_ties() -> Array:
    """Rank K falls among equal values, at another place in each row, spread over the shards."""
    x = np.full((1, 4, 240), -2.0)
    for row in range(4):
        x[0, row, 3 + row :: 11] = 1.5
        x[0, row, [239 - row, 100 + row, 0]] = 2.0, 2.0, 1.75
    return x


def _one_owner() -> Array:
    """Every candidate of a row lies in one shard, another in each row."""
    x = _f32(40, (1, 4, 400))
    for row in range(4):
        x[0, row, 100 * row : 100 * row + 100] += 120.0
    return nx.round_f32(x)


def _empty() -> Array:
    """Shards without a finite logit: the first, the last, all but one, and all."""
    x = _f32(50, (2, 4, 120))
    x[0, 0, :30] = -INF
    x[0, 1, 90:] = -INF
    x[0, 2, :60], x[0, 2, 61:] = -INF, -INF
    x[0, 3] = -INF
    x[1, 0, 30:] = -INF
    x[1, 3, 30:90] = -INF
    return x


def _refused() -> dict[str, Array]:
    """Each of five requests but one has one bad shard: first, middle, last, and by lse alone."""
    x = _f32(60, (6, 2, 90))
    x[0, 1, 4] = NAN
    x[2, 0, 40] = INF
    x[3, 1, 89] = NAN
    found = split(x, even(90, 3), 5)
    found["part_lse"][1, 4, 1] = NAN
    found["part_lse"][2, 5, 0] = INF
    return found


def _fine_parts() -> dict[str, Array]:
    """64 equal parts, each nearly half an f32 ulp off its grid: rounded first, they add up."""
    x = _f32(70, (1, 2, 640), 0.5)
    found = split(x - nx.round_f32(np.asarray(6.6)), even(640, 64), 4)
    found["part_values"] = nx.round_f32(found["part_values"])
    for row, value in enumerate((-4.25, -5.125)):
        found["part_lse"][:, 0, row] = value + 0.49 * 2.0**-21 * (1 - 2 * row)
        found["part_values"][:, 0, row] -= 2.0
    found["part_values"] = nx.round_f32(found["part_values"])
    return found


def _dominant() -> dict[str, Array]:
    """One shard so far above the rest that lse is its own, or barely above it."""
    x = _f32(80, (1, 6, 160), 1.0)
    for row, lead in enumerate((120.0, 40.0, 24.0, 20.0, 16.0, 12.0)):
        x[0, row, 40 * (row % 4) + 5] = 8.0
        x[0, row] = np.where(x[0, row] == 8.0, 8.0, x[0, row] + 4.0 - lead)
    return split(nx.round_f32(x), even(160, 4), 3)


def _extreme() -> Array:
    top = float(np.finfo(np.float32).max)
    x = _f32(90, (1, 6, 80))
    x[0, 0, [3, 49]] = top, top
    x[0, 1] = -top
    x[0, 2] -= 6e4
    x[0, 3] += 2000.0
    x[0, 4] *= 1e30
    x[0, 5, :79], x[0, 5, 79] = -INF, -1e30
    return nx.round_f32(x)


def _zeros() -> Array:
    """Zeros of both signs and subnormals on either side of them, in every shard."""
    x = np.full((1, 2, 90), -1.0)
    x[0, 0, 1::4], x[0, 0, 3::4] = -0.0, 0.0
    x[0, 1] = np.ldexp(np.argsort(nx.raw_bits(95, 90), kind="stable") - 45.0, -149)
    x[0, 1, ::9] = -0.0
    return x


def _large_ids() -> dict[str, Array]:
    """Ids above 2^24, some odd, which f32 cannot hold; and up to the last one allowed."""
    found = split(_bf16(100, (1, 2, 60)), even(60, 4), 9)
    found["first"] = np.asarray([0, 2**24 - 3, 2**30 + 1, 2**31 - 17], np.int32)
    return found


def _shards_37() -> dict[str, Array]:
    """37 shards out of order: ties, zeros, subnormals, empty shards; pads of any id."""
    x = _bf16(20, (2, 2, 200))
    x[0, 1] = np.where(np.arange(200) % 3 == 0, 0.0, -0.0)
    x[1, 0] = np.ldexp(np.argsort(nx.raw_bits(21, 200), kind="stable") - 190.0, -149)
    x[1, 1, 20:120] = -INF
    spans = even(200, 37)
    found = split(x, [spans[s] for s in np.argsort(nx.raw_bits(22, 37), kind="stable")], 6, NAN)
    found["part_ids"] = np.where(found["part_ids"] < 0, -7, found["part_ids"]).astype(np.int32)
    return found


def _many_shards() -> dict[str, Array]:
    """1,100 shards. Request 1 is refused by the last of them."""
    found = split(_f32(110, (2, 1, 1100)), even(1100, 1100), 1)
    found["part_status"][1099, 1] = 3
    return found


def _one_shard_pads() -> dict[str, Array]:
    """A single shard of 3 tokens and many pads, refused by status, by lse, or empty."""
    x = _f32(150, (4, 2, 3))
    x[3, 0] = -INF
    found = split(x, [(0, 3)], 5, NAN)
    found["part_ids"] = np.where(found["part_ids"] < 0, -3, found["part_ids"]).astype(np.int32)
    found["part_status"][0, 1] = 2
    found["part_lse"][0, 2, 1] = NAN
    found["first"] = np.asarray([96], np.int32)
    return found


def _k_1() -> dict[str, Array]:
    """One candidate each, shards out of order: ties, zeros, subnormals, pads, a refused request."""
    x = np.full((2, 4, 50), -1.5)
    x[0, 0, [7, 23, 44]] = 2.0
    x[0, 1, [3, 31]], x[0, 1, [17, 48]] = -0.0, 0.0
    x[0, 2] = -(2.0**-147)
    x[0, 2, 35] = -(2.0**-148)
    x[0, 3, :20] = x[0, 3, 30:] = -INF
    found = split(x, [(20, 30), (0, 10), (40, 50), (10, 20), (30, 40)], 1)
    found["part_status"][3, 1] = 1
    return found


def _k_520() -> dict[str, Array]:
    """500 zeros of both signs and subnormals, ids above 2^24, and 20 pads."""
    values = np.where(np.arange(500) % 4 == 0, -0.0, np.arange(500) % 7 * 2.0**-149)
    found = split(values[None, None], even(500, 2), 520, NAN)
    found["first"] += np.int32(2**24 + 1)
    return found


def _refused_among(shape: tuple[int, int, int], seed: int, *bad: int) -> dict[str, Array]:
    """Two shards; of some requests one refuses by its status."""
    found = split(_f32(seed, shape), even(shape[2], 2), 1)
    found["part_status"][1, list(bad)] = 1
    return found


def _depths_70() -> dict[str, Array]:
    """Two shards; request 1 is refused by the lse of its last depth."""
    found = split(_f32(160, (2, 70, 4)), even(4, 2), 1)
    found["part_lse"][1, 1, 69] = NAN
    return found


def _any_status() -> dict[str, Array]:
    """Statuses of refused shards other than 1, a request each; the last request is good."""
    found = split(_f32(120, (8, 1, 60)), even(60, 3), 4)
    values = (2, 3, -1, 256, 2**16, 2**31 - 1, -(2**31))
    for r, value in enumerate(values):
        found["part_status"][r % 3, r] = value
    return found


def _any_pad() -> dict[str, Array]:
    """Pads other than -1; what an engine would read there is the best value of all."""
    found = split(_f32(130, (1, 4, 24)), even(24, 4), 9)
    pads = np.resize(np.asarray([-2, -(2**31), -9, -1]), found["part_ids"].shape)
    found["part_ids"] = np.where(found["part_ids"] < 0, pads, found["part_ids"]).astype(np.int32)
    return found


def cases() -> Iterator[Case]:
    """All cases, in order."""

    def case(
        name: str, catches: str, inputs: Callable[[], Arrays], family: str = "hand", **more: Any
    ) -> Case:
        return Case(
            name=name,
            catches=catches,
            inputs=inputs,
            profile="f32",
            family=family,
            given={"logprobs": "value_minus_lse"},
            **more,
        )

    yield case(
        "unequal_shards",
        "ids without their shard's offset, or with that of equal shards; log-probs against the "
        "shard's own lse; lse of the best shard, of the candidates, or in base 2",
        lambda: split(_f32(1, (2, 3, 1000)), [(0, 410), (410, 640), (640, 650), (650, 1000)], 16),
        family="random",
        wrong=("ids_within_shard", "lse_is_max", "lse_base_2", "lse_of_candidates"),
        kills=(
            "ids_within_shard",
            "offset_of_equal_shards",
            "lse_is_max",
            "lse_is_sum",
            "lse_base_2",
            "lse_of_candidates",
            "logprob_against_part",
            "logprob_unnormalised",
            "logprob_from_wide_lse",
            "request_stride",
            "depth_stride",
            "requests_before_shards",
            "last_shard_dropped",
            "lse_fast_exp",
        ),
    )
    yield case(
        "ties",
        "equal values in an order other than that of their ids in the whole vocabulary",
        lambda: split(_bf16(2, (2, 2, 1200)), even(1200, 5), 64),
        family="tie",
        wrong=("ids_within_shard",),
        kills=("ties_by_highest_id", "ties_by_local_id", "logprob_bf16"),
    )
    yield case(
        "shards_out_of_order",
        "ties that go to the shard given first, not to the lowest id",
        lambda: split(_bf16(3, (1, 3, 800)), [(500, 800), (0, 130), (400, 500), (130, 400)], 48),
        family="tie",
        wrong=("ties_by_shard", "ids_within_shard"),
        kills=("ties_by_shard", "ties_by_local_id", "ties_by_highest_id"),
    )
    yield case(
        "rank_edge_ties",
        "rank K among values that are equal across shards: too many of one shard",
        lambda: split(_edge_ties(), even(240, 6), 10),
        family="tie",
        wrong=("ties_by_highest_id", "ids_within_shard"),
        kills=("ties_by_highest_id", "share_of_each_shard"),
    )
    yield case(
        "one_owner",
        "a fixed share of the candidates taken from each shard",
        lambda: split(_one_owner(), even(400, 4), 12),
        wrong=("ids_within_shard",),
        kills=("share_of_each_shard", "lse_without_shift"),
    )
    yield case(
        "k_exceeds_shards",
        "K larger than a shard, and than the vocabulary: a pad taken for a candidate, or none "
        "written",
        lambda: split(_f32(10, (2, 2, 13)), [(0, 5), (5, 5), (5, 6), (6, 13)], 17),
        wrong=("pads_are_candidates", "ids_within_shard"),
        kills=("pads_are_candidates", "pads_not_written", "pad_logprob_zero"),
    )
    yield case(
        "pads_hold_nan",
        "the value of a pad read and compared",
        lambda: split(_f32(11, (1, 3, 20)), even(20, 4), 8, NAN),
        family="poison",
        wrong=("ids_within_shard",),
        kills=("pads_are_candidates",),
    )
    yield case(
        "one_shard",
        "a single shard changed on the way: its lse taken through exp and log, its offset lost",
        lambda: {
            name: nx.round_f32(v) if name == "part_lse" else v
            for name, v in split(_f32(12, (2, 4, 96)), [(32, 96)], 6).items()
        },
        wrong=("ids_within_shard",),
        kills=("ids_within_shard", "lse_fast_exp"),
    )
    yield case(
        "one_shard_pads",
        "a single shard copied without a look at its pads, its lse or its status",
        _one_shard_pads,
        family="poison",
        wrong=("status_ignored", "bad_row_only", "ids_within_shard"),
        kills=("one_shard_pads_copied", "one_shard_status_ignored", "one_shard_nan_lse_accepted"),
    )
    yield case(
        "empty_shards",
        "a shard without a finite logit gives NaN or a candidate; an empty row's lse is not -inf",
        lambda: split(_empty(), even(120, 4), 7),
        family="extreme",
        wrong=("empty_row_lse_zero", "empty_gives_nan", "ids_within_shard"),
        kills=("empty_gives_nan", "empty_row_lse_zero", "pads_are_candidates", "pad_logprob_zero"),
    )
    yield case(
        "refused_shards",
        "a shard's refusal ignored, taken from shard 0 only, or spoiling every request",
        _refused,
        family="poison",
        wrong=("status_ignored", "bad_row_only", "ids_within_shard"),
        kills=(
            "status_ignored",
            "status_of_shard_0",
            "status_never_set",
            "bad_request_fails_batch",
            "nan_lse_accepted",
            "inf_lse_accepted",
            "bad_row_only",
        ),
    )
    yield case(
        "fine_parts",
        "parts rounded to f32 before they are summed",
        _fine_parts,
        wrong=("ids_within_shard",),
        kills=("parts_to_f32", "lse_fast_exp"),
    )
    yield case(
        "dominant_shard",
        "lse rounded below the greatest part, which makes a log-prob positive",
        _dominant,
        wrong=("ids_within_shard",),
        kills=("lse_below_max",),
    )
    yield case(
        "extreme",
        "overflow of exp or of the shift at the largest finite f32, at -60,000 and at +2,000",
        lambda: split(_extreme(), even(80, 5), 9),
        family="extreme",
        wrong=("ids_within_shard",),
        kills=("finite_sentinel", "lse_without_shift"),
    )
    yield case(
        "zeros_and_subnormals",
        "-0 ordered below +0 of another shard; subnormals that compare as zero",
        lambda: split(_zeros(), even(90, 3), 50),
        family="tie",
        wrong=("ids_within_shard",),
        kills=("negative_zero_below_zero", "subnormals_flushed"),
    )
    yield case(
        "large_ids",
        "ids that pass through f32 or overflow beside their offset",
        _large_ids,
        family="extreme",
        wrong=("ids_within_shard",),
        kills=("ids_through_f32",),
    )
    yield case(
        "shards_37",
        "more shards than a warp has lanes, merged in a way that forgets ties, zeros, subnormals, "
        "pads or empty shards",
        _shards_37,
        family="tie",
        wrong=("ids_within_shard", "ties_by_shard"),
        kills=(
            "first_32_shards",
            "many_shards_ties_by_shard",
            "many_shards_order_zeros",
            "many_shards_flush_subnormals",
            "many_shards_pad_is_minus_one",
            "many_shards_empty_gives_nan",
        ),
    )
    yield case(
        "shards_1100",
        "more shards than a block has threads, or than a word of 64 or 128 has bits: late ones "
        "left out, or not asked whether they refused",
        _many_shards,
        family="random",
        wrong=("ids_within_shard",),
        kills=(
            "first_32_shards",
            "first_64_shards",
            "first_128_shards",
            "first_256_shards",
            "first_1024_shards",
            "status_of_first_256",
            "status_of_first_1024",
        ),
    )
    yield case(
        "refused_with_any_status",
        "a shard's refusal known by one value: 1, any positive one, or its lowest byte",
        _any_status,
        wrong=("status_ignored", "status_is_one"),
        kills=("status_ignored", "status_is_one", "status_is_positive", "status_low_byte"),
    )
    yield case(
        "pads_of_any_id",
        "a pad known by the id -1 alone",
        _any_pad,
        wrong=("pad_is_minus_one",),
        kills=("pad_is_minus_one", "pads_are_candidates"),
    )
    yield case(
        "requests_260",
        "more rows than a warp or a block of them; a late request not asked for its status",
        lambda: _refused_among((260, 1, 6), 140, 10, 40, 100, 259),
        family="random",
        kills=("rows_past_64", "rows_past_256", "status_of_64_requests"),
    )
    yield case(
        "depths_70",
        "more depths than two warps have lanes; a late one whose lse is not looked at",
        _depths_70,
        family="random",
        kills=("rows_past_64", "lse_of_64_depths"),
    )
    yield case(
        "k_1",
        "one candidate, found by a plain maximum without ties, zeros, subnormals, pads or status",
        _k_1,
        family="tie",
        wrong=("ids_within_shard", "ties_by_shard", "status_ignored"),
        kills=(
            "top_1_ties_by_shard",
            "top_1_orders_zeros",
            "top_1_flushes_subnormals",
            "top_1_pads_are_candidates",
            "top_1_status_ignored",
        ),
    )
    yield case(
        "k_520",
        "hundreds of candidates and pads, found by a sort that forgets zeros, subnormals, large "
        "ids or the last pads",
        _k_520,
        family="tie",
        wrong=("ids_within_shard",),
        kills=(
            "pads_past_512",
            "long_list_orders_zeros",
            "long_list_flushes_subnormals",
            "long_list_ids_through_f32",
        ),
    )
    yield case(
        "k_1024",
        "more candidates than threads: ranks beyond the first block",
        lambda: split(_bf16(21, (1, 1, 2600)), even(2600, 3), 1024),
        family="tie",
        wrong=("ids_within_shard",),
        kills=("ties_by_highest_id", "candidates_past_512"),
    )
    yield case(
        "no_candidates",
        "K = 0: lse and status are still due",
        lambda: {
            **split(_f32(22, (3, 2, 50)), even(50, 3), 0),
            "part_status": np.asarray([[0, 0, 0], [0, 1, 0], [0, 0, 0]], np.int32),
        },
        kills=("lse_base_2", "lse_is_max", "no_candidates_no_status"),
    )
    yield case(
        "no_shards",
        "S = 0: every candidate is a pad and lse is -inf",
        lambda: split(np.zeros((2, 2, 0)), [], 3),
        wrong=("empty_row_lse_zero",),
        kills=("pads_not_written", "empty_row_lse_zero"),
    )
    yield case(
        "no_depths",
        "L = 0: a shard's refusal is still passed on",
        lambda: {
            **split(np.zeros((3, 0, 10)), even(10, 2), 4),
            "part_status": np.asarray([[0, 0, 0], [0, 1, 0]], np.int32),
        },
        kills=("status_of_shard_0", "status_never_set", "bad_request_fails_batch"),
    )
    yield case(
        "no_requests",
        "R = 0: nothing is launched and nothing is written",
        lambda: split(np.zeros((0, 3, 10)), even(10, 2), 4),
        null_ok="there is nothing to write",
    )
    yield case(
        "vocab_163840_8_shards",
        "a production vocabulary on eight ranks",
        lambda: split(_bf16(30, (2, 15, 163840), 2.5), even(163840, 8), 256),
        family="random",
        tier="full",
        kills=("ties_by_highest_id",),
    )


# --- known-wrong conventions ----------------------------------------------------------------------


def _only(*names: str, of: Callable[[Arrays], Mapping[str, Array]]) -> Reference:
    """Some outputs of the reference on other inputs."""

    def wrong(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
        out = reference({**inputs, **of(inputs)}, attrs, profile)
        return {name: out[name] for name in names}

    return wrong


def _lse_base_2(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    parts, ln2 = np.moveaxis(inputs["part_lse"], 0, -1), 0.6931471805599453
    return {"lse": topk_logprobs.row_lse(parts * ln2) / ln2}


def _lse_is_max(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"lse": np.max(inputs["part_lse"], axis=0)}


def _lse_of_candidates(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    kept = np.where(inputs["part_ids"] >= 0, inputs["part_values"], -INF)
    flat = np.moveaxis(kept, 0, -1).reshape(*kept.shape[1:3], -1)
    return {"lse": topk_logprobs.row_lse(flat)}


def _renamed(inputs: Arrays, attrs: Attrs, profile: str, names: Array) -> dict[str, Array]:
    """The ids that come out when ties go by `names` [S, R, L, K]; ids below 2^31."""
    out = {"ids": np.full(inputs["part_ids"].shape[1:], -1, np.int32)}
    shards, requests, depths, k = inputs["part_ids"].shape
    real = inputs["part_ids"] >= 0
    ids = inputs["part_ids"] + inputs["first"][:, None, None, None]
    for r in range(requests):
        for d in range(depths):
            at = [(s, j) for s in range(shards) for j in range(k) if real[s, r, d, j]]
            at.sort(key=lambda p: (-inputs["part_values"][p[0], r, d, p[1]],
                                   names[p[0], r, d, p[1]]))  # fmt: skip
            best = [ids[s, r, d, j] for s, j in at[:k]]
            out["ids"][r, d, : len(best)] = best
    return out


def _ties_by_shard(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    shards = np.arange(len(inputs["first"]), dtype=np.int64)[:, None, None, None]
    return _renamed(inputs, attrs, profile, shards * 2**31 + inputs["part_ids"])


def _ties_by_highest_id(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    ids = inputs["part_ids"] + inputs["first"][:, None, None, None]
    return _renamed(inputs, attrs, profile, -ids.astype(np.int64))


def _one_further(inputs: Arrays) -> dict[str, Array]:
    """The same tokens by other names, among which a pad is one."""
    return {"part_ids": inputs["part_ids"] + 1, "first": inputs["first"] - 1}


def _one_pad(inputs: Arrays) -> dict[str, Array]:
    """The same, and only -1 is a pad."""
    ids = inputs["part_ids"].astype(np.int64)
    first = inputs["first"].astype(np.int64)
    return {"part_ids": np.where(ids == -1, -1, ids + 2**31), "first": first - 2**31}


def _bad_row_only(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    """A bad lse pads its own row, not its request."""
    parts = inputs["part_lse"]
    bad = (np.isnan(parts) | (parts == INF)).any(axis=0)
    found = reference({**inputs, "part_lse": np.where(bad, -INF, parts)}, attrs, profile)
    ids, lse = np.where(bad[..., None], -1, found["ids"]), np.where(bad, -INF, found["lse"])
    return {"ids": ids.astype(np.int32), "lse": lse}


def _empty_row_lse_zero(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    found = reference(inputs, attrs, profile)
    empty = (found["lse"] == -INF) & (found["status"] == 0)[:, None]
    return {"lse": np.where(empty, 0.0, found["lse"])}


def _empty_gives_nan(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    lse = reference(inputs, attrs, profile)["lse"]
    return {"lse": np.where((inputs["part_lse"] == -INF).any(axis=0), NAN, lse)}


WRONG: Mapping[str, Reference] = {
    "ids_within_shard": _only("ids", of=lambda x: {"first": np.zeros_like(x["first"])}),
    "ties_by_shard": _ties_by_shard,
    "ties_by_highest_id": _ties_by_highest_id,
    "pads_are_candidates": _only("ids", of=_one_further),
    "lse_base_2": _lse_base_2,
    "lse_is_max": _lse_is_max,
    "lse_of_candidates": _lse_of_candidates,
    "status_ignored": _only("ids", "status", of=lambda x: {"part_status": 0 * x["part_status"]}),
    "status_is_one": _only("ids", "status", of=lambda x: {"part_status": x["part_status"] == 1}),
    "pad_is_minus_one": _only("ids", of=_one_pad),
    "bad_row_only": _bad_row_only,
    "empty_row_lse_zero": _empty_row_lse_zero,
    "empty_gives_nan": _empty_gives_nan,
}
