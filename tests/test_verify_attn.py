"""verify_attn: the reference against exact sums and its own invariants; the CPU kernel's too."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdtr import case as kdtr_case
from kdtr import contract, numerics, ops
from kdtr.cases import verify_attn as cases
from kdtr.reference import merge_state
from kdtr.reference import verify_attn as ref

Array = NDArray[Any]
INF = np.inf
SCALE = float(np.float32(0.25))
Dv = cases.VALUES

sizes = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 7)), min_size=1, max_size=3)
seeds = st.integers(0, 1000)


def attend(inputs: dict[str, Array], page: int = 1, part: str = "whole") -> dict[str, Array]:
    return ref.reference(inputs, cases._attrs(page, part, scale=SCALE), "f32")


def brute(q: Array, rows: Array) -> tuple[Array, float]:
    """One query over rows, sums exactly rounded: out [Dv] and the log-sum-exp."""
    scores = [SCALE * math.fsum(a * b for a, b in zip(q, row, strict=True)) for row in rows]
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    total = math.fsum(weights)
    out = [
        math.fsum(w * row[c] for w, row in zip(weights, rows, strict=True)) / total
        for c in range(Dv)
    ]
    return np.array(out), top + math.log(total)


@settings(deadline=None, max_examples=30)
@given(seeds, sizes)
def test_equals_softmax_over_prefix_and_ancestors(
    seed: int, requests: list[tuple[int, int]]
) -> None:
    x = cases.scene(seed, requests)
    found = attend(x.inputs(16), 16)
    for r, (_, n) in enumerate(requests):
        for i in range(n):
            path = [i]
            while path[-1] > 0:
                path.append(int(x.parents[r][path[-1]]))
            rows = np.concatenate([x.prefix[r], x.tree[r][path]])
            for h in range(x.q.shape[2]):
                out, lse = brute(x.q[r, i, h], rows)
                assert np.all(np.abs(found["out"][r, i, h] - out) <= 2.0**-40 * 4)
                assert abs(found["lse"][r, i, h] - lse) <= 2.0**-40
        assert not found["out"][r, n:].any()
        assert np.all(found["lse"][r, n:] == -INF)


@settings(deadline=None, max_examples=20)
@given(seeds, sizes)
def test_weights_of_a_row_sum_to_one(seed: int, requests: list[tuple[int, int]]) -> None:
    x = cases.scene(seed, requests)
    for rows in (*x.prefix, *x.tree):
        rows[:, 0] = 1.0
    found = attend(x.inputs(16), 16)
    for r, (_, n) in enumerate(requests):
        assert np.all(np.abs(found["out"][r, :n, :, 0] - 1.0) <= 2.0**-50)


@settings(deadline=None, max_examples=20)
@given(seeds, st.integers(0, 20), st.integers(1, 7))
def test_a_node_equals_its_ancestor_path_alone(seed: int, prefix: int, n: int) -> None:
    x = cases.scene(seed, [(prefix, n)])
    whole = attend(x.inputs())
    for i in range(n):
        path = np.flatnonzero(x.visible(0)[i])
        chain = cases.Scene(
            seed, x.q[:, path], x.prefix, [x.tree[0][path]], [np.arange(len(path)) - 1]
        )
        alone = attend(chain.inputs())
        assert np.all(np.abs(alone["out"][0, -1] - whole["out"][0, i]) <= 2.0**-45)
        assert np.all(np.abs(alone["lse"][0, -1] - whole["lse"][0, i]) <= 2.0**-45)


@settings(deadline=None, max_examples=20)
@given(seeds, sizes)
def test_pages_their_order_and_poison_change_no_bit(
    seed: int, requests: list[tuple[int, int]]
) -> None:
    x = cases.scene(seed, requests)
    first = attend(x.inputs(1, shuffle=False), 1)
    for page in (1, 16, 64):
        for poison in (np.nan, INF, -(2.0**100)):
            other = attend(x.inputs(page, poison=poison), page)
            assert all(other[name].tobytes() == first[name].tobytes() for name in first)


@settings(deadline=None, max_examples=20)
@given(seeds, sizes)
def test_parts_merge_to_the_whole_within_summed_budgets(
    seed: int, requests: list[tuple[int, int]]
) -> None:
    x = cases.scene(seed, requests)
    whole, a, b = (attend(x.inputs(16, part), 16, part) for part in ("whole", "prefix", "tail"))
    merged = merge_state.reference(
        {"o_a": a["out"], "lse_a": a["lse"], "o_b": b["out"], "lse_b": b["lse"]}, {}, "f32"
    )
    for name, part in (("o", "out"), ("lse", "lse")):
        budget = merged[f"{name}/hard"] + whole[f"{part}/hard"]
        same = merged[name] == whole[part]  # also where both are -inf
        with np.errstate(invalid="ignore"):
            assert np.all(same | (np.abs(merged[name] - whole[part]) <= budget))


def test_scores_are_exact_on_grids() -> None:
    q, k = numerics.normal(1, (3, 576), 18), numerics.normal(2, (576, 2), 18)
    got = ref._product(q, k)
    for i in range(3):
        for j in range(2):
            exact = sum(Fraction(a) * Fraction(b) for a, b in zip(q[i], k[:, j], strict=True))
            assert Fraction(got[i, j]) == exact


def test_budgets_are_never_below_the_true_sums() -> None:
    a, b = np.abs(numerics.normal(3, (4, 40), 30)), np.abs(numerics.normal(4, (40, 3), 30))
    upper = ref._upper(a, b)
    for i in range(4):
        for j in range(3):
            exact = sum(Fraction(x) * Fraction(y) for x, y in zip(a[i], b[:, j], strict=True))
            assert exact <= Fraction(upper[i, j]) <= exact * (1 + Fraction(1, 2**14))


def test_off_the_grid_a_fixed_order_is_taken() -> None:
    a, b = np.full((1, 3), 2.0**-600), np.full((3, 1), 2.0**600)
    assert ref._block(a, b) == 0
    assert ref._product(a, b).tolist() == [[3.0]]


def test_hard_grows_with_the_roundings_that_a_profile_declares() -> None:
    inputs = cases.scene(5, [(20, 6)], dtype="bf16").inputs(16)
    bounds = [
        ref.reference(inputs, cases._attrs(16), profile)["out/hard"]
        for profile in ("f32", "bf16_f32acc", "bf16_f32acc_pbf16", "bf16_splits_bf16")
    ]
    for narrow, wide in itertools.pairwise(bounds):
        assert np.all(narrow < wide)


def test_equal_scores_without_products_leave_only_sums_and_rounding() -> None:
    x = cases.scene(6, [(40, 3)])
    cases._membership(x, Dv, 0, 4, 1)
    found = attend(x.inputs())
    counts = found["out"][0, 0] * 41.0  # the prefix and the root itself
    assert np.all(np.abs(counts - np.rint(counts)) <= 2.0**-45)
    assert np.all(found["out/hard"][0, 0] <= 2.0**-15 * np.maximum(found["out"][0, 0], 2.0**-100))


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(c, id=c.name, marks=[pytest.mark.slow] if c.tier == "full" else [])
        for c in kdtr_case.cases("verify_attn")
        if "membership" in c.flags
    ],
)
def test_a_key_less_is_four_budgets_off_in_every_column(
    one: kdtr_case.Case,
) -> None:
    inputs = {name: kdtr_case.widen(np.asarray(x)) for name, x in one.inputs().items()}
    gold = ref.reference(inputs, one.attrs, one.profile)
    n = np.rint(np.exp(gold["lse"]))[..., None]  # every score is 0
    count = np.rint(gold["out"] * n)
    named = count > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.abs((count - 1) / (n - 1) - count / n)
    assert named.any()
    assert (off[named] >= 4 * gold["out/hard"][named]).all()


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("n_nodes", (1,), 4),
        ("n_nodes", (1,), -1),
        ("prefix_len", (1,), 49),
        ("prefix_len", (1,), -1),
        ("page_table", (1, 1), 2**20),
        ("page_table", (1, 0), -1),
        ("tree_slots", (1, 2), 2**20),
        ("tree_slots", (1, 0), -1),
    ],
)
def test_bad_input_refuses_its_request_alone(name: str, index: tuple[int, ...], value: int) -> None:
    inputs = cases.scene(7, [(20, 3)] * 3).inputs(16)
    good = attend(inputs, 16)
    inputs[name][index] = value
    found = attend(inputs, 16)
    assert found["status"].tolist() == [0, 1, 0]
    assert not found["out"][1].any()
    assert np.all(found["lse"][1] == -INF)
    for r in (0, 2):
        assert found["out"][r].tobytes() == good["out"][r].tobytes()


def test_an_inactive_request_is_not_read() -> None:
    inputs = cases.scene(8, [(20, 0), (3, 2)]).inputs(16)
    inputs["prefix_len"][0] = -3
    inputs["page_table"][0] = -1
    assert attend(inputs, 16)["status"].tolist() == [0, 0]


def test_profiles_are_those_of_the_contract() -> None:
    declared = set(contract.load("verify_attn").profiles)
    assert declared == set(ref.PROFILES)
    assert {c.profile for c in kdtr_case.cases("verify_attn")} == declared


@pytest.mark.parametrize("label", sorted(cases.WRONG))
def test_every_known_wrong_convention_is_stored_somewhere(label: str) -> None:
    assert any(label in case.wrong for case in kdtr_case.cases("verify_attn"))


def call(inputs: dict[str, Array], page: int) -> dict[str, Array]:
    arguments: dict[str, Any] = dict(cases._attrs(page, scale=SCALE))
    for name, a in inputs.items():
        arguments[name] = a.astype(np.float32) if a.dtype.kind == "f" else a
    return ops.Engine("cpu").call("verify_attn", **arguments)


@pytest.mark.engine
def test_the_cpu_kernel_does_not_depend_on_batch_pages_or_poison() -> None:
    sizes = [(70, 9), (0, 4), (33, 12)]
    x = cases.scene(9, sizes, H=5)
    whole = call(x.inputs(16), 16)
    for r, (_, n) in enumerate(sizes):
        alone = cases.Scene(r, x.q[r : r + 1], [x.prefix[r]], [x.tree[r]], [x.parents[r]])
        for page, poison in ((1, np.nan), (64, 2.0**100)):
            one = call(alone.inputs(page, poison=poison), page)
            assert one["out"][0, :n].tobytes() == whole["out"][r, :n].tobytes()
            assert one["lse"][0, :n].tobytes() == whole["lse"][r, :n].tobytes()


@pytest.mark.engine
def test_the_cpu_kernel_gives_equal_bits_when_values_are_scaled_by_two() -> None:
    x = cases.scene(10, [(40, 5)])
    first = call(x.inputs(16), 16)
    x.q = x.q * 0.5
    x.prefix, x.tree = [2.0 * rows for rows in x.prefix], [2.0 * rows for rows in x.tree]
    second = call(x.inputs(16), 16)
    assert (first["out"] * np.float32(2)).tobytes() == second["out"].tobytes()
    assert first["lse"].tobytes() == second["lse"].tobytes()
