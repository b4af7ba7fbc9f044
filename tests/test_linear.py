"""linear, embed and silu_mul: references by hand; and bounds that hold and still bite."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kdtr import numerics as nx
from kdtr import ops
from kdtr.cases.linear import matrices
from kdtr.cases.rmsnorm import rows
from kdtr.reference import embed, linear, rmsnorm, silu_mul


def test_linear_by_hand() -> None:
    inputs = {
        "x": np.array([[1.0, 2.0]]),
        "weight": np.array([[3.0, 4.0], [5.0, 6.0], [0.5, 0.0]]),
        "residual": np.array([[100.0, 0.0, -1.0]]),
    }
    assert linear.reference(inputs, {}, "f32")["out"].tolist() == [[111.0, 17.0, -0.5]]


def test_embed_by_hand() -> None:
    inputs = {"ids": np.array([2, -1, 0, 3], np.int32), "table": np.arange(6.0).reshape(3, 2)}
    out = embed.reference(inputs, {}, "exact")
    assert out["out"].tolist() == [[4.0, 5.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert out["status"].tolist() == [0, 1, 0, 1]


@pytest.mark.engine
def test_embed_copies_the_bits_of_a_nan() -> None:
    table = np.array([[0x7F81, 0xFFC1, 0x7FFF], [0, 0x8000, 0x3F80]], np.uint16)
    out = {"out": ("bf16", np.zeros((1, 3), np.uint16)), "status": np.ones(1, np.int32)}
    ids = np.zeros(1, np.int32)
    got = ops.Engine("cpu").call("embed", ids=ids, table=("bf16", table), out=out)
    assert got["out"].tolist() == [[0x7F81, 0xFFC1, 0x7FFF]]
    assert got["status"].tolist() == [0]


def test_silu_by_hand() -> None:
    inputs = {"gate": np.array([[0.0, 1.0, -40.0]]), "up": np.array([[5.0, 2.0, 1.0]])}
    got = silu_mul.reference(inputs, {}, "f32")["out"][0].tolist()
    want = [0.0, 2 / (1 + math.exp(-1)), -40 / (1 + math.exp(40))]
    assert all(math.isclose(g, w, rel_tol=1e-15) for g, w in zip(got, want, strict=True))


def _dots(x: nx.F64, w: nx.F64, order: str) -> nx.F64:
    """x @ w^T in f32, one legal order of summation."""
    terms = (x[:, None, :].astype(np.float32) * w.astype(np.float32)).astype(np.float32)
    k = terms.shape[-1]
    if order == "pairwise":
        while k > 1:
            half = (k + 1) // 2
            terms[..., : k - half] += terms[..., half:k]
            k = half
        return terms[..., 0].astype(np.float64)
    steps = range(k) if order == "forward" else range(k - 1, -1, -1)
    lanes = 8 if order == "lanes" else 1
    sums = np.zeros((*terms.shape[:-1], lanes), np.float32)
    for i in steps:
        sums[..., i % lanes] += terms[..., i]
    total = np.zeros(terms.shape[:-1], np.float32)
    for lane in range(lanes):
        total += sums[..., lane]
    return total.astype(np.float64)


@pytest.mark.parametrize("order", ["forward", "backward", "pairwise", "lanes"])
@pytest.mark.parametrize("k", [7, 96, 513, 2048])
def test_every_legal_order_of_a_dot_product_stays_within_the_gate(order: str, k: int) -> None:
    x = matrices(k, 4, k, 24)
    out = linear.reference(x, {}, "f32")
    error = np.abs(_dots(x["x"], x["weight"], order) - out["out"])
    assert (error <= out["out/gate"]).all()


@pytest.mark.parametrize("k", [96, 513, 2048])
def test_a_dropped_input_is_beyond_four_times_the_hard_budget(k: int) -> None:
    x = matrices(k, 4, k, 24)
    out = linear.reference(x, {}, "f32")
    dropped = linear.reference({"x": x["x"][:, 1:], "weight": x["weight"][:, 1:]}, {}, "f32")
    assert np.max(np.abs(dropped["out"] - out["out"]) / out["out/hard"]) > 4


@pytest.mark.parametrize("n", [1, 7, 128, 513, 4096])
def test_a_norm_in_f32_stays_within_the_gate(n: int) -> None:
    x = rows(n, 3, n)
    out = rmsnorm.reference(x, {"eps": 1e-5, "variant": "f32_then_round"}, "f32")
    v, w = x["x"].astype(np.float32), x["weight"].astype(np.float32)
    total = np.zeros((3, 1), np.float32)
    for i in range(n):
        total += v[:, i : i + 1] * v[:, i : i + 1]
    got = w * (v / np.sqrt(total / np.float32(n) + np.float32(1e-5)))
    assert (np.abs(got.astype(np.float64) - out["out"]) <= out["out/gate"]).all()
