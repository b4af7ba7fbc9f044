"""What an op means: its tensors, attributes, conventions and budget, declared once.

A contract is data. It is stamped into every fixture as canonical JSON, so no other language
keeps a table of ops. Its digest covers what a kernel must do, never the wording.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kdtr.errors import ContractError

Judged = Literal["E", "B", "S"]
"""E exact: bytes are compared. B budget: |got - gold| <= budget per element. S: set of ids."""


@dataclass(frozen=True)
class Tensor:
    """One argument of an op.

    `axes` are names, outermost first; equal names are equal sizes. An axis may be an expression
    of names, as in "B+1" or "ceil(N/32)". `when` says, as text, in which calls it is present.
    `distinct`: the ids of a class S output are all different along its last axis, pads aside.
    """

    name: str
    dtypes: tuple[str, ...]
    axes: tuple[str, ...]
    doc: str
    role: Literal["in", "out", "inout"] = "in"
    judged: Judged | None = None
    nan: Literal["forbid", "any", "bitwise"] = "forbid"
    when: str = ""
    distinct: bool = False


@dataclass(frozen=True)
class Attr:
    """One attribute: type "i64", "f64", "utf-8" or "bool"; `choices` closes the set."""

    name: str
    type: Literal["i64", "f64", "utf-8", "bool"]
    doc: str
    choices: tuple[str | int, ...] = ()


@dataclass(frozen=True)
class Contract:
    """An op at one version. `id` is "<op>@<version>" and never changes meaning."""

    op: str
    version: int
    summary: str
    formula: str
    source: str
    tensors: tuple[Tensor, ...]
    attrs: tuple[Attr, ...] = ()
    conventions: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, str] = field(default_factory=lambda: {"exact": "no rounding allowed"})
    budget: str = ""
    why: str = ""
    limits: str = ""

    @property
    def id(self) -> str:
        return f"{self.op}@{self.version}"

    def tensor(self, name: str) -> Tensor:
        """The declared argument. Raises ContractError for an unknown name."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise ContractError(self.id, "unknown tensor", [t.name for t in self.tensors], name)

    def profile(self, name: str = "") -> str:
        """A declared profile, by default the first. Raises ContractError for another name."""
        if name and name not in self.profiles:
            raise ContractError(self.id, "arith", " or ".join(self.profiles), name)
        return name or next(iter(self.profiles))

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Arguments that a call writes (roles out and inout), in declared order."""
        return tuple(t for t in self.tensors if t.role != "in")

    def canonical(self) -> str:
        """Canonical JSON of everything that binds a kernel: sorted keys, no spaces, ASCII."""
        return _json(
            {
                "op": self.op,
                "version": self.version,
                "formula": self.formula,
                "tensors": [
                    {
                        "name": t.name,
                        "dtypes": t.dtypes,
                        "axes": t.axes,
                        "role": t.role,
                        "judged": t.judged,
                        "nan": t.nan,
                        "when": t.when,
                        **({"distinct": True} if t.distinct else {}),
                    }
                    for t in self.tensors
                ],
                "attrs": [
                    {"name": a.name, "type": a.type, "choices": a.choices} for a in self.attrs
                ],
                "conventions": dict(self.conventions),
                "profiles": sorted(self.profiles),
                "budget": self.budget,
                "limits": self.limits,
            }
        )

    @property
    def digest(self) -> str:
        """SHA-256 of `canonical()`, in hex."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def ops() -> list[str]:
    """Names of all ops, sorted: every module under `kdtr.contracts`."""
    package = importlib.import_module("kdtr.contracts")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__))


def load(op: str) -> Contract:
    """The contract of `op`, by name or id ("tree_build" or "tree_build@1").

    Raises ContractError when there is no such op or version.
    """
    name, _, version = op.partition("@")
    if name not in ops():
        raise ContractError(op, "no such op", ", ".join(ops()), name)
    contract: Contract = importlib.import_module(f"kdtr.contracts.{name}").CONTRACT
    if version and contract.id != op:
        raise ContractError(op, "no such version", contract.id, op)
    return contract
