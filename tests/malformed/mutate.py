"""Random damage to KDTR files, most of it resealed so that the rules behind the checksum see it.

python tests/malformed/mutate.py SEED COUNT   writes u32 length and bytes of each to stdout
"""

from __future__ import annotations

import random
import struct
import sys
import zlib
from collections.abc import Callable, Iterator

from malformed.generate import BASE, CASES, seal

Edit = Callable[[random.Random, bytearray], None]

_SEEDS = [c.data for c in CASES if c.code == "OK"] + [BASE] * 8
_HEADER = ((0, 8), (8, 4), (12, 4), (16, 8), (48, 8), (56, 4), (60, 4), (64, 4), (68, 4), (127, 1))
_TENSOR = ((0, 4), (4, 2), (6, 1), (7, 1), (8, 1), (9, 1), (10, 2), (12, 4), (16, 8), (24, 8))
_DIMS = tuple((32 + 8 * k, 8) for k in range(8))
_KV = ((0, 4), (4, 4), (8, 2), (10, 1), (11, 1), (12, 4), (16, 8))


def _counts(file: bytearray) -> tuple[int, int, int]:
    n, m, s = struct.unpack_from("<III", file.ljust(68, b"\0"), 56)
    return min(n, 64), min(m, 64), min(s, 1 << 16)


def _value(rng: random.Random, size: int, old: int) -> int:
    """A boundary value for a field of `size` bytes: where readers go wrong."""
    k = rng.randrange(8 * size)
    choices = (
        old + rng.choice((-1, 1, 8, 256, -256, -8)),
        (1 << k) + rng.choice((-1, 0, 0, 1)),
        rng.randrange(16),
        -1 - rng.randrange(3),
        rng.getrandbits(8 * size),
        old ^ (1 << k),
        int.from_bytes((old % (1 << 8 * size)).to_bytes(size, "little"), "big"),
        rng.choice((256, 512, 1024, 1 << 48, (1 << 48) + 1, 1 << 56, 1 << 63, 1024 + 1)),
    )
    return rng.choice(choices) % (1 << 8 * size)


def _poke(rng: random.Random, file: bytearray, at: int, size: int) -> None:
    if at + size <= len(file):
        old = int.from_bytes(file[at : at + size], "little")
        file[at : at + size] = _value(rng, size, old).to_bytes(size, "little")


def _field(rng: random.Random, file: bytearray) -> None:
    n, m, _ = _counts(file)
    kind = rng.random()
    if kind < 0.15:
        at, size = rng.choice(_HEADER)
        _poke(rng, file, at, size)
    elif kind < 0.6 and n:
        at, size = rng.choice(_TENSOR + _DIMS[:4] if rng.random() < 0.9 else _DIMS)
        _poke(rng, file, 128 + 128 * rng.randrange(n) + at, size)
    elif m:
        at, size = rng.choice(_KV)
        _poke(rng, file, 128 + 128 * n + 24 * rng.randrange(m) + at, size)


def _string(rng: random.Random, file: bytearray) -> None:
    n, m, s = _counts(file)
    at = 128 + 128 * n + 24 * m + rng.randrange(s or 1)
    hot = b"\0\x1f\x20./\\\x7f\x80\xbf\xc0\xc1\xc2\xdf\xe0\xed\xf0\xf4\xf5\xffa"
    if at < len(file):
        file[at] = rng.choice(hot)


def _splice(rng: random.Random, file: bytearray) -> None:
    """Copy or swap whole records."""
    n, m, _ = _counts(file)
    start, size, count = rng.choice(((128, 128, n), (128 + 128 * n, 24, m)))
    if count < 2:
        return
    a, b = (start + size * rng.randrange(count) for _ in range(2))
    first, second = file[a : a + size], file[b : b + size]
    if len(first) == len(second) == size:
        file[a : a + size] = second
        if rng.random() < 0.5:
            file[b : b + size] = first


def _byte(rng: random.Random, file: bytearray) -> None:
    if file:
        file[rng.randrange(len(file))] ^= 1 << rng.randrange(8)


def _resize(rng: random.Random, file: bytearray) -> None:
    change = rng.choice((-256, -1, 1, 256, -512, 512, 24, -rng.randrange(1, len(file) + 2)))
    if change < 0:
        del file[change:]
    else:
        file += bytes(change)
    if rng.random() < 0.6 and len(file) >= 56:
        file[48:56] = len(file).to_bytes(8, "little")


def _payload(rng: random.Random, file: bytearray) -> None:
    """Damage payload bytes and, mostly, make their CRC right again."""
    n, _, _ = _counts(file)
    if not n:
        return
    at = 128 + 128 * rng.randrange(n)
    if at + 128 > len(file):
        return
    offset, length = struct.unpack_from("<QQ", file, at + 16)
    end = offset + length
    if not length or end > len(file):
        return
    file[rng.randrange(offset, min(end + 3, len(file)))] = rng.choice((0, 1, 2, 16, 128, 255))
    if rng.random() < 0.8:
        file[at + 12 : at + 16] = struct.pack("<I", zlib.crc32(file[offset:end]))


_EDITS: tuple[Edit, ...] = (_field,) * 8 + (_string, _string, _splice, _byte, _resize, _payload)


def mutant(rng: random.Random) -> bytes:
    """One damaged file."""
    file = bytearray(rng.choice(_SEEDS))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_EDITS)(rng, file)
    if len(file) >= 256 and rng.random() < 0.93:
        n, m, s = struct.unpack_from("<III", file, 56)
        end = 128 + 128 * n + 24 * m + s
        if end <= len(file):
            return seal(bytes(file), end)
    return bytes(file)


def mutants(seed: int, count: int) -> Iterator[bytes]:
    """`count` damaged files; equal seeds give equal files."""
    rng = random.Random(seed)  # noqa: S311 (damage, not secrets)
    return (mutant(rng) for _ in range(count))


def main() -> None:
    for file in mutants(int(sys.argv[1]), int(sys.argv[2])):
        sys.stdout.buffer.write(struct.pack("<I", len(file)) + file)


if __name__ == "__main__":
    main()
