"""Cases of `tree_accept`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics, recorded
from kdtr.case import Arrays, Attrs, Case
from kdtr.reference import tree_accept as ref
from kdtr.reference import tree_build

Array = NDArray[Any]
VOCAB = 32_000
GARBAGE = (2**31 - 1, -(2**31), 0, -2, 5, VOCAB)


class Tree:
    """One request: nodes by parent, children linked in ascending order unless `order` says."""

    def __init__(
        self,
        parents: Sequence[int],
        tokens: Sequence[int],
        order: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self.parents, self.tokens = list(parents), list(tokens)
        self.nodes = len(self.parents)
        self.next_token = [-1] * self.nodes
        self.next_sibling = [-1] * self.nodes
        self.target = [1] * self.nodes
        for node in range(self.nodes):
            children = [i for i in range(1, self.nodes) if self.parents[i] == node]
            children = list((order or {}).get(node, children))
            if children:
                self.next_token[node] = children[0]
            for a, b in pairwise(children):
                self.next_sibling[a] = b

    def follow(self, path: Sequence[int], bonus: int = 1) -> Tree:
        """Targets that accept the nodes of `path` (root first) and emit `bonus`."""
        for a, b in pairwise(path):
            self.target[a] = self.tokens[b]
        self.target[path[-1]] = bonus
        return self

    def path_to(self, node: int) -> list[int]:
        """Nodes from the root to `node`."""
        path = [node]
        while path[0] != 0:
            path.insert(0, self.parents[path[0]])
        return path


def _inputs(trees: Sequence[Tree], slots: int = 0, seed: int = 5) -> dict[str, Array]:
    """Trees as a batch; slots past a request's nodes hold garbage."""
    slots = max([slots, *(t.nodes for t in trees)])
    shape = (len(trees), slots)
    out = {
        name: np.array(GARBAGE, np.int64)[numerics.integers(seed + i, shape, 0, len(GARBAGE))]
        for i, name in enumerate(("tokens", "next_token", "next_sibling", "target"))
    }
    for r, tree in enumerate(trees):
        for name, array in out.items():
            array[r, : tree.nodes] = getattr(tree, name)
    return {
        "tokens": out["tokens"].astype(np.int32),
        "next_token": out["next_token"].astype(np.int32),
        "next_sibling": out["next_sibling"].astype(np.int32),
        "n_nodes": np.array([t.nodes for t in trees], np.int32),
        "target": out["target"].astype(np.int32),
    }


def _chain(nodes: int, accepted: int, bonus: int = 7) -> Tree:
    tree = Tree([-1, *range(nodes - 1)], [3, *range(100, 99 + nodes)])
    return tree.follow(range(accepted + 1), bonus)


def _random_tree(seed: int, nodes: int, depth: int) -> Tree:
    """A tree in pop order whose depth reaches `depth`; sibling tokens distinct, others repeat."""
    picks = numerics.integers(seed, (nodes,), 0, 1 << 20).tolist()
    parents, depths = [-1], [0]
    for i in range(1, nodes):
        open_nodes = [n for n in range(i) if depths[n] < depth]
        # Early nodes extend the deepest path, so that every wanted depth exists.
        parent = i - 1 if i <= depth else open_nodes[picks[i] % len(open_nodes)]
        parents.append(parent)
        depths.append(depths[parent] + 1)
    used: dict[int, int] = {}
    tokens = [11]
    for i in range(1, nodes):
        used[parents[i]] = used.get(parents[i], 0) + 1
        tokens.append(20 + used[parents[i]])
    return Tree(parents, tokens)


def _accepting(seed: int, nodes: int, depth: int, accepted: int) -> Tree:
    tree = _random_tree(seed, nodes, depth)
    ends = [i for i in range(nodes) if len(tree.path_to(i)) == accepted + 1]
    for i in range(nodes):  # off the path: targets that match a child, so that walks go astray
        tree.target[i] = 21 + i % 3
    return tree.follow(tree.path_to(ends[seed % len(ends)]), 999)


def _accept_lengths(lengths: Sequence[int], nodes: int, depth: int) -> Arrays:
    return _inputs([_accepting(200 + 7 * i, nodes, depth, n) for i, n in enumerate(lengths)])


def _mostly_followed() -> Arrays:
    """16 requests in which 70 % of the steps follow a child and 30 % leave the tree."""
    trees = []
    coins = numerics.integers(300, (16, 16), 0, 100)
    for r in range(16):
        tree = _random_tree(310 + r, 33, 8)
        path = [0]
        while True:
            children = [i for i in range(1, tree.nodes) if tree.parents[i] == path[-1]]
            if not children or coins[r, len(path)] >= 70:
                break
            path.append(children[int(coins[r, len(path)]) % len(children)])
        trees.append(tree.follow(path, 5000 + r))
    return _inputs(trees)


def _bush(tokens: Sequence[int], order: Sequence[int] | None = None) -> Tree:
    """A root with one child per token, linked in `order`."""
    count = len(tokens)
    return Tree([-1, *[0] * count], [3, *tokens], {0: order} if order else None)


def _edit(tree: Tree, **links: Mapping[int, int]) -> Tree:
    for name, changes in links.items():
        for node, value in changes.items():
            getattr(tree, name)[node] = value
    return tree


def _between(tree: Tree, slots: int = 0) -> Arrays:
    """`tree` between two good requests."""
    return _inputs([_chain(4, 2), tree, _chain(4, 3)], slots)


def _child_link(link: int) -> Arrays:
    return _between(_edit(_chain(4, 3), next_token={2: link}), 6)


def _sibling_link(link: int) -> Arrays:
    return _between(_edit(_bush([8, 9, 10]).follow([0], 7), next_sibling={2: link}), 6)


def _target_at(node: int, target: int) -> Arrays:
    return _between(_edit(_chain(4, 3), target={node: target}))


def _large_tokens() -> Arrays:
    """Siblings whose tokens are the wanted one in their low bits, or in f32."""
    odd, last = 2**24 + 1, 2**31 - 2
    return _inputs(
        [
            _bush([8 + 2**15, 8 + 2**16, 8 + 2**17, 8 + 2**20, 8]).follow([0, 5], last),
            _bush([odd - 1, odd + 1, odd]).follow([0, 3], 0),
            _bush([last - 1, last]).follow([0, 2], last - 2**16),
        ]
    )


def _stale(order: Sequence[int]) -> Arrays:
    """Five of seven nodes are in use, and the wanted child is one of the other two."""
    wanted = next(i for i in order if i > 4)
    inputs = _between(_bush([8, 9, 10, 11, 12, 13], order).follow([0, wanted], 6))
    return {**inputs, "n_nodes": np.array([4, 5, 4], np.int32)}


def _recorded(name: str, start: int, count: int, budget: int) -> Arrays:
    """Trees of recorded marginals against the greedy continuation of the model."""
    taken = recorded.load(name)
    rounds = slice(start, start + count)
    continuation = taken["continuation"][rounds]
    built = tree_build.reference(
        {
            "logprobs": taken["logprobs"][rounds].astype(np.float64),
            "ids": taken["ids"][rounds],
            "root_token": np.full(count, 1, np.int32),
            "prefix_len": np.zeros(count, np.int32),
        },
        {"budget": budget, "tie_order": "ranks"},
        "exact",
    )
    target = np.full(built["tokens"].shape, 2, np.int32)
    for r in range(count):
        on_path = {0}
        for node in range(built["n_nodes"][r]):
            parent, depth = int(built["parents"][r, node]), int(built["depths"][r, node])
            if node > 0 and parent in on_path:
                if built["tokens"][r, node] != continuation[r, depth - 1]:
                    continue
                on_path.add(node)
            if node in on_path and depth < continuation.shape[1]:
                target[r, node] = continuation[r, depth]
    return {
        **{k: built[k] for k in ("tokens", "next_token", "next_sibling", "n_nodes")},
        "target": target,
    }


# Known-wrong conventions.


def _reread(change: Callable[[dict[str, Array], Arrays, Attrs], None]) -> Callable[..., Any]:
    """The reference's outputs after `change`."""

    def wrong(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
        out = ref.reference(inputs, attrs, profile)
        change(out, inputs, attrs)
        return out

    return wrong


def _count_bonus(out: dict[str, Array], inputs: Arrays, attrs: Attrs) -> None:
    out["accept_len"] += (out["accept_len"] >= 0).astype(np.int32)


def _no_bonus_at_leaf(out: dict[str, Array], inputs: Arrays, attrs: Attrs) -> None:
    for r, length in enumerate(out["accept_len"]):
        if length >= 0 and inputs["next_token"][r, out["accept_index"][r, length]] == -1:
            out["accepted_tokens"][r, length] = -1


def _check_all_links(out: dict[str, Array], inputs: Arrays, attrs: Attrs) -> None:
    for r, nodes in enumerate(inputs["n_nodes"]):
        links = np.concatenate([inputs[n][r, :nodes] for n in ("next_token", "next_sibling")])
        if out["status"][r] == 0 and ((links != -1) & ((links < 1) | (links >= nodes))).any():
            out["status"][r] = 2
            for name in ("accept_index", "accept_len", "accepted_tokens", "predicts"):
                out[name][r] = -1


def _draft_tokens(out: dict[str, Array], inputs: Arrays, attrs: Attrs) -> None:
    for r, length in enumerate(out["accept_len"]):
        path = out["accept_index"][r, : length + 1]
        out["accepted_tokens"][r, : length + 1] = inputs["tokens"][r, path]


def _predict_everywhere(out: dict[str, Array], inputs: Arrays, attrs: Attrs) -> None:
    for r, length in enumerate(out["accept_len"]):
        if length >= 0:
            nodes = inputs["n_nodes"][r]
            out["predicts"][r, :nodes] = inputs["target"][r, :nodes]


def _inactive_len_zero(out: dict[str, Array], inputs: Arrays, attrs: Attrs) -> None:
    out["accept_len"][inputs["n_nodes"] == 0] = 0


def _without_root(out: dict[str, Array], inputs: Arrays, attrs: Attrs) -> None:
    out["accept_index"] = np.concatenate(
        [out["accept_index"][:, 1:], np.full((len(out["accept_len"]), 1), -1, np.int32)], axis=1
    )


def _other_walk(
    choose: Callable[[Mapping[str, Any], int], int | None],
) -> Callable[..., dict[str, Array]]:
    """The op with a walk that trusts its input and goes to `choose(row, cur)` until None."""

    def wrong(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
        out = ref.reference(inputs, attrs, profile)
        for r, length in enumerate(out["accept_len"]):
            if length < 0:
                continue
            row = {name: array[r].tolist() for name, array in inputs.items()}
            path = [0]
            while len(path) <= int(attrs["L"]):
                child = choose(row, path[-1])
                if child is None:
                    break
                path.append(child)
            for name in ("accept_index", "accepted_tokens", "predicts"):
                out[name][r] = -1
            out["accept_index"][r, : len(path)] = path
            out["accept_len"][r] = len(path) - 1
            out["accepted_tokens"][r, : len(path)] = inputs["target"][r, path]
            out["predicts"][r, path] = inputs["target"][r, path]
        return out

    return wrong


def _next_index(row: Mapping[str, Any], cur: int) -> int | None:
    child = cur + 1
    return child if child < row["n_nodes"] and row["tokens"][child] == row["target"][cur] else None


def _any_later(row: Mapping[str, Any], cur: int) -> int | None:
    later = range(cur + 1, row["n_nodes"])
    return next((i for i in later if row["tokens"][i] == row["target"][cur]), None)


def _children(row: Mapping[str, Any], cur: int) -> list[int]:
    found, child = [], row["next_token"][cur]
    while 0 < child < row["n_nodes"] and child not in found:
        found.append(child)
        child = row["next_sibling"][child]
    return found


def _first_child(row: Mapping[str, Any], cur: int) -> int | None:
    child = next(iter(_children(row, cur)), None)
    return child if child is not None and row["tokens"][child] == row["target"][cur] else None


def _lowest_index(row: Mapping[str, Any], cur: int) -> int | None:
    matching = [i for i in _children(row, cur) if row["tokens"][i] == row["target"][cur]]
    return min(matching, default=None)


def _last_sibling(row: Mapping[str, Any], cur: int) -> int | None:
    matching = [i for i in _children(row, cur) if row["tokens"][i] == row["target"][cur]]
    return matching[-1] if matching else None


WRONG: Mapping[str, Callable[[Arrays, Attrs, str], dict[str, Array]]] = {
    "bonus_counted": _reread(_count_bonus),
    "unread_links_checked": _reread(_check_all_links),
    "no_bonus_on_full_accept": _reread(_no_bonus_at_leaf),
    "tokens_of_drafts": _reread(_draft_tokens),
    "predicts_everywhere": _reread(_predict_everywhere),
    "inactive_len_zero": _reread(_inactive_len_zero),
    "root_not_listed": _reread(_without_root),
    "walk_by_index": _other_walk(_any_later),
    "heap_order_read_as_chain": _other_walk(_next_index),
    "first_child_only": _other_walk(_first_child),
    "lowest_index_match": _other_walk(_lowest_index),
    "last_match": _other_walk(_last_sibling),
}


def _attrs(depth_limit: int, vocab: int = VOCAB) -> Attrs:
    return {"L": depth_limit, "V": vocab}


def cases() -> Iterator[Case]:
    """Named conditions, from the plain to the hostile."""
    yield from _plain()
    yield from _order()
    yield from _edges()
    yield from _links()
    yield from _errors()
    yield from _real()


def _plain() -> Iterator[Case]:
    yield Case(
        "full_chain",
        "The bonus left out when every draft is accepted, or counted in accept_len.",
        lambda: _inputs([_chain(9, 8), _chain(9, 8, 31_999), _chain(5, 4)]),
        _attrs(8),
        flags=("ragged",),
        kills=("bonus_counted", "no_bonus_on_full_accept", "count_one_less"),
        wrong=("bonus_counted", "no_bonus_on_full_accept", "root_not_listed", "tokens_of_drafts"),
    )
    yield Case(
        "early_stop",
        "Walks that go on after the first mismatch, and unused entries that are not -1.",
        lambda: _inputs([_chain(9, 0), _chain(9, 3), _chain(9, 7)]),
        _attrs(8),
        kills=("unused_zero", "unused_unwritten", "no_bonus_on_reject", "predicts_without_last"),
        wrong=("predicts_everywhere", "tokens_of_drafts"),
    )
    for length in (1, 4, 8):
        yield Case(
            f"accept_len_{length}",
            f"Trees of 33 nodes whose accepted path of {length} branches off the first child: "
            "walks by index, by first child, or with another request's targets.",
            partial(_accept_lengths, (length,) * 4, 33, 8),
            _attrs(8),
            family="random",
            seed=200,
            kills=("first_child_only", "walk_by_index", "heap_order_chain", "predicts_by_step")
            if length > 1
            else ("heap_order_chain", "predicts_by_step", "predicts_everywhere"),
            wrong=("heap_order_read_as_chain", "predicts_everywhere"),
        )
    yield Case(
        "mostly_followed",
        "16 requests of which 70 % of the steps follow a child: every accepted length occurs.",
        _mostly_followed,
        _attrs(8),
        family="random",
        seed=300,
        kills=("first_child_only", "first_request_target", "last_request_skipped"),
        wrong=("walk_by_index", "first_child_only"),
    )
    yield Case(
        "every_length",
        "Accepted lengths 0 to 8 in one batch of unequal trees, the last one as checked as the "
        "first.",
        lambda: _inputs([_accepting(400 + n, 20 + 3 * n, 8, n) for n in range(9)]),
        _attrs(8),
        family="random",
        seed=400,
        flags=("ragged",),
        kills=("first_request_nodes", "stride_without_bonus", "first_request_target"),
    )


def _order() -> Iterator[Case]:
    yield Case(
        "sibling_order_is_not_index_order",
        "Siblings taken by lowest index or by last match: three of five children carry the "
        "token, and the links list them 4, 2, 5, 1, 3.",
        lambda: _inputs([_bush([8, 8, 9, 7, 8], [4, 2, 5, 1, 3]).follow([0, 2], 6)]),
        _attrs(3),
        kills=("lowest_index_match", "last_match", "walk_by_index", "first_child_only"),
        wrong=("lowest_index_match", "last_match", "first_child_only"),
    )
    yield Case(
        "repeated_token_among_siblings",
        "The last of two siblings with the token: only the first leads on.",
        lambda: _inputs(
            [Tree([-1, 0, 0, 1, 2], [3, 8, 8, 9, 10]).follow([0, 1, 3], 6)],
        ),
        _attrs(4),
        kills=("last_match",),
        wrong=("last_match",),
    )
    yield Case(
        "child_before_parent",
        "Index order taken for tree order: nodes are relabelled, so children have lower indices.",
        lambda: _inputs([Tree([-1, 3, 1, 4, 0], [3, 12, 13, 11, 10]).follow([0, 4, 3, 1, 2], 6)]),
        _attrs(4),
        kills=("walk_by_index", "all_links_must_descend", "heap_order_chain"),
        wrong=("walk_by_index", "heap_order_read_as_chain"),
    )
    yield Case(
        "token_of_a_cousin",
        "A node elsewhere in the tree with the wanted token: it is no child, and the walk ends.",
        lambda: _inputs(
            [Tree([-1, 0, 0, 1, 2], [3, 8, 9, 10, 11]).follow([0, 1], 11)],
        ),
        _attrs(4),
        kills=("walk_by_index", "any_node_match"),
        wrong=("walk_by_index",),
    )
    yield Case(
        "token_of_a_sibling",
        "Siblings of the accepted node tried once its children fail.",
        lambda: _inputs([_bush([8, 9, 10]).follow([0, 1], 9)]),
        _attrs(4),
        kills=("backtracks", "any_node_match"),
    )
    yield Case(
        "heap_order_of_a_chain_like_row",
        "Four nodes in pop order read as a chain: the sibling's token would pass for a successor.",
        lambda: _inputs([_bush([8, 9, 10]).follow([0, 1], 9)], 6),
        _attrs(5),
        kills=("heap_order_chain",),
        wrong=("heap_order_read_as_chain",),
    )
    yield Case(
        "own_token_repeats",
        "Children matched by their own target, or every node by the root's.",
        lambda: _inputs(
            [
                Tree([-1, 0, 1, 1, 2], [3, 8, 8, 9, 8]).follow([0, 1, 3], 8),
                Tree([-1, 0, 1, 2], [8, 8, 8, 8]).follow([0, 1, 2, 3], 8),
            ]
        ),
        _attrs(4),
        flags=("ragged",),
        kills=("target_of_root", "target_of_child"),
    )


def _edges() -> Iterator[Case]:
    yield Case(
        "depth_equals_limit",
        "A path of exactly L accepted nodes refused, or its last node left out.",
        lambda: _inputs([_chain(6, 5), _chain(6, 4)]),
        _attrs(5),
        kills=("depth_limit_short",),
    )
    yield Case(
        "depth_limit_with_unmatched_children",
        "A node at depth L whose children do not match: nothing is over the limit.",
        lambda: _inputs([_chain(8, 5), _chain(8, 3)]),
        _attrs(5),
        kills=("depth_before_links", "depth_limit_short"),
    )
    yield Case(
        "depth_over_limit",
        "A path longer than L cut silently, or written past its row.",
        lambda: _between(_chain(8, 4)),
        _attrs(3),
        kind="NEG",
        flags=("ragged",),
        kills=("depth_clipped", "failed_path_kept", "failed_len_zero"),
    )
    yield Case(
        "depth_limit_0",
        "L = 0: the bonus alone, and an accepted child is over the limit.",
        lambda: _inputs([_chain(1, 0), _chain(3, 0), _chain(3, 1)]),
        _attrs(0),
        kind="NEG",
        flags=("ragged",),
        kills=("depth_clipped",),
    )
    yield Case(
        "root_alone",
        "A tree without drafts: the bonus is still emitted.",
        lambda: _inputs([_chain(1, 0), _chain(1, 0, 0)], 5),
        _attrs(4),
        kills=("no_bonus_on_full_accept", "no_bonus_on_reject"),
        wrong=("no_bonus_on_full_accept", "bonus_counted"),
    )
    yield Case(
        "inactive_requests",
        "n_nodes 0 between active requests: no bonus, no error, whatever the slots hold.",
        lambda: _inputs([Tree([], []), _chain(5, 2), Tree([], []), _chain(3, 2), Tree([], [])]),
        _attrs(4),
        flags=("ragged",),
        kills=("inactive_is_bad", "inactive_len_zero", "inactive_bonus", "nodes_ignored"),
        wrong=("inactive_len_zero",),
    )
    yield Case(
        "no_slots",
        "N = 0: every request is inactive.",
        lambda: _inputs([Tree([], []), Tree([], [])]),
        _attrs(2),
        kills=("inactive_is_bad", "inactive_len_zero"),
    )
    yield Case(
        "no_requests",
        "R = 0: a launch of no blocks.",
        lambda: {k: a[:0] for k, a in _inputs([_chain(3, 2)]).items()},
        _attrs(2),
        null_ok="no request, so no output has an element",
    )
    yield Case(
        "vocab_edges",
        "Token ids 0 and V - 1 as targets.",
        lambda: _inputs(
            [
                Tree([-1, 0, 1], [3, 0, 31_999]).follow([0, 1, 2], 0),
                Tree([-1, 0, 1], [3, 31_999, 0]).follow([0, 1, 2], 31_999),
            ]
        ),
        _attrs(2),
        kills=("no_bonus_on_full_accept", "tokens_of_drafts"),
    )
    yield Case(
        "large_tokens",
        "Tokens compared in 16 bits or through f32: siblings differ from the target above that.",
        _large_tokens,
        _attrs(2, 2**31 - 1),
        family="extreme",
        flags=("ragged",),
        kills=("tokens_in_16_bits", "tokens_through_f32"),
    )
    yield Case(
        "sibling_tokens_out_of_range",
        "Draft tokens outside 0..V-1 refused, or taken for a list's end: they match no target.",
        lambda: _inputs([_bush([t, 8]).follow([0, 2], 6) for t in (VOCAB, -1, -(2**31))]),
        _attrs(2),
        family="extreme",
        kills=("token_past_vocab_refused", "negative_token_refused", "negative_token_ends_list"),
    )
    yield Case(
        "no_vocabulary",
        "V = 0: every target is out of range.",
        lambda: _inputs([_chain(3, 2), Tree([], []), _chain(1, 0, 0)]),
        _attrs(3, 0),
        kind="NEG",
        kills=("vocab_inclusive", "leaf_target_unchecked"),
    )
    yield Case(
        "chain_of_64",
        "The longest path, in a tree of 65 slots: two warps of nodes.",
        lambda: _inputs([_chain(65, 64), _chain(65, 63)]),
        _attrs(64),
        kills=("depth_limit_short", "count_one_less"),
    )
    yield Case(
        "bush_of_1024",
        "The widest tree: the matching child is the last of 1024 siblings.",
        lambda: _inputs([_bush(range(100, 1124)).follow([0, 1024], 6)]),
        _attrs(4),
        kills=("first_child_only", "count_one_less"),
    )
    yield Case(
        "batch_256",
        "More requests than the device has multiprocessors.",
        lambda: _inputs([_accepting(500 + n % 37, 9, 4, n % 5) for n in range(256)]),
        _attrs(4),
        family="random",
        seed=500,
        kills=("first_request_target", "last_request_skipped", "stride_without_bonus"),
    )


def _links() -> Iterator[Case]:
    yield Case(
        "unread_links_are_garbage",
        "Links, targets and tokens off the walk taken for errors.",
        lambda: _inputs(
            [
                _edit(
                    Tree([-1, 0, 0, 1, 1, 2], [3, 8, 9, 10, 11, 12]).follow([0, 1, 3], 6),
                    next_token={2: 77, 4: -5, 5: 0},
                    next_sibling={0: -9, 1: 2**31 - 1, 3: 0, 5: 6},
                    target={2: -1, 4: VOCAB, 5: -(2**31)},
                )
            ]
        ),
        _attrs(4),
        family="poison",
        kills=("unread_links_checked", "unread_targets_checked"),
        wrong=("unread_links_checked",),
    )
    yield Case(
        "all_links_read",
        "The count of links off by one: the walk reads each of a tree's n_nodes - 1.",
        lambda: _inputs([Tree([-1, 0, 0, 2, 2], [3, 8, 9, 10, 11]).follow([0, 2, 4], 6)]),
        _attrs(4),
        kills=("count_one_less", "first_child_only"),
    )
    yield Case(
        "cycle_of_children",
        "A walk that never ends, or ends by depth: node 2's child is node 1.",
        lambda: _between(
            _edit(Tree([-1, 0, 1], [3, 8, 8]).follow([0, 1, 2], 8), next_token={2: 1}), 5
        ),
        _attrs(64),
        kind="NEG",
        flags=("ragged",),
        kills=("count_per_node", "cycle_is_capacity"),
    )
    yield Case(
        "cycle_of_siblings",
        "A sibling list that never ends: 1, 2, 3, 1, ...",
        lambda: _between(_edit(_bush([8, 9, 10]).follow([0], 7), next_sibling={3: 1}), 5),
        _attrs(4),
        kind="NEG",
        flags=("ragged",),
        kills=("cycle_is_capacity", "bad_spoils_rest"),
    )
    yield Case(
        "sibling_of_itself",
        "A node that is its own sibling.",
        lambda: _between(_edit(_bush([8]).follow([0], 7), next_sibling={1: 1}), 5),
        _attrs(4),
        kind="NEG",
        flags=("ragged",),
        kills=("cycle_is_capacity",),
    )
    yield Case(
        "child_of_itself",
        "A node that is its own child.",
        lambda: _between(_edit(_chain(2, 1, 100), next_token={1: 1}), 5),
        _attrs(4),
        kind="NEG",
        flags=("ragged",),
        kills=("cycle_is_capacity", "count_per_node"),
    )
    yield Case(
        "two_parents",
        "A node linked from two parents: the walk goes round once more than a tree allows.",
        lambda: _between(
            _edit(Tree([-1, 0, 0, 1], [3, 8, 9, 9]).follow([0, 1, 3], 9), next_token={3: 2}), 5
        ),
        _attrs(64),
        kind="KAT",
        flags=("ragged",),
        kills=("count_one_less",),
    )
    yield Case(
        "one_link_too_many",
        "A walk that reads one link more than a tree has, and then ends by itself.",
        lambda: _between(_edit(_chain(3, 2), next_token={2: 1}), 5),
        _attrs(4),
        kind="NEG",
        flags=("ragged",),
        kills=("count_one_more",),
    )
    for name, order, killed in (
        ("next_slot", [5, 1, 2, 3, 4], "link_bound_inclusive"),
        ("later_slot", [6, 1, 2, 3, 4], "link_bound_is_slots"),
        ("sibling_next_slot", [1, 5, 2, 3, 4], "link_bound_inclusive"),
        ("sibling_later_slot", [1, 6, 2, 3, 4], "link_bound_is_slots"),
    ):
        yield Case(
            f"stale_{name}",
            "A link into the slots past n_nodes, which hold the valid nodes of a larger tree that "
            "was there before: the walk would accept one of them.",
            partial(_stale, order),
            _attrs(5),
            kind="NEG",
            flags=("ragged",),
            kills=(killed, "nodes_ignored"),
        )
    for name, link, killed in (
        ("to_root", 0, "zero_link_followed"),
        ("minus_2", -2, "negative_ends_walk"),
        ("to_n_nodes", 4, "out_of_range_ends_walk"),
        ("past_slots", 6, "out_of_range_ends_walk"),
        ("largest", 2**31 - 1, "out_of_range_ends_walk"),
        ("smallest", -(2**31), "negative_ends_walk"),
    ):
        yield Case(
            f"child_link_{name}",
            f"A child link of {link} followed, or taken for the end of the walk.",
            partial(_child_link, link),
            _attrs(5),
            kind="NEG",
            flags=("ragged",),
            kills=(killed, "bad_spoils_rest"),
        )
        yield Case(
            f"sibling_link_{name}",
            f"A sibling link of {link} followed, or taken for the end of the list.",
            partial(_sibling_link, link),
            _attrs(5),
            kind="NEG",
            flags=("ragged",),
            kills=(killed, "bad_spoils_rest"),
        )

    yield Case(
        "sibling_link_of_node_250",
        "Links of nodes past the 64th followed unchecked, or taken for the end of the list.",
        lambda: _inputs(
            [
                _edit(_bush(range(100, 400)).follow([0], 7), next_sibling={250: 301}),
                _edit(_bush(range(100, 400)).follow([0, 300], 7), next_sibling={249: -5}),
                _bush(range(100, 400)).follow([0, 299], 7),
            ]
        ),
        _attrs(4),
        kind="NEG",
        flags=("ragged",),
        kills=("links_past_64_end_walk", "out_of_range_ends_walk"),
    )


def _errors() -> Iterator[Case]:
    yield Case(
        "n_nodes_past_16_bits",
        "An n_nodes that 16 bits turn into a valid one.",
        lambda: {**_between(_chain(4, 2)), "n_nodes": np.array([4, 65_540, 4], np.int32)},
        _attrs(5),
        kind="NEG",
        kills=("nodes_in_16_bits", "nodes_clamped"),
    )
    yield Case(
        "n_nodes_over_slots",
        "n_nodes past the slots clamped, or trusted.",
        lambda: {**_between(_chain(4, 2)), "n_nodes": np.array([4, 5, 4], np.int32)},
        _attrs(5),
        kind="NEG",
        kills=("nodes_clamped", "failed_len_zero"),
    )
    yield Case(
        "n_nodes_negative",
        "A negative n_nodes taken for an inactive request.",
        lambda: {**_between(_chain(4, 2)), "n_nodes": np.array([4, -1, 4], np.int32)},
        _attrs(5),
        kind="NEG",
        kills=("nodes_clamped",),
    )
    for name, node, value, killed in (
        ("root_negative", 0, -1, "negative_target_ends_walk"),
        ("root_is_vocab", 0, VOCAB, "vocab_inclusive"),
        ("middle_negative", 1, -7, "negative_target_ends_walk"),
        ("leaf_is_vocab", 3, VOCAB, "vocab_inclusive"),
        ("leaf_largest", 3, 2**31 - 1, "leaf_target_unchecked"),
    ):
        yield Case(
            f"target_{name}",
            f"A target of {value} on the path matched, or taken for a mismatch.",
            partial(_target_at, node, value),
            _attrs(5),
            kind="NEG",
            kills=(killed, "bad_spoils_rest"),
        )
    yield Case(
        "target_before_links",
        "The order of errors: a bad target at a node with a bad link is bad_input.",
        lambda: _between(_edit(_chain(4, 3), target={1: -1}, next_token={1: 99})),
        _attrs(5),
        kind="NEG",
        kills=("links_before_target",),
    )
    yield Case(
        "links_before_depth",
        "The order of errors: at depth L a bad link before the match is bad_links, and one after "
        "it is not read, so that the depth is what fails.",
        lambda: _inputs(
            [
                _edit(Tree([-1, 0, 1, 1], [3, 8, 9, 10]).follow([0, 1, 3], 6), next_sibling={2: 9}),
                _edit(Tree([-1, 0, 1, 1], [3, 8, 9, 10]).follow([0, 1, 2], 6), next_sibling={2: 9}),
            ]
        ),
        _attrs(1),
        kind="NEG",
        kills=("depth_before_links", "depth_clipped"),
    )
    yield Case(
        "every_status",
        "Four statuses in one batch: each request fails or passes by itself.",
        lambda: _inputs(
            [
                _chain(4, 3),
                _edit(_chain(4, 3), target={0: -1}),
                _edit(_chain(4, 3), next_token={1: 77}),
                _chain(6, 5),
                Tree([], []),
                _chain(4, 1),
            ]
        ),
        _attrs(3),
        kind="NEG",
        flags=("ragged",),
        kills=("bad_spoils_rest", "failed_path_kept", "failed_len_zero", "last_request_skipped"),
    )


def _real() -> Iterator[Case]:
    for i, (name, budget) in enumerate(
        (("marginals_bf16", 16), ("marginals_bf16", 64), ("strong_marginals_bf16", 64))
    ):
        yield Case(
            f"real_{name}_{budget}",
            "Trees of a real drafter against the greedy continuation of its model.",
            partial(_recorded, name, 6 * i, 12, budget),
            _attrs(15, 49_152),
            family="real",
            kills=("first_request_target", "predicts_by_step"),
            provenance=recorded.provenance(name),
        )
