"""Arithmetic whose bits are the same on every machine, numpy, BLAS and CPU.

Built only from numpy operations that IEEE 754 or integer arithmetic fixes: elementwise
+ - * / sqrt, rint, ldexp, frexp, comparisons, integer operations, and matrix products of numbers
on grids so coarse that every product and partial sum is exact. numpy's own exp, log, sums and
dot products change in the last bit from one CPU to the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr.errors import ContractError

F64 = NDArray[np.float64]

_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_LN2_HI = float.fromhex("0x1.62e42fee00000p-1")  # 32 bits: n * _LN2_HI is exact for |n| < 2^21
_LN2_LO = float.fromhex("0x1.a39ef35793c76p-33")
_EXP = [1.0, 1.0]
for _n in range(2, 15):
    _EXP.append(_EXP[-1] / _n)
_LOG = [2.0 / n for n in range(23, 1, -2)]  # 2/23, ..., 2/3


def exp(x: Any) -> F64:
    """Exponential, elementwise, within 2 ulp; exp(-inf) = 0, exp(inf) = inf, NaN kept.

    Cody-Waite reduction to |r| <= ln2/2, then the Taylor polynomial of degree 14.
    """
    x = np.asarray(x, np.float64)
    bounded = np.where(np.isnan(x), 0.0, np.minimum(np.maximum(x, -800.0), 800.0))
    n = np.rint(bounded * _LOG2_E)
    r = (bounded - n * _LN2_HI) - n * _LN2_LO
    p = np.full_like(r, _EXP[14])
    for c in reversed(_EXP[1:14]):
        p = p * r + c
    with np.errstate(over="ignore", under="ignore"):
        y = np.ldexp(r * p + 1.0, n.astype(np.int32))
    return np.where(np.isnan(x), x, y)


def expm1(x: Any) -> F64:
    """Exponential less one, without cancellation near 0, elementwise, within 5 ulp."""
    x = np.asarray(x, np.float64)
    r = np.where(np.abs(x) < 0.35, x, 0.0)
    p = np.full_like(r, _EXP[14])
    for c in reversed(_EXP[1:14]):
        p = p * r + c
    return np.where(np.abs(x) < 0.35, r * p, exp(x) - 1.0)


def log(x: Any) -> F64:
    """Natural logarithm, elementwise, within 1 ulp; log(0) = -inf, log(x < 0) = NaN.

    x = m * 2^e with m in [sqrt(1/2), sqrt(2)); log(1 + f) by the atanh series in f / (2 + f).
    """
    x = np.asarray(x, np.float64)
    usable = np.isfinite(x) & (x > 0)
    m, e = np.frexp(np.where(usable, x, 1.0))
    low = m < 0.7071067811865476
    m = np.where(low, m * 2.0, m)
    k = e.astype(np.float64) - low
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = np.zeros_like(z)
    for c in _LOG:
        p = (p + c) * z
    half = 0.5 * f * f
    y = k * _LN2_HI - ((half - (s * (half + p) + k * _LN2_LO)) - f)
    y = np.where(usable, y, np.where(x == 0, -np.inf, np.where(x > 0, np.inf, np.nan)))
    return np.where(np.isnan(x), x, y)


def total(x: Any, axis: int = -1) -> F64:
    """Sum along one axis in a fixed order: halves are added until one row is left."""
    x = np.moveaxis(np.asarray(x, np.float64), axis, 0)
    n = x.shape[0]
    if n == 0:
        return np.zeros(x.shape[1:])
    while n > 1:
        half = (n + 1) // 2
        folded = x[:half].copy()
        folded[: n - half] += x[half:n]
        x, n = folded, half
    return np.asarray(x[0])


def exact_matmul(a: F64, b: F64, where: str) -> F64:
    """Matrix product a @ b, refused unless every product and partial sum is exact in f64.

    Both arguments must lie on grids 2^-ga and 2^-gb (found here) such that
    K * max|a| * max|b| < 2^(53 - ga - gb): then any order of summation gives the same bits.
    Raises ContractError naming `where`.
    """
    ga, gb = grid_bits(a), grid_bits(b)
    k = a.shape[-1]
    top = float(np.max(np.abs(a), initial=0.0)) * float(np.max(np.abs(b), initial=0.0))
    if k * top * 2.0 ** (ga + gb) >= 2.0**53:
        raise ContractError(
            where,
            "matrix product is not exact",
            "K*max|a|*max|b| < 2^(53-ga-gb)",
            f"K={k} max={top:g} ga={ga} gb={gb}",
        )
    product: F64 = np.matmul(a, b)
    return product


def grid_bits(x: F64) -> int:
    """The smallest g >= 0 such that every finite value is a multiple of 2^-g. At most 1074."""
    finite = x[np.isfinite(x) & (x != 0)]
    if finite.size == 0:
        return 0
    mantissa, exponent = np.frexp(np.abs(finite))
    bits = (mantissa * 2.0**53).astype(np.int64)
    zeros = np.zeros(bits.shape, np.int64)
    low = bits & -bits
    for shift in (32, 16, 8, 4, 2, 1):
        big = low >= (1 << shift)
        zeros += np.where(big, shift, 0)
        low = np.where(big, low >> shift, low)
    return max(0, int(np.max(53 - zeros - exponent)))


def ceil_bits(x: Any, bits: int = 20) -> F64:
    """Round |x| up to `bits` significant bits (non-negative input), elementwise."""
    m, e = np.frexp(np.asarray(x, np.float64))
    up: F64 = np.ldexp(np.ceil(m * 2.0**bits), e - bits)
    return up


def up_to_f32(x: Any) -> NDArray[np.float32]:
    """The smallest f32 that is at least x, elementwise; how budgets are stored."""
    x = np.asarray(x, np.float64)
    y = x.astype(np.float32)
    low = y.astype(np.float64) < x
    bits = y.view(np.int32)
    up: NDArray[np.int32] = np.where(low, np.where(bits >= 0, bits + 1, bits - 1), bits)
    return up.astype(np.int32).view(np.float32)


def raw_bits(seed: int, count: int) -> NDArray[np.uint64]:
    """`count` random 64-bit words from PCG64: the bits, not numpy's distributions, are stable."""
    return np.random.PCG64(seed).random_raw(count)


def integers(seed: int, shape: tuple[int, ...], low: int, high: int) -> NDArray[np.int64]:
    """Integers in [low, high), by multiplication of the top 32 random bits."""
    count = int(np.prod(shape, dtype=np.int64))
    top = raw_bits(seed, count) >> np.uint64(32)
    scaled = (top * np.uint64(high - low)) >> np.uint64(32)
    return (scaled.astype(np.int64) + low).reshape(shape)


def normal(seed: int, shape: tuple[int, ...], grid: int, scale: float = 1.0) -> F64:
    """Nearly N(0, scale^2), |x| <= 3.47 scale, rounded to multiples of 2^-grid.

    The sum of four 16-bit uniforms (Irwin-Hall), so no libm is involved.
    """
    count = int(np.prod(shape, dtype=np.int64))
    words = raw_bits(seed, count)
    mask = np.uint64(0xFFFF)
    lanes = sum(((words >> np.uint64(s)) & mask).astype(np.float64) for s in (0, 16, 32, 48))
    x = (lanes - 131070.0) / 65536.0 * 1.7320508075688772 * scale
    rounded: F64 = np.ldexp(np.rint(np.ldexp(x, grid)), -grid).reshape(shape)
    return rounded


def round_bf16(x: Any) -> F64:
    """f64 to the nearest bf16 (ties to even), returned as f64; normal range only matters here."""
    return _round_mantissa(x, 8, -126)


def round_f16(x: Any) -> F64:
    """f64 to the nearest IEEE half (ties to even), returned as f64; overflow gives inf."""
    y = _round_mantissa(x, 11, -14)
    return np.where(np.abs(y) > 65504.0, np.copysign(np.inf, y), y)


def round_f32(x: Any) -> F64:
    """f64 to the nearest f32, returned as f64."""
    return np.asarray(x, np.float64).astype(np.float32).astype(np.float64)


def _round_mantissa(x: Any, bits: int, min_exponent: int) -> F64:
    x = np.asarray(x, np.float64)
    _, e = np.frexp(np.where(np.isfinite(x), x, 0.0))
    unit = np.maximum(e - bits, min_exponent - bits + 1)
    y: F64 = np.ldexp(np.rint(np.ldexp(np.where(np.isfinite(x), x, 0.0), -unit)), unit)
    return np.where(np.isfinite(x), y, x)
