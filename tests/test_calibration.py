"""Budgets accept every legal kernel and reject what a case says it rejects."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from kdtr import calibration, contract
from kdtr import case as kdtr_case

QUICK = {
    "merge_state": ("random", "random_bf16", "small_weight", "extreme_lse", "subnormals_and_signs"),
    "verify_attn": (
        "star", "needle_last_page_16", "membership_end_bf16", "scores_near_2000", "light_half",
        "parts_f32_out", "nodes_33", "keys_65", "profile_tf32", "f16_small_weights",
    ),
}  # fmt: skip


def stored(op: str) -> dict[str, Any]:
    path = calibration.FOLDER / f"{op}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(("which", "name"), [(op, name) for op in QUICK for name in QUICK[op]])
def test_legal_kernels_pass_and_wrong_ones_fail(which: str, name: str) -> None:
    case = next(c for c in kdtr_case.cases(which) if c.name == name)
    row = calibration.measure(which, case)
    assert len(row.accept) >= 5
    assert row.faults(which) == []


def test_legal_kernels_do_differ() -> None:
    case = next(c for c in kdtr_case.cases("verify_attn") if c.name == "keys_129")
    row = calibration.measure("verify_attn", case)
    assert len({gate for _, gate in row.accept.values()}) >= 7


@pytest.mark.parametrize("which", calibration.OPS)
def test_the_stored_calibration_is_of_this_contract_and_of_these_cases(which: str) -> None:
    assert stored(which)["digest"] == contract.load(which).digest
    small = [c.name for c in kdtr_case.cases(which) if c.tier == "small"]
    assert [entry["case"] for entry in stored(which)["cases"]] == small


@pytest.mark.parametrize("which", calibration.OPS)
def test_the_stored_margins_hold_and_cover_every_declared_kill(which: str) -> None:
    by_name = {c.name: c for c in kdtr_case.cases(which)}
    for entry in stored(which)["cases"]:
        case = by_name[entry["case"]]
        assert set(entry["accept"]) == {k.name for k in calibration.kernels(which, case.profile)}
        assert set(entry["reject"]) == {*case.kills, *case.wrong}
        row = calibration.Row(
            case,
            {k: (float(hard), float(gate)) for k, (hard, gate) in entry["accept"].items()},
            {k: float(v) for k, v in entry["reject"].items()},
        )
        assert row.faults(which) == []


def test_a_kernel_beyond_its_budget_is_a_fault() -> None:
    case = next(c for c in kdtr_case.cases("verify_attn") if c.name == "star")
    names = [k.name for k in calibration.kernels("verify_attn", case.profile)]
    good = dict.fromkeys(names, (0.5, 0.9))
    assert not calibration.Row(case, good, {"no_self": 4.0}).faults("verify_attn")
    for bad in ((1.5, 2.0), (0.5, 1.0), (np.nan, 0.5)):
        row = calibration.Row(case, {**good, names[0]: bad}, {})
        assert len(row.faults("verify_attn")) >= 1
    assert len(calibration.Row(case, good, {"no_self": 3.9}).faults("verify_attn")) == 1
