"""moe_experts: the reference's unpacking and combination by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kdtr import numerics as nx
from kdtr.cases.moe_experts import dense, words
from kdtr.reference.moe_experts import reference, unpack

DENSE: dict[str, Any] = {"format": "dense", "group": 0}


def test_a_word_holds_eight_codes_lowest_input_lowest() -> None:
    packed = np.array([[0x76543210, 0xFEDCBA98 - (1 << 32)]], np.int32)
    got = unpack(packed, np.array([[0.5]]), 16, rounded=False)
    assert got.tolist() == [[(code - 8) * 0.5 for code in range(16)]]


def test_packing_is_unpackings_inverse() -> None:
    codes = np.arange(64).reshape(4, 16) % 16
    got = unpack(words(codes), np.ones((4, 1)), 16, rounded=False)
    assert np.array_equal(got, codes - 8)


def test_each_group_has_its_own_scale() -> None:
    packed = words(np.full((1, 64), 9))
    got = unpack(packed, np.array([[2.0, 0.25]]), 32, rounded=False)
    assert got.tolist() == [[2.0] * 32 + [0.25] * 32]


def test_the_rounded_product_differs_where_it_has_more_than_eight_bits() -> None:
    packed, scale = words(np.full((1, 8), 15)), np.array([[1.0078125]])  # 7 * 129/128
    assert unpack(packed, scale, 8, rounded=False)[0, 0] == 7.0546875
    assert unpack(packed, scale, 8, rounded=True)[0, 0] == 7.0625


def test_one_token_by_hand() -> None:
    inputs = {
        "x": np.array([[2.0, -1.0]]),
        "ids": np.array([[1, -1, 0]], np.int32),
        "weights": np.array([[0.5, 9.0, 2.0]]),
        "gate": np.array([[[1.0, 0.0]], [[0.0, 1.0]]]),
        "up": np.array([[[0.0, 3.0]], [[1.0, 0.0]]]),
        "down": np.array([[[1.0], [2.0]], [[4.0], [0.0]]]),
        "residual": np.array([[10.0, 20.0]]),
    }

    def silu(v: float) -> float:
        return v / (1 + math.exp(-v))

    first = silu(-1.0) * 2.0  # expert 1: gate -1, up 2
    second = silu(2.0) * -3.0  # expert 0: gate 2, up -3
    want = [0.5 * 4 * first + 2 * second + 10, 2 * 2 * second + 20]
    got = reference(inputs, DENSE, "f32")["out"][0].tolist()
    assert all(math.isclose(g, w, rel_tol=1e-14) for g, w in zip(got, want, strict=True))


def test_the_shared_expert_is_added_with_factor_one() -> None:
    x = dense(1, 3, 16, 8, 2, 1, shared=8)
    alone = {k: v for k, v in x.items() if not k.startswith("shared")}
    as_routed = {
        **alone,
        **{n: x[f"shared_{n}"][None] for n in ("gate", "up", "down")},
        "ids": np.zeros((3, 1), np.int32),
        "weights": np.ones((3, 1)),
    }
    both, routed, shared = (reference(i, DENSE, "f32")["out"] for i in (x, alone, as_routed))
    assert np.abs(both - (routed + shared)).max() < 1e-14


def test_a_bad_id_fails_its_own_token() -> None:
    x = dense(2, 4, 16, 8, 2, 1)
    x["ids"][:, 0] = [0, 2, -1, -2]
    out = reference(x, DENSE, "f32")
    assert out["status"].tolist() == [0, 1, 0, 1]
    assert not out["out"][[1, 3]].any()


def test_a_hidden_element_may_move_to_its_own_bf16_neighbour_and_no_further() -> None:
    h = np.array([1.0, 1.0 + 2.0**-9, 1.0 + 2.0**-8])  # on the grid, a quarter off, between two
    got = nx.bf16_or_f32(nx.Rounded(h, np.full(3, 2.0**-20), np.zeros(3), np.zeros(1)))
    assert got.hard.tolist() == [2.0**-20 + nx.TINY_F32, 2.0**-9, 2.0**-8]
    assert got.gate.tolist() == [0.0, 3 * 2.0**-9, 3 * 2.0**-8]


def test_bf16_rows_change_the_budget_and_not_the_value() -> None:
    x = dense(3, 3, 16, 8, 2, 2, cut=nx.round_bf16, rows=nx.round_bf16)
    wide, narrow = (reference(x, DENSE, p) for p in ("f32", "bf16_f32acc"))
    assert np.array_equal(wide["out"], narrow["out"])
    store = np.abs(narrow["out"]) * 2.0**-8
    for budget in ("out/gate", "out/hard"):
        assert (narrow[budget] > wide[budget] + store).all()
