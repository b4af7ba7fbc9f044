"""Calibration of budgets: what a bound must accept, and what it must reject, measured.

`python -m kdtr.calibration [--scores FILE]` runs every legal way to compute an attention op
(orders of summation, FMA, tensor cores that truncate, splits, base-2 exponentials, flushed
subnormals, rounded weights) on every small case and writes the worst error as a share of each
budget, with the smallest error of the case's known-wrong conventions and, from the JSON of
`kdtr score`, of its mutants. A budget is accepted when the first stays below 1 and the second at
4 or more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdtr import case as case_module
from kdtr import contract, numerics
from kdtr.case import Arrays, Attrs, Case
from kdtr.reference import merge_state as merge_reference
from kdtr.reference import verify_attn as attn_reference

Array = NDArray[Any]
F32 = NDArray[np.float32]
Outputs = Mapping[str, Array]

OPS: Final = ("merge_state", "verify_attn")
FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "calibration"
LOG2_E: Final = np.float32(1.4426950408889634)
LEAST_REJECT: Final = 4.0


@dataclass(frozen=True)
class Kernel:
    """A legal way to compute.

    Attributes:
        name: as printed.
        order: of every sum: sequential, reversed, pairwise, or tensor (steps of 16 terms, each
            term cut to 26 bits of the largest, the sum truncated to f32).
        fma: products are not rounded before they are added.
        tile: keys of one step of the online softmax; 0 = all at once, the maximum known before.
        splits: parts of the keys, merged afterwards.
        exp: rounded; base_2: scores go to base 2 first; short: 23 bits, truncated.
        flush: subnormal weights and outputs become zero.
        above_gate: the kernel is legal but avoidably inexact: only `hard` need accept it.
    """

    name: str
    order: str = "sequential"
    fma: bool = False
    tile: int = 0
    splits: int = 1
    exp: str = "rounded"
    flush: bool = False
    above_gate: bool = False


_F32_KERNELS: Final = (
    Kernel("sequential"),
    Kernel("reversed", "reversed"),
    Kernel("pairwise", "pairwise"),
    Kernel("fma", fma=True),
    Kernel("online_16", tile=16),
    Kernel("online_64_base_2", tile=64, exp="base_2"),
    Kernel("split_8_fma", fma=True, splits=8, tile=32),
    Kernel("split_33_short_exp", splits=33, exp="short"),
    Kernel("flush", tile=64, flush=True, exp="short"),
)
_TENSOR_KERNELS: Final = (
    Kernel("sequential"),
    Kernel("pairwise", "pairwise"),
    Kernel("tensor", "tensor", tile=64),
    Kernel("tensor_split_8_base_2", "tensor", tile=32, splits=8, exp="base_2"),
    Kernel("tensor_split_33_short_exp", "tensor", splits=33, exp="short", flush=True),
)
_MERGE_KERNELS: Final = (
    Kernel("sequential"),
    Kernel("fma", fma=True),
    Kernel("divide_last", order="divide_last"),
    Kernel("sigmoid", order="sigmoid"),
    Kernel("short_exp", exp="short", flush=True),
    Kernel("base_2_after_shift", exp="base_2"),
    Kernel("base_2_before_shift", exp="base_2_first", above_gate=True),
)


# --- f32 arithmetic -----------------------------------------------------------------------------


def _f32(x: Any) -> F32:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(x, np.float64).astype(np.float32)


def _truncated(x: Array) -> F32:
    """f64 to f32, toward zero."""
    y = _f32(x)
    over = np.abs(y.astype(np.float64)) > np.abs(x)
    return np.where(over, np.nextafter(y, np.float32(0)), y).astype(np.float32)


def _cut(x: Array, bits: int) -> Array:
    """Keep `bits` significant bits, toward zero."""
    m, e = np.frexp(x)
    return np.asarray(np.ldexp(np.trunc(np.ldexp(m, bits)), e - bits))


def _exp(x: F32, kernel: Kernel) -> F32:
    y = numerics.exp(x.astype(np.float64))
    return _f32(_cut(y, 23)) if kernel.exp == "short" else _f32(y)


def _exp2(x: F32) -> F32:
    return _f32(numerics.exp(x.astype(np.float64) * 0.6931471805599453))


def _dot(a: F32, b: F32, kernel: Kernel) -> F32:
    """a [M, K] @ b [K, C] with f32 sums in the kernel's order."""
    K = a.shape[1]
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)

    def product(k: int) -> Array:
        return np.asarray(wide_a[:, k : k + 1] * wide_b[k : k + 1])

    def span(first: int, end: int) -> F32:
        if end - first == 1:
            return _f32(product(first))
        middle = (first + end) // 2
        return np.asarray(span(first, middle) + span(middle, end))

    y = np.zeros((a.shape[0], b.shape[1]), np.float32)
    if K == 0:
        return y
    if kernel.order == "pairwise":
        return span(0, K)
    if kernel.order == "tensor":
        for first in range(0, K, 16):
            terms = [y.astype(np.float64), *(product(k) for k in range(first, min(K, first + 16)))]
            _, top = np.frexp(np.max(np.abs(terms), axis=0))
            unit = top - 26
            y = _truncated(sum(np.ldexp(np.trunc(np.ldexp(t, -unit)), unit) for t in terms))
        return y
    for k in range(K - 1, -1, -1) if kernel.order == "reversed" else range(K):
        term = product(k)
        y = _f32(y + (term if kernel.fma else _f32(term).astype(np.float64)))
    return y


# --- verify_attn --------------------------------------------------------------------------------

_ROUND: Final[Mapping[str, Callable[[Any], Array]]] = {
    "": numerics.round_f32,
    "bf16": numerics.round_bf16,
    "f16": numerics.round_f16,
    "tf32": lambda x: _cut(np.asarray(x, np.float64), 11),
}


@dataclass(frozen=True)
class _Storage:
    """Where a profile rounds: inputs, weights, partial outputs, output."""

    inputs: str = ""
    weights: str = ""
    parts: str = ""
    out: str = ""


_STORAGE: Final = {
    "f32": _Storage(),
    "tf32": _Storage("tf32", "tf32"),
    "bf16_f32acc": _Storage(out="bf16"),
    "bf16_f32acc_pbf16": _Storage(weights="bf16", out="bf16"),
    "bf16_f32acc_pbf16_f32out": _Storage(weights="bf16"),
    "bf16_splits_bf16": _Storage(weights="bf16", parts="bf16", out="bf16"),
    "f16_f32acc": _Storage(out="f16"),
    "f16_f32acc_pf16": _Storage(weights="f16", out="f16"),
}


def _attend(
    q: F32, keys: F32, sees: Array, scale: float, Dv: int, kernel: Kernel, store: _Storage
) -> tuple[F32, F32]:
    """Outputs [M, Dv] and log-sum-exps [M] of one part of the keys, by the online softmax."""
    M = len(q)
    top = np.full(M, -np.inf, np.float32)
    mass, out = np.zeros(M, np.float32), np.zeros((M, Dv), np.float32)
    base_2 = kernel.exp == "base_2"
    factor = np.float32(scale) * (LOG2_E if base_2 else np.float32(1))

    def power(x: F32) -> F32:
        return _exp2(x) if base_2 else _exp(x, kernel)

    step = kernel.tile or max(len(keys), 1)
    for first in range(0, len(keys), step):
        part = slice(first, first + step)
        s = _dot(q, np.ascontiguousarray(keys[part].T), kernel) * factor
        s = np.where(sees[:, part], s, np.float32(-np.inf)).astype(np.float32)
        new = np.maximum(top, s.max(axis=1))
        shift = np.where(new == -np.inf, np.float32(0), new)
        with np.errstate(under="ignore"):
            rescale = power(top - shift)
            p = power(s - shift[:, None])
            if kernel.flush:
                p = np.where(p < 2.0**-126, np.float32(0), p)
            ones = np.ones((p.shape[1], 1), np.float32)
            mass = np.asarray(mass * rescale + _dot(p, ones, replace(kernel, fma=True))[:, 0])
            weights = _f32(_ROUND[store.weights](p))
            values = _dot(weights, keys[part, :Dv], kernel)
            out = np.asarray(out * rescale[:, None] + values)
        top = new
    live = mass > 0
    safe = np.where(live, mass, np.float32(1))
    out = np.where(live[:, None], out / safe[:, None], np.float32(0)).astype(np.float32)
    log = _f32(numerics.log(safe.astype(np.float64)))
    natural = top * np.float32(0.6931471805599453) if base_2 else top
    lse = np.where(live, np.where(live, natural, 0) + log, -np.inf)
    return out, _f32(lse)


def _verify_attn(inputs: Arrays, attrs: Attrs, profile: str, kernel: Kernel) -> Outputs:
    store, Dv = _STORAGE[profile], int(attrs["Dv"])
    found = attn_reference.attention(inputs, attrs)  # pads and refusals
    narrow = _ROUND[store.inputs]
    for r, i in zip(*np.nonzero(np.isfinite(found["lse"]).any(axis=2)), strict=True):
        n = int(inputs["n_nodes"][r])
        slots = attn_reference.slots_of(inputs, attrs, int(r), n)
        assert slots is not None
        prefix = len(slots) - (n if "tree_slots" in inputs else 0)
        sees = np.ones(len(slots), bool)
        if "visible" in inputs:
            sees[prefix:] = inputs["visible"][r, i, :n] != 0
        rows = _f32(narrow(inputs["kv_pool"][slots[sees]]))
        q = _f32(narrow(inputs["q"][r, i]))
        everyone = np.ones((len(q), len(rows)), bool)
        out, lse = np.zeros((len(q), Dv), np.float32), np.full(len(q), -np.inf, np.float32)
        for part in np.array_split(np.arange(len(rows)), min(kernel.splits, max(len(rows), 1))):
            o, level = _attend(
                q, rows[part], everyone[:, part], float(attrs["scale"]), Dv, kernel, store
            )
            if kernel.splits > 1:
                o = _f32(_ROUND[store.parts](o))
            out, lse = _merge(out, lse, o, level, kernel)
        value = _ROUND[store.out](out)
        if kernel.flush:
            value = np.where(np.abs(value) < 2.0**-126, 0.0, value)
        found["out"][r, i], found["lse"][r, i] = value, lse
    return found


def _merge(o_a: F32, a: F32, o_b: F32, b: F32, kernel: Kernel) -> tuple[F32, F32]:
    """Two partial results; an empty one leaves the other as it is."""
    top = np.maximum(a, b)
    shift = np.where(top == -np.inf, np.float32(0), top)
    plain = replace(kernel, exp="rounded" if kernel.exp == "base_2" else kernel.exp)
    w_a, w_b = _exp(a - shift, plain), _exp(b - shift, plain)
    total = np.where(top == -np.inf, np.float32(1), w_a + w_b)
    o = (o_a * w_a[:, None] + o_b * w_b[:, None]) / total[:, None]
    lse = np.where(top == -np.inf, top, shift + _f32(numerics.log(total.astype(np.float64))))
    one = (a == -np.inf) | (b == -np.inf)
    lone = np.where((a == -np.inf)[:, None], o_b, o_a)
    lse = np.where(one, np.maximum(a, b), lse)
    return np.where(one[:, None], lone, o).astype(np.float32), lse.astype(np.float32)


# --- merge_state --------------------------------------------------------------------------------


def _merge_state(inputs: Arrays, attrs: Attrs, profile: str, kernel: Kernel) -> Outputs:
    found = merge_reference.reference(inputs, attrs, profile)
    both = np.isfinite(inputs["lse_a"]) & np.isfinite(inputs["lse_b"])
    both &= (found["status"] == 0)[:, None, None]
    a, b = _f32(inputs["lse_a"][both]), _f32(inputs["lse_b"][both])
    o_a, o_b = _f32(inputs["o_a"][both]), _f32(inputs["o_b"][both])
    top = np.maximum(a, b)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if kernel.exp == "base_2":
            w_a, w_b = _exp2(_f32((a - top) * LOG2_E)), _exp2(_f32((b - top) * LOG2_E))
        elif kernel.exp == "base_2_first":
            w_a = _exp2(_f32(a * LOG2_E - top * LOG2_E))
            w_b = _exp2(_f32(b * LOG2_E - top * LOG2_E))
        else:
            w_a, w_b = _exp(a - top, kernel), _exp(b - top, kernel)
        total = w_a + w_b
        if kernel.order == "divide_last":
            o = (w_a[:, None] * o_a + w_b[:, None] * o_b) / total[:, None]
        elif kernel.order == "sigmoid":
            p_a = np.float32(1) / (np.float32(1) + _exp(b - a, kernel))
            p_b = np.float32(1) / (np.float32(1) + _exp(a - b, kernel))
            o = p_a[:, None] * o_a + p_b[:, None] * o_b
        elif kernel.fma:
            p_a, p_b = (w_a / total).astype(np.float64), (w_b / total).astype(np.float64)
            o = _f32(p_a[:, None] * o_a + _f32(p_b[:, None] * o_b).astype(np.float64))
        else:
            o = (w_a / total)[:, None] * o_a + (w_b / total)[:, None] * o_b
        lse = top + _f32(numerics.log(total.astype(np.float64)))
    if kernel.flush:
        o = np.where(np.abs(o) < 2.0**-126, np.float32(0), o)
    found["o"][both] = _ROUND["" if profile == "f32" else profile](o)
    found["lse"][both] = lse
    return found


# --- measuring ----------------------------------------------------------------------------------


def kernels(op: str, profile: str) -> tuple[Kernel, ...]:
    """The legal kernels of an op under a profile."""
    if op == "merge_state":
        return _MERGE_KERNELS
    return _F32_KERNELS if profile == "f32" else _TENSOR_KERNELS


def ratio(gold: Outputs, got: Outputs, bound: str) -> float:
    """max |got - gold| / budget over the class-B outputs; inf where infinities or others differ."""
    worst = 0.0
    for name in gold.keys() & got.keys():
        if "/" in name:
            continue
        if f"{name}/{bound}" not in gold:
            worst = worst if np.array_equal(gold[name], got[name]) else np.inf
            continue
        want, budget = gold[name], numerics.up_to_f32(gold[f"{name}/{bound}"]).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(budget > 0, np.abs(got[name] - want) / budget, np.inf)
        share = np.where(got[name] == want, 0.0, np.where(np.isnan(share), np.inf, share))
        worst = max(worst, float(np.max(share, initial=0.0)))
    return worst


@dataclass(frozen=True)
class Row:
    """One case: error over hard and gate of each legal kernel, and over hard of each wrong one."""

    case: Case
    accept: Mapping[str, tuple[float, float]]
    reject: Mapping[str, float]

    def faults(self, op: str) -> list[str]:
        """What speaks against the budget, one line each."""
        found = []
        by_name = {k.name: k for k in kernels(op, self.case.profile)}
        for name, (hard, gate) in self.accept.items():
            if not hard < 1:
                found.append(f"{op}/{self.case.name}: {name} is {hard:.3g} of hard, want below 1")
            if not (gate < 1 or by_name[name].above_gate):
                found.append(f"{op}/{self.case.name}: {name} is {gate:.3g} of gate, want below 1")
        for name, hard in self.reject.items():
            if not hard >= LEAST_REJECT:
                found.append(f"{op}/{self.case.name}: {name} is {hard:.3g} of hard, want 4 or more")
        return found


def measure(op: str, case: Case) -> Row:
    """Run the legal kernels and the known-wrong conventions of one case."""
    inputs = {name: case_module.widen(np.asarray(a)) for name, a in case.inputs().items()}
    gold = case_module.reference(op)(inputs, case.attrs, case.profile)
    run = _merge_state if op == "merge_state" else _verify_attn
    accept = {}
    for kernel in kernels(op, case.profile):
        got = run(inputs, case.attrs, case.profile, kernel)
        accept[kernel.name] = (ratio(gold, got, "hard"), ratio(gold, got, "gate"))
    known = case_module.wrong(op)
    reject = {
        name: ratio(gold, known[name](inputs, case.attrs, case.profile), "hard")
        for name in case.wrong
    }
    return Row(case, accept, reject)


def rows(op: str) -> Iterator[Row]:
    """Every small case of an op, measured."""
    for case in case_module.cases(op):
        if case.tier == "small":
            yield measure(op, case)


def _rounded(x: float) -> float | str:
    return float(f"{x:.2g}") if np.isfinite(x) else "inf"


def _scores(path: Path | None) -> Mapping[str, Mapping[str, float]]:
    """`<id>/<case>` -> mutant -> error over hard, from the JSON of `kdtr score`.

    A mutant that fails by anything but a budget (integers, infinities, guards) counts as inf.
    """
    found: dict[str, dict[str, float]] = {}
    if path is None:
        return found
    for op in json.loads(path.read_text(encoding="utf-8"))["ops"]:
        for mutant in op["mutants"]:
            for case, cell in zip(op["cases"], mutant["cells"], strict=True):
                share = float(cell["worst_hard"])
                by_budget = cell["status"] == "PASS" or share > 1
                at = found.setdefault(f"{op['op']}/{case}", {})
                at[mutant["mutant"]] = share if by_budget else float("inf")
    return found


def _page(tables: Mapping[str, list[dict[str, Any]]]) -> str:
    """The measured margins as a page: per op, profile and family, worst and least."""
    lines = [
        "# Calibration of the budgets",
        "",
        "Made by `python -m kdtr.calibration --scores FILE`, FILE from `kdtr score --json`. A",
        "row is the worst of its small cases: the error of the worst *legal* kernel as a share of",
        "`hard` and of `gate` (must stay below 1), and the smallest error, as a share of `hard`,",
        "of the wrong conventions and mutants that a case says it rejects (must be 4 or more;",
        "inf: an integer, an infinity or a guard gives it away). The legal kernels: sequential,",
        "reversed, pairwise and FMA sums, online softmax in tiles of 16 and 64, 8 and 33 splits,",
        "base-2 exponentials, exponentials cut to 23 bits, flushed subnormals, and for tensor",
        "cores steps of 16 terms that truncate; weights and parts rounded where the profile says",
        "so. All numbers, kernel by kernel, are in `calibration/<op>.json`.",
    ]
    for op, table in tables.items():
        lines += [
            "",
            f"## {op}",
            "",
            "| profile | family | cases | worst / hard | worst / gate | least wrong / hard |",
            "|---|---|--:|--:|--:|--:|",
        ]
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for entry in table:
            groups.setdefault((entry["profile"], entry["family"]), []).append(entry)
        gentle = {k.name for k in _MERGE_KERNELS if k.above_gate}
        for (profile, family), entries in sorted(groups.items()):
            legal = [(k, v) for e in entries for k, v in e["accept"].items()]
            hard = max(v[0] for _, v in legal)
            gate = max(v[1] for k, v in legal if k not in gentle)
            wrong = [float(v) for e in entries for v in e["reject"].values()]
            least = f"{min(wrong):.3g}" if wrong else "-"
            lines.append(
                f"| {profile} | {family} | {len(entries)} | {hard:.2f} | {gate:.2f} | {least} |"
            )
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """`python -m kdtr.calibration [--scores FILE]`: writes docs/calibration, 1 if a bound fails."""
    if arguments[:1] not in ([], ["--scores"]) or len(arguments) not in (0, 2):
        return 2
    scores = _scores(Path(arguments[1]) if arguments else None)
    FOLDER.mkdir(parents=True, exist_ok=True)
    faults = []
    tables: dict[str, list[dict[str, Any]]] = {}
    for op in OPS:
        table = tables[op] = []
        for row in rows(op):
            mutants = scores.get(f"{contract.load(op).id}/{row.case.name}", {})
            killed = {name: mutants[name] for name in row.case.kills if name in mutants}
            full = replace(row, reject={**row.reject, **killed})
            faults += full.faults(op)
            table.append(
                {
                    "case": row.case.name,
                    "profile": row.case.profile,
                    "family": row.case.family,
                    "accept": {k: [_rounded(x) for x in v] for k, v in full.accept.items()},
                    "reject": {k: _rounded(v) for k, v in full.reject.items()},
                }
            )
        report = {"contract": contract.load(op).id, "digest": contract.load(op).digest}
        text = ",\n".join(json.dumps(entry) for entry in table)
        head = json.dumps(report)[1:-1]
        (FOLDER / f"{op}.json").write_text(f'{{{head}, "cases": [\n{text}\n]}}\n')
    (FOLDER.parent / "calibration.md").write_text(_page(tables), encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
