"""tree_masks: the reference against a hand-made layout and its own definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdtr import case as kdtr_case
from kdtr import contract
from kdtr.reference.tree_masks import reference

Array = NDArray[Any]


def batch(trees: list[list[int]], prefix_len: list[int], slots: int) -> dict[str, Array]:
    """Trees by parent lists, their masks and depths worked out from the parents."""
    shape = (len(trees), slots)
    out: dict[str, Array] = {
        "visible": np.ones((*shape, slots), np.uint8),
        "parents": np.full(shape, 77, np.int32),
        "depths": np.full(shape, 77, np.int32),
        "n_nodes": np.array([len(t) for t in trees], np.int32),
        "prefix_len": np.array(prefix_len, np.int32),
    }
    for r, tree in enumerate(trees):
        for i, parent in enumerate(tree):
            ancestors = {i}
            ancestor = parent
            while ancestor != -1:
                ancestors.add(ancestor)
                ancestor = tree[ancestor]
            out["visible"][r, i] = [j in ancestors for j in range(slots)]
            out["parents"][r, i] = parent
            out["depths"][r, i] = len(ancestors) - 1
    return out


def run(inputs: dict[str, Array], spare: int = 0) -> dict[str, Array]:
    slots = inputs["parents"].shape[1]
    values = slots * (np.maximum(inputs["prefix_len"], 0).astype(np.int64) + slots)
    attrs = {"T": int(values.sum()) + spare, "T8": int(((values + 7) // 8).sum()) + spare}
    return reference(inputs, attrs, "exact")


def test_a_tree_of_three_by_hand() -> None:
    # The root with two children, behind two prefix tokens, in four slots.
    out = run(batch([[-1, 0, 0]], [2], 4))
    rows = [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0]]
    assert out["full"].tolist() == [value for row in rows for value in row]
    assert out["packed32"].tolist() == [[[0b001], [0b011], [0b101], [0]]]
    # In order 11100011 11001110 10110000, the first of each eight the least significant.
    assert out["packed8"].tolist() == [0b11000111, 0b01110011, 0b00001101]
    assert out["indptr"].tolist() == [0, 3]
    assert out["bfs_order"].tolist() == [[0, 1, 2, -1]]
    assert out["retrieve_index"].tolist() == [[0, 1, 2, -1]]


def test_levels_follow_the_place_of_the_parent() -> None:
    # 2's child 3 comes after 1's child 4, though its index is lower.
    out = run(batch([[-1, 0, 0, 2, 1]], [0], 5))
    assert out["bfs_order"].tolist() == [[0, 1, 2, 4, 3]]


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Array]:
    slots = draw(st.integers(1, 40))
    trees = [
        [-1, *(draw(st.integers(0, i - 1)) for i in range(1, draw(st.integers(1, slots))))]
        for _ in range(draw(st.integers(1, 3)))
    ]
    return batch(trees, [draw(st.integers(0, 20)) for _ in trees], slots)


@settings(deadline=None, max_examples=60)
@given(batches(), st.integers(0, 9))
def test_every_layout_holds_the_same_mask(inputs: dict[str, Array], spare: int) -> None:
    out = run(inputs, spare)
    requests, slots = inputs["parents"].shape
    assert out["status"].tolist() == [0] * requests
    start = 0
    for r, prefix in enumerate(inputs["prefix_len"].tolist()):
        nodes = int(inputs["n_nodes"][r])
        tree = out["qlen"][r]
        assert (tree[:nodes, :nodes] == inputs["visible"][r, :nodes, :nodes]).all()
        assert not tree[nodes:].any()
        assert not tree[:, nodes:].any()
        size = slots * (prefix + slots)
        rows = out["full"][start : start + size].reshape(slots, prefix + slots)
        assert rows[:, :prefix].all()
        assert (rows[:, prefix:] == tree).all()
        begin, end = out["indptr"][r : r + 2]
        bits = np.unpackbits(out["packed8"][begin:end], bitorder="little")
        assert (bits[:size] == rows.reshape(-1)).all()
        assert not bits[size:].any()
        start += size
        for i in range(slots):
            words = [int(w) for w in out["packed32"][r, i]]
            assert [words[j // 32] >> (j % 32) & 1 for j in range(slots)] == tree[i].tolist()
            assert all(w < 2 ** min(32, slots - 32 * k) for k, w in enumerate(words))
    assert not out["full"][start:].any()


@settings(deadline=None, max_examples=60)
@given(batches())
def test_bfs_order_is_sorted_by_depth_then_parent_place_then_index(
    inputs: dict[str, Array],
) -> None:
    out = run(inputs)
    for r, nodes in enumerate(inputs["n_nodes"].tolist()):
        order = out["bfs_order"][r, :nodes].tolist()
        place = {node: k for k, node in enumerate(order)}
        parents, depths = inputs["parents"][r], inputs["depths"][r]
        keys = [(depths[i], place.get(int(parents[i]), -1), i) for i in order]
        assert keys == sorted(keys)
        assert sorted(order) == list(range(nodes))


def test_a_request_that_does_not_fit_is_refused_and_the_one_before_is_not() -> None:
    inputs = batch([[-1, 0], [-1, 0]], [1, 1], 2)
    out = reference(inputs, {"T": 11, "T8": 2}, "exact")
    assert out["status"].tolist() == [0, 3]
    assert out["full"].tolist() == [1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0]
    assert out["indptr"].tolist() == [0, 1, 2]
    assert out["bfs_order"].tolist() == [[0, 1], [-1, -1]]


def test_every_case_fits_the_contract() -> None:
    declared = contract.load("tree_masks")
    for case in kdtr_case.cases("tree_masks"):
        inputs = case.inputs()
        assert {t.name for t in declared.tensors if t.role == "in"} == set(inputs), case.name
        assert {a.name for a in declared.attrs} == set(case.attrs), case.name
