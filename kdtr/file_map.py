"""Where everything is in a KDTR file, damaged ones included: `kdtr inspect --map`."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kdtr import container, dtypes
from kdtr.errors import FormatError

_MANY = 4096
"""Records that are listed; a damaged count may claim a million."""
_NAMES = {(d.code, d.bits): d.name for d in dtypes.DTYPES.values()}


@dataclass(frozen=True)
class Region:
    """Bytes `start` to `stop` of a file, what they are, and the rules that they break.

    `stop` may lie behind the end of a file that was cut short; `present` counts the bytes there.
    """

    start: int
    stop: int
    present: int
    what: str
    codes: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        if self.present == 0 and self.stop > self.start:
            return "MISSING"
        cut = ("CUT",) if self.present < self.stop - self.start else ()
        return " ".join((*self.codes, *cut)) or "ok"


def regions(data: bytes, errors: Sequence[FormatError] | None = None) -> list[Region]:
    """The regions of a file in order, as far as its header makes sense.

    `errors` are those of `container.all_errors(data)`, which is called when they are not given.
    An error belongs to the region of its offset; a payload's own checksum is tested here.
    """
    if errors is None:
        errors = container.all_errors(data)
    found = []
    for start, stop, what, extra in _spans(data):
        codes = [e.code for e in errors if start <= e.offset < max(stop, start + 1)]
        present = max(0, min(stop, len(data)) - start)
        unique = tuple(dict.fromkeys([*codes, *extra]))
        found.append(Region(start, stop, present, what, unique))
    return found


def lines(data: bytes, errors: Sequence[FormatError] | None = None) -> Iterator[str]:
    """The regions as aligned lines: offsets in hex, size, state, content."""
    for r in regions(data, errors):
        size = r.stop - r.start
        yield f"{r.start:08x}-{r.stop:08x}  {size:>10}  {r.state:16}  {r.what}"


_Span = tuple[int, int, str, Sequence[str]]


def _spans(data: bytes) -> Iterator[_Span]:
    if len(data) < 128 or data[:4] != b"KDTR":
        yield 0, len(data), "not a KDTR header", ()
        return
    n, m, s = struct.unpack_from("<3I", data, 56)
    yield 0, 128, f"header: {n} tensors, {m} metadata records, {s} string bytes", ()
    kv, pool = 128 + 128 * n, 128 + 128 * n + 24 * m
    end = pool + s
    payloads = []
    if n <= _MANY and kv <= len(data):
        for i in range(n):
            at = 128 + 128 * i
            payload = _record(data, at, pool, s)
            payloads.append(payload)
            yield at, at + 128, f"record of {payload[2]}", ()
    elif n:
        yield 128, kv, f"{n} tensor records", ()
    if m:
        yield kv, pool, f"{m} metadata records", ()
    if s:
        yield pool, end, "strings", ()
    at = end
    for start, stop, what, codes in sorted(payloads):
        if start > at:
            yield at, start, "padding", ()
        yield start, stop, what, codes
        at = max(at, stop)
    size = struct.unpack_from("<Q", data, 48)[0]
    last = size if at <= size <= 2 * len(data) + 256 else len(data)
    if last > at:
        yield at, last, "padding", ()
    if len(data) > last:
        yield last, len(data), "bytes after the end", ()


def _record(data: bytes, at: int, pool: int, s: int) -> _Span:
    name_at, length, rank, _, code, bits, _, crc, start, size = struct.unpack_from(
        "<IHBBBBHIQQ", data, at
    )
    raw = data[pool + name_at : pool + name_at + length] if name_at + length <= s else b"?"
    name = raw.decode("utf-8", "replace")
    name = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)
    shape = struct.unpack_from(f"<{min(rank, 8)}Q", data, at + 32)
    dtype = _NAMES.get((code, bits), f"type {code},{bits}")
    what = f"{name} {dtype}[{', '.join(map(str, shape))}]"
    stop = min(start + size, 1 << 64)
    whole = stop <= len(data)
    broken = whole and zlib.crc32(data[start:stop]) != crc
    return start, stop, what, ("E_TENSOR_CRC",) if broken else ()
