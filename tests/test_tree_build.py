"""tree_build: the reference against hand derivation, brute force and its own invariants."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdtr import case as kdtr_case
from kdtr import contract
from kdtr.reference.tree_build import reference

Array = NDArray[Any]


def run(logprobs: Any, budget: int, tie_order: str = "ranks", **other: Any) -> dict[str, Array]:
    lp = np.asarray(logprobs, np.float64)
    requests = lp.shape[0]
    ids = np.broadcast_to(np.arange(lp.shape[2]) + 10, lp.shape)
    inputs = {
        "logprobs": lp,
        "ids": ids.astype(np.int32),
        "root_token": np.full(requests, 5, np.int32),
        "prefix_len": np.full(requests, 100, np.int32),
        **other,
    }
    return reference(inputs, {"budget": budget, "tie_order": tie_order}, "exact")


@st.composite
def marginals(draw: st.DrawFn) -> Array:
    """[1, L, K] descending rows of quarters: sums are exact and ties are common."""
    depth, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rows = [
        sorted(draw(st.lists(st.integers(-12, 0), min_size=width, max_size=width)), reverse=True)
        for _ in range(depth)
    ]
    return np.array([rows]) / 4.0


def paths(lp: Array) -> list[tuple[float, tuple[int, ...]]]:
    """Every path with its weight, best first, ties by rank tuple."""
    depth, width = lp.shape
    found = [
        (-sum(lp[d, r] for d, r in enumerate(ranks)), ranks)
        for n in range(1, depth + 1)
        for ranks in itertools.product(range(width), repeat=n)
    ]
    return [(-weight, ranks) for weight, ranks in sorted(found)]


def ranks_of(out: dict[str, Array], node: int) -> tuple[int, ...]:
    """Rank tuple of a node, by counting elder siblings along its parents."""
    ranks: list[int] = []
    while node > 0:
        parent = out["parents"][0, node]
        ranks.append(int((out["parents"][0, 1:node] == parent).sum()))
        node = int(parent)
    return tuple(reversed(ranks))


def test_hand_derived_tree() -> None:
    out = run([[[-1.0, -2.0], [-0.5, -3.0]]], 5, ids=np.array([[[10, 20], [30, 40]]], np.int32))
    assert out["n_nodes"].tolist() == [6]
    assert out["tokens"].tolist() == [[5, 10, 30, 20, 30, 40]]
    assert out["weights"].tolist() == [[0.0, -1.0, -1.5, -2.0, -2.5, -4.0]]
    assert out["parents"].tolist() == [[-1, 0, 1, 0, 3, 1]]
    assert out["depths"].tolist() == [[0, 1, 2, 1, 2, 2]]
    assert out["positions"].tolist() == [[100, 101, 102, 101, 102, 102]]
    assert out["next_token"].tolist() == [[1, 2, -1, 4, -1, -1]]
    assert out["next_sibling"].tolist() == [[-1, 3, 5, -1, -1, -1]]
    assert out["visible"][0].tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 0, 0, 1, 0, 0],
        [1, 0, 0, 1, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]


def test_equal_weights_go_depth_first_by_ranks_and_level_first_by_uno() -> None:
    zero = np.zeros((1, 3, 2))
    assert run(zero, 6)["depths"].tolist() == [[0, 1, 2, 3, 3, 2, 3]]
    assert run(zero, 6, "uno")["depths"].tolist() == [[0, 1, 1, 2, 2, 2, 2]]
    assert run(zero, 6, "uno")["parents"].tolist() == [[-1, 0, 0, 1, 2, 1, 2]]


@settings(deadline=None, max_examples=150)
@given(marginals(), st.integers(0, 40))
def test_the_nodes_are_the_best_paths_in_order(lp: Array, budget: int) -> None:
    out = run(lp, budget)
    best = paths(lp[0])[:budget]
    n = int(out["n_nodes"][0])
    assert n == 1 + len(best)
    assert out["weights"][0, 1:n].tolist() == [weight for weight, _ in best]
    assert [ranks_of(out, node) for node in range(1, n)] == [ranks for _, ranks in best]


@settings(deadline=None, max_examples=150)
@given(marginals(), st.integers(0, 24), st.sampled_from(["ranks", "uno"]))
def test_the_outputs_describe_one_tree(lp: Array, budget: int, tie_order: str) -> None:
    out = run(lp, budget, tie_order)
    n = int(out["n_nodes"][0])
    parents, depths = out["parents"][0], out["depths"][0]
    assert parents[0] == -1
    assert all(0 <= parents[i] < i for i in range(1, n))
    assert all(depths[i] == depths[parents[i]] + 1 for i in range(1, n))
    assert (out["positions"][0, :n] == 100 + depths[:n]).all()
    assert (np.diff(out["weights"][0, :n]) <= 0).all()
    children: dict[int, list[int]] = {i: [] for i in range(n)}
    for node in range(1, n):
        children[int(parents[node])].append(node)
    for node, below in children.items():
        walked, child = [], int(out["next_token"][0, node])
        while child != -1:
            walked.append(child)
            child = int(out["next_sibling"][0, child])
        assert walked == below
        closure = np.zeros(budget + 1, np.uint8)
        ancestor = node
        while ancestor != -1:
            closure[ancestor] = 1
            ancestor = int(parents[ancestor])
        assert (out["visible"][0, node] == closure).all()
    for name in ("tokens", "depths", "parents", "next_token", "next_sibling"):
        assert (out[name][0, n:] == -1).all()
    for name in ("positions", "weights", "visible"):
        assert not out[name][0, n:].any()


@given(marginals(), st.integers(0, 24))
def test_both_tie_orders_take_the_same_weights(lp: Array, budget: int) -> None:
    assert (run(lp, budget)["weights"] == run(lp, budget, "uno")["weights"]).all()


@pytest.mark.parametrize(
    "row",
    [
        [np.nan, -1.0],
        [-1.0, np.nan],
        [np.inf, -1.0],
        [2.0**-149, -1.0],
        [-2.0, -1.0],
        [-np.inf, -1.0],
    ],
    ids=str,
)
def test_a_bad_row_refuses_its_request_alone(row: list[float]) -> None:
    good = [-1.0, -2.0]
    out = run([[good, good], [good, row], [good, good]], 1)
    assert out["status"].tolist() == [0, 1, 0]
    assert out["n_nodes"].tolist() == [2, 0, 2]
    assert (out["tokens"][1] == -1).all()
    assert not out["visible"][1].any()


def test_ids_of_absent_candidates_are_not_read() -> None:
    lp = [[[-1.0, -2.0, -np.inf, -np.inf]]]
    out = run(lp, 5, ids=np.array([[[4, 5, 4, -9]]], np.int32))
    assert out["status"].tolist() == [0]
    assert out["tokens"].tolist() == [[5, 4, 5, -1, -1, -1]]


def test_every_case_fits_the_contract() -> None:
    declared = contract.load("tree_build")
    for case in kdtr_case.cases("tree_build"):
        inputs = case.inputs()
        assert {t.name for t in declared.tensors if t.role == "in"} == set(inputs), case.name
        assert {a.name for a in declared.attrs} == set(case.attrs), case.name
