"""Element types of KDTR tensors, and exact conversion between values and stored bits.

A type is a DLPack code and a width in bits. Types that numpy lacks are kept as unsigned integers
of the same width; types below 8 bits are kept packed, as one LSB-first bit stream in C order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr.errors import KdtrError

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: its KDTR name, DLPack type code and width in bits."""

    name: str
    code: int
    bits: int

    def __str__(self) -> str:
        return self.name

    @property
    def packed(self) -> bool:
        """Whether elements are narrower than a byte and so share bytes."""
        return self.bits < 8

    @property
    def storage(self) -> np.dtype[Any]:
        """Little-endian numpy dtype of the stored array; uint8 for packed types."""
        return _STORAGE[self.name]

    def nbytes(self, numel: int) -> int:
        """Bytes that `numel` elements take."""
        return (numel * self.bits + 7) // 8


@dataclass(frozen=True, slots=True)
class FloatLayout:
    """Bit layout of a binary float below 64 bits.

    Attributes:
        exponent, mantissa: field widths in bits; a sign bit comes on top.
        bias: exponent bias.
        max_code: code of the largest finite value.
        inf: whether there are infinities (at `max_code + 1`).
        nan: code of the canonical NaN, or None where the type has none.
        negative_zero: False for the `fnuz` types, whose sign-only code is NaN.
    """

    exponent: int
    mantissa: int
    bias: int
    max_code: int
    inf: bool
    nan: int | None
    negative_zero: bool = True

    @property
    def max_finite(self) -> float:
        e, m = self.max_code >> self.mantissa, self.max_code & ((1 << self.mantissa) - 1)
        return math.ldexp(m + (1 << self.mantissa), e - self.bias - self.mantissa)


# Layouts: IEEE 754-2019; OCP OFP8 and MX v1.0; the fnuz pair from arXiv:2206.02915.
FLOATS: dict[str, FloatLayout] = {
    "f16": FloatLayout(5, 10, 15, 0x7BFF, True, 0x7E00),
    "bf16": FloatLayout(8, 7, 127, 0x7F7F, True, 0x7FC0),
    "f32": FloatLayout(8, 23, 127, 0x7F7FFFFF, True, 0x7FC00000),
    "f8_e3m4": FloatLayout(3, 4, 3, 0x6F, True, 0x78),
    "f8_e4m3": FloatLayout(4, 3, 7, 0x77, True, 0x7C),
    "f8_e4m3b11fnuz": FloatLayout(4, 3, 11, 0x7F, False, 0x80, negative_zero=False),
    "f8_e4m3fn": FloatLayout(4, 3, 7, 0x7E, False, 0x7F),
    "f8_e4m3fnuz": FloatLayout(4, 3, 8, 0x7F, False, 0x80, negative_zero=False),
    "f8_e5m2": FloatLayout(5, 2, 15, 0x7B, True, 0x7E),
    "f8_e5m2fnuz": FloatLayout(5, 2, 16, 0x7F, False, 0x80, negative_zero=False),
    "f6_e2m3fn": FloatLayout(2, 3, 1, 0x1F, False, None),
    "f6_e3m2fn": FloatLayout(3, 2, 3, 0x1F, False, None),
    "f4_e2m1fn": FloatLayout(2, 1, 1, 0x07, False, None),
}

DTYPES: dict[str, DType] = {
    d.name: d
    for d in [
        DType("bool", 6, 8),
        *(DType(f"u{b}", 1, b) for b in (1, 2, 4, 8, 16, 32, 64)),
        *(DType(f"i{b}", 0, b) for b in (2, 4, 8, 16, 32, 64)),
        *(DType(f"f{b}", 2, b) for b in (16, 32, 64)),
        DType("bf16", 4, 16),
        *(DType(f"c{b}", 5, b) for b in (32, 64, 128)),
        DType("f8_e3m4", 7, 8),
        DType("f8_e4m3", 8, 8),
        DType("f8_e4m3b11fnuz", 9, 8),
        DType("f8_e4m3fn", 10, 8),
        DType("f8_e4m3fnuz", 11, 8),
        DType("f8_e5m2", 12, 8),
        DType("f8_e5m2fnuz", 13, 8),
        DType("f8_e8m0fnu", 14, 8),
        DType("f6_e2m3fn", 15, 6),
        DType("f6_e3m2fn", 16, 6),
        DType("f4_e2m1fn", 17, 4),
    ]
}
_BY_CODE = {(d.code, d.bits): d for d in DTYPES.values()}
_NATIVE = {
    "bool": "?",
    **{f"{k}{b}": f"<{k}{b // 8}" for k in "ui" for b in (8, 16, 32, 64)},
    **{f"f{b}": f"<f{b // 8}" for b in (16, 32, 64)},
    "c64": "<c8",
    "c128": "<c16",
}
_STORAGE: dict[str, np.dtype[Any]] = {
    name: np.dtype(_NATIVE.get(name, {32: "<u4", 16: "<u2"}.get(d.bits, "u1")))
    for name, d in DTYPES.items()
}
_OF_NUMPY = {np.dtype(text): DTYPES[name] for name, text in _NATIVE.items()}


def by_name(name: str) -> DType:
    """The type called `name`. Raises KdtrError when there is none."""
    try:
        return DTYPES[name]
    except KeyError:
        raise KdtrError("dtype", "unknown name", "one of " + " ".join(DTYPES), name) from None


def find(code: int, bits: int) -> DType | None:
    """The type with DLPack `code` and width `bits`, or None."""
    return _BY_CODE.get((code, bits))


def by_code(code: int, bits: int) -> DType:
    """The type with DLPack `code` and width `bits`. Raises KdtrError when there is none."""
    dtype = find(code, bits)
    if dtype is None:
        raise KdtrError("dtype", "unknown DLPack code and bits", got=f"({code}, {bits})")
    return dtype


def of_numpy(dtype: np.dtype[Any]) -> DType:
    """The type that a numpy dtype stands for. Raises KdtrError when there is none."""
    try:
        return _OF_NUMPY[dtype.newbyteorder("<")]
    except KeyError:
        raise KdtrError("dtype", "numpy type has no KDTR type", got=str(dtype)) from None


def pack(codes: Array, bits: int) -> NDArray[np.uint8]:
    """Pack element codes (any shape, low `bits` bits used) into one LSB-first bit stream."""
    flat = np.ascontiguousarray(codes).reshape(-1).astype(np.uint8)
    if bits == 4:
        out = np.zeros((flat.size + 1) // 2, np.uint8)
        out |= flat[0::2] & 15
        out[: flat.size // 2] |= flat[1::2] << 4
        return out
    stream = np.unpackbits(flat[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(stream, bitorder="little")


def unpack(packed: Array, bits: int, numel: int) -> NDArray[np.uint8]:
    """Element codes [numel] of an LSB-first bit stream; the inverse of `pack`."""
    if bits == 4:
        out = np.empty(2 * packed.size, np.uint8)
        out[0::2], out[1::2] = packed & 15, packed >> 4
        return out[:numel]
    stream = np.unpackbits(packed, count=numel * bits, bitorder="little").reshape(numel, bits)
    return np.packbits(stream, axis=1, bitorder="little").reshape(numel)


@cache
def _code_values(name: str) -> NDArray[np.float64]:
    """Value of each code of a float type of at most 8 bits, as f64."""
    if name == "f8_e8m0fnu":
        return np.array([*(math.ldexp(1.0, c - 127) for c in range(255)), math.nan])
    bits, layout = DTYPES[name].bits, FLOATS[name]
    half = 1 << (bits - 1)
    code = np.arange(half)
    field, mantissa = code >> layout.mantissa, code & ((1 << layout.mantissa) - 1)
    significand = mantissa + np.where(field > 0, 1 << layout.mantissa, 0)
    exponent = np.maximum(field, 1) - layout.bias - layout.mantissa
    positive = np.ldexp(significand.astype(np.float64), exponent)
    positive[layout.max_code + 1 :] = math.nan
    if layout.inf:
        positive[layout.max_code + 1] = math.inf
    values = np.concatenate([positive, -positive])
    if not layout.negative_zero:
        values[half] = math.nan
    values.flags.writeable = False
    return values


@np.errstate(over="ignore", invalid="ignore")  # infinities and NaN are values here
def round_to(values: Array, dtype_name: str) -> NDArray[np.float64]:
    """Round f64 `values` to the nearest value of a float type, ties to even, in one step.

    Subnormals of the target are kept. Beyond the largest finite value the result is infinity;
    for types without infinities it is NaN, and for types without NaN the largest finite value.
    Zero keeps its sign, except in types without a negative zero. Shape is kept.
    Raises KdtrError for a type that is not a signed float.
    """
    x: NDArray[np.float64] = np.asarray(values, np.float64)
    if dtype_name == "f64":
        return np.array(x)
    layout = FLOATS.get(dtype_name)
    if layout is None:
        raise KdtrError("round_to", "not a signed float type", got=dtype_name)
    magnitude = np.abs(x)
    finite = np.isfinite(x)
    safe = np.where(finite, magnitude, 0.0)
    exponent = np.frexp(safe)[1]
    # Position of the last kept bit: relative to the leading bit, or fixed among subnormals.
    last = np.maximum(exponent - 1, 1 - layout.bias) - layout.mantissa
    rounded = np.ldexp(np.rint(np.ldexp(safe, -last)), last)
    beyond = math.inf if layout.inf else layout.max_finite if layout.nan is None else math.nan
    rounded = np.where((rounded > layout.max_finite) | np.isinf(x), beyond, rounded)
    if layout.nan is None and np.isnan(x).any():
        raise KdtrError("round_to", f"{dtype_name} has no NaN", "numbers", "NaN")
    result: NDArray[np.float64] = np.asarray(
        np.copysign(np.where(np.isnan(x), math.nan, rounded), x)
    )
    if not layout.negative_zero:
        result[result == 0] = 0.0
    return result


@np.errstate(over="ignore", invalid="ignore")  # infinities and NaN are values here
def encode(values: Array, dtype_name: str) -> Array:
    """Stored form of `values` (any shape): exact, or an error.

    Args:
        values: numbers; or, for a type that numpy lacks, its bits as unsigned integers of the
            stored width (uint16 for bf16, uint8 for f8 and one code per element for f6 and f4,
            uint32 for c32), which are taken as they are.
        dtype_name: the KDTR type.

    Returns:
        An array of `values.shape` in the type's storage dtype; for packed types the bit stream,
        uint8 [ceil(numel * bits / 8)]. A NaN becomes the type's canonical quiet NaN.

    Raises:
        KdtrError: names the first element that the type cannot hold exactly.
    """
    dtype = by_name(dtype_name)
    x: Array = np.asarray(values)
    if x.dtype.kind not in "?biufc":
        raise KdtrError(f"encode to {dtype_name}", "not numbers", got=str(x.dtype))
    if dtype.code == 5:
        return _encode_complex(x, dtype)
    if x.dtype.kind == "c":
        raise KdtrError(f"encode to {dtype_name}", "complex values for a real type")
    if dtype.code in (0, 1, 6):
        return _encode_integer(x, dtype)
    if x.dtype == dtype.storage and x.dtype.kind == "u":
        if dtype.packed:
            _require(x < (1 << dtype.bits), x, f"a code below {1 << dtype.bits}", dtype)
            return pack(x, dtype.bits)
        return np.array(x)
    return _encode_float(x, dtype)


@np.errstate(over="ignore", invalid="ignore")  # infinities and NaN are values here
def decode(storage: Array, dtype_name: str, shape: tuple[int, ...]) -> Array:
    """Values of a stored array, with logical `shape`.

    Floats below 32 bits widen to float32 and c32 to complex64, both exactly; other numpy types
    come back as they are; packed integers unpack to uint8 or int8.
    Raises KdtrError when the array does not hold the elements of `shape`.
    """
    dtype = by_name(dtype_name)
    numel = math.prod(shape)
    raw = np.ascontiguousarray(storage).reshape(-1)
    want = dtype.nbytes(numel) if dtype.packed else numel
    if raw.dtype != dtype.storage or raw.size != want:
        raise KdtrError(
            f"decode from {dtype_name}",
            "stored array does not fit the shape",
            f"{dtype.storage}[{want}]",
            f"{raw.dtype}[{raw.size}]",
        )
    if dtype_name in _NATIVE and dtype_name != "f16":
        return np.asarray(storage).reshape(shape)
    if dtype_name == "f16":
        out: Array = raw.astype(np.float32)
    elif dtype_name == "bf16":
        out = (raw.astype(np.uint32) << 16).view(np.float32)
    elif dtype_name == "c32":
        out = raw.view("<f2").astype(np.float32).view(np.complex64)
    else:
        codes = unpack(raw, dtype.bits, numel) if dtype.packed else raw
        if dtype.code == 1:
            out = codes
        elif dtype.code == 0:
            spare = 8 - dtype.bits
            out = (codes << spare).view(np.int8) >> spare
        else:
            out = _code_values(dtype_name).astype(np.float32)[codes]
    return out.reshape(shape)


def _require(exact: Array, values: Array, nearest: Array | str, dtype: DType) -> None:
    if exact.all():
        return
    first = int(np.argmin(exact.reshape(-1)))
    index = [int(i) for i in np.unravel_index(first, exact.shape)]
    got = repr(values.reshape(-1)[first].item())
    want = nearest if isinstance(nearest, str) else repr(nearest.reshape(-1)[first].item())
    raise KdtrError(f"encode to {dtype.name}", f"element {index} is not exact", want, got)


def _encode_integer(x: Array, dtype: DType) -> Array:
    if dtype.code == 6:
        low, high = 0, 1
    elif dtype.code == 1:
        low, high = 0, (1 << dtype.bits) - 1
    else:
        low, high = -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    if x.dtype.kind in "?b":
        exact = np.ones(x.shape, bool)
    elif x.dtype.kind == "f":
        # high + 1 is a power of two and so exact in every float type, where high may not be.
        exact = (x >= low) & (x < high + 1) & (np.trunc(x) == x)
    else:
        bounds = np.iinfo(x.dtype)
        exact = (x >= max(low, bounds.min)) & (x <= min(high, bounds.max))
    _require(exact, x, f"an integer in [{low}, {high}]", dtype)
    return pack(x.astype(np.int8), dtype.bits) if dtype.packed else x.astype(dtype.storage)


def _to_f64(x: Array, dtype: DType) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        # numpy compares int64 with float64 as floats; Python compares them exactly.
        exact = np.ones(x.shape, bool)
        large = np.abs(wide) >= 2.0**53
        exact[large] = [int(f) == i for f, i in zip(wide[large], x[large].tolist(), strict=True)]
        _require(exact, x, wide, dtype)
    elif x.dtype.itemsize > 8:
        _require((wide == x) | np.isnan(x), x, wide, dtype)
    return wide


def _encode_float(x: Array, dtype: DType) -> Array:
    wide = _to_f64(x, dtype)
    nan = np.isnan(wide)
    if dtype.name == "f64":
        return np.where(nan, math.nan, wide).astype(dtype.storage)
    if dtype.bits <= 8:
        return _encode_small_float(wide, nan, dtype)
    near = round_to(wide, dtype.name)
    _require((near == wide) | nan, wide, near, dtype)
    near = np.where(nan, math.nan, near)
    if dtype.name == "bf16":
        return (near.astype("<f4").view("<u4") >> 16).astype("<u2")
    return near.astype(dtype.storage)


def _encode_small_float(wide: NDArray[np.float64], nan: Array, dtype: DType) -> Array:
    table = _code_values(dtype.name)
    known = np.flatnonzero(~np.isnan(table))
    # Negative zero sorts beside zero, so zeros are looked up by sign below.
    order = known[np.argsort(table[known], kind="stable")]
    ordered = table[order]
    place = np.clip(np.searchsorted(ordered, wide), 0, order.size - 1)
    near = ordered[place]
    code = order[place].astype(np.uint8)
    exact = near == wide
    layout = FLOATS.get(dtype.name)
    nan_code = 0xFF if layout is None else layout.nan
    if nan_code is not None:
        code, exact = np.where(nan, np.uint8(nan_code), code), exact | nan
    negative_zero = (wide == 0) & np.signbit(wide)
    if layout is not None:
        sign = np.uint8(1 << (dtype.bits - 1))
        code = np.where(wide == 0, np.where(negative_zero, sign, np.uint8(0)), code)
        exact &= ~negative_zero | layout.negative_zero
    _require(exact, wide, near, dtype)
    return pack(code, dtype.bits) if dtype.packed else code.astype(np.uint8)


def _encode_complex(x: Array, dtype: DType) -> Array:
    if dtype.name == "c32" and x.dtype == dtype.storage:
        return np.array(x)
    part = DTYPES[f"f{dtype.bits // 2}"]
    re, im = _encode_float(np.real(x), part), _encode_float(np.imag(x), part)
    both: Array = np.stack([re, im], axis=-1).view(dtype.storage)
    return both[..., 0]
