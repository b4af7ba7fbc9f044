"""One fixture: a case as named tensors with their roles, checked against its contract.

Inputs are stored exactly. The reference sees them widened to f64 and gives the expected outputs,
budgets and sets of allowed ids. A case that a constant answer would pass is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kdtr import case as case_module
from kdtr import container, contract, dtypes, numerics
from kdtr.case import Case
from kdtr.contract import Contract, Tensor
from kdtr.errors import ContractError, KdtrError
from kdtr.shapes import Axes

Array = NDArray[Any]
Tier = Literal["small", "full"]


@dataclass(frozen=True)
class Fixture:
    """The content of one fixture file, and where it belongs."""

    contract_id: str
    case: str
    tier: Tier
    tensors: Mapping[str, container.TensorIn]
    meta: container.Meta
    tensor_meta: Mapping[str, container.Meta]

    @property
    def name(self) -> str:
        """`<op>@<version>/<case>`."""
        return f"{self.contract_id}/{self.case}"

    def dumps(self) -> bytes:
        """The bytes of the file."""
        return container.dumps(self.tensors, self.meta, self.tensor_meta)


@dataclass
class _Draft:
    """A fixture being filled."""

    where: str
    tensors: dict[str, container.TensorIn] = field(default_factory=dict)
    notes: dict[str, container.Meta] = field(default_factory=dict)

    def put(
        self, name: str, dtype: str, storage: Array, shape: tuple[int, ...], **meta: str
    ) -> None:
        packed = dtypes.by_name(dtype).packed
        self.tensors[name] = (dtype, storage, shape) if packed else (dtype, storage)
        self.notes[name] = {key.replace("_", "."): value for key, value in meta.items() if value}


def build(op: str, case: Case) -> Fixture:
    """Make the fixture of one case: encode inputs, run the reference, check all by the contract.

    Raises ContractError, naming op, case and tensor, when a value is not exact in its stored
    type, a shape or dtype differs from the contract, an output is missing, a NaN stands where
    the contract forbids it, a budget is not a finite number, or a constant answer would pass.
    """
    rules = contract.load(op)
    where = f"{rules.id}/{case.name}"
    _check_attrs(rules, case, where)
    draft = _Draft(where)
    sizes = {k: v for k, v in case.attrs.items() if isinstance(v, int)}
    axes = Axes(where, sizes)

    given = dict(case.inputs())
    widened = _put_inputs(rules, case, given, draft, axes)
    result = case_module.reference(op)(widened, case.attrs, case.profile)
    expected = _put_expected(rules, case, result, draft, axes)
    axes.check()
    _put_wrong(op, case, widened, expected, draft)
    if not case.null_ok:
        _refuse_null(where, expected, widened)

    meta: dict[str, container.Scalar] = {
        "kdtr.profile": "fixture/1",
        "op": rules.id,
        "contract": rules.canonical(),
        "contract.digest": rules.digest,
        "case": case.name,
        "catches": case.catches,
        "kills": ",".join(case.kills),
        "kind": case.kind,
        "flags": ",".join(case.flags),
        "tier": case.tier,
        "arith": case.profile,
        "gen.family": case.family,
        "gen.seed": case.seed,
        "oracle": f"kdtr.reference.{rules.id}",
        **{f"attr.{name}": value for name, value in case.attrs.items()},
        **{f"convention.{name}": text for name, text in rules.conventions.items()},
    }
    if case.null_ok:
        meta["null_ok"] = case.null_ok
    if case.provenance:
        meta["provenance"] = case.provenance
    return Fixture(rules.id, case.name, case.tier, draft.tensors, meta, draft.notes)


_ATTR_TYPES: Mapping[str, type] = {"i64": int, "f64": float, "utf-8": str, "bool": bool}


def _check_attrs(rules: Contract, case: Case, where: str) -> None:
    declared = {a.name: a for a in rules.attrs}
    if declared.keys() != case.attrs.keys():
        raise ContractError(
            where, "attributes differ from the contract", sorted(declared), sorted(case.attrs)
        )
    for name, value in case.attrs.items():
        attr = declared[name]
        if type(value) is not _ATTR_TYPES[attr.type]:
            raise ContractError(
                f"{where}/{name}", "attribute type", attr.type, type(value).__name__
            )
        if attr.choices and value not in attr.choices:
            raise ContractError(f"{where}/{name}", "attribute value", list(attr.choices), value)
    if case.profile not in rules.profiles:
        raise ContractError(where, "arithmetic profile", sorted(rules.profiles), case.profile)


def _stored_dtype(case: Case, tensor: Tensor, where: str) -> str:
    name = case.dtypes.get(tensor.name, tensor.dtypes[0])
    if name not in tensor.dtypes:
        raise ContractError(f"{where}/{tensor.name}", "dtype", list(tensor.dtypes), name)
    return name


def _encode(where: str, values: Array, dtype: str) -> Array:
    """Stored form of `values`. An array that already has the stored type keeps its bits."""
    if values.dtype == dtypes.by_name(dtype).storage and not dtypes.by_name(dtype).packed:
        return np.ascontiguousarray(values)
    try:
        return dtypes.encode(values, dtype)
    except ContractError:
        raise
    except KdtrError as error:
        raise ContractError(where, str(error)) from None


def _put_inputs(
    rules: Contract, case: Case, given: Mapping[str, Array], draft: _Draft, axes: Axes
) -> dict[str, Array]:
    """Store the inputs; return them as the reference sees them: floats in f64, read-only."""
    declared = [t for t in rules.tensors if t.role != "out"]
    unknown = sorted(given.keys() - {t.name for t in declared})
    if unknown:
        raise ContractError(draft.where, "inputs that the contract lacks", got=unknown)
    widened: dict[str, Array] = {}
    for tensor in declared:
        if tensor.name not in given:
            if tensor.when:
                continue
            raise ContractError(f"{draft.where}/{tensor.name}", "input is missing")
        values = np.asarray(given[tensor.name])
        dtype = _stored_dtype(case, tensor, draft.where)
        axes.bind(tensor, values.shape)
        storage = _encode(f"{draft.where}/{tensor.name}", values, dtype)
        draft.put(
            tensor.name,
            dtype,
            storage,
            values.shape,
            role="state" if tensor.role == "inout" else "input",
        )
        seen = np.array(case_module.widen(dtypes.decode(storage, dtype, values.shape)))
        seen.flags.writeable = False
        widened[tensor.name] = seen
    return widened


@dataclass(frozen=True)
class _Expected:
    """The right answer for one output, as the judge sees it."""

    tensor: Tensor
    dtype: str
    stored: str
    values: Array
    storage: Array
    hard: Array | None
    allowed: Array | None

    def passes(self, values: Array) -> bool:
        """Whether an answer (in f64, or integers) would pass."""
        if self.hard is not None:
            with np.errstate(invalid="ignore"):  # inf - inf: equal, and so right
                error = np.abs(values.astype(np.float64) - self.values)
            return bool(np.all((values == self.values) | (error <= self.hard)))
        if self.allowed is not None:
            if self.tensor.distinct and _repeats(values):
                return False
            known = (values >= 0) & (values < self.allowed.shape[-1])
            index = np.where(known, values, 0)[..., None].astype(np.int64)
            member = known & np.take_along_axis(self.allowed, index, -1)[..., 0]
            pad = ~self.allowed.any(axis=-1)  # nothing allowed: the expected value is the answer
            return bool(np.where(pad, values == self.values, member).all())
        return dtypes.encode(values, self.dtype).tobytes() == self.storage.tobytes()


def _repeats(ids: Array) -> bool:
    """Whether an id, pads below 0 aside, stands twice along the last axis. ids [..., K]."""
    ordered = np.sort(ids, axis=-1)
    return bool(((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any())


def _put_expected(
    rules: Contract, case: Case, result: Mapping[str, Array], draft: _Draft, axes: Axes
) -> list[_Expected]:
    known = {t.name for t in rules.outputs}
    unknown = sorted(k for k in result if k.partition("/")[0] not in known)
    if unknown:
        raise ContractError(
            draft.where, "the reference returned outputs the contract lacks", got=unknown
        )
    found = []
    for tensor in rules.outputs:
        if tensor.name not in result:
            if tensor.when:
                continue
            raise ContractError(f"{draft.where}/{tensor.name}", "the reference gave no such output")
        found.append(_one_expected(case, tensor, result, draft, axes))
    if not found:
        raise ContractError(draft.where, "no expected output")
    return found


def _one_expected(
    case: Case,
    tensor: Tensor,
    result: Mapping[str, Array],
    draft: _Draft,
    axes: Axes,
) -> _Expected:
    name, where = tensor.name, f"{draft.where}/{tensor.name}"
    if tensor.judged is None:
        raise ContractError(where, "the contract gives this output no class", "E, B or S")
    dtype = _stored_dtype(case, tensor, draft.where)
    values = np.asarray(result[name])
    axes.bind(tensor, values.shape)
    if values.dtype.kind == "f" and tensor.nan == "forbid" and bool(np.isnan(values).any()):
        first = np.argwhere(np.isnan(values))[0].tolist()
        raise ContractError(where, f"expected value {first} is NaN", "numbers")
    stored = "f64" if tensor.judged == "B" else dtype
    storage = _encode(where, values, stored)
    draft.put(
        name if tensor.role == "out" else f"{name}/after",
        stored,
        storage,
        values.shape,
        **{
            "role": "expected",
            "class": tensor.judged,
            "for": name,
            "actual_dtype": dtype,
            "nan": tensor.nan,
            "given": case.given.get(name, ""),
            "distinct": "true" if tensor.distinct else "",
        },
    )
    hard = allowed = None
    if tensor.judged == "B":
        gate, hard = (_budget(where, result, f"{name}/{kind}", values) for kind in ("gate", "hard"))
        if bool((gate > hard).any()):
            raise ContractError(where, "gate is above hard somewhere", "gate <= hard")
        for kind, budget in (("gate", gate), ("hard", hard)):
            draft.put(
                f"{name}/{kind}",
                "f32",
                budget,
                values.shape,
                role=f"budget_{kind}",
                **{"for": name},
            )
    if tensor.judged == "S":
        allowed = np.asarray(result.get(f"{name}/allowed"))
        if allowed.dtype != np.bool_ or allowed.shape[:-1] != values.shape:
            raise ContractError(
                where,
                "allowed set",
                f"bool {[*values.shape, 'ids']}",
                f"{allowed.dtype} {list(allowed.shape)}",
            )
        draft.put(
            f"{name}/allowed", "bool", allowed, allowed.shape, role="allowed", **{"for": name}
        )
    if tensor.distinct and (tensor.judged != "S" or values.ndim == 0 or _repeats(values)):
        raise ContractError(where, "distinct", "class S with an axis of different ids", "others")
    answer = _Expected(tensor, dtype, stored, values, storage, hard, allowed)
    if allowed is not None and not answer.passes(values):
        raise ContractError(where, "the expected id is not in its own allowed set")
    return answer


def _budget(
    where: str, result: Mapping[str, Array], key: str, values: Array
) -> NDArray[np.float32]:
    if key not in result:
        raise ContractError(where, f"the reference gave no {key}")
    budget = np.asarray(result[key], np.float64)
    if budget.shape != values.shape:
        raise ContractError(where, f"shape of {key}", list(values.shape), list(budget.shape))
    if not bool(np.all(np.isfinite(budget) & (budget >= 0))):
        first = np.argwhere(~(np.isfinite(budget) & (budget >= 0)))[0].tolist()
        raise ContractError(
            where, f"{key} {first}", "finite and not negative", budget[tuple(first)]
        )
    return numerics.up_to_f32(budget)


def _put_wrong(
    op: str,
    case: Case,
    widened: Mapping[str, Array],
    expected: Sequence[_Expected],
    draft: _Draft,
) -> None:
    """Store, for each known-wrong convention of the case, the outputs that it gets wrong."""
    known = case_module.wrong(op)
    for label in case.wrong:
        where = f"{draft.where}/wrong/{label}"
        if label not in known:
            raise ContractError(where, "no such known-wrong convention", sorted(known), label)
        result = known[label](widened, case.attrs, case.profile)
        differs = False
        for want in expected:
            values = np.asarray(result.get(want.tensor.name, want.values))
            if values.shape != want.values.shape:
                raise ContractError(
                    where,
                    f"shape of {want.tensor.name}",
                    list(want.values.shape),
                    list(values.shape),
                )
            if want.passes(values):
                continue
            differs = True
            draft.put(
                f"wrong/{label}/{want.tensor.name}",
                want.stored,
                _encode(where, values, want.stored),
                values.shape,
                **{
                    "role": "known_wrong",
                    "class": str(want.tensor.judged),
                    "for": want.tensor.name,
                },
            )
        if not differs:
            raise ContractError(where, "the wrong convention gives the right answer here")


def _refuse_null(where: str, expected: Sequence[_Expected], widened: Mapping[str, Array]) -> None:
    """A case that a constant or untouched output passes tests nothing."""
    nulls: dict[str, Callable[[_Expected], Array]] = {
        "all zeros": lambda want: np.zeros(want.values.shape, want.values.dtype),
        "all ones": lambda want: np.ones(want.values.shape, want.values.dtype),
    }
    if any(want.tensor.role == "inout" for want in expected):
        nulls["untouched state"] = lambda want: (
            widened[want.tensor.name].astype(want.values.dtype)
            if want.tensor.role == "inout"
            else np.zeros(want.values.shape, want.values.dtype)
        )
    for label, make in nulls.items():
        if all(want.passes(make(want)) for want in expected):
            raise ContractError(
                where, f"a kernel that leaves {label} would pass, set null_ok or change the case"
            )
