"""Compare two tensor files: what differs, where, by how much, and a guess at why.

Streams in chunks, so that files far larger than memory compare in about 64 MiB. A fixture is
compared with an engine's `actual.kdtr` under the fixture's own budgets; anything else bitwise,
unless a tolerance is given.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import dtypes
from kdtr.container import File, TensorInfo

CHUNK = 1 << 16
"""Elements compared at a time."""
SAMPLE = 1 << 18
"""Elements kept for the hypotheses; larger tensors are explained from their first part."""
LONG = 1 << 16
"""Axes longer than this are not searched for where mismatches gather."""
HEAT = (32, 64)
"""Rows and columns of a heat map, at most."""
_F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Tolerance:
    """|got - want| <= atol + rtol * |want|, or within `ulp` steps of the expected grid.

    All zero is bitwise: -0 differs from +0, and NaNs with other bits differ.
    `values` compares by value instead: -0 equals +0 and any NaN equals any NaN.
    `ratio` is the share of elements that may miss it.
    """

    atol: float = 0.0
    rtol: float = 0.0
    ulp: float = 0.0
    values: bool = False
    ratio: float = 0.0

    @property
    def bitwise(self) -> bool:
        return not (self.atol or self.rtol or self.ulp or self.values)


@dataclass
class Element:
    """One mismatching element: both values and both bit patterns, and its neighbours."""

    index: list[int]
    want: str
    got: str
    want_bits: str
    got_bits: str
    ulp: float
    neighbours: dict[str, str] = field(default_factory=dict)


@dataclass
class TensorDiff:
    """The comparison of one tensor. `verdict`: equal, within, different or incomparable.

    `within` counts what differs and may; with no mismatch, `worst` is the worst of those.
    `heat` counts mismatches over the tensor laid out as rows of its last axis, in at most
    HEAT bins.
    """

    name: str
    dtype: str
    shape: list[int]
    verdict: str
    reason: str = ""
    numel: int = 0
    mismatches: int = 0
    within: int = 0
    max_abs: float = 0.0
    mean_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    worst_over_budget: float | None = None
    ulp_histogram: dict[str, int] = field(default_factory=dict)
    ulp_quantiles: dict[str, float] = field(default_factory=dict)
    first: Element | None = None
    worst: Element | None = None
    where: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    smallest: dict[str, float] = field(default_factory=dict)
    heat: list[list[int]] = field(default_factory=list)

    @property
    def integer(self) -> bool:
        """Whether `ulp` is the plain difference: of integers and bools."""
        return dtypes.by_name(self.dtype).code in (0, 1, 6)


@dataclass
class FileDiff:
    """The comparison of two files; `exit_code` 0 equal, 1 different, 2 not comparable."""

    want: str
    got: str
    identical: bool
    tensors: list[TensorDiff]
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    meta: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        if any(t.verdict == "incomparable" for t in self.tensors) or self.removed:
            return 2
        changed = any(t.verdict == "different" for t in self.tensors)
        return 1 if changed or self.added or self.renamed or self.meta else 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: this object's fields and `exit_code`."""
        return {**asdict(self), "exit_code": self.exit_code}


def diff(
    want: File,
    got: File,
    default: Tolerance | None = None,
    overrides: Mapping[str, Tolerance] | None = None,
    explain: bool = True,
) -> FileDiff:
    """Compare `got` with `want`, tensor by tensor.

    Args:
        want: the expected file, open.
        got: the file to judge, open.
        default: tolerance of tensors without an override; None takes the fixture's budgets
            where `got` is an engine's actual.kdtr, and bits elsewhere.
        overrides: glob over tensor names to tolerance; the first match counts.
        explain: try the hypotheses on what differs.
    """
    outcome = FileDiff(want.where, got.where, want.identity == got.identity, [])
    if outcome.identical:
        for name in want.tensors:  # a root is a claim: a damaged copy carries it too
            want.check(name)
            got.check(name)
        outcome.tensors = [_equal(info) for info in want.tensors.values()]
        return outcome
    judged = want.meta.get("kdtr.profile") == "fixture/1" and "engine" in got.meta
    names = {n: i for n, i in want.tensors.items() if not judged or n in got.tensors}
    outcome.removed = [n for n in names if n not in got.tensors]
    outcome.added = [n for n in got.tensors if n not in want.tensors]
    by_digest = {got.tensors[n].sha256: n for n in outcome.added}
    for name in list(outcome.removed):
        twin = by_digest.get(want.tensors[name].sha256)
        if twin is not None and twin in outcome.added:
            outcome.renamed.append((name, twin))
            outcome.removed.remove(name)
            outcome.added.remove(twin)
    if not judged:
        outcome.meta = _meta_changes(want, got)
    for name in names:
        if name not in got.tensors:
            continue
        tolerance = default
        for pattern, own in (overrides or {}).items():
            if fnmatch.fnmatchcase(name, pattern):
                tolerance = own
                break
        outcome.tensors.append(_tensor(want, got, name, tolerance, explain, judged))
    return outcome


def _meta_changes(want: File, got: File) -> list[str]:
    lines = []
    pairs = [("", want.meta, got.meta)]
    pairs += [
        (name + ": ", want.tensors[name].meta, got.tensors[name].meta)
        for name in want.tensors
        if name in got.tensors
    ]
    for owner, a, b in pairs:
        for key in sorted({*a, *b}):
            left, right = a.get(key, "(absent)"), b.get(key, "(absent)")
            same = type(left) is type(right) and (left == right or left is right)
            if not same and not (_nan(left) and _nan(right)):
                lines.append(f"{owner}{key}: {left!r} -> {right!r}"[:300])
    return lines


def _nan(x: object) -> bool:
    return isinstance(x, float) and math.isnan(x)


def _equal(info: TensorInfo) -> TensorDiff:
    return TensorDiff(info.name, info.dtype.name, list(info.shape), "equal", numel=info.numel)


def _incomparable(name: str, info: TensorInfo, reason: str) -> TensorDiff:
    return TensorDiff(name, info.dtype.name, list(info.shape), "incomparable", reason)


def _tensor(
    want: File, got: File, name: str, tolerance: Tolerance | None, explain: bool, judged: bool
) -> TensorDiff:
    a, b = want.info(name), got.info(name)
    if a.shape != b.shape:
        return _incomparable(name, a, f"shape, want {list(a.shape)}, got {list(b.shape)}")
    budgeted = judged and tolerance is None and f"{name}/hard" in want.tensors
    if a.dtype != b.dtype and not (budgeted and a.meta.get("actual.dtype") == b.dtype.name):
        return _incomparable(name, a, f"dtype, want {a.dtype.name}, got {b.dtype.name}")
    want.check(name)
    got.check(name)
    if a.dtype == b.dtype and a.sha256 == b.sha256:
        return _equal(a)
    scan = _Scan(b, tolerance or Tolerance(), budgeted)
    budget = want[f"{name}/hard"].reshape(-1) if budgeted else None
    for start, stop in _chunks(a):
        scan.add(
            start,
            _codes(want, a, start, stop),
            _codes(got, b, start, stop),
            _numbers(want, a, start, stop),
            _numbers(got, b, start, stop),
            None if budget is None else budget[start:stop].astype(np.float64),
        )
    result = scan.result(name)
    if explain and result.verdict == "different":
        top = min(a.numel, SAMPLE)
        result.why = list(_explain(_numbers(want, a, 0, top), _numbers(got, b, 0, top), a, b))
    return result


def _chunks(info: TensorInfo) -> Iterator[tuple[int, int]]:
    for start in range(0, info.numel, CHUNK):  # a multiple of 8, so packed types start on a byte
        yield start, min(start + CHUNK, info.numel)


def _stored(file: File, info: TensorInfo, start: int, stop: int) -> NDArray[Any]:
    flat = file[info.name].reshape(-1)
    if info.dtype.packed:
        bits = info.dtype.bits
        part = flat[start * bits // 8 : (stop * bits + 7) // 8]
        return dtypes.unpack(part, bits, stop - start)
    return flat[start:stop]


def _codes(file: File, info: TensorInfo, start: int, stop: int) -> NDArray[Any]:
    """Bit patterns as unsigned integers; complex numbers as pairs on a last axis."""
    part = np.ascontiguousarray(_stored(file, info, start, stop))
    size = part.dtype.itemsize
    unit = size // 2 if info.dtype.code == 5 else size
    return part.view(f"<u{unit}").reshape(len(part), -1) if len(part) else part.reshape(0, 1)


def _numbers(file: File, info: TensorInfo, start: int, stop: int) -> NDArray[Any]:
    """Values as f64 (complex: c128)."""
    part = np.ascontiguousarray(file[info.name]).reshape(-1)
    if info.dtype.packed:
        bits = info.dtype.bits
        part = part[start * bits // 8 : (stop * bits + 7) // 8]
    else:
        part = part[start:stop]
    values = dtypes.decode(part, info.dtype.name, (stop - start,))
    with np.errstate(invalid="ignore"):  # a signalling NaN widens to a quiet one
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


class _Scan:
    """Running statistics of one tensor; `info` is the actual tensor's record."""

    def __init__(self, info: TensorInfo, tolerance: Tolerance, budgeted: bool) -> None:
        self.info, self.tolerance, self.budgeted = info, tolerance, budgeted
        self.numel = self.bad = self.differing = 0
        self.max_abs = self.max_rel = self.max_ulp = self.sum_abs = 0.0
        self.worst_ratio = 0.0
        self.first: Element | None = None
        self.worst: Element | None = None
        self.legal: Element | None = None
        self.worst_key = self.legal_key = -1.0
        self.histogram: dict[str, int] = {}
        self.ulps: list[_F64] = []
        self.axis_hits = [np.zeros(n if n <= LONG else 0, np.int64) for n in info.shape]
        self.periods = {p: np.zeros(p, np.int64) for p in (16, 32, 64, 128)}
        self.smallest_atol = 0.0
        self.columns = info.shape[-1] if info.shape else 1
        self.rows = max(1, info.numel // max(1, self.columns))
        self.heat = np.zeros((min(HEAT[0], self.rows), min(HEAT[1], self.columns)), np.int64)

    def add(
        self,
        start: int,
        want_codes: NDArray[Any],
        got_codes: NDArray[Any],
        want: NDArray[Any],
        got: NDArray[Any],
        budget: _F64 | None,
    ) -> None:
        self.numel += len(want)
        tol = self.tolerance
        same_bits = want == got if self.budgeted else (want_codes == got_codes).all(axis=1)
        both_nan = np.isnan(want) & np.isnan(got)
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(want == got, 0.0, np.abs(got - want))
        one_nan = np.isnan(error) & ~both_nan
        error = np.where(both_nan, 0.0, np.where(one_nan, np.inf, error))
        steps = ulp_distance(want, got, self.info.dtype.name)
        differs = ~same_bits
        if tol.values or self.budgeted:
            differs &= ~both_nan & (error != 0)
        if budget is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.where(error == 0, 0.0, error / budget)
            bad = ~(error <= budget)
            self.worst_ratio = max(self.worst_ratio, float(np.max(share, initial=0.0)))
        elif tol.bitwise or (tol.values and not (tol.atol or tol.rtol or tol.ulp)):
            bad = differs
        else:
            with np.errstate(invalid="ignore", over="ignore"):
                allowed = tol.atol + tol.rtol * np.abs(want)
            bad = differs & ~(error <= allowed) & ~((steps <= tol.ulp) if tol.ulp else False)
            bad |= one_nan
        self.differing += int(differs.sum())
        hits = np.flatnonzero(bad)
        self.bad += len(hits)
        if not differs.any():
            return
        e, s = error[differs], steps[differs]
        finite = e[np.isfinite(e)]
        self.sum_abs += math.fsum(finite)
        self.max_abs = max(self.max_abs, float(np.max(e)))
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(e == 0, 0.0, e / np.abs(want[differs]))
        self.max_rel = max(self.max_rel, float(np.max(relative, initial=0.0)))
        self.max_ulp = max(self.max_ulp, float(np.max(s)))
        self.smallest_atol = max(self.smallest_atol, float(np.max(e)))
        self._count(s)
        key = error / np.maximum(budget, 1e-300) if budget is not None else error
        if len(hits) == 0:
            legal = np.flatnonzero(differs)
            at = int(legal[np.argmax(key[legal])])
            if key[at] > self.legal_key:
                self.legal_key = float(key[at])
                self.legal = self._element(start, at, want, got, want_codes, got_codes, steps)
            return
        if self.first is None:
            self.first = self._element(start, int(hits[0]), want, got, want_codes, got_codes, steps)
        at = int(hits[np.argmax(key[hits])])
        if key[at] > self.worst_key:
            self.worst_key = float(key[at])
            self.worst = self._element(start, at, want, got, want_codes, got_codes, steps)
        self._place(hits + start)

    def _count(self, steps: _F64) -> None:
        bucket = np.where(steps < 1, 0, np.floor(np.log2(np.maximum(steps, 1))) + 1)
        bucket = np.where(np.isfinite(steps), bucket, 99).astype(np.int64)
        for b, n in zip(*np.unique(bucket, return_counts=True), strict=True):
            label = {0: "<1", 1: "1", 99: "inf"}.get(int(b), f"2^{int(b) - 1}")
            self.histogram[label] = self.histogram.get(label, 0) + int(n)
        kept = sum(len(u) for u in self.ulps)
        if kept < SAMPLE:
            self.ulps.append(steps[: SAMPLE - kept])

    def _place(self, flat: NDArray[np.int64]) -> None:
        rows, columns = self.heat.shape
        row = flat // self.columns * rows // self.rows
        column = flat % self.columns * columns // self.columns
        np.add.at(self.heat, (row, column), 1)
        rest = flat.copy()
        for axis in range(len(self.info.shape) - 1, -1, -1):
            size = self.info.shape[axis]
            if size <= LONG:
                self.axis_hits[axis] += np.bincount(rest % size, minlength=size)
            rest //= size
        if self.info.shape:
            last = flat % self.info.shape[-1]
            for period in self.periods:
                self.periods[period] += np.bincount(last % period, minlength=period)

    def _element(
        self,
        start: int,
        at: int,
        want: NDArray[Any],
        got: NDArray[Any],
        want_codes: NDArray[Any],
        got_codes: NDArray[Any],
        steps: _F64,
    ) -> Element:
        index = [int(i) for i in np.unravel_index(start + at, self.info.shape or (1,))]
        near = {}

        def show(values: NDArray[Any], codes: NDArray[Any], k: int) -> str:
            integer = self.info.dtype.code in (0, 1, 6)
            return _integer(codes[k], self.info.dtype) if integer else _show(values[k])

        for label, k in (("before", at - 1), ("after", at + 1)):
            if 0 <= k < len(want):
                pair = show(want, want_codes, k), show(got, got_codes, k)
                near[label] = f"want {pair[0]}, got {pair[1]}"
        return Element(
            index if self.info.shape else [],
            show(want, want_codes, at),
            show(got, got_codes, at),
            _hex(want_codes[at]),
            _hex(got_codes[at]),
            float(steps[at]),
            near,
        )

    def result(self, name: str) -> TensorDiff:
        allowed = math.floor(self.tolerance.ratio * self.numel)
        different = self.bad > allowed
        verdict = "different" if different else ("within" if self.differing else "equal")
        diff_ = TensorDiff(
            name, self.info.dtype.name, list(self.info.shape), verdict, "", self.numel, self.bad
        )
        diff_.max_abs, diff_.max_rel, diff_.max_ulp = self.max_abs, self.max_rel, self.max_ulp
        diff_.mean_abs = self.sum_abs / self.numel if self.numel else 0.0
        diff_.ulp_histogram = self.histogram
        if self.ulps:
            ordered = np.sort(np.concatenate(self.ulps), kind="stable")
            for label, q in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
                diff_.ulp_quantiles[label] = float(
                    ordered[min(len(ordered) - 1, int(q * len(ordered)))]
                )
        if self.budgeted:
            diff_.worst_over_budget = self.worst_ratio
        diff_.within = self.differing - self.bad
        diff_.first, diff_.worst = self.first, self.worst or self.legal
        if self.differing:
            diff_.smallest = {"atol": self.smallest_atol, "ulp": self.max_ulp}
        if self.bad:
            diff_.where = list(self._where())
            diff_.heat = self.heat.tolist()
        return diff_

    def _where(self) -> Iterator[str]:
        for axis, hits in enumerate(self.axis_hits):
            size = len(hits)
            used = np.flatnonzero(hits)
            if size < 2 or len(used) == size:
                continue
            if len(used) == 1:
                at = int(used[0])
                last = " (the last)" if at == size - 1 else ""
                yield f"all in axis {axis}, index {at}{last}"
            elif len(used) <= 8:
                yield f"all in axis {axis}, indices {[int(u) for u in used]} of {size}"
            elif used[-1] == size - 1 and len(used) == size - used[0]:
                yield f"axis {axis}: the tail from index {int(used[0])} of {size}"
            elif used[0] == 0 and len(used) == used[-1] + 1:
                yield f"axis {axis}: the head up to index {int(used[-1])} of {size}"
        for period, hits in self.periods.items():
            if self.info.shape and self.info.shape[-1] >= 2 * period:
                used = np.flatnonzero(hits)
                if 0 < len(used) <= period // 4:
                    yield f"last axis: only indices {[int(u) for u in used[:4]]} modulo {period}"
                    break


def ulp_distance(want: NDArray[Any], got: NDArray[Any], dtype: str) -> _F64:
    """|got - want| in steps of the type's grid at `want`; integers and bools: the difference.

    NaN against a number is infinite; the steps of complex values are those of the larger part.
    """
    if want.dtype.kind == "c":
        part = {"c128": "f64", "c64": "f32", "c32": "f16"}[dtype]
        return np.maximum(
            ulp_distance(want.real, got.real, part), ulp_distance(want.imag, got.imag, part)
        )
    layout = {"f64": (53, -1022), "f8_e8m0fnu": (1, -127)}.get(dtype)
    if known := dtypes.FLOATS.get(dtype):
        layout = known.mantissa + 1, 1 - known.bias
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.where(want == got, 0.0, np.abs(got - want))
        if layout is not None:
            digits, low = layout
            _, e = np.frexp(np.where(np.isfinite(want), want, 1.0))
            e = np.where(want == 0, low + 1, e)
            unit = np.maximum(e, low + 1) - digits
            error = np.ldexp(error, -unit)
    both = np.isnan(want) & np.isnan(got)
    distance: _F64 = np.where(both, 0.0, np.where(np.isnan(error), np.inf, error))
    return distance


def _show(x: Any) -> str:
    return repr(complex(x)) if isinstance(x, complex) else repr(float(x))


def _integer(codes: NDArray[Any], dtype: dtypes.DType) -> str:
    """From the bits: an i64 as f64 would lose digits."""
    value = int(codes[0])
    return str(value - (1 << dtype.bits) if dtype.code == 0 and value >> dtype.bits - 1 else value)


def _hex(codes: NDArray[Any]) -> str:
    width = 2 * codes.dtype.itemsize
    return " ".join(f"0x{int(c):0{width}x}" for c in codes)


# --- why ----------------------------------------------------------------------------------------
def _explain(want: NDArray[Any], got: NDArray[Any], a: TensorInfo, b: TensorInfo) -> Iterator[str]:
    """Cheap hypotheses that explain every element, most specific first."""
    if want.dtype.kind == "c" or want.size == 0:
        return
    if np.all(got == 0) and np.any(want != 0):
        yield "got is all zeros: the output was not written"
        return
    tail = _unwritten_tail(want, got)
    if tail is not None:
        yield f"everything from element {tail} on is zero or NaN: the tail was not written"
    whole = want.size == a.numel
    if whole:
        yield from _moved(want.reshape(a.shape), got.reshape(a.shape))
    for name, change in _CHANGES.items():
        if name.startswith("nibbles") and b.dtype.bits != 4:
            continue
        with np.errstate(all="ignore"):
            changed = _on_grid(change(want), b.dtype)
        if not _same(changed, want) and _same(changed, got):
            yield name
    if b.dtype.code in (2, 4):
        yield from _factor(want, got, b.dtype.name)
    if not a.dtype.packed and a.dtype.bits in (16, 32, 64) and a.dtype == b.dtype:
        stored = np.ascontiguousarray(dtypes.encode(want, a.dtype.name))
        with np.errstate(invalid="ignore"):
            swapped = dtypes.decode(stored.byteswap(), a.dtype.name, (want.size,)).astype(float)
        if _same(swapped, got) and not _same(swapped, want):
            yield "byte order swapped"


def _same(a: _F64, b: _F64) -> bool:
    return np.array_equal(a, b, equal_nan=True)


def _on_grid(x: _F64, dtype: dtypes.DType) -> _F64:
    return dtypes.round_to(x, dtype.name) if dtype.code in (2, 4) else x


def _flush(x: _F64) -> _F64:
    y: _F64 = np.where(np.abs(x) < 2.0**-126, 0.0, x)
    return y


def _tf32(x: _F64) -> _F64:
    m, e = np.frexp(x)
    y: _F64 = np.ldexp(np.rint(m * 2.0**11), e - 11)
    return y


def _nibbles(x: _F64) -> _F64:
    y = x.copy()
    pairs = len(x) // 2 * 2
    y[0:pairs:2], y[1:pairs:2] = x[1:pairs:2], x[0:pairs:2]
    return y


_CHANGES: dict[str, Callable[[_F64], _F64]] = {
    "sign flipped": np.negative,
    "sign of zero lost": lambda x: x + 0.0,
    "subnormals flushed to zero": _flush,
    "rounded to bf16": lambda x: dtypes.round_to(x, "bf16"),
    "rounded to f16": lambda x: dtypes.round_to(x, "f16"),
    "rounded to tf32": _tf32,
    "infinite where -inf is expected": lambda x: np.where(x == -np.inf, np.inf, x),
    "nibbles of each byte swapped": _nibbles,
}


def _unwritten_tail(want: _F64, got: _F64) -> int | None:
    dead = (got == 0) | np.isnan(got)
    live = np.flatnonzero(~dead)
    start = int(live[-1]) + 1 if len(live) else 0
    wanted = want[start:]
    return start if 0 < start < len(got) and np.any((wanted != 0) & ~np.isnan(wanted)) else None


def _moved(want: _F64, got: _F64) -> Iterator[str]:
    flat_want, flat_got = want.reshape(-1), got.reshape(-1)
    for shift in (1, -1):
        if len(flat_want) > 2 and not _same(flat_want, np.roll(flat_want, shift)):
            inner = slice(1, None) if shift == 1 else slice(None, -1)
            if _same(np.roll(flat_want, shift)[inner], flat_got[inner]):
                yield f"shifted by {shift:+d} element"
    for i in range(want.ndim):
        for j in range(i + 1, want.ndim):
            turned = np.swapaxes(want, i, j)
            if not _same(turned.reshape(-1), flat_want) and _same(turned.reshape(-1), flat_got):
                yield f"axes {i} and {j} transposed"
        reverse = np.flip(want, i)
        if not _same(reverse, want) and _same(reverse, got):
            yield f"axis {i} reversed"
        if 2 <= want.shape[i] <= 4096:
            rows = np.moveaxis(want, i, 0).reshape(want.shape[i], -1)
            mine = np.moveaxis(got, i, 0).reshape(want.shape[i], -1)
            bad = [k for k in range(len(rows)) if not _same(rows[k], mine[k])]
            if (
                len(bad) == 2
                and _same(rows[bad[0]], mine[bad[1]])
                and _same(rows[bad[1]], mine[bad[0]])
            ):
                yield f"rows {bad[0]} and {bad[1]} of axis {i} swapped"


_FACTORS = {
    1.4426950408889634: "logarithm in base 2 instead of e",
    0.6931471805599453: "logarithm in base e instead of 2",
    2.302585092994046: "logarithm in base e instead of 10",
    0.4342944819032518: "logarithm in base 10 instead of e",
}


def _factor(want: _F64, got: _F64, dtype: str) -> Iterator[str]:
    usable = np.isfinite(want) & np.isfinite(got) & (want != 0)
    if usable.sum() < 3:
        return
    ratio = got[usable] / want[usable]
    middle = float(np.sort(ratio, kind="stable")[len(ratio) // 2])
    slack = 4 * 2.0 ** -{"f64": 53, "f32": 24, "f16": 11, "bf16": 8}.get(dtype, 3)
    if middle not in (-1.0, 0.0, 1.0) and np.all(np.abs(ratio - middle) <= slack * abs(middle)):
        known = [label for value, label in _FACTORS.items() if abs(middle / value - 1) <= slack]
        yield f"constant factor {middle:.9g}" + (f" ({known[0]})" if known else "")
    gap = got[usable] - want[usable]
    step = float(np.sort(gap, kind="stable")[len(gap) // 2])
    scale = slack * (np.abs(want[usable]) + abs(step))
    if step != 0 and np.all(np.abs(gap - step) <= scale) and np.max(np.abs(want[usable])) > 0:
        yield f"constant offset {step:.9g}"
