"""One golden case: inputs, attributes, and the mistake it catches."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kdtr.errors import ContractError

Arrays = Mapping[str, NDArray[Any]]
Attrs = Mapping[str, int | float | str | bool]


@dataclass(frozen=True)
class Case:
    """A named condition of one op.

    `inputs` is called when the fixture is made, so listing cases costs nothing; it returns plain
    arrays by argument name. `dtypes` overrides the stored dtype where the contract allows
    several (the default is its first); values must be exactly representable in it.
    `kills` names the mutants that this case must reject. `wrong` names known-wrong conventions,
    keys of the module's WRONG, whose results are stored so that a failure can be named.
    `null_ok` says why an all-zero (or otherwise constant) answer may pass, or is "".
    """

    name: str
    catches: str
    inputs: Callable[[], Arrays]
    attrs: Attrs = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    profile: str = "exact"
    kind: Literal["KAT", "MCT", "ACC", "NEG", "META"] = "KAT"
    family: str = "hand"
    seed: int = 0
    flags: tuple[str, ...] = ()
    kills: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    tier: Literal["small", "full"] = "small"
    null_ok: str = ""
    given: Mapping[str, str] = field(default_factory=dict)
    provenance: str = ""


Reference = Callable[[Arrays, Attrs, str], dict[str, NDArray[Any]]]


def ops() -> list[str]:
    """Names of the ops that have cases, sorted: every module under `kdtr.cases`."""
    package = importlib.import_module("kdtr.cases")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def cases(op: str) -> Iterator[Case]:
    """The cases of an op in declared order. Raises ContractError on a repeated name."""
    if op not in ops():
        raise ContractError(op, "the op has no cases", ", ".join(ops()), op)
    seen: set[str] = set()
    for case in importlib.import_module(f"kdtr.cases.{op}").cases():
        if case.name in seen:
            raise ContractError(f"{op}/{case.name}", "repeated case name")
        seen.add(case.name)
        yield case


def reference(op: str) -> Reference:
    """The numpy reference: (inputs with floats widened to f64, attrs, profile) -> outputs.

    The result holds each output by name and, for class B, `<name>/gate` and `<name>/hard`; for
    class S, `<name>/allowed` (bool over ids on a last axis).
    """
    found: Reference = importlib.import_module(f"kdtr.reference.{op}").reference
    return found


def wrong(op: str) -> Mapping[str, Reference]:
    """Known-wrong conventions of an op: label -> function with the reference's signature."""
    found: Mapping[str, Reference] = getattr(
        importlib.import_module(f"kdtr.cases.{op}"), "WRONG", {}
    )
    return found


def widen(array: NDArray[Any]) -> NDArray[Any]:
    """Floats to f64 (exact), everything else unchanged."""
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        return array.astype(np.float64) if array.dtype.kind == "f" else array
