"""What `kdtr inspect` shows: statistics of tensors, slices of them, and their bytes in the file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kdtr import dtypes
from kdtr.container import File, Scalar, TensorInfo
from kdtr.errors import KdtrError

Array = NDArray[Any]
Notation = Literal["dec", "hex", "bits", "float"]

_DISTINCT_LIMIT = 16
"""Integers with at most so many different values have them listed."""


@dataclass(frozen=True)
class Stats:
    """What is to be known of a tensor's values at a glance.

    Counts are of elements. `low`, `high`, `mean` and `std` are of the finite ones, and None when
    there are none (or the type is complex). `distinct` lists the values of an integer tensor that
    has few, else it is None.
    """

    low: float | int | None
    high: float | int | None
    mean: float | None
    std: float | None
    nan: int
    inf: int
    subnormal: int
    zero: int
    distinct: Sequence[int] | None


def stats(file: File, name: str) -> Stats:
    """Statistics of one tensor. Raises FormatError when its payload is damaged."""
    info = file.info(name)
    values = file.values(name).reshape(-1)
    if values.dtype.kind == "c":
        nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        return Stats(None, None, None, None, nan, inf, 0, int((values == 0).sum()), None)
    if values.dtype.kind != "f":
        return _integer_stats(values)
    finite = values[np.isfinite(values)].astype(np.float64)
    layout = dtypes.FLOATS.get(info.dtype.name)
    normal = math.ldexp(1.0, 1 - layout.bias if layout else -1022)
    return Stats(
        low=float(finite.min()) if finite.size else None,
        high=float(finite.max()) if finite.size else None,
        mean=float(finite.mean()) if finite.size else None,
        std=float(finite.std()) if finite.size else None,
        nan=int(np.isnan(values).sum()),
        inf=int(np.isinf(values).sum()),
        subnormal=int(((finite != 0) & (np.abs(finite) < normal)).sum()),
        zero=int((finite == 0).sum()),
        distinct=None,
    )


def _integer_stats(values: Array) -> Stats:
    if not values.size:
        return Stats(None, None, None, None, 0, 0, 0, 0, ())
    seen = np.unique(values)
    return Stats(
        low=int(seen[0]),
        high=int(seen[-1]),
        mean=float(values.mean(dtype=np.float64)),
        std=float(values.std(dtype=np.float64)),
        nan=0,
        inf=0,
        subnormal=0,
        zero=int((values == 0).sum()),
        distinct=[int(v) for v in seen] if seen.size <= _DISTINCT_LIMIT else None,
    )


def as_dict(file: File) -> dict[str, Any]:
    """The whole file as plain data: a stable shape for `--json`.

    NaN and infinite metadata, which JSON lacks, become strings; bytes become hex.
    """
    return {
        "file": file.where,
        "identity": file.identity,
        "meta": _plain(file.meta),
        "tensors": [
            {
                "name": info.name,
                "dtype": info.dtype.name,
                "shape": list(info.shape),
                "offset": info.offset,
                "bytes": info.nbytes,
                "crc32": f"{info.crc32:08x}",
                "sha256": info.sha256.hex(),
                "meta": _plain(info.meta),
                "stats": vars_of(stats(file, info.name)),
            }
            for info in file.tensors.values()
        ],
    }


def vars_of(one: Stats) -> dict[str, Any]:
    """A `Stats` as a dictionary."""
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def _plain(meta: Mapping[str, Scalar]) -> dict[str, Any]:
    return {
        key: value.hex()
        if isinstance(value, bytes)
        else str(value)
        if isinstance(value, float) and not math.isfinite(value)
        else value
        for key, value in meta.items()
    }


_HEADINGS = (
    *("name", "dtype", "shape", "bytes", "role", "class"),
    *("min", "max", "mean", "std", "nan", "inf", "sub", "zero", "sha256"),
)


def table(file: File) -> list[list[str]]:
    """Rows of the overview, the first with the headings."""
    rows = [list(_HEADINGS)]
    for info in file.tensors.values():
        one = stats(file, info.name)
        rows.append(
            [
                escape(info.name),
                info.dtype.name,
                "x".join(map(str, info.shape)) or "scalar",
                str(info.nbytes),
                escape(str(info.meta.get("role", ""))),
                escape(str(info.meta.get("class", ""))),
                *(_number(v) for v in (one.low, one.high, one.mean, one.std)),
                *(str(n or "") for n in (one.nan, one.inf, one.subnormal, one.zero)),
                info.sha256.hex()[:8],
            ]
        )
    return rows


def overview(file: File) -> Iterator[str]:
    """What the file is, and the table of its tensors."""
    yield f"{escape(file.where)}  {file.identity}  {len(file)} tensors"
    for key in ("op", "case", "catches", "arith", "tier"):
        if key in file.meta:
            yield f"{key}: {escape(str(file.meta[key]))}"
    yield from columns(table(file))


def meta_lines(file: File) -> Iterator[str]:
    """Metadata of the file, then of each tensor, as `owner: key = value`."""
    for owner, meta in [("file", file.meta), *((t.name, t.meta) for t in file.tensors.values())]:
        for key, value in meta.items():
            shown = value.hex() if isinstance(value, bytes) else escape(str(value))
            yield f"{escape(owner)}: {escape(key)} = {shown}"


def histogram(file: File, name: str, bins: int = 16, width: int = 50) -> Iterator[str]:
    """Counts of a tensor's values as bars: each value of an integer with few, else equal bins.

    NaN and infinities are counted apart. Raises KdtrError for complex types.
    """
    values = file.values(name).reshape(-1)
    if values.dtype.kind == "c":
        raise KdtrError(name, "no histogram of complex numbers")
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    rows: list[tuple[str, int]] = []
    if values.dtype.kind != "f" and np.unique(finite).size <= bins:
        rows = [
            (str(v), int(n)) for v, n in zip(*np.unique(finite, return_counts=True), strict=True)
        ]
    elif finite.size:
        wide = finite.astype(np.float64)
        low, high = float(wide.min()), float(wide.max())
        scaled = (wide / 2 - low / 2) / (high / 2 - low / 2) if high > low else np.zeros(wide.shape)
        counts = np.bincount(np.minimum((scaled * bins).astype(np.int64), bins - 1), minlength=bins)
        for i, count in enumerate(counts.tolist()):
            at = low / 2 + (high / 2 - low / 2) * (i / bins)
            rows.append((f"{2 * at:.6g}", count))
    if values.dtype.kind == "f":
        for label, count in (
            ("-inf", int((values == -np.inf).sum())),
            ("+inf", int((values == np.inf).sum())),
            ("nan", int(np.isnan(values).sum())),
        ):
            rows += [(label, count)] if count else []
    top = max((count for _, count in rows), default=1)
    label_width = max((len(label) for label, _ in rows), default=0)
    for label, count in rows:
        bar = "#" * -(-width * count // max(top, 1))
        yield f"{label:>{label_width}}  {count:>9}  {bar}".rstrip()


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as aligned lines; columns that are empty below their heading are left out."""
    kept = [i for i in range(len(rows[0])) if len(rows) == 1 or any(row[i] for row in rows[1:])]
    widths = {i: max(len(row[i]) for row in rows) for i in kept}
    numeric = {i for i in kept if all(re.fullmatch(r"[-+0-9.e]*", r[i]) for r in rows[1:])}
    for row in rows:
        cells = (row[i].rjust(widths[i]) if i in numeric else row[i].ljust(widths[i]) for i in kept)
        yield "  ".join(cells).rstrip()


def escape(text: str) -> str:
    """`text` with control characters and what a terminal may act on made visible."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _number(value: float | int | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


# --- slices -------------------------------------------------------------------------------------


def parse_slice(text: str) -> tuple[str, tuple[Any, ...]]:
    """`name` or `name[0, :4, ::2]` as a name and an index. Raises KdtrError for bad syntax."""
    name, bracket, rest = text.partition("[")
    if not bracket:
        return name, ()
    if not rest.endswith("]"):
        raise KdtrError(text, "slice", "NAME[index, start:stop:step, ...]", text)
    return name, tuple(_parse_part(text, part.strip()) for part in rest[:-1].split(","))


def _parse_part(text: str, part: str) -> Any:
    if part == "...":
        return Ellipsis
    try:
        if ":" not in part:
            return int(part)
        return slice(*(int(x) if x.strip() else None for x in part.split(":")))
    except (ValueError, TypeError):
        raise KdtrError(text, "index", "an integer, a:b:c or ...", repr(part)) from None


def take(file: File, text: str, notation: Notation = "dec") -> Array:
    """A slice of a tensor as an array of texts, in its sliced shape.

    Notations: "dec" shortest decimal that reads back the same, "hex" and "bits" the stored code,
    "float" C's %a. Raises KdtrError when the index does not fit.
    """
    name, index = parse_slice(text)
    info = file.info(name)
    source = codes(file, info) if notation in ("hex", "bits") else file.values(name)
    try:
        part = source[index] if index else source
    except (IndexError, ValueError):  # the latter of a step of 0
        raise KdtrError(
            f"{file.where}/{name}", "index does not fit", f"shape {list(info.shape)}", text
        ) from None
    part = np.asarray(part)
    shown = [show(v, info.dtype, notation) for v in part.reshape(-1).tolist()]
    return np.array(shown, dtype=object).reshape(part.shape)


def codes(file: File, info: TensorInfo) -> Array:
    """Stored codes of a tensor in its logical shape, as unsigned integers."""
    raw = file[info.name]
    if info.dtype.packed:
        return dtypes.unpack(raw, info.dtype.bits, info.numel).reshape(info.shape)
    if info.dtype.bits > 64:
        raise KdtrError(f"{file.where}/{info.name}", "no codes for a type above 64 bits")
    return raw.view(f"<u{info.dtype.bits // 8}")


def show(value: Any, dtype: dtypes.DType, notation: Notation) -> str:
    """One value (or stored code) in a notation."""
    if notation == "hex":
        return f"0x{value:0{(dtype.bits + 3) // 4}x}"
    if notation == "bits":
        return f"{value:0{dtype.bits}b}"
    if isinstance(value, float):
        if notation == "float":
            return value.hex()
        # Types of at most 32 bits were widened to f32: its shortest decimal names the value.
        return str(np.float32(value)) if dtype.bits <= 32 else repr(value)
    return str(int(value)) if isinstance(value, bool) else str(value)


def grid(texts: Array) -> Iterator[str]:
    """An array of texts as lines: the last axis along a line, an index before each."""
    if texts.ndim == 0:
        yield str(texts.item())
        return
    width = max((len(t) for t in texts.reshape(-1).tolist()), default=0)
    for index in np.ndindex(texts.shape[:-1]):
        head = f"[{', '.join(map(str, index))}] " if index else ""
        yield head + " ".join(t.rjust(width) for t in texts[index].tolist())


def hexdump(file: File, text: str) -> Iterator[str]:
    """Lines of 16 bytes of one tensor: file offset, index of the first element, bytes, values."""
    name, index = parse_slice(text)
    if index:
        raise KdtrError(text, "--hex shows a whole tensor", "a name", text)
    info = file.info(name)
    raw, values = file.raw(name), file.values(name).reshape(-1)
    per_line = 16 * 8 // info.dtype.bits
    for start in range(0, info.nbytes, 16):
        first = start * 8 // info.dtype.bits
        row = values[first : first + per_line].tolist()
        shown = " ".join(show(v, info.dtype, "dec") for v in row)
        at = np.unravel_index(first, info.shape) if info.shape else ()
        place = "[" + ", ".join(str(int(i)) for i in at) + "]"
        stored = raw[start : start + 16].hex(" ")
        stored = raw[start : start + 16].hex(" ")
        yield f"{info.offset + start:08x}  {place:>12}  {stored:47}  {shown}"
