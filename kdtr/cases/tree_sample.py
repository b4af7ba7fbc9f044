"""Cases of `tree_sample`. Probabilities are chosen so that every sum is exact in f64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics
from kdtr.case import Arrays, Attrs, Case
from kdtr.reference import tree_sample as ref

Array = NDArray[Any]
ONE = 1 << 24
NAN, INF = float("nan"), float("inf")


def _tree(
    parents: Sequence[int],
    tokens: Sequence[int],
    probs: Any,
    coins: Sequence[float],
    final_coin: float,
    order: Mapping[int, Sequence[int]] | None = None,
) -> dict[str, Any]:
    """One request: children linked in ascending order unless `order` says otherwise."""
    nodes = len(parents)
    next_token, next_sibling = [-1] * nodes, [-1] * nodes
    for node in range(nodes):
        children = [i for i in range(1, nodes) if parents[i] == node]
        children = list((order or {}).get(node, children))
        if children:
            next_token[node] = children[0]
        for a, b in pairwise(children):
            next_sibling[a] = b
    return {
        "tokens": list(tokens),
        "next_token": next_token,
        "next_sibling": next_sibling,
        "probs": np.asarray(probs, np.float64),
        "coins": list(coins),
        "final_coin": final_coin,
    }


def _batch(trees: Sequence[Mapping[str, Any]], slots: int = 0) -> dict[str, Array]:
    """Requests as a batch. What a request does not use is garbage: links, NaN rows, NaN coins."""
    slots = max([slots, *(len(t["tokens"]) for t in trees)])
    requests, vocab = len(trees), max(t["probs"].shape[1] for t in trees)
    steps = max(len(t["coins"]) for t in trees)
    links = {name: np.full((requests, slots), 77, np.int32) for name in ("next_token", "tokens")}
    links["next_sibling"] = np.full((requests, slots), -5, np.int32)
    probs = np.full((requests, slots, vocab), np.nan, np.float32)
    coins = np.full((requests, steps), np.nan, np.float32)
    for r, tree in enumerate(trees):
        nodes = len(tree["tokens"])
        for name, array in links.items():
            array[r, :nodes] = tree[name]
        probs[r, :nodes] = tree["probs"]
        coins[r, : len(tree["coins"])] = tree["coins"]
    return {
        **links,
        "n_nodes": np.array([len(t["tokens"]) for t in trees], np.int32),
        "probs": probs,
        "coins": coins,
        "final_coin": np.array([t["final_coin"] for t in trees], np.float32),
    }


def _rows(seed: int, nodes: int, vocab: int) -> Array:
    """Rows that sum to 1, a third of the ids without mass, one id with much."""
    lanes = numerics.integers(seed, (nodes, vocab), 0, max(1, ONE // vocab))
    lanes[numerics.integers(seed + 1, (nodes, vocab), 0, 3) == 0] = 0
    top = numerics.integers(seed + 2, (nodes,), 0, vocab)
    lanes[np.arange(nodes), top] += ONE - lanes.sum(axis=1)
    return np.ldexp(lanes.astype(np.float64), -24)


def _coin(seed: int, shape: tuple[int, ...]) -> Array:
    return np.ldexp(numerics.integers(seed, shape, 0, ONE).astype(np.float64), -24)


def _random(seed: int, requests: int, nodes: int, vocab: int, limit: int) -> Arrays:
    """Random trees whose drafts are often the likeliest ids of their parent's row."""
    trees = []
    for r in range(requests):
        s = seed + 10 * r
        picks = numerics.integers(s, (nodes,), 0, 1 << 20).tolist()
        rows = _rows(s + 1, nodes, vocab)
        parents, depths, tokens = [-1], [0], [3]
        used: dict[int, int] = {}
        for i in range(1, nodes):
            open_nodes = [n for n in range(i) if depths[n] < limit]
            parent = open_nodes[picks[i] % len(open_nodes)]
            likely = np.argsort(-rows[parent], kind="stable")
            tokens.append(int(likely[used.get(parent, 0)]))
            used[parent] = used.get(parent, 0) + 1
            parents.append(parent)
            depths.append(depths[parent] + 1)
        coins = _coin(s + 5, (limit + 1,)).tolist()
        trees.append(_tree(parents, tokens, rows, coins, float(_coin(s + 6, (1,))[0])))
    return _batch(trees)


QUARTERS = [0.25, 0.25, 0.25, 0.25]
EIGHTHS = [0.125, 0.5, 0.0, 0.375]


def _two(coin: float, final_coin: float = 0.0, row: Sequence[float] = QUARTERS) -> dict[str, Any]:
    """A root with children of tokens 2 and 1; leaves draw token 3."""
    leaf = [0.0, 0.0, 0.0, 1.0]
    return _tree([-1, 0, 0], [9, 2, 1], [row, leaf, leaf], [coin, NAN, NAN], final_coin)


def _every_coin() -> Arrays:
    """256 requests: all pairs of 16 acceptance coins and 16 final coins on one tree."""
    row = [0.1875, 0.3125, 0.25, 0.25]
    return _batch([_two(i / 16, j / 16, row) for i in range(16) for j in range(16)])


def _final_coins(row: Sequence[float], coins: Sequence[float]) -> Arrays:
    """Roots without children that draw from `row`."""
    return _batch([_tree([-1], [0], [row], [NAN], coin) for coin in coins])


def _last_id(vocab: int) -> Arrays:
    row = np.zeros(vocab)
    row[[0, vocab // 2, vocab - 2, vocab - 1]] = [0.25, 0.25, 0.25, 0.25]
    return _final_coins(row.tolist(), [0.0, 0.25, 0.5, 0.75, 1 - 2.0**-24])


def _bad_past_1024() -> Arrays:
    """Rows of 1,100 ids, of which id 1050 is NaN, negative and infinite."""
    rows = np.zeros((3, 1100))
    rows[:, [0, 1099]] = 0.5
    rows[:, 1050] = NAN, -(2.0**-24), INF
    return _batch([_tree([-1], [0], [row], [NAN], 0.25) for row in rows])


def _small_masses() -> Arrays:
    """Masses of 2^-50 and 2^-149 alone, then beside large ones, where f32 sums lose them."""
    small, denormal = 2.0**-50, 2.0**-149
    draws = (
        ([0.0, small, 0.0, 0.0], 0.5),
        ([0.0, 0.0, denormal, 0.0], 0.5),
        ([0.5, small, 0.5, 0.0], 0.5),
        ([0.75, small, 0.25, 2.0**-25], 0.75),
        ([10_485_766 / ONE, 5_242_874 / ONE, 0.0, 0.0], 11_184_817 / ONE),
    )
    return _batch(
        [
            _two(0.0, 0.5, [1.0, 0.0, small, 0.0]),
            _two(0.0, 0.5, [0.0, 0.0, denormal, 0.0]),
            _two(0.5, 0.5, [0.25, small, 0.5, 0.25]),
            *(_tree([-1], [0], [row], [NAN], coin) for row, coin in draws),
        ]
    )


def _deep(coins: Sequence[float], final_coin: float = 0.5) -> dict[str, Any]:
    """A chain of three below the root with a sibling at each level."""
    rows = [EIGHTHS, [0.5, 0.25, 0.25, 0.0], [0.25, 0.0, 0.5, 0.25], *[QUARTERS] * 4]
    return _tree([-1, 0, 0, 1, 1, 3, 3], [9, 1, 0, 2, 1, 0, 3], rows, coins, final_coin)


def _edit(tree: Mapping[str, Any], name: str, index: Any, value: float) -> dict[str, Any]:
    out = dict(tree)
    array = np.array(out[name], np.float64 if name in ("probs", "coins") else np.int64)
    array[index] = value
    out[name] = array
    return out


def _between(tree: Mapping[str, Any], slots: int = 0) -> Arrays:
    """`tree` between two good requests."""
    return _batch([_two(0.1), tree, _two(0.3)], slots)


def _spoilt(name: str, index: Any, value: float, coin: float = 0.9) -> Arrays:
    return _between(_edit(_two(coin), name, index, value), 4)


def _chain(nodes: int, coins: Sequence[float]) -> dict[str, Any]:
    return _tree(
        [-1, *range(nodes - 1)], [9, *[1] * (nodes - 1)], [[0.25, 0.75]] * nodes, coins, 0.5
    )


def _siblings(count: int, coins: Sequence[float]) -> Arrays:
    """Roots with `count` children of equal probability, a request for each coin."""
    vocab = 128
    leaf = np.zeros((count, vocab))
    leaf[:, 5] = 1.0
    rows = np.concatenate([np.full((1, vocab), 1 / vocab), leaf])
    tokens = [9, *(vocab - 1 - i for i in range(count))]
    return _batch([_tree([-1, *[0] * count], tokens, rows, [c, 0.5], 0.25) for c in coins])


def _long_chain() -> Arrays:
    """65 nodes; the coins of the second request reject at depth 40."""
    coins = [0.5] * 64 + [NAN]
    return _batch([_chain(65, coins), _chain(65, [*coins[:40], 0.875, *coins[41:]])])


def _between_f32() -> Arrays:
    """Coins and probabilities that lie on the other side of a threshold once that is f32."""
    coin = float(np.float32(0.25 / 0.6))  # just below 0.25 / 0.6
    return _batch([_two(coin), _two(0.9, 0.5, [0.25, 0.0, 0.5, 0.25])])


# Known-wrong conventions.


def _variant(**change: Any) -> Callable[[Arrays, Attrs, str], dict[str, Array]]:
    """The op without its checks, with one rule changed; failing requests as the reference."""

    def wrong(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
        out = ref.reference(inputs, attrs, profile)
        for r, status in enumerate(out["status"]):
            if status != 0 or out["accept_len"][r] < 0:
                continue
            path, emitted = _loose({k: a[r] for k, a in inputs.items()}, attrs, change)
            for name in ("accept_index", "accepted_tokens", "predicts"):
                out[name][r] = -1
            out["accept_len"][r] = len(path) - (0 if change.get("draw_counted") else 1)
            out["accept_index"][r, : len(path)] = path
            root = int(inputs["tokens"][r, 0])
            shown = [root, *emitted[:-1]] if change.get("tokens_shifted") else emitted
            out["accepted_tokens"][r, : len(path)] = shown
            out["predicts"][r, path] = emitted
        return out

    return wrong


def _loose(
    row: Mapping[str, Any], attrs: Attrs, change: Mapping[str, Any]
) -> tuple[list[int], list[int]]:
    path: list[int] = [0]
    emitted: list[int] = []
    acc = 0.0
    while True:
        probs = np.nan_to_num(row["probs"][path[-1]])
        depth = len(path) - 1
        tried: list[int] = []
        child = int(row["next_token"][path[-1]]) if depth < int(attrs["L"]) else -1
        if not change.get("acc_goes_on"):
            acc = 0.0
        accepted = -1
        while child != -1 and accepted < 0:
            token = int(row["tokens"][child])
            at = (
                min(depth + len(tried), int(attrs["L"]))
                if change.get("coin_per_sibling")
                else depth
            )
            coin, p = float(np.nan_to_num(row["coins"][at])), float(probs[token])
            acc = p if change.get("single") else acc + p
            edge = acc / float(attrs["threshold_acc"])
            if (coin <= edge if change.get("inclusive") else coin < edge) or p >= float(
                attrs["threshold_single"]
            ):
                accepted = child
            else:
                tried.append(token)
                child = int(row["next_sibling"][child])
        if accepted >= 0:
            path.append(accepted)
            emitted.append(int(row["tokens"][accepted]))
            continue
        residual = probs.copy()
        if not change.get("residual_kept"):
            residual[tried] = 0.0
        coin = row["coins"][depth] if change.get("same_coin") else row["final_coin"]
        mark = float(np.nan_to_num(coin)) * (1.0 if change.get("no_total") else residual.sum())
        running = np.cumsum(residual)
        above = running >= mark if change.get("inclusive_draw") else running > mark
        emitted.append(int(np.argmax(above) if above.any() else np.argmax(residual)))
        return path, emitted


WRONG: Mapping[str, Callable[[Arrays, Attrs, str], dict[str, Array]]] = {
    "inclusive_coin": _variant(inclusive=True),
    "acc_not_summed": _variant(single=True),
    "acc_not_reset": _variant(acc_goes_on=True),
    "coin_per_sibling": _variant(coin_per_sibling=True),
    "residual_kept": _variant(residual_kept=True),
    "final_coin_is_coin": _variant(same_coin=True),
    "total_not_used": _variant(no_total=True),
    "inclusive_draw": _variant(inclusive_draw=True),
    "draw_counted": _variant(draw_counted=True),
    "tokens_shifted": _variant(tokens_shifted=True),
}


def _attrs(limit: int, acc: float = 1.0, single: float = 2.0) -> Attrs:
    return {"L": limit, "threshold_acc": acc, "threshold_single": single}


def cases() -> Iterator[Case]:
    """Named conditions, from the plain to the hostile."""
    yield from _walks()
    yield from _draws()
    yield from _edges()
    yield from _errors()


def _walks() -> Iterator[Case]:
    yield Case(
        "hand_derived",
        "Any error at all: coins that accept the first child, the second, and none.",
        lambda: _batch([_two(0.1), _two(0.3), _two(0.6, 0.0), _two(0.6, 0.25)]),
        _attrs(2),
        kills=(
            "acc_not_summed",
            "residual_kept",
            "draw_counted",
            "draw_not_predicted",
            "tokens_shifted",
        ),
        wrong=(
            "acc_not_summed",
            "residual_kept",
            "total_not_used",
            "draw_counted",
            "tokens_shifted",
        ),
    )
    yield Case(
        "every_coin",
        "A coin for which the rule is wrong: all pairs of 16 coins and 16 final coins, so that "
        "the counts of emitted tokens are the target's distribution.",
        _every_coin,
        _attrs(2),
        family="hand",
        kills=("inclusive_coin", "final_coin_is_coin", "inclusive_draw", "residual_last_only"),
        wrong=("inclusive_coin", "final_coin_is_coin", "inclusive_draw", "residual_kept"),
    )
    yield Case(
        "coin_at_the_edge",
        "A coin equal to the accumulated probability: the interval is half open.",
        lambda: _batch([_two(0.25), _two(0.5), _two(0.25 - 2.0**-26), _two(0.5 - 2.0**-25)]),
        _attrs(2),
        family="tie",
        flags=("tie",),
        kills=("inclusive_coin",),
        wrong=("inclusive_coin",),
    )
    yield Case(
        "token_without_mass",
        "A child of probability 0 accepted at coin 0, or by threshold_single 0.",
        lambda: _batch([_two(0.0, 0.5, EIGHTHS), _two(0.0, 0.0, [0.5, 0.0, 0.0, 0.5])]),
        _attrs(2, 1.0, 0.0),
        family="extreme",
        kills=("zero_mass_by_single", "inclusive_coin"),
    )
    yield Case(
        "acc_starts_again",
        "acc carried from one depth to the next: the second level would accept.",
        lambda: _batch([_deep([0.4, 0.6, 0.5, 0.5]), _deep([0.4, 0.1, 0.6, 0.5])]),
        _attrs(3),
        kills=("acc_not_reset", "draw_from_root", "first_coin_only"),
        wrong=("acc_not_reset",),
    )
    yield Case(
        "one_coin_a_depth",
        "A coin for each sibling, or coins by node: siblings share the coin of their depth.",
        lambda: _batch([_deep([0.55, 0.99, 0.99, 0.99]), _deep([0.2, 0.1, 0.1, 0.9])]),
        _attrs(3),
        kills=("coin_per_sibling", "coin_per_node"),
        wrong=("coin_per_sibling",),
    )
    yield Case(
        "threshold_acc",
        "threshold_acc ignored or multiplied: 0.5 doubles what is accepted.",
        lambda: _batch([_two(0.4), _two(0.6), _two(0.99)]),
        _attrs(2, 0.5),
        kills=("threshold_acc_ignored", "threshold_acc_multiplied"),
    )
    yield Case(
        "threshold_single",
        "threshold_single ignored, or exceeded instead of reached.",
        lambda: _batch([_two(0.9, 0.0, EIGHTHS), _two(0.99, 0.0, [0.25, 0.5, 0.25, 0.0])]),
        _attrs(2, 1.0, 0.5),
        kills=("threshold_single_ignored", "threshold_single_strict"),
    )
    yield Case(
        "sibling_order_is_not_index_order",
        "Siblings tried by index or by probability instead of by their links, or a child refused "
        "because its index is below its parent's.",
        lambda: _batch(
            [
                _tree(
                    [-1, 0, 0, 0],
                    [9, 0, 1, 3],
                    [[0.25, 0.125, 0.125, 0.5], *[QUARTERS] * 3],
                    [0.1, NAN],
                    0.5,
                    {0: [2, 3, 1]},
                ),
                _tree(
                    [-1, 0, 0, 0],
                    [9, 0, 1, 3],
                    [[0.25, 0.125, 0.125, 0.5], *[QUARTERS] * 3],
                    [0.2, NAN],
                    0.5,
                    {0: [2, 1, 3]},
                ),
                _tree([-1, 2, 0], [9, 1, 2], [QUARTERS] * 3, [0.1, 0.1, NAN], 0.5),
            ]
        ),
        _attrs(2),
        flags=("ragged",),
        kills=("sibling_order_by_index", "greedy_child", "child_must_follow_parent"),
    )
    for name, requests, nodes, vocab in (("small", 24, 9, 32), ("wide", 4, 17, 250)):
        yield Case(
            f"random_{name}",
            "Random trees, rows and coins: depths, rows, coins and requests mixed up.",
            partial(_random, 500 + vocab, requests, nodes, vocab, 4),
            _attrs(4),
            family="random",
            seed=500 + vocab,
            kills=("first_request_probs", "first_request_coins", "last_request_skipped"),
            wrong=("final_coin_is_coin", "residual_kept", "acc_not_reset")
            if name == "small"
            else (),
        )


def _draws() -> Iterator[Case]:
    yield Case(
        "final_coin_edges",
        "A draw at the edge of a running sum, at 0, and at the last coin below 1: ids without "
        "mass are never drawn.",
        lambda: _final_coins(
            [0.0, 0.25, 0.0, 0.5, 0.25, 0.0], [0.0, 0.25, 0.5, 0.75, 1 - 2.0**-24, 2.0**-24]
        ),
        _attrs(0),
        family="tie",
        flags=("tie",),
        kills=("inclusive_draw", "draw_descending", "draw_is_argmax"),
        wrong=("inclusive_draw",),
    )
    yield Case(
        "row_that_does_not_sum_to_one",
        "The total taken for 1: the row's mass is 3/8.",
        lambda: _final_coins([0.125, 0.0, 0.125, 0.125], [0.0, 0.4, 0.6, 0.9]),
        _attrs(0),
        kills=("total_not_used", "total_is_one_minus_acc"),
        wrong=("total_not_used",),
    )
    yield Case(
        "draw_after_rejection",
        "A draw that keeps tried siblings, or leaves out only one of them.",
        lambda: _batch(
            [_two(0.9, c, [0.25, 0.375, 0.125, 0.25]) for c in (0.0, 0.4, 0.5, 0.6, 0.99)]
        ),
        _attrs(2),
        kills=("residual_kept", "residual_last_only", "residual_first_only", "final_coin_is_coin"),
        wrong=("residual_kept", "final_coin_is_coin", "total_not_used"),
    )
    yield Case(
        "draw_below_an_accepted_node",
        "A draw from the row of the root or of the parent, by a coin of another depth.",
        lambda: _batch([_deep([0.1, 0.9, 0.2, 0.7]), _deep([0.1, 0.2, 0.95, 0.3], 0.25)]),
        _attrs(3),
        kills=("draw_from_root", "draw_from_parent", "final_coin_is_coin"),
    )
    for vocab in (31, 32, 33, 1023, 1025, 8193):
        yield Case(
            f"vocab_{vocab}",
            f"Ids at the edges of a row of {vocab}: the last tile, warp or word left out.",
            partial(_last_id, vocab),
            _attrs(0),
            kills=("draw_descending", "draw_is_argmax")
            + (("tile_of_vocab",) if vocab > 1024 else ()),
        )

    yield Case(
        "small_masses",
        "Masses below 1e-6, or denormal ones, taken for none; acc, the running sum, the total or "
        "the mark of a draw in f32.",
        _small_masses,
        _attrs(2),
        family="extreme",
        kills=(
            "small_child_refused",
            "small_residual_is_none",
            "denormal_is_none",
            "acc_in_f32",
            "running_sum_in_f32",
            "total_in_f32",
            "mark_in_f32",
        ),
    )
    yield Case(
        "vocab_50001",
        "Ids past 32,768 left out of the draw.",
        lambda: _final_coins([0.25, *[0.0] * 49_999, 0.75], [0.5]),
        _attrs(0),
        kills=("tile_of_vocab", "ids_cut_to_15_bits"),
    )


def _edges() -> Iterator[Case]:
    yield Case(
        "siblings_100",
        "Children past the 32nd or 64th left out, or nodes past the 64th.",
        partial(_siblings, 100, [0.25, 0.5, 0.75, 0.99]),
        _attrs(1),
        flags=("ragged",),
        kills=("siblings_past_32", "nodes_past_64", "acc_not_summed"),
    )
    yield Case(
        "chain_of_65",
        "Coins or nodes past the 16th or 32nd depth.",
        _long_chain,
        _attrs(64),
        kills=("coins_past_32", "nodes_past_64"),
    )
    yield Case(
        "thresholds_between_f32",
        "Thresholds, or the quotient by one, rounded to f32.",
        _between_f32,
        _attrs(2, 0.6, 0.5 + 2.0**-40),
        family="tie",
        kills=("thresholds_in_f32",),
    )
    yield Case(
        "no_slots",
        "N = 0: every request is inactive.",
        lambda: {
            **_batch([_tree([], [], np.zeros((0, 3)), [0.5, 0.5], 0.5)] * 2),
            "n_nodes": np.array([0, 1], np.int32),
        },
        _attrs(1),
        kind="NEG",
        kills=("last_request_skipped",),
    )
    yield Case(
        "inactive_requests",
        "n_nodes 0 between active requests draws nothing.",
        lambda: {**_between(_two(0.1)), "n_nodes": np.array([3, 0, 3], np.int32)},
        _attrs(2),
        flags=("ragged",),
        kills=("inactive_draws",),
    )
    yield Case(
        "unread_values_are_garbage",
        "Rows, coins, links and tokens that the walk does not read taken for errors.",
        lambda: _between(
            _edit(_edit(_deep([0.1, 0.1, NAN, INF]), "probs", (2, 1), NAN), "probs", 4, -1.0)
            | {"next_token": [1, 3, 88, -1, 99, -1, -1]},
            9,
        ),
        _attrs(3),
        family="poison",
        kills=("unused_coins_checked", "unread_rows_checked"),
    )
    yield Case(
        "chain_at_the_depth_limit",
        "A path of exactly L nodes, and one node more, which is capacity.",
        lambda: _batch([_chain(4, [0.0] * 4), _chain(5, [0.0] * 4), _chain(5, [0.0, 0.9, 0, 0])]),
        _attrs(3),
        kind="NEG",
        flags=("ragged",),
        kills=("depth_clipped", "failed_path_kept"),
    )
    yield Case(
        "depth_limit_0",
        "L = 0: an accepted child is over the limit, and a rejected one loses its mass.",
        lambda: _batch([_chain(2, [0.0]), _chain(2, [0.9])]),
        _attrs(0),
        kind="NEG",
        kills=("depth_limit_0_clipped", "depth_limit_0_not_walked"),
    )
    yield Case(
        "no_requests",
        "R = 0: a launch of no blocks.",
        lambda: {k: a[:0] for k, a in _batch([_two(0.1)]).items()},
        _attrs(2),
        null_ok="no request, so no output has an element",
    )
    yield Case(
        "no_vocabulary",
        "V = 0: nothing can be drawn.",
        lambda: _batch([_tree([-1], [0], np.zeros((1, 0)), [0.5], 0.5)]),
        _attrs(0),
        kind="NEG",
        kills=("failed_path_kept",),
    )


def _errors() -> Iterator[Case]:
    spoilt: tuple[tuple[str, str, Callable[[], Arrays], tuple[str, ...]], ...] = (
        (
            "nan_child_probability",
            "NaN as the probability of a child.",
            partial(_spoilt, "probs", (0, 2), NAN),
            ("nan_probability", "failed_path_kept"),
        ),
        (
            "nan_in_drawn_row",
            "NaN in the row that is drawn from, at an id that no child has.",
            partial(_spoilt, "probs", (0, 3), NAN),
            ("failed_path_kept",),
        ),
        (
            "negative_probability",
            "A negative probability.",
            partial(_spoilt, "probs", (0, 3), -(2.0**-24)),
            ("negative_probability",),
        ),
        (
            "infinite_probability",
            "An infinite probability.",
            partial(_spoilt, "probs", (0, 0), INF),
            ("infinite_probability",),
        ),
        (
            "coin_of_one",
            "An acceptance coin of 1.",
            partial(_spoilt, "coins", 0, 1.0),
            ("coin_unchecked",),
        ),
        (
            "negative_coin",
            "A negative acceptance coin.",
            partial(_spoilt, "coins", 0, -0.25),
            ("coin_unchecked",),
        ),
        ("nan_coin", "A NaN coin.", partial(_spoilt, "coins", 0, NAN), ("coin_unchecked",)),
        (
            "final_coin_of_one",
            "A final coin of 1.",
            lambda: _between({**_two(0.9), "final_coin": 1.0}),
            ("final_coin_unchecked",),
        ),
        (
            "negative_final_coin",
            "A negative final coin.",
            lambda: _between({**_two(0.9), "final_coin": -0.25}),
            ("final_coin_unchecked",),
        ),
        (
            "nan_final_coin",
            "A NaN final coin.",
            lambda: _between({**_two(0.9), "final_coin": NAN}),
            ("final_coin_unchecked",),
        ),
        (
            "n_nodes_negative",
            "A negative n_nodes taken for an inactive request.",
            lambda: {**_between(_two(0.1)), "n_nodes": np.array([3, -1, 3], np.int32)},
            ("negative_is_inactive",),
        ),
        (
            "n_nodes_past_16_bits",
            "An n_nodes that 16 bits turn into a valid one.",
            lambda: {**_between(_two(0.1)), "n_nodes": np.array([3, 65_539, 3], np.int32)},
            ("nodes_in_16_bits",),
        ),
        (
            "token_past_vocabulary",
            "A child whose token is past the vocabulary.",
            partial(_spoilt, "tokens", 2, 4),
            ("token_unchecked",),
        ),
        (
            "token_negative",
            "A child whose token is negative.",
            partial(_spoilt, "tokens", 1, -1),
            ("token_unchecked",),
        ),
        (
            "link_past_n_nodes",
            "A sibling link past n_nodes.",
            partial(_spoilt, "next_sibling", 1, 3),
            ("out_of_range_ends_walk",),
        ),
        (
            "link_to_root",
            "A child link to the root.",
            partial(_spoilt, "next_token", 0, 0),
            ("out_of_range_ends_walk",),
        ),
        (
            "cycle_of_siblings",
            "Siblings in a circle.",
            partial(_spoilt, "next_sibling", 2, 1),
            ("failed_path_kept",),
        ),
        (
            "one_link_too_many",
            "A walk that reads one link more than a tree has, and then ends.",
            lambda: _between(_edit(_edit(_chain4(), "next_token", 2, 1), "next_sibling", 1, -1), 4),
            ("count_unbounded",),
        ),
        (
            "n_nodes_over_slots",
            "n_nodes past the slots.",
            lambda: {**_between(_two(0.1)), "n_nodes": np.array([3, 4, 3], np.int32)},
            ("last_request_skipped",),
        ),
        (
            "no_mass_left",
            "A residual of zero: the rejected children hold all the mass.",
            lambda: _between(_two(0.99, 0.5, [0.0, 0.5, 0.5, 0.0])),
            ("empty_residual_is_last_id",),
        ),
    )
    yield Case(
        "bad_past_id_1024",
        "NaN, a negative and an infinite probability past id 1,024 of the drawn row.",
        _bad_past_1024,
        _attrs(0),
        kind="NEG",
        family="extreme",
        kills=("nan_past_1024", "negative_past_1024", "infinite_past_1024"),
    )
    for name, catches, inputs, kills in spoilt:
        attrs = _attrs(2, 2.0) if name == "no_mass_left" else _attrs(2)
        yield Case(
            f"bad_{name}",
            catches + " The requests beside it are unaffected.",
            inputs,
            attrs,
            kind="NEG",
            family="extreme",
            flags=("ragged",),
            kills=kills,
        )


def _chain4() -> dict[str, Any]:
    """A chain of two below the root, whose last node rejects token 1."""
    rows = [[0.25, 0.75, 0.0, 0.0], [0.25, 0.0, 0.75, 0.0], [0.5, 0.125, 0.375, 0.0]]
    return _tree([-1, 0, 1], [9, 1, 2], rows, [0.5, 0.5, 0.5], 0.25)
