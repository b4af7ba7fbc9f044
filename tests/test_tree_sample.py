"""tree_sample: the reference against the target's distribution, by counting all coins."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdtr import case as kdtr_case
from kdtr import contract
from kdtr.reference.tree_sample import reference

STEPS = 16


def run(
    tree: tuple[list[int], list[int], list[int]],
    probs: Any,
    coins: list[float],
    final_coin: float,
    acc: float = 1.0,
    single: float = 2.0,
) -> dict[str, Any]:
    """One request; outputs as lists."""
    tokens, next_token, next_sibling = tree
    inputs: dict[str, Any] = {
        "tokens": np.array([tokens], np.int32),
        "next_token": np.array([next_token], np.int32),
        "next_sibling": np.array([next_sibling], np.int32),
        "n_nodes": np.array([len(tokens)], np.int32),
        "probs": np.array([probs], np.float64),
        "coins": np.array([coins], np.float64),
        "final_coin": np.array([final_coin]),
    }
    attrs = {"L": len(coins) - 1, "threshold_acc": acc, "threshold_single": single}
    return {name: a[0].tolist() for name, a in reference(inputs, attrs, "exact").items()}


FORK = ([0, 1, 2], [1, -1, -1], [-1, 2, -1])


def test_a_walk_by_hand() -> None:
    rows = [[0.5, 0.25, 0.25], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    assert run(FORK, rows, [0.3, 0.0], 0.0) == {
        "accept_index": [0, 2],
        "accept_len": 1,
        "accepted_tokens": [2, 0],
        "predicts": [2, -1, 0],
        "status": 0,
    }


def test_a_coin_at_the_edge_rejects() -> None:
    rows = [[0.5, 0.25, 0.25]] * 3
    assert run(FORK, rows, [0.25, 0.0], 0.0)["accept_index"] == [0, 2]
    assert run(FORK, rows, [0.5, 0.0], 0.0)["accepted_tokens"] == [0, -1]


def test_a_token_without_mass_is_never_emitted() -> None:
    rows = [[1.0, 0.0, 0.0]] * 3
    assert run(FORK, rows, [0.0, 0.0], 0.0, single=0.0)["accepted_tokens"] == [0, -1]


def test_an_empty_residual_is_bad_input() -> None:
    rows = [[0.0, 0.5, 0.5]] * 3
    assert run(FORK, rows, [0.9, 0.0], 0.0, acc=2.0)["status"] == 1


@pytest.mark.parametrize("coin", [1.0, -0.5, float("nan")])
def test_a_coin_out_of_range_is_bad_input_where_it_is_used(coin: float) -> None:
    rows = [[0.5, 0.25, 0.25]] * 3
    assert run(FORK, rows, [coin, 0.0], 0.0)["status"] == 1
    assert run(FORK, rows, [0.9, 0.0], coin)["status"] == 1
    assert run(FORK, rows, [0.1, coin], 0.0)["status"] == 0


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(0, STEPS), min_size=2, max_size=2),
    st.permutations(range(4)),
    st.integers(1, 3),
)
def test_the_first_emitted_token_has_the_targets_distribution(
    cuts: list[int], order: list[int], children: int
) -> None:
    # A row in sixteenths whose rejected rest is a power of two, so that coins in sixteenths and
    # final coins in sixteenths count exactly.
    low, high = sorted(c // 4 * 4 for c in cuts)
    row = [0.0] * 4
    for token, mass in zip(order, (low, high - low, STEPS - high, 0), strict=True):
        row[token] = mass / STEPS
    tokens = [9, *order[:children]]
    tree = (
        tokens,
        [1, *[-1] * children],
        [-1, *(i + 1 if i < children else -1 for i in range(1, children + 1))],
    )
    counts: Counter[int] = Counter()
    for i in range(STEPS):
        for j in range(3 * STEPS):
            out = run(tree, [row] * len(tokens), [i / STEPS, 0.5], j / (3 * STEPS))
            assert out["status"] == 0
            counts[out["accepted_tokens"][0]] += 1
    assert [counts[t] for t in range(4)] == [int(p * STEPS * 3 * STEPS) for p in row]


@settings(deadline=None)
@given(st.data())
def test_any_links_at_all_end_in_a_status(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 5))
    link = st.lists(st.integers(-2, nodes + 1), min_size=nodes, max_size=nodes)
    tree = (data.draw(link), data.draw(link), data.draw(link))
    rows = [[0.25, 0.5, 0.25]] * nodes
    coins = [data.draw(st.integers(0, 3)) / 4 for _ in range(data.draw(st.integers(1, 4)))]
    out = run(tree, rows, coins, 0.5)
    assert out["status"] in (0, 1, 2, 3)
    assert (out["accept_len"] == -1) == (out["status"] != 0)


def test_rows_of_the_cases_are_on_grids_where_sums_are_exact() -> None:
    for case in kdtr_case.cases("tree_sample"):
        probs = np.asarray(case.inputs()["probs"], np.float64)
        usable = np.where(np.isfinite(probs), probs, 0)
        mantissas, exponents = np.frexp(usable)
        digits = np.ldexp(mantissas, 24).astype(np.int64)  # of f32
        units = np.ldexp((digits & -digits).astype(np.float64), exponents - 24)
        finest = np.where(units > 0, units, 1).min(axis=-1, initial=1)
        assert (np.abs(usable).sum(axis=-1) / finest < 2.0**53).all(), case.name


def test_every_case_fits_the_contract() -> None:
    declared = contract.load("tree_sample")
    for case in kdtr_case.cases("tree_sample"):
        inputs = case.inputs()
        assert {t.name for t in declared.tensors if t.role == "in"} == set(inputs), case.name
        assert {a.name for a in declared.attrs} == set(case.attrs), case.name
