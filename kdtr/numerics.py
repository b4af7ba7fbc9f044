"""Arithmetic whose bits are the same on every machine, numpy, BLAS and CPU.

Built only from numpy operations that IEEE 754 or integer arithmetic fixes: elementwise
+ - * / sqrt, rint, ldexp, frexp, comparisons, integer operations, and matrix products of numbers
on grids so coarse that every product and partial sum is exact. numpy's own exp, log, sums and
dot products change in the last bit from one CPU to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
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


def rounded(x: Any, dtype: str) -> F64:
    """f64 to the nearest value of "f32", "bf16" or "f16", returned as f64."""
    return {"f32": round_f32, "bf16": round_bf16, "f16": round_f16}[dtype](x)


def _round_mantissa(x: Any, bits: int, min_exponent: int) -> F64:
    x = np.asarray(x, np.float64)
    _, e = np.frexp(np.where(np.isfinite(x), x, 0.0))
    unit = np.maximum(e - bits, min_exponent - bits + 1)
    y: F64 = np.ldexp(np.rint(np.ldexp(np.where(np.isfinite(x), x, 0.0), -unit)), unit)
    return np.where(np.isfinite(x), y, x)


# pi/2 in three parts of 33 bits: n * part is exact for n < 2^20.
_PIO2 = (
    float.fromhex("0x1.921fb54400000p+0"),
    float.fromhex("0x1.0b4611a600000p-34"),
    float.fromhex("0x1.3198a2e037073p-69"),
)
_SIN = [1.0]
_COS = [1.0]
for _n in range(1, 10):
    _SIN.append(-_SIN[-1] / ((2 * _n) * (2 * _n + 1)))
    _COS.append(-_COS[-1] / ((2 * _n - 1) * (2 * _n)))


def sincos(x: Any) -> tuple[F64, F64]:
    """Sine and cosine, elementwise, within 2^-52 absolute, for |x| < 2^20 given in f32 values.

    Cody-Waite reduction by pi/2 in three parts, then Taylor polynomials on |r| <= pi/4.
    Raises ContractError for an argument out of range: the reduction would lose bits silently.
    """
    x = np.asarray(x, np.float64)
    if not np.all(np.abs(x) < 2.0**20):
        raise ContractError("sincos", "argument", "|x| < 2^20", float(np.max(np.abs(x))))
    n = np.rint(x * (2.0 / np.pi))
    r = ((x - n * _PIO2[0]) - n * _PIO2[1]) - n * _PIO2[2]
    z = r * r
    s, c = np.zeros_like(r), np.zeros_like(r)
    for a, b in zip(reversed(_SIN), reversed(_COS), strict=True):
        s, c = s * z + a, c * z + b
    s = s * r
    quadrant = n.astype(np.int64) & 3
    swap, sin_negative, cos_negative = quadrant & 1, quadrant & 2, (quadrant + 1) & 2
    sin, cos = np.where(swap == 1, c, s), np.where(swap == 1, s, c)
    return np.where(sin_negative > 0, -sin, sin), np.where(cos_negative > 0, -cos, cos)


def sigmoid(x: Any) -> F64:
    """1 / (1 + e^-x), elementwise, within 4 ulp."""
    return np.asarray(1.0 / (1.0 + exp(-np.asarray(x, np.float64))))


def finite_rows(x: F64) -> NDArray[np.bool_]:
    """Whether each row of x [T, ...] is finite."""
    return np.asarray(np.isfinite(x).all(axis=tuple(range(1, x.ndim))))


# Error bounds of f32 arithmetic, carried beside the exact values.

UNIT_F32, UNIT_F16, UNIT_BF16 = 2.0**-24, 2.0**-11, 2.0**-8
TINY_F32 = 2.0**-126  # flush to zero is legal in every profile


def unit(dtype: str) -> float:
    """Unit roundoff of "f64", "f32", "f16" or "bf16" (half the spacing at 1)."""
    return {"f64": 2.0**-53, "f32": UNIT_F32, "f16": UNIT_F16, "bf16": UNIT_BF16}[dtype]


def stored(profile: str) -> str:
    """The dtype of the outputs of an f32-accumulating profile: "f32", "bf16_f32acc", ..."""
    return "f32" if profile.endswith("_f32out") else profile.removesuffix("_f32acc")


@dataclass(frozen=True)
class Rounded:
    """Exact values of a computation that a kernel does in f32, and bounds of the kernel's error.

    `hard` is the worst case to first order. `gate` is three standard deviations of the errors
    that are independent from one element to the next; `common` is a relative error that a whole
    row shares (a norm's factor), so that it passes a linear map unchanged instead of averaging
    out. All have the shape of `value` but `common`, which has a last axis of 1.
    """

    value: F64
    hard: F64
    gate: F64
    common: F64

    def budget(self, dtype: str = "f32") -> tuple[F64, F64]:
        """(gate, hard) of an output stored as `dtype`: the bounds and one rounding to it."""
        store = unit(dtype) * np.abs(self.value) + (2.0**-24 if dtype == "f16" else TINY_F32)
        hard = self.hard + store
        return np.minimum(self.gate + self.common * np.abs(self.value) + store, hard), hard

    def reshape(self, *shape: int) -> Rounded:
        """Split or join the last axes; the rows that share `common` must stay rows."""
        common = self.common
        while common.ndim < len(shape):
            common = common[..., None, :]
        return Rounded(
            self.value.reshape(shape), self.hard.reshape(shape), self.gate.reshape(shape), common
        )

    def __getitem__(self, index: Any) -> Rounded:
        return Rounded(self.value[index], self.hard[index], self.gate[index], self.common)


def exact(x: F64) -> Rounded:
    """Inputs of a computation: no error yet."""
    return Rounded(x, np.zeros_like(x), np.zeros_like(x), np.zeros((*x.shape[:-1], 1)))


def linear(x: Rounded, w: F64, *, tensor: bool = False) -> Rounded:
    """x [..., K] times w [N, K] transposed, summed over K in any order, with or without FMA.

    hard: K u sum|x w| + sum|w| hard(x). gate: 3u (sqrt(K/3) |y| + sqrt(K/2) ||x w||2), in
    quadrature with ||w gate(x)||2. `tensor`: products are exact, but tensor cores may cut each
    partial sum instead of rounding it: hard (K + 2) 2u sum|x w|, gate + 2u (K/8 + 1)
    max(|y|, ||x w||2). Sums here run in one fixed order, so the bits are stable.
    """
    k = w.shape[-1]
    rows = int(np.prod(x.value.shape[:-1], dtype=np.int64))
    value, hard, gate = (np.zeros((rows, w.shape[0])) for _ in range(3))
    xs, hs, gs = (a.reshape(rows, k) for a in (x.value, x.hard, x.gate))
    w_abs, w_sq = np.abs(w), w * w
    for r in range(rows):
        terms = xs[r] * w
        value[r] = y = total(terms)
        steps = 2 * (k + 2) if tensor else k
        hard[r] = steps * UNIT_F32 * total(np.abs(terms)) + total(hs[r] * w_abs)
        own = np.sqrt(k / 3) * np.abs(y) + np.sqrt(k / 2 * total(terms * terms))
        gate[r] = np.sqrt((3 * UNIT_F32 * own) ** 2 + total(gs[r] * gs[r] * w_sq))
        if tensor:  # errors of one sign, once per eight terms
            largest = np.maximum(np.abs(y), np.sqrt(total(terms * terms)))
            gate[r] += 2 * UNIT_F32 * (k / 8 + 1) * largest
    shape = (*x.value.shape[:-1], w.shape[0])
    return Rounded(value.reshape(shape), hard.reshape(shape), gate.reshape(shape), x.common)


def bf16_or_f32(x: Rounded, *, again: bool = False) -> Rounded:
    """x where a kernel may round each element to bf16 once, to nearest, or keep it in f32.

    The rounding is known but for the error that x already has: it takes x +- that error to a bf16
    value, whose distance from x is the bound; for the gate, one standard deviation. `again`: x was
    rounded before, so its error is no small part of a step; the gate adds at most half a step.
    """

    def moved(error: F64) -> F64:
        low, high = (round_bf16(x.value + s * error) for s in (-1.0, 1.0))
        return np.maximum(np.abs(low - x.value), np.abs(high - x.value))

    hard = np.maximum(moved(x.hard), x.hard) + TINY_F32
    own = moved(x.gate)
    if again:
        own = np.minimum(own, UNIT_BF16 * (np.abs(x.value) + x.gate))
    return Rounded(x.value, hard, np.sqrt(x.gate**2 + (3 * own) ** 2), x.common)


def rms_scaled(x: Rounded, w: F64, eps: float) -> Rounded:
    """w * (x / sqrt(mean(x^2) + eps)) over the last axis, eps inside the root.

    The factor's own error (N squares and sums, a reciprocal root within 2 ulp) is common to the
    row; the two products round each element.
    """
    n = max(x.value.shape[-1], 1)
    square = x.value * x.value
    ss = total(square)[..., None]
    r = 1.0 / np.sqrt(ss / n + eps)
    part = (ss / n) * r * r
    y = w * (x.value * r)
    spread = np.sqrt(total(square * square))[..., None] / np.where(ss > 0, ss, 1.0)
    own_hard = ((n + 2) / 2 * part + 5) * UNIT_F32
    own_gate = 3 * UNIT_F32 * part * (np.sqrt(n / 3) + np.sqrt(n / 2) * spread) / 2 + 5 * UNIT_F32
    moved_hard = np.abs(x.value) * r**3 * total(np.abs(x.value) * x.hard)[..., None] / n
    moved_gate = r * r * np.sqrt(total(square * x.gate * x.gate))[..., None] / n
    hard = np.abs(w) * (r * x.hard + moved_hard) + np.abs(y) * (own_hard + 2 * UNIT_F32)
    gate = np.abs(w) * r * x.gate + 2 * UNIT_F32 * np.abs(y)
    return Rounded(y, hard, gate, own_gate + moved_gate + x.common * eps * r * r)


def sigmoid_error(x: F64) -> F64:
    """Relative error of an f32 sigmoid: e^-x through exp2 (2|x|u + 4u), an add and a divide."""
    x = np.where(np.isfinite(x), x, 0.0)  # 0 and 1 are exact
    return ((2 * np.abs(x) + 4) * (1.0 - sigmoid(x)) + 3) * UNIT_F32


def swiglu(gate: Rounded, up: Rounded) -> Rounded:
    """silu(gate) * up, elementwise, each product rounded."""
    g, s = gate.value, sigmoid(gate.value)
    slope, y = s * (1.0 + g * (1.0 - s)), g * s * up.value
    own = np.abs(y) * (sigmoid_error(g) + 2 * UNIT_F32) + TINY_F32 * (1.0 + np.abs(g * up.value))

    def moved(dg: F64, du: F64) -> tuple[F64, F64]:
        return np.abs(slope * up.value) * dg, np.abs(g * s) * du

    (hg, hu), (sg, su) = moved(gate.hard, up.hard), moved(gate.gate, up.gate)
    return Rounded(y, own + hg + hu, np.sqrt(own**2 + sg**2 + su**2), gate.common)
