"""What holds for every op: its parts are there, its fixtures are whole, its contract is sound."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kdtr import case as case_module
from kdtr import container, contract, goldens
from kdtr.case import Case

ROOT = Path(__file__).resolve().parent.parent
ROLES = {"input", "state", "expected", "budget_gate", "budget_hard", "allowed", "known_wrong"}


@pytest.mark.parametrize("name", contract.ops())
def test_op_has_all_its_parts(name: str) -> None:
    composite = f"engine/model/{name}.cpp"  # one host program over the kernels of either backend
    kernels = [f"engine/kernels/cpu/{name}.cpp", f"engine/kernels/cuda/{name}.cu"]
    parts = [
        f"kdtr/reference/{name}.py",
        f"kdtr/cases/{name}.py",
        f"conformance/mutants/{name}.cpp",
        *([composite] if (ROOT / composite).exists() else kernels),
    ]
    assert [part for part in parts if not (ROOT / part).exists()] == []


@pytest.mark.parametrize("name", contract.ops())
def test_contract_is_sound(name: str) -> None:
    rules = contract.load(name)
    assert rules.op == name
    assert rules.source
    assert rules.formula
    names = [t.name for t in rules.tensors] + [a.name for a in rules.attrs]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", n) for n in names)
    assert {t.judged for t in rules.tensors if t.role == "in"} <= {None}
    assert {t.judged for t in rules.outputs} <= {"E", "B", "S"}
    assert rules.tensor("status").judged == "E"
    if any(t.judged == "B" for t in rules.outputs):
        assert rules.budget
        assert rules.why
    assert json.loads(rules.canonical())["op"] == name


def test_wording_does_not_change_a_contract_but_meaning_does(op: str) -> None:
    from dataclasses import replace

    rules = contract.load(op)
    for reworded in (replace(rules, summary="x"), replace(rules, why="x", source="x")):
        assert reworded.digest == rules.digest
    for changed in (
        replace(rules, formula="x"),
        replace(rules, budget="x"),
        replace(rules, limits="x"),
        replace(rules, version=99),
        replace(rules, tensors=rules.tensors[:-1]),
    ):
        assert changed.digest != rules.digest


def test_case_says_what_it_catches(op_case: tuple[str, Case]) -> None:
    _, case = op_case
    assert re.fullmatch(r"[a-z][a-z0-9_]*", case.name)
    assert not re.fullmatch(r"(case|test)_?\d+", case.name)
    assert len(case.catches.split()) >= 3


def test_committed_fixture_is_whole(op_case: tuple[str, Case]) -> None:
    op, case = op_case
    rules = contract.load(op)
    with container.open(goldens.HOME / rules.id / f"{case.name}.kdtr", verify="deep") as file:
        assert file.meta["contract.digest"] == rules.digest
        assert {info.meta["role"] for info in file.tensors.values()} <= ROLES
        expected = [i.meta["for"] for i in file.tensors.values() if i.meta["role"] == "expected"]
        assert len(expected) == len(set(expected))
        must = {t.name for t in rules.outputs if not t.when}
        assert must <= set(expected) <= {t.name for t in rules.outputs}
        for info in file.tensors.values():
            if info.meta.get("role") == "expected" and info.meta["class"] == "B":
                output = str(info.meta["for"])
                assert {f"{output}/gate", f"{output}/hard"} <= file.tensors.keys()
        assert file.meta.get("kills", "") == ",".join(case.kills)


def test_every_op_has_a_case_that_names_a_mutant_it_kills(op: str) -> None:
    assert any(case.kills for case in case_module.cases(op))
