"""Cases of `tree_build`."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics, recorded
from kdtr.case import Arrays, Attrs, Case
from kdtr.reference import tree_build as ref

Array = NDArray[Any]
INF = np.inf
LEAST = -3.4028234663852886e38


def _ids(seed: int, shape: tuple[int, ...], vocab_bits: int = 15) -> Array:
    """Token ids below 2^vocab_bits, distinct in each row and in no order."""
    lane = (1 << vocab_bits) // max(shape[-1], 1)
    picked = np.arange(shape[-1]) * lane + numerics.integers(seed, shape, 0, lane)
    return ((picked * 25_173 + 13_849) % (1 << vocab_bits)).astype(np.int32)


def _inputs(
    logprobs: Any,
    ids: Any = None,
    root_token: Sequence[int] | None = None,
    prefix_len: Sequence[int] | None = None,
) -> dict[str, Array]:
    lp = np.asarray(logprobs, np.float32)
    requests = lp.shape[0]
    count = range(requests)
    return {
        "logprobs": lp,
        "ids": _ids(7, lp.shape) if ids is None else np.asarray(ids, np.int32),
        "root_token": np.array(
            [1000 + 17 * r for r in count] if root_token is None else root_token, np.int32
        ),
        "prefix_len": np.array(
            [37 + 11 * r for r in count] if prefix_len is None else prefix_len, np.int32
        ),
    }


def _lattice(
    seed: int, shape: tuple[int, int, int], grid: int, first: float, gap: float, low: int = 1
) -> Array:
    """Descending rows on multiples of 2^-grid: top up to -first, then gaps up to `gap`.

    `low` is the smallest gap in units of the grid: 1 for rows without equal entries, 0 for ties.
    """
    requests, depth, width = shape
    one = 1 << grid
    tops = numerics.integers(seed, (requests, depth, 1), 1, max(2, int(first * one)))
    gaps = numerics.integers(
        seed + 1, (requests, depth, max(width - 1, 0)), low, max(low + 1, int(gap * one))
    )
    steps = np.concatenate([tops, gaps], axis=2)[:, :, :width]
    return np.ldexp(-np.cumsum(steps, axis=2).astype(np.float64), -grid)


def _random(seed: int, shape: tuple[int, int, int], first: float = 1.0, gap: float = 0.5) -> Arrays:
    return _inputs(_lattice(seed, shape, 17, first, gap), _ids(seed + 2, shape))


def _tied(seed: int, shape: tuple[int, int, int], grid: int = 2) -> Arrays:
    return _inputs(_lattice(seed, shape, grid, 1.0, 1.0, low=0), _ids(seed + 2, shape))


def _bf16(seed: int, shape: tuple[int, int, int]) -> Arrays:
    lp = numerics.round_bf16(_lattice(seed, shape, 14, 3.0, 0.03))
    return _inputs(lp, _ids(seed + 2, shape))


def _recorded(name: str, start: int, count: int) -> Arrays:
    taken = recorded.load(name)
    rounds = slice(start, start + count)
    return _inputs(taken["logprobs"][rounds], taken["ids"][rounds])


def _same(row: Sequence[float], depth: int) -> Arrays:
    return _inputs([[list(row)] * depth])


def _with(change: Callable[[dict[str, Array]], None], requests: int = 3) -> Arrays:
    """A batch of good requests of which `change` spoils or bends some, often the middle one."""
    good = dict(_random(61, (requests, 3, 6)))
    inputs = {name: array.copy() for name, array in good.items()}
    change(inputs)
    return inputs


def _set(name: str, index: tuple[int, ...], value: float) -> Callable[[dict[str, Array]], None]:
    def change(inputs: dict[str, Array]) -> None:
        inputs[name][index] = value

    return change


def _repeat_id(inputs: dict[str, Array]) -> None:
    inputs["ids"][1, 2, 5] = inputs["ids"][1, 2, 1]


def _bad_far_entries() -> Arrays:
    """Rows of 1,024 of which an entry is wrong: the last one, or one that ascends at 512."""
    inputs = {name: a.copy() for name, a in _random(48, (4, 1, 1024), 0.01, 0.001).items()}
    inputs["ids"][0, 0, 1023] = inputs["ids"][0, 0, 0]
    inputs["ids"][1, 0, 1023] = -1
    inputs["logprobs"][2, 0, 1023] = np.nan
    inputs["logprobs"][3, 0, 512] = inputs["logprobs"][3, 0, 511] + 2.0**-17
    return inputs


def _far_below_zero(inputs: dict[str, Array]) -> None:
    for r, value in enumerate((-7, -(2**31))):
        inputs["ids"][r, 2, 5] = value
        inputs["root_token"][2 + r] = value
        inputs["prefix_len"][4 + r] = value


def _tie_ids_descending(inputs: dict[str, Array]) -> None:
    inputs["logprobs"][1, :, 1:4] = inputs["logprobs"][1, :, 1:2]
    inputs["ids"][1, :, 1:4] = np.sort(inputs["ids"][1, :, 1:4], axis=1)[:, ::-1]


def _absent_garbage(inputs: dict[str, Array]) -> None:
    inputs["logprobs"][1, :, 4:] = -INF
    inputs["ids"][1, :, 4] = -7
    inputs["ids"][1, :, 5] = inputs["ids"][1, :, 0]


def _ragged() -> Arrays:
    inputs = dict(_random(71, (7, 4, 8)))
    lp = inputs["logprobs"].copy()
    lp[0, 0, :] = -INF  # the root alone
    lp[1, 0, 1:] = -INF  # one child, nothing below
    lp[1, 1, :] = -INF
    lp[2, :, 1:] = -INF  # a chain
    lp[3, 2:, :] = -INF  # two levels
    lp[4, 0, 3:] = -INF
    lp[5, :, 7] = -INF
    inputs["logprobs"] = lp
    return inputs


def _same_count_two_shapes() -> Arrays:
    chain = [[-0.25, -9.0, -10.0]] * 4
    bush = [[-1.0, -1.5, -2.0], [-8.0, -9.0, -10.0], [-8.0, -9.0, -10.0], [-8.0, -9.0, -10.0]]
    return _inputs([chain, bush])


def _bad_mixture() -> Arrays:
    inputs = {name: a.copy() for name, a in _random(83, (9, 2, 5)).items()}
    inputs["logprobs"][1, 0, 0] = np.nan
    inputs["logprobs"][2, 1, 4] = np.nan
    inputs["logprobs"][4, 0, 0] = INF
    inputs["logprobs"][5, 1, 0] = 2.0**-20
    inputs["logprobs"][7, 1, 3] = inputs["logprobs"][7, 1, 2] + 2.0**-17
    inputs["ids"][8, 0, 4] = -1
    return inputs


def _large_ids() -> Arrays:
    """Ids up to the largest, which f32 cannot hold and which differ in their upper bits only."""
    last, odd = 2**31 - 1, 2**24 + 1
    ids = [[last, last - 2**16, odd, 1], [odd, odd - 1, 5, 5 + 2**17]]
    return _inputs([[[-0.5, -1.0, -1.5, -2.0], [-0.25, -0.75, -1.25, -1.75]]], [ids], [last])


def _far_faults() -> Arrays:
    """Forty depths; what is wrong lies at the last of them, at the 17th and at the 33rd."""
    inputs = {name: a.copy() for name, a in _random(86, (5, 40, 5)).items()}
    inputs["logprobs"][1, 39, 4] = np.nan
    inputs["ids"][2, 16, 3] = inputs["ids"][2, 16, 0]
    inputs["ids"][3, 32, 4] = -1
    return inputs


def _f64_order() -> Arrays:
    """Two-level sums that differ by 2^-30: f32 sums tie, or swap, where f64 sums do not."""
    tiny = 2.0**-30
    top = [-(2.0**-6) - tiny * 5, -(2.0**-6) - tiny * 7, -(2.0**-6) - tiny * 11]
    next_row = [-(8.0 + 2.0**-20), -(8.0 + 2.0**-19), -(8.0 + 2.0**-18)]
    return _inputs([[top, next_row, next_row]])


def _operation_order() -> Arrays:
    """A confident drafter: row entries near 2^-40, 1.5, 3 and 6, so that f64 sums round."""
    mantissa = numerics.integers(91, (4, 3, 4), 1 << 23, 1 << 24).astype(np.float64)
    return _inputs(-np.ldexp(mantissa, np.array([-64, -23, -22, -21], np.int32)))


# Known-wrong conventions.


Popped = list[tuple[float, tuple[int, ...], int]]


def _search(
    lp: list[list[float]],
    budget: int,
    limit: int,
    tie: Callable[[tuple[int, ...], int, int], Any],
    step: Callable[[float, float, float, float], float],
    narrow: bool,
) -> Popped:
    """Best-first search with a tie order, sibling weight rule and precision of one's own."""
    heap: list[tuple[Any, ...]] = []
    popped: Popped = []
    serial = 0

    def push(weight: float, ranks: tuple[int, ...], parent: int) -> None:
        nonlocal serial
        serial += 1
        if lp[len(ranks) - 1][ranks[-1]] != -INF:
            value = float(np.float32(weight)) if narrow else weight
            heapq.heappush(heap, (-value, tie(ranks, parent, serial), value, ranks, parent))

    def push_child(weight: float, ranks: tuple[int, ...], node: int) -> None:
        if len(ranks) < limit and len(lp[len(ranks)]) > 0:
            push(weight + lp[len(ranks)][0], (*ranks, 0), node)

    push_child(0.0, (), 0)
    while heap and len(popped) < budget:
        _, _, weight, ranks, parent = heapq.heappop(heap)
        popped.append((weight, ranks, parent))
        push_child(weight, ranks, len(popped))
        row, rank = lp[len(ranks) - 1], ranks[-1]
        if rank + 1 < len(row):
            base = popped[parent - 1][0] if parent > 0 else 0.0
            moved = step(weight, row[rank], row[rank + 1], base)
            push(moved, (*ranks[:-1], rank + 1), parent)
    return popped


def _variant(
    inputs: Arrays,
    attrs: Attrs,
    profile: str,
    *,
    tie: Callable[[tuple[int, ...], int, int], Any] = lambda ranks, parent, serial: ranks,
    step: Callable[[float, float, float, float], float] = lambda w, a, b, base: (w - a) + b,
    narrow: bool = False,
    less_depth: int = 0,
    less_budget: int = 0,
) -> dict[str, Array]:
    """The op with another tie order, sibling weight rule, precision, depth limit or budget."""
    requests, depth, _ = inputs["ids"].shape
    budget = int(attrs["budget"])
    out = ref.pads(requests, budget + 1)
    for r in range(requests):
        if ref.is_bad(inputs, r):
            out["status"][r] = 1
            continue
        lp = inputs["logprobs"][r].tolist()
        popped = _search(lp, budget - less_budget, depth - less_depth, tie, step, narrow)
        ref.fill(out, r, inputs, popped)
    return out


def _positions_by_index(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    out = ref.reference(inputs, attrs, profile)
    index = np.arange(out["tokens"].shape[1])
    inside = index < out["n_nodes"][:, None]
    out["positions"] = np.where(inside, inputs["prefix_len"][:, None] + index, 0).astype(np.int32)
    return out


def _visible_without_self(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    out = ref.reference(inputs, attrs, profile)
    diagonal = np.arange(out["visible"].shape[1])
    out["visible"][:, diagonal, diagonal] = 0
    return out


def _causal(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    out = ref.reference(inputs, attrs, profile)
    index = np.arange(out["visible"].shape[1])
    row = index[:, None] < out["n_nodes"][:, None, None]
    out["visible"] = (row & (index[None, :] <= index[:, None])).astype(np.uint8)
    return out


def _siblings_descending(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    out = ref.reference(inputs, attrs, profile)
    for name in ("next_token", "next_sibling"):
        out[name][:] = -1
    for r, n in enumerate(out["n_nodes"]):
        for node in range(1, n):
            parent = out["parents"][r, node]
            out["next_sibling"][r, node] = out["next_token"][r, parent]
            out["next_token"][r, parent] = node
    return out


WRONG: Mapping[str, Callable[[Arrays, Attrs, str], dict[str, Array]]] = {
    "insertion_order_ties": partial(_variant, tie=lambda ranks, parent, serial: serial),
    "last_rank_ties": partial(_variant, tie=lambda ranks, parent, serial: (ranks[-1], ranks)),
    "deeper_first_ties": partial(_variant, tie=lambda ranks, parent, serial: (-len(ranks), ranks)),
    "uno_tie_order": partial(
        _variant, tie=lambda ranks, parent, serial: (len(ranks), ranks[-1], parent)
    ),
    "ranks_tie_order": _variant,
    "f32_weights": partial(_variant, narrow=True),
    "sibling_reassociated": partial(_variant, step=lambda w, a, b, base: w + (b - a)),
    "sibling_from_parent": partial(_variant, step=lambda w, a, b, base: base + b),
    "depth_limit_short": partial(_variant, less_depth=1),
    "budget_includes_root": partial(_variant, less_budget=1),
    "positions_by_index": _positions_by_index,
    "visible_without_self": _visible_without_self,
    "causal_instead_of_ancestor": _causal,
    "siblings_descending": _siblings_descending,
}

_TIES = ("insertion_order_ties", "last_rank_ties", "uno_tie_order")
_UNO_TIES = ("insertion_order_ties", "last_rank_ties", "ranks_tie_order")


def cases() -> Iterator[Case]:
    """Named conditions, from the plain to the hostile."""
    yield from _plain()
    yield from _ties()
    yield from _weights()
    yield from _sizes()
    yield from _absent_candidates()
    yield from _batches()
    yield from _bad_inputs()
    yield from _real()


def _attrs(budget: int, tie_order: str = "ranks") -> Attrs:
    return {"budget": budget, "tie_order": tie_order}


def _plain() -> Iterator[Case]:
    yield Case(
        "chain",
        "A search that stops a depth early, or reads the log-probs of the row above: one "
        "candidate a depth leaves a chain, whose mask is causal and whose positions are its "
        "indices.",
        partial(_random, 11, (1, 8, 1)),
        _attrs(8),
        family="random",
        seed=11,
        kills=("depth_limit_short", "row_of_parent", "visible_without_self"),
        wrong=("depth_limit_short", "visible_without_self"),
    )
    yield Case(
        "wide",
        "Masks that are causal or show siblings, and links in descending order: flat rows give "
        "the root many children.",
        partial(_random, 12, (1, 2, 32), 0.25, 0.01),
        _attrs(16),
        family="random",
        seed=12,
        kills=("visible_causal", "visible_siblings", "siblings_descending", "first_child_is_last"),
        wrong=("causal_instead_of_ancestor", "siblings_descending"),
    )
    yield Case(
        "underfull",
        "n_nodes taken from the budget and pads that are stale or zero: candidates run out at 13 "
        "nodes of 33.",
        partial(_random, 13, (1, 2, 3)),
        _attrs(32),
        family="random",
        seed=13,
        kills=("nodes_is_budget", "pads_zero", "pads_unwritten"),
    )
    for budget in (8, 16, 32, 64):
        yield Case(
            f"budget_{budget}",
            f"A tree of {budget} nodes from 15 rows of 64: positions by index, a budget that "
            "counts the root, a mask of one 32-bit word.",
            partial(_random, 20 + budget, (1, 15, 64)),
            _attrs(budget),
            family="random",
            seed=20 + budget,
            kills=("positions_by_index", "positions_plus_one", "budget_includes_root"),
            wrong=("positions_by_index", "budget_includes_root") if budget < 64 else (),
        )
    yield Case(
        "depth_1",
        "A drafter of one depth: siblings only, and none below them.",
        partial(_random, 14, (2, 1, 8)),
        _attrs(6),
        family="random",
        seed=14,
        kills=("depth_limit_short", "depth_limit_ignores_last_sibling"),
    )
    yield Case(
        "depth_15",
        "Nodes at the last depth of 15: peaked rows send the search down.",
        partial(_random, 15, (1, 15, 4), 0.01, 2.0),
        _attrs(40),
        family="random",
        seed=15,
        kills=("depth_limit_short", "row_of_parent"),
        wrong=("depth_limit_short",),
    )
    yield Case(
        "batch_4",
        "A batch whose requests share one prefix length or one request's rows.",
        partial(_random, 16, (4, 15, 16)),
        _attrs(24),
        family="random",
        seed=16,
        flags=("ragged",),
        kills=("positions_from_first_request", "first_request_rows", "last_request_skipped"),
    )
    yield Case(
        "batch_64",
        "More requests than a warp has lanes: the last one is checked like the first.",
        partial(_random, 17, (64, 6, 4)),
        _attrs(12),
        family="random",
        seed=17,
        flags=("ragged",),
        kills=("positions_from_first_request", "first_request_rows", "last_request_skipped"),
    )
    yield Case(
        "hand_derived",
        "Any error of the search at all: six pops that are checked by hand. Weights -1, -1.5, -2, "
        "-2.5, -4, -5 in this order.",
        lambda: _inputs([[[-1.0, -2.0], [-0.5, -3.0]]], [[[10, 20], [30, 40]]], [5], [100]),
        _attrs(6),
        kills=("row_of_parent", "visible_transposed", "sibling_link_across_parents"),
        wrong=("positions_by_index", "visible_without_self", "siblings_descending"),
    )


def _ties() -> Iterator[Case]:
    for order in ("ranks", "uno"):
        told = _TIES if order == "ranks" else _UNO_TIES
        other = "uno_for_ranks" if order == "ranks" else "ranks_for_uno"
        yield Case(
            f"ties_every_level_{order}",
            "Ties broken by insertion: all entries of a row are equal, so each depth is one tie.",
            partial(_same, [-1.0] * 4, 3),
            _attrs(24, order),
            family="tie",
            flags=("tie", "tie_at_budget"),
            kills=("reverse_insertion_ties", other),
            wrong=told if order == "ranks" else ("last_rank_ties", "ranks_tie_order"),
        )
        yield Case(
            f"ties_across_depths_{order}",
            "A path and its extensions of equal weight: log-probs 0 make every candidate a tie "
            "with every other.",
            partial(_same, [0.0] * 3, 3),
            _attrs(17, order),
            family="tie",
            flags=("tie", "tie_at_budget"),
            kills=("insertion_order_ties", "last_rank_ties", other),
            wrong=told,
        )
        yield Case(
            f"ties_deep_against_wide_{order}",
            "Two tokens at -1 and one at -2: (0, 0) against (1), which a comparison of depth, of "
            "last rank and of the tuple order differently.",
            partial(_same, [-1.0, -2.0, -3.0, -4.0], 4),
            _attrs(20, order),
            family="tie",
            flags=("tie",),
            kills=("deeper_first_ties",) if order == "uno" else ("last_rank_ties", other),
            wrong=told[1:],
        )
        yield Case(
            f"tie_at_budget_edge_{order}",
            "A tie for the last slot, which changes the set of nodes and not their order alone.",
            lambda: _inputs([[[-1.0, -1.0, -2.0], [-1.0, -1.0, -1.0], [-4.0, -5.0, -6.0]]]),
            _attrs(4, order),
            family="tie",
            flags=("tie", "tie_at_budget"),
            kills=(other,),
            wrong=told,
        )
        yield Case(
            f"coarse_lattice_{order}",
            "Many ties among many nodes: quarter steps over 8 rows of 16, four requests.",
            partial(_tied, 31, (4, 8, 16)),
            _attrs(48, order),
            family="tie",
            seed=31,
            flags=("tie", "tie_at_budget"),
            kills=("insertion_order_ties", "last_rank_ties", "deeper_first_ties", other),
            wrong=(*told, "deeper_first_ties") if order == "ranks" else told,
        )
        yield Case(
            f"bf16_logprobs_{order}",
            "Log-probs rounded to bf16, as a bf16 lm_head gives them: exact ties in most rows.",
            partial(_bf16, 33, (3, 15, 24)),
            _attrs(40, order),
            family="tie",
            seed=33,
            flags=("tie",),
            kills=("insertion_order_ties", "reverse_insertion_ties", other),
            wrong=(told[0], told[2]),
        )
        yield Case(
            f"ties_long_paths_{order}",
            "Ties between tuples of up to 40 ranks: a comparison that looks at the first few only.",
            partial(_same, [0.0, -(2.0**-3)], 40),
            _attrs(60, order),
            family="tie",
            flags=("tie", "tie_at_budget"),
            kills=(other,),
            wrong=(told[0], told[2]),
        )
    yield Case(
        "tied_ids_in_any_order",
        "Equal entries whose ids descend are valid: a check that tied ids ascend refuses them.",
        partial(_with, _tie_ids_descending),
        _attrs(12),
        family="tie",
        flags=("tie",),
        kills=("tied_ids_must_ascend",),
    )


def _weights() -> Iterator[Case]:
    yield Case(
        "f64_weights_on_fine_lattice",
        "Weights kept in f32: sums that differ by 2^-30 tie or swap.",
        _f64_order,
        _attrs(15),
        family="tie",
        kills=("f32_weights", "weights_f32_stored"),
        wrong=("f32_weights",),
    )
    yield Case(
        "sibling_operation_order",
        "A sibling's weight other than (w - a) + b in that order: entries are 2^40 apart, so each "
        "order of operations rounds differently, and so would a compensated sum.",
        _operation_order,
        _attrs(80),
        family="extreme",
        seed=91,
        kills=("sibling_reassociated", "sibling_from_parent"),
        wrong=("sibling_reassociated", "sibling_from_parent"),
    )
    yield Case(
        "negative_zero_logprob",
        "A first weight copied from the row instead of added to the root's +0.0.",
        lambda: _inputs([[[-0.0, -1.0], [-0.0, -2.0]]]),
        _attrs(6),
        family="extreme",
        kills=("negative_zero_weight",),
    )
    yield Case(
        "largest_logprobs_first",
        "Log-probs below -1e30 taken for absent ones.",
        lambda: _inputs([[[LEAST, -INF], [-0.25, LEAST]], [[-0.5, LEAST], [LEAST, LEAST]]]),
        _attrs(6),
        family="extreme",
        flags=("tie",),
        kills=("least_is_absent",),
    )
    yield Case(
        "largest_and_smallest_logprobs",
        "Weights that overflow f32 or flush denormals.",
        lambda: _inputs([[[-(2.0**-149), -(2.0**-126), LEAST]] * 4]),
        _attrs(20),
        family="extreme",
        kills=("f32_weights",),
    )


def _sizes() -> Iterator[Case]:
    yield Case(
        "budget_0",
        "A budget of 0, which leaves the root alone.",
        partial(_random, 41, (3, 4, 4)),
        _attrs(0),
        family="random",
        seed=41,
        kills=("positions_plus_one", "visible_without_self"),
    )
    yield Case(
        "budget_0_bad_input",
        "Validation left out when there is nothing to build.",
        lambda: _with(_set("logprobs", (1, 0, 0), np.nan)),
        _attrs(0),
        kind="NEG",
        kills=("validation_skipped_when_empty", "only_popped_validated"),
    )
    yield Case(
        "budget_1",
        "A budget of 1, which a count that includes the root turns into 0.",
        partial(_random, 42, (3, 4, 4)),
        _attrs(1),
        family="random",
        seed=42,
        kills=("budget_includes_root",),
        wrong=("budget_includes_root",),
    )
    for budget in (31, 32, 33, 63, 65, 127):
        if budget == 32:
            continue
        yield Case(
            f"budget_{budget}",
            f"{budget + 1} slots: beside the edge of a 32-bit or 64-bit mask word.",
            partial(_random, 40 + budget, (1, 7, 16)),
            _attrs(budget),
            family="random",
            seed=40 + budget,
            kills=("budget_includes_root",)
            if budget < 65
            else ("sixty_four_nodes", "visible_one_word"),
        )
    for budget, tier in ((256, "small"), (512, "full"), (1024, "full")):
        yield Case(
            f"budget_{budget}",
            f"{budget} nodes with ties: kernels sized for 64 nodes, and tie comparisons whose cost "
            "grows with the square of the tree.",
            partial(_tied, 46, (1, 15, 64), 6),
            _attrs(budget),
            family="tie",
            seed=46,
            flags=("tie",),
            kills=("sixty_four_nodes", "visible_one_word", "insertion_order_ties"),
            tier="small" if tier == "small" else "full",
        )
    yield Case(
        "budget_1024_all_ties",
        "1024 nodes of one weight, 64 deep: the slowest tie comparisons there are.",
        partial(_same, [0.0] * 3, 64),
        _attrs(1024),
        family="tie",
        flags=("tie", "tie_at_budget"),
        kills=("sixty_four_nodes", "uno_for_ranks"),
        tier="full",
    )
    yield Case(
        "ranks_past_256",
        "Ranks held in five or eight bits, or in a lane of one warp: the root has 258 children, "
        "all there are.",
        partial(_random, 47, (1, 1, 258), 0.01, 0.002),
        _attrs(258),
        family="random",
        seed=47,
        kills=("rank_limit_31", "rank_limit_256"),
    )
    yield Case(
        "candidates_1024",
        "The widest row, most of which no tree of 40 nodes reaches.",
        partial(_random, 48, (1, 1, 1024), 0.01, 0.001),
        _attrs(40),
        family="random",
        seed=48,
        kills=("rank_limit_31",),
    )
    yield Case(
        "candidates_1024_bad",
        "Entries of a row of 1,024 not checked, or not against all others: a search among "
        "neighbours, a full table, a loop over a part of the row, or tiles that are not compared.",
        _bad_far_entries,
        _attrs(4),
        kind="NEG",
        family="random",
        seed=48,
        kills=(
            "duplicates_accepted",
            "negative_ids_past_64_accepted",
            "nan_past_64_accepted",
            "ascending_past_64_accepted",
            "ascending_between_tiles_accepted",
            "only_popped_validated",
        ),
    )
    yield Case(
        "depth_64",
        "The deepest tree: a chain of 64 and a few siblings.",
        partial(_random, 49, (1, 64, 2), 0.001, 4.0),
        _attrs(80),
        family="random",
        seed=49,
        kills=("depth_limit_short", "sixty_four_nodes"),
    )
    yield Case(
        "depths_of_200_candidates",
        "Rows of several depths read with the stride of a narrower one.",
        partial(_random, 54, (2, 3, 200), 0.01, 0.002),
        _attrs(30),
        family="random",
        seed=54,
        kills=("row_stride_64",),
    )
    for name, inputs, budget, kills in (
        ("budget_127", partial(_tied, 46, (1, 15, 64), 6), 127,
         ("sixty_four_nodes", "visible_one_word", "ranks_for_uno")),
        ("depth_64", partial(_same, [0.0, -(2.0**-3)], 64), 80,
         ("sixty_four_nodes", "depth_limit_short")),
        ("candidates_1024", partial(_random, 48, (1, 1, 1024), 0.01, 0.001), 40,
         ("rank_limit_31",)),
    ):  # fmt: skip
        yield Case(
            f"{name}_uno",
            "Sizes that a second path, for the tie order uno, may have limits of its own for.",
            inputs,
            _attrs(budget, "uno"),
            family="tie",
            flags=("tie",),
            kills=kills,
        )
    yield Case(
        "batch_256",
        "More requests than a block of 64 or 128 takes.",
        partial(_random, 18, (256, 2, 2)),
        _attrs(2),
        family="random",
        seed=18,
        flags=("ragged",),
        kills=("requests_past_64", "requests_past_128", "last_request_skipped"),
    )
    yield Case(
        "no_depths",
        "L = 0: the root alone.",
        lambda: _inputs(np.zeros((2, 0, 4))),
        _attrs(5),
        kills=("pads_zero", "pads_unwritten"),
    )
    yield Case(
        "no_candidates",
        "K = 0: the root alone.",
        lambda: _inputs(np.zeros((2, 3, 0))),
        _attrs(5),
        kills=("pads_zero", "pads_unwritten"),
    )
    yield Case(
        "no_requests",
        "R = 0: a launch of no blocks.",
        lambda: _inputs(np.zeros((0, 3, 4))),
        _attrs(5),
        null_ok="no request, so no output has an element",
    )


def _absent_candidates() -> Iterator[Case]:
    yield Case(
        "absent_tail",
        "Candidates of -inf that become nodes.",
        partial(_with, lambda i: i["logprobs"].__setitem__((1, slice(None), slice(3, None)), -INF)),
        _attrs(60),
        kills=("minus_inf_pushed", "minus_inf_rejected", "nodes_is_budget"),
    )
    yield Case(
        "absent_ids_are_garbage",
        "Ids of absent candidates, which may be negative or repeated, taken for bad input.",
        partial(_with, _absent_garbage),
        _attrs(12),
        kills=("absent_ids_validated", "minus_inf_rejected"),
    )
    yield Case(
        "ragged_rows",
        "Requests whose trees end for lack of candidates at once, after one node, in a chain, "
        "after two levels, or not at all.",
        _ragged,
        _attrs(16),
        flags=("ragged",),
        kills=("minus_inf_pushed", "first_request_rows", "pads_unwritten"),
    )


def _batches() -> Iterator[Case]:
    yield Case(
        "same_count_two_shapes",
        "One request's mask given to another: a chain and a bush of the same number of nodes.",
        _same_count_two_shapes,
        _attrs(4),
        flags=("ragged",),
        kills=("first_request_rows", "visible_causal", "visible_siblings"),
    )
    yield Case(
        "repeated_ids_across_depths",
        "One token at every depth: nodes told apart by token.",
        lambda: _inputs(_lattice(52, (1, 4, 3), 12, 0.5, 0.5), np.full((1, 4, 3), [3, 1, 2])),
        _attrs(20),
        family="random",
        seed=52,
        kills=("sibling_link_across_parents",),
    )
    yield Case(
        "large_ids",
        "Ids that pass through 16 bits or f32, or are compared in part: the largest, and pairs "
        "that differ in their upper bits.",
        _large_ids,
        _attrs(12),
        family="extreme",
        kills=("ids_cut_to_16_bits", "ids_through_f32", "duplicates_by_low_bits"),
    )
    yield Case(
        "long_prefix",
        "Positions past 2^18, and the last prefix length that leaves room for L.",
        lambda: _inputs(
            _lattice(53, (3, 4, 4), 12, 0.5, 0.5), None, None, [262_143, 0, 2**31 - 1 - 4]
        ),
        _attrs(10),
        family="random",
        seed=53,
        kills=("positions_from_first_request", "positions_by_index"),
    )


def _bad_inputs() -> Iterator[Case]:
    last = (1, 2, 5)  # an entry that a tree of 3 nodes does not reach
    spoilt: list[tuple[str, str, Callable[[dict[str, Array]], None], tuple[str, ...]]] = [
        (
            "nan_first",
            "NaN at the first entry.",
            _set("logprobs", (1, 0, 0), np.nan),
            ("nan_accepted",),
        ),
        (
            "nan_unreached",
            "NaN at an entry that the tree does not reach.",
            _set("logprobs", last, np.nan),
            ("nan_accepted", "only_popped_validated", "first_row_validated"),
        ),
        (
            "plus_inf",
            "+inf as a log-prob.",
            _set("logprobs", (1, 1, 0), INF),
            ("positive_accepted",),
        ),
        (
            "positive",
            "A log-prob above 0 by the smallest f32.",
            _set("logprobs", (1, 1, 0), 2.0**-149),
            ("positive_accepted", "first_row_validated"),
        ),
        (
            "ascending",
            "A row that ascends at its last entry.",
            _set("logprobs", last, -(2.0**-10)),
            ("ascending_accepted", "only_popped_validated"),
        ),
        (
            "finite_after_absent",
            "A candidate after an absent one: the row ascends.",
            _set("logprobs", (1, 0, 2), -INF),
            ("ascending_accepted",),
        ),
        (
            "repeated_id",
            "An id twice in one row, where the tree does not reach it.",
            _repeat_id,
            ("duplicates_accepted", "first_row_validated"),
        ),
        (
            "negative_id",
            "A negative id.",
            _set("ids", last, -1),
            ("negative_ids_accepted", "only_popped_validated"),
        ),
        (
            "negative_root",
            "A negative root token.",
            _set("root_token", (1,), -1),
            ("root_token_unchecked",),
        ),
        (
            "negative_prefix",
            "A negative prefix length.",
            _set("prefix_len", (1,), -1),
            ("prefix_unchecked",),
        ),
        (
            "prefix_too_long",
            "A prefix length from which the positions overflow.",
            _set("prefix_len", (1,), 2**31 - 3),
            ("prefix_unchecked",),
        ),
    ]
    for name, catches, change, kills in spoilt:
        yield Case(
            f"bad_{name}",
            catches + " The requests beside it are unaffected.",
            partial(_with, change),
            _attrs(3),
            kind="NEG",
            family="extreme",
            seed=61,
            flags=("ragged",),
            kills=(*kills, "bad_request_spoils_rest", "bad_request_unwritten"),
        )
    yield Case(
        "bad_far_below_zero",
        "Only -1 taken for negative, or the smallest integer not: ids, roots and prefix lengths.",
        partial(_with, _far_below_zero, 7),
        _attrs(3),
        kind="NEG",
        family="extreme",
        seed=61,
        flags=("ragged",),
        kills=(
            "ids_below_minus_1_accepted",
            "smallest_id_accepted",
            "roots_below_minus_1_accepted",
            "smallest_root_accepted",
            "prefixes_below_minus_1_accepted",
            "smallest_prefix_accepted",
        ),
    )
    yield Case(
        "bad_among_good",
        "A bad request that spoils its neighbours: six of nine are bad, each in another way.",
        _bad_mixture,
        _attrs(8),
        kind="NEG",
        family="extreme",
        seed=83,
        flags=("ragged",),
        kills=("bad_request_spoils_rest", "bad_request_unwritten", "pads_zero"),
    )

    yield Case(
        "bad_among_good_uno",
        "A bad request that spoils its neighbours, or passes, where the tie order is uno.",
        _bad_mixture,
        _attrs(8, "uno"),
        kind="NEG",
        family="extreme",
        seed=83,
        flags=("ragged",),
        kills=("bad_request_spoils_rest", "bad_request_unwritten", "pads_zero", "nan_accepted"),
    )
    yield Case(
        "bad_far_rows",
        "Rows past the 16th or 32nd left unchecked: no tree reaches what is wrong in them.",
        _far_faults,
        _attrs(3),
        kind="NEG",
        family="extreme",
        seed=86,
        flags=("ragged",),
        kills=("first_16_rows_validated", "first_32_rows_validated", "first_row_validated"),
    )


def _real() -> Iterator[Case]:
    trees = (
        ("marginals_bf16", "ranks", 16, 4),
        ("marginals_bf16", "ranks", 64, 3),
        ("marginals_bf16", "uno", 64, 3),
        ("marginals_bf16", "ranks", 256, 1),
        ("strong_marginals_bf16", "ranks", 64, 2),
        ("strong_marginals_bf16", "uno", 32, 4),
        ("marginals_f32", "ranks", 64, 2),
    )
    for i, (name, order, budget, count) in enumerate(trees):
        tied = name.endswith("bf16")
        yield Case(
            f"real_{name}_{order}_{budget}",
            "Trees of a real drafter, deep and branching, where random rows give flat ones"
            + ("; bf16 logits, so most pop exact ties." if tied else "."),
            partial(_recorded, name, 5 * i, count),
            _attrs(budget, order),
            family="real",
            flags=("tie",) if tied else (),
            kills=("insertion_order_ties", "visible_causal")
            if tied and budget > 16
            else ("visible_causal",),
            provenance=recorded.provenance(name),
        )
