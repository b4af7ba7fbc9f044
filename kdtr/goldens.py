"""Goldens: fixtures made from contracts, cases and references, and the LOCK that names their bytes.

A fixture is one case as one file, `<op>@<version>/<case>.kdtr`. The small tier is committed; the
full tier is made where it is needed. `goldens/LOCK` holds the digest of every published contract
and the root digest of every fixture of both tiers, so a large set needs no download: it is its
hash.
"""

from __future__ import annotations

import ast
import math
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kdtr import case as case_module
from kdtr import container, contract, dtypes, numerics
from kdtr.case import Case
from kdtr.contract import Contract, Tensor
from kdtr.errors import ContractError, FormatError, KdtrError, LockError

Array = NDArray[Any]
Tier = Literal["small", "full"]
Progress = Callable[[int, int, str], None]

SMALL_LIMIT = 256 << 10
"""Bytes that a committed fixture may have."""

_PACKAGE = Path(__file__).resolve().parent
_IN_TREE = (_PACKAGE.parent / "pyproject.toml").exists()
HOME = _PACKAGE.parent / "goldens" if _IN_TREE else Path("goldens")
"""Where the small tier lives: the source tree's folder, or `goldens` here for an installed kdtr."""
FULL = HOME.parent / "build" / "goldens"
"""Where the full tier is made."""
LOCK = HOME / "LOCK" if _IN_TREE else _PACKAGE / "data" / "LOCK"
"""The LOCK that generated fixtures are checked against."""


# --- one fixture --------------------------------------------------------------------------------


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
    axes = _Axes(where, sizes)

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
    rules: Contract, case: Case, given: Mapping[str, Array], draft: _Draft, axes: _Axes
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
            error = np.abs(values.astype(np.float64) - self.values)
            return bool(np.all((values == self.values) | (error <= self.hard)))
        if self.allowed is not None:
            index = np.clip(values, 0, self.allowed.shape[-1] - 1)[..., None].astype(np.int64)
            return bool(np.all(np.take_along_axis(self.allowed, index, -1)))
        return dtypes.encode(values, self.dtype).tobytes() == self.storage.tobytes()


def _put_expected(
    rules: Contract, case: Case, result: Mapping[str, Array], draft: _Draft, axes: _Axes
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
    axes: _Axes,
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


class _Axes:
    """Sizes of named axes, and the check that every shape agrees with them."""

    def __init__(self, where: str, sizes: Mapping[str, int]) -> None:
        self._where, self._sizes = where, dict(sizes)
        self._later: list[tuple[str, int, str, int]] = []

    def bind(self, tensor: Tensor, shape: tuple[int, ...]) -> None:
        """Take sizes from plain axes; keep expressions for `check`."""
        if len(shape) != len(tensor.axes):
            raise ContractError(
                f"{self._where}/{tensor.name}", "rank", list(tensor.axes), list(shape)
            )
        for i, (axis, size) in enumerate(zip(tensor.axes, shape, strict=True)):
            if axis.isidentifier():
                want = self._sizes.setdefault(axis, size)
                if want != size:
                    raise ContractError(
                        f"{self._where}/{tensor.name}", f"axis {i} ({axis})", want, size
                    )
            else:
                self._later.append((tensor.name, i, axis, size))

    def check(self) -> None:
        """Evaluate the axes given as expressions."""
        for name, i, axis, size in self._later:
            want = _evaluate(axis, self._sizes, f"{self._where}/{name}")
            if want != size:
                raise ContractError(f"{self._where}/{name}", f"axis {i} ({axis})", want, size)


_FUNCTIONS: Mapping[str, Callable[..., Fraction | int]] = {
    "ceil": math.ceil,
    "floor": math.floor,
    "max": max,
    "min": min,
}
_OPERATORS: Mapping[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
}


def _evaluate(expression: str, sizes: Mapping[str, int], where: str) -> Fraction:
    """The value of an axis such as "B+1", "2" or "ceil(N/32)"."""

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return Fraction(node.value)
        if isinstance(node, ast.Name) and node.id in sizes:
            return Fraction(sizes[node.id])
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            function = _FUNCTIONS.get(node.func.id)
            if function is not None:
                return Fraction(function(*(value(a) for a in node.args)))
        raise ContractError(
            where,
            f"axis '{expression}'",
            "axis or attribute names, integers, + - * / // ceil floor max min",
            ast.unparse(node),
        )

    return value(ast.parse(expression, mode="eval").body)


# --- LOCK ---------------------------------------------------------------------------------------


@dataclass
class Lock:
    """The content of a LOCK file.

    Attributes:
        contracts: contract id to digest, of every version ever published.
        cases: `<id>/<case>` to (tier, root in hex).
    """

    contracts: dict[str, str] = field(default_factory=dict)
    cases: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Lock:
        """Read a LOCK; a missing file is an empty one. Raises LockError for a malformed line."""
        lock = cls()
        if not path.exists():
            return lock
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match line.split(" "):
                case ["contract", name, digest]:
                    lock.contracts[name] = digest
                case ["case", name, ("small" | "full") as tier, root]:
                    lock.cases[name] = (tier, root)
                case _:
                    raise LockError(
                        f"{path}:{number}",
                        "malformed line",
                        "contract <id> <digest>, or case <id>/<case> <tier> <root>",
                        repr(line),
                        "after a merge conflict: take one side, then run kdtr generate",
                    )
        return lock

    def text(self) -> str:
        """The file's text: sorted lines."""
        lines = [f"contract {name} {digest}" for name, digest in self.contracts.items()]
        lines += [f"case {name} {tier} {root}" for name, (tier, root) in self.cases.items()]
        return "".join(line + "\n" for line in sorted(lines))

    def write(self, path: Path) -> None:
        """Replace the file in one step."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(self.text(), encoding="utf-8")
        temporary.replace(path)


def check_contracts(lock: Lock, rules: Iterable[Contract]) -> None:
    """Refuse a contract whose meaning changed under a published id. Raises LockError."""
    for one in rules:
        published = lock.contracts.get(one.id, one.digest)
        if published != one.digest:
            raise LockError(
                one.id,
                "the contract changed under a published id",
                published[:16],
                one.digest[:16],
                f"raise its version to {one.version + 1}; if no release holds it yet: --amend",
            )


# --- many fixtures ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """What a run of `generate` did.

    Attributes:
        made: `<id>/<case>` to the root of each fixture made, in hex.
        changed: names whose root differs from the LOCK's, or that it lacks.
        removed: stale files that were removed (or, with `check`, that should be).
    """

    made: Mapping[str, str]
    changed: Sequence[str]
    removed: Sequence[Path]


def select(ops: Sequence[str] = (), tier: Tier = "small") -> list[tuple[str, Case]]:
    """(op name, case) of the cases of `ops` (all by default) in a tier; "full" has both tiers."""
    names = [contract.load(op).op for op in ops] or contract.ops()
    return [
        (name, one)
        for name in dict.fromkeys(names)
        for one in case_module.cases(name)
        if tier == "full" or one.tier == "small"
    ]


def generate(
    ops: Sequence[str] = (),
    tier: Tier = "small",
    *,
    check: bool = False,
    amend: bool = False,
    jobs: int = 1,
    out: Path | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Make the fixtures of some ops (all by default).

    Fixtures are made in a side folder and moved into place when all are there, and the LOCK is
    replaced last: an interrupted run leaves what was there before.

    Args:
        ops: names or ids.
        tier: "small", or "full" for both tiers.
        check: make nothing; compare with LOCK and with the committed files.
        amend: accept a changed contract under an id that no release holds yet.
        jobs: processes.
        out: write both tiers here, check them against LOCK, and touch nothing else.
        progress: called with (done, total, name of the last one).

    Raises:
        LockError: a published contract changed, or, with `check` or `out`, something differs;
            the message names the first tensor that does.
        ContractError: a case or a reference does not fit its contract.
    """
    todo = select(ops, tier)
    rules = {name: contract.load(name) for name, _ in todo}
    lock = Lock.read(LOCK)
    if not amend:
        check_contracts(lock, rules.values())
    if check:
        return _check(todo, rules, lock, jobs, progress)
    if out is not None:
        made = _make(todo, rules, {"small": out, "full": out}, jobs, progress)
        _compare(made, lock, {"small": out, "full": out})
        return Summary(made, [], [])

    made = _make(todo, rules, {"small": HOME, "full": FULL}, jobs, progress)
    changed = [n for n, root in made.items() if lock.cases.get(n, ("", ""))[1] != root]
    tiers = {f"{rules[name].id}/{one.name}": one.tier for name, one in todo}
    exists = {f"{r.id}/{c.name}": c.tier for n, r in rules.items() for c in case_module.cases(n)}
    ids = tuple(f"{r.id}/" for r in rules.values())
    for name in [n for n in lock.cases if n.startswith(ids) and n not in exists]:
        del lock.cases[name]
    lock.cases.update({name: (tiers[name], root) for name, root in made.items()})
    lock.contracts.update({r.id: r.digest for r in rules.values()})
    removed = list(_stale(lock, rules.values()))
    for path in removed:
        path.unlink()
    lock.write(LOCK)
    return Summary(made, changed, removed)


def ensure(
    ops: Sequence[str] = (),
    tier: Tier = "small",
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[Path]:
    """Paths of all fixtures of a tier; those missing or different from LOCK are made first.

    Only the full tier's folder is written to (and `goldens` where kdtr is installed).
    Raises LockError when a fixture cannot be made with the bytes that LOCK names.
    """
    todo = select(ops, tier)
    rules = {name: contract.load(name) for name, _ in todo}
    lock = Lock.read(LOCK)
    check_contracts(lock, rules.values())
    homes: dict[Tier, Path] = {"small": HOME, "full": FULL}
    paths, missing = [], []
    for name, one in todo:
        key = f"{rules[name].id}/{one.name}"
        path = homes[one.tier] / f"{key}.kdtr"
        paths.append(path)
        if _root_of(path) != lock.cases.get(key, ("", "?"))[1]:
            missing.append((name, one))
            if _IN_TREE and one.tier == "small":
                raise LockError(str(path), "differs from LOCK", remedy="run kdtr generate --check")
    made = _make(missing, rules, homes, jobs, progress)
    _compare(made, lock, homes)
    return paths


def _root_of(path: Path) -> str:
    """Root digest in a file's header, or "" when there is no such file."""
    try:
        with path.open("rb") as handle:
            return handle.read(48)[16:].hex()
    except FileNotFoundError:
        return ""


def _stale(lock: Lock, rules: Iterable[Contract]) -> Iterator[Path]:
    """Fixture files in the small tier's folder that LOCK does not name, of the given ops."""
    for one in rules:
        for path in sorted(HOME.glob(f"{one.op}@*/*.kdtr")):
            name = f"{path.parent.name}/{path.stem}"
            if lock.cases.get(name, ("", ""))[0] != "small":
                yield path


def _check(
    todo: Sequence[tuple[str, Case]],
    rules: Mapping[str, Contract],
    lock: Lock,
    jobs: int,
    progress: Progress | None,
) -> Summary:
    made = _make(todo, rules, None, jobs, progress)
    _compare(made, lock, {"small": HOME, "full": FULL})
    exists = {f"{r.id}/{c.name}" for n, r in rules.items() for c in case_module.cases(n)}
    ids = tuple(f"{r.id}/" for r in rules.values())
    for name in lock.cases:
        if name.startswith(ids) and name not in exists:
            raise LockError(name, "LOCK names a case that no longer exists", remedy="kdtr generate")
    for name in exists - lock.cases.keys():
        raise LockError(name, "the case is not in LOCK", remedy="run kdtr generate --tier full")
    for path in _stale(lock, rules.values()):
        raise LockError(str(path), "a fixture that LOCK does not name", remedy="run kdtr generate")
    for name, one in todo:
        path = HOME / f"{rules[name].id}/{one.name}.kdtr"
        if one.tier == "small" and _root_of(path) != made[f"{rules[name].id}/{one.name}"]:
            _explain(path, name, one)
        if one.tier == "small":
            container.validate(path, deep=True)
    return Summary(made, [], [])


def _compare(made: Mapping[str, str], lock: Lock, homes: Mapping[Tier, Path]) -> None:
    """Raise LockError for the first fixture whose root is not the LOCK's."""
    for name, root in made.items():
        tier, want = lock.cases.get(name, ("", ""))
        if not want:
            raise LockError(name, "the case is not in LOCK", remedy="run kdtr generate --tier full")
        if root != want:
            op, _, case = name.partition("/")
            one = next(c for c in case_module.cases(op.partition("@")[0]) if c.name == case)
            path = homes["small" if tier == "small" else "full"] / f"{name}.kdtr"
            if _root_of(path) == want:
                _explain(path, op, one)
            raise LockError(name, "generated fixture differs from LOCK", want[:16], root[:16])


def _explain(path: Path, op: str, case: Case) -> None:
    """Raise LockError naming the first tensor in which a file differs from what is generated."""
    new = container.loads(build(op.partition("@")[0], case).dumps())
    try:
        old = container.open(path)
    except FormatError as error:
        raise LockError(str(path), str(error), remedy="run kdtr generate") from None
    for name in sorted(new.tensors.keys() | old.tensors.keys()):
        a, b = old.tensors.get(name), new.tensors.get(name)
        if a is None or b is None:
            state = "only generated" if a is None else "only in the file"
            raise LockError(f"{path}/{name}", f"tensor is {state}")
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            raise LockError(
                f"{path}/{name}",
                "stored tensor differs from the generated one",
                f"{b.dtype} {list(b.shape)}",
                f"{a.dtype} {list(a.shape)}",
            )
        if a.sha256 != b.sha256:
            at = _first_difference(old[name], new[name])
            raise LockError(
                f"{path}/{name}",
                f"stored tensor differs from the generated one at element {at}",
                new[name].reshape(-1)[at],
                old[name].reshape(-1)[at],
            )
        if a.meta != b.meta:
            raise LockError(f"{path}/{name}", "metadata differs", dict(b.meta), dict(a.meta))
    for key in sorted(new.meta.keys() | old.meta.keys()):
        if new.meta.get(key) != old.meta.get(key):
            raise LockError(
                str(path), f"metadata '{key}' differs", new.meta.get(key), old.meta.get(key)
            )
    raise LockError(str(path), "the file differs from the generated one")


def _first_difference(a: Array, b: Array) -> int:
    x, y = (v.reshape(-1).view(np.uint8).reshape(a.size, -1) for v in (a, b))
    return int(np.argmax((x != y).any(axis=1)))


def _make(
    todo: Sequence[tuple[str, Case]],
    rules: Mapping[str, Contract],
    homes: Mapping[Tier, Path] | None,
    jobs: int,
    progress: Progress | None,
) -> dict[str, str]:
    """Make fixtures and, unless `homes` is None, move them all to their places at the end."""
    made: dict[str, str] = {}
    stages: dict[Tier, Path] = {}
    try:
        for tier, home in (homes or {}).items():
            stage = home / f".new-{os.getpid()}"
            stages[tier] = stage
        work = [(name, one.name, stages.get(one.tier)) for name, one in todo]
        for done, (name, root) in enumerate(_run(work, jobs), 1):
            made[name] = root
            if progress is not None:
                progress(done, len(work), name)
        made = {key: made[key] for key in (f"{rules[name].id}/{one.name}" for name, one in todo)}
        for tier, stage in stages.items():
            for path in sorted(stage.rglob("*.kdtr")):
                target = (homes or {})[tier] / path.relative_to(stage)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
    finally:
        for stage in stages.values():
            shutil.rmtree(stage, ignore_errors=True)
    return made


_Work = tuple[str, str, "Path | None"]


def _run(work: Sequence[_Work], jobs: int) -> Iterator[tuple[str, str]]:
    if jobs <= 1 or len(work) <= 1:
        yield from map(_make_one, work)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(jobs, len(work)),
        context,
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        for future in as_completed([pool.submit(_make_one, one) for one in work]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _make_one(work: _Work) -> tuple[str, str]:
    """Make one fixture, and store it in a stage folder if one is given. Returns (name, root)."""
    op, case_name, stage = work
    one = next(c for c in case_module.cases(op) if c.name == case_name)
    fixture = build(op, one)
    data = fixture.dumps()
    if fixture.tier == "small" and len(data) > SMALL_LIMIT:
        raise ContractError(
            fixture.name, "a small-tier file is too large", f"{SMALL_LIMIT} bytes", len(data)
        )
    if stage is not None:
        path = stage / f"{fixture.name}.kdtr"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return fixture.name, data[16:48].hex()
