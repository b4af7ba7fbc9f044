"""moe_route: the reference against a plain router, hand values, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kdtr.cases.moe_route import biased
from kdtr.errors import ContractError
from kdtr.reference.moe_route import reference

ATTRS: dict[str, Any] = {
    "n_group": 4,
    "topk_group": 2,
    "top_k": 4,
    "renormalize": True,
    "scale": 2.5,
}


def plain_router(logits: list[float], bias: list[float], a: dict[str, Any]) -> dict[int, float]:
    """The published description, token by token, in Python's own sorting."""
    score = [1 / (1 + math.exp(-x)) for x in logits]
    choice = [s + b for s, b in zip(score, bias, strict=True)]
    per = len(score) // a["n_group"]
    groups = sorted(
        range(a["n_group"]),
        key=lambda g: -sum(sorted(choice[g * per : (g + 1) * per])[-2:]),
    )[: a["topk_group"]]
    open_to = [e for e in range(len(score)) if e // per in groups]
    chosen = sorted(open_to, key=lambda e: -choice[e])[: a["top_k"]]
    total = sum(score[e] for e in chosen)
    return {e: score[e] / total * a["scale"] for e in chosen}


@pytest.mark.parametrize("shift", [0.0, -3.0, 7.0])
@pytest.mark.parametrize(("experts", "groups", "kept"), [(16, 4, 2), (21, 3, 2), (64, 8, 3)])
def test_it_is_the_published_router(shift: float, experts: int, groups: int, kept: int) -> None:
    x = biased(experts, 20, experts, shift)
    attrs = ATTRS | {"n_group": groups, "topk_group": kept}
    out = reference(x, attrs, "f32")
    for t in range(20):
        want = plain_router(x["logits"][t].tolist(), x["bias"].tolist(), attrs)
        assert out["ids"][t].tolist() == list(want)
        for got, w in zip(out["weights"][t].tolist(), want.values(), strict=True):
            assert math.isclose(got, w, rel_tol=1e-14)


def test_equal_choices_go_to_the_lowest_ids_in_order() -> None:
    x = {"logits": np.zeros((1, 16)), "bias": np.zeros(16)}
    out = reference(x, ATTRS, "f32")
    assert out["ids"].tolist() == [[0, 1, 2, 3]]
    assert out["weights"].tolist() == [[0.625] * 4]


def test_a_masked_group_loses_to_negative_choices() -> None:
    logits = np.array([[2.0, 2.0, -2.0, -2.0]])
    attrs = ATTRS | {"n_group": 2, "topk_group": 1, "top_k": 2}
    out = reference({"logits": logits, "bias": np.full(4, -1.0)}, attrs, "f32")
    assert out["ids"].tolist() == [[0, 1]]


def test_banned_experts_leave_pads() -> None:
    bias = np.full(8, -np.inf)
    bias[5] = 0.0
    attrs = ATTRS | {"n_group": 1, "topk_group": 1, "top_k": 3}
    out = reference({"logits": np.zeros((1, 8)), "bias": bias}, attrs, "f32")
    assert out["ids"].tolist() == [[5, -1, -1]]
    assert out["weights"].tolist() == [[2.5, 0.0, 0.0]]


def test_a_near_tie_is_refused_as_a_case() -> None:
    logits = np.zeros((1, 8))
    logits[0, 3] = 2.0**-24
    attrs = ATTRS | {"n_group": 1, "topk_group": 1}
    with pytest.raises(ContractError, match="experts 3 and 0 are too close to call"):
        reference({"logits": logits, "bias": np.zeros(8)}, attrs, "f32")


def test_a_near_tie_between_groups_is_refused_as_a_case() -> None:
    logits = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0 + 2.0**-23, 0.0, 0.0]])
    attrs = ATTRS | {"n_group": 2, "topk_group": 1, "top_k": 1}
    inputs = {"logits": logits.reshape(2, 4)[:, [0, 2, 1, 3]], "bias": np.zeros(4)}
    with pytest.raises(ContractError, match=r"row 1: groups 1 and 0 are too close to call"):
        reference(inputs, attrs, "f32")


def test_nan_fails_its_own_token_and_a_nan_bias_all() -> None:
    x = biased(3, 3, 16)
    x["logits"][1, 2] = np.nan
    assert reference(x, ATTRS, "f32")["status"].tolist() == [0, 1, 0]
    x["bias"][0] = np.nan
    out = reference(x, ATTRS, "f32")
    assert out["status"].tolist() == [1, 1, 1]
    assert (out["ids"] == -1).all()
