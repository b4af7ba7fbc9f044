"""tree_accept: the reference against hand-walked trees and the properties of a greedy walk."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdtr import case as kdtr_case
from kdtr import contract
from kdtr.reference.tree_accept import reference

Array = NDArray[Any]
VOCAB = 12


def run(
    tokens: Any, next_token: Any, next_sibling: Any, target: Any, limit: int, nodes: int = -1
) -> dict[str, Any]:
    """One request; outputs as lists."""
    arrays = {
        "tokens": tokens,
        "next_token": next_token,
        "next_sibling": next_sibling,
        "target": target,
    }
    inputs = {name: np.array([values], np.int32) for name, values in arrays.items()}
    inputs["n_nodes"] = np.array([len(tokens) if nodes < 0 else nodes], np.int32)
    out = reference(inputs, {"L": limit, "V": VOCAB}, "exact")
    return {name: array[0].tolist() for name, array in out.items()}


def test_a_walk_by_hand() -> None:
    # 0 - 1 - 3, 0 - 2 - 4: the target takes 2, then 4, then emits 9.
    out = run([0, 5, 6, 7, 8], [1, 3, 4, -1, -1], [-1, 2, -1, -1, -1], [6, 0, 8, 0, 9], 3)
    assert out == {
        "accept_index": [0, 2, 4, -1],
        "accept_len": 2,
        "accepted_tokens": [6, 8, 9, -1],
        "predicts": [6, -1, 8, -1, 9],
        "status": 0,
    }


def test_nothing_accepted_still_emits_the_bonus() -> None:
    out = run([0, 5], [1, -1], [-1, -1], [7, 0], 2)
    assert (out["accept_len"], out["accepted_tokens"]) == (0, [7, -1, -1])


def test_the_first_match_in_sibling_order_wins() -> None:
    out = run([0, 5, 4, 5], [3, -1, -1, -1], [-1, -1, 1, 2], [5, 1, 1, 2], 2)
    assert out["accept_index"] == [0, 3, -1]


def test_an_inactive_request_is_ok_and_empty() -> None:
    out = run([0, 5], [1, -1], [-1, -1], [5, 0], 1, nodes=0)
    assert (out["status"], out["accept_len"], out["accepted_tokens"]) == (0, -1, [-1, -1])


@pytest.mark.parametrize("link", [0, -2, 2, 2**31 - 1, -(2**31)])
def test_a_link_out_of_range_is_bad_links(link: int) -> None:
    assert run([0, 5], [link, -1], [-1, -1], [5, 0], 1)["status"] == 2
    assert run([0, 5], [1, -1], [-1, link], [6, 0], 1)["status"] == 2


@pytest.mark.parametrize("link", [0, -2, 2, 2**31 - 1, -(2**31)])
def test_a_link_that_is_not_read_is_not_checked(link: int) -> None:
    assert run([0, 5], [1, -1], [-1, link], [5, 0], 1)["status"] == 0


def test_the_order_of_errors_is_target_links_depth() -> None:
    assert run([0, 5], [9, -1], [-1, -1], [-1, 0], 0)["status"] == 1
    assert run([0, 4, 5], [1, -1, -1], [-1, 9, -1], [5, 0, 0], 0)["status"] == 2
    assert run([0, 5], [1, -1], [-1, 9], [5, -1], 0)["status"] == 3


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """tokens, next_token, next_sibling, target, parents of a tree in shuffled sibling order."""
    nodes = draw(st.integers(1, 9))
    parents = [-1, *(draw(st.integers(0, i - 1)) for i in range(1, nodes))]
    tokens = [draw(st.integers(0, 3)) for _ in range(nodes)]
    target = [draw(st.integers(0, 3)) for _ in range(nodes)]
    next_token, next_sibling = [-1] * nodes, [-1] * nodes
    for node in range(nodes):
        children = draw(st.permutations([i for i in range(nodes) if parents[i] == node]))
        for a, b in zip([-1, *children], children, strict=False):
            if a < 0:
                next_token[node] = b
            else:
                next_sibling[a] = b
    return tokens, next_token, next_sibling, target, parents


@settings(deadline=None)
@given(trees())
def test_the_path_is_what_greedy_decoding_emits(tree: Any) -> None:
    tokens, next_token, next_sibling, target, parents = tree
    out = run(tokens, next_token, next_sibling, target, 9)
    path = out["accept_index"][: out["accept_len"] + 1]
    assert out["status"] == 0
    assert path[0] == 0
    for parent, child in pairwise(path):
        assert parents[child] == parent
        assert tokens[child] == target[parent]
    last = path[-1]
    stops = [tokens[i] for i in range(len(tokens)) if parents[i] == last]
    assert target[last] not in stops
    assert out["accepted_tokens"][: len(path)] == [target[i] for i in path]
    assert [i for i, t in enumerate(out["predicts"]) if t != -1] == sorted(path)


@settings(deadline=None)
@given(trees(), st.permutations(range(1, 10)))
def test_relabelling_the_nodes_changes_no_token(tree: Any, order: list[int]) -> None:
    tokens, next_token, next_sibling, target, _ = tree
    n = len(tokens)
    new = [0, *(1 + sorted(order[: n - 1]).index(x) for x in order[: n - 1])]

    def moved(values: list[int], *, links: bool) -> list[int]:
        out = [0] * n
        for i, value in enumerate(values):
            out[new[i]] = new[value] if links and value >= 0 else value
        return out

    before = run(tokens, next_token, next_sibling, target, 9)
    after = run(
        moved(tokens, links=False),
        moved(next_token, links=True),
        moved(next_sibling, links=True),
        moved(target, links=False),
        9,
    )
    assert before["accepted_tokens"] == after["accepted_tokens"]
    assert [new[i] for i in before["accept_index"] if i >= 0] == [
        i for i in after["accept_index"] if i >= 0
    ]


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_links_at_all_end_in_a_status(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 5))
    link = st.integers(-2, nodes + 1)
    a, b, c, d = (data.draw(st.lists(link, min_size=nodes, max_size=nodes)) for _ in range(4))
    out = run(a, b, c, d, data.draw(st.integers(0, 6)))
    assert out["status"] in (0, 1, 2, 3)
    assert (out["accept_len"] == -1) == (out["status"] != 0)


def test_every_case_fits_the_contract() -> None:
    declared = contract.load("tree_accept")
    for case in kdtr_case.cases("tree_accept"):
        inputs = case.inputs()
        assert {t.name for t in declared.tensors if t.role == "in"} == set(inputs), case.name
        assert {a.name for a in declared.attrs} == set(case.attrs), case.name
