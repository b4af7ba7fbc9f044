"""Reference of `verify_attn@1`: f64 at the speed of BLAS, with the same bits everywhere.

Matrix products are taken on grids where they are exact (softmax weights as three 20-bit
integers, budget factors rounded up to 20 bits), so that no BLAS can change them. Inputs on no
such grid take a loop in fixed order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx

if TYPE_CHECKING:
    from collections.abc import Mapping

    Array = NDArray[Any]
    Attrs = Mapping[str, int | float | str | bool]

U = 2.0**-24  # unit roundoff of f32
EXP = 2.0**-22  # relative error that an exp or a log may have
CELLS = 1 << 21  # scores held at once


class Profile(NamedTuple):
    """Arithmetic whose errors a budget allows. Unit roundoffs; 0 = no rounding there."""

    u_sum: float = U  # of one addition: 2u where tensor cores truncate
    u_in: float = 0.0  # q, k and v on their way into a product
    u_p: float = 0.0  # softmax weights before P V
    flush: float = 0.0  # weights below this may vanish
    u_part: float = 0.0  # outputs of splits before the merge
    u_out: float = U
    tiny: float = 2.0**-125  # what flushing a subnormal output costs

    @property
    def tensor(self) -> bool:
        """Whether sums run on tensor cores, whose errors add up with one sign."""
        return self.u_sum > U


_BF16 = Profile(u_sum=2 * U, u_out=2.0**-8)
_F16 = Profile(u_sum=2 * U, u_out=2.0**-11, tiny=2.0**-24)
PROFILES = {
    "f32": Profile(),
    "tf32": Profile(u_sum=2 * U, u_in=2.0**-10, u_p=2.0**-10),
    "bf16_f32acc": _BF16,
    "bf16_f32acc_pbf16": _BF16._replace(u_p=2.0**-8),
    "bf16_f32acc_pbf16_f32out": _BF16._replace(u_p=2.0**-8, u_out=U),
    "bf16_splits_bf16": _BF16._replace(u_p=2.0**-8, u_part=2.0**-8),
    "f16_f32acc": _F16,
    "f16_f32acc_pf16": _F16._replace(u_p=2.0**-11, flush=2.0**-25),
}


def reference(inputs: Mapping[str, Array], attrs: Attrs, profile: str) -> dict[str, Array]:
    """Attend, with budgets.

    Args:
        inputs: q f64 [R, N, H, D], kv_pool f64 [slots, D], n_nodes [R]; unless part is "tail"
            page_table [R, max_pages] and prefix_len [R]; unless part is "prefix"
            tree_slots [R, N] and visible [R, N, N].
        attrs: scale, page_size, part, Dv.
        profile: a key of PROFILES.

    Returns:
        out [R, N, H, Dv], lse [R, N, H] (natural log) with "/gate" and "/hard"; status [R].
    """
    return _attend(inputs, attrs, PROFILES[profile])


def attention(inputs: Mapping[str, Array], attrs: Attrs) -> dict[str, Array]:
    """As `reference`, without budgets."""
    return _attend(inputs, attrs, None)


def _attend(inputs: Mapping[str, Array], attrs: Attrs, profile: Profile | None) -> dict[str, Array]:
    q, pool = inputs["q"], inputs["kv_pool"]
    R, N, H, D = q.shape
    Dv, scale = int(attrs["Dv"]), float(attrs["scale"])
    found: dict[str, Array] = {
        "out": np.zeros((R, N, H, Dv)),
        "lse": np.full((R, N, H), -np.inf),
        "status": np.zeros(R, np.int32),
    }
    if profile is not None:
        for name in ("out", "lse"):
            for bound in ("gate", "hard"):
                found[f"{name}/{bound}"] = np.zeros(found[name].shape)
    for r in range(R):
        n = int(inputs["n_nodes"][r])
        if n == 0:
            continue
        slots = slots_of(inputs, attrs, r, n) if 0 < n <= N else None
        if slots is None:
            found["status"][r] = 1
            continue
        prefix = len(slots) - (n if "tree_slots" in inputs else 0)
        sees = np.ones((n, len(slots)), bool)
        if "visible" in inputs:
            sees[:, prefix:] = inputs["visible"][r, :n, :n] != 0
        keys = np.where(np.any(sees, axis=0)[:, None], pool[slots], 0.0)  # poison stays out
        step = max(1, CELLS // max(1, H * len(slots)))
        for i in range(0, n, step):
            rows = slice(i, min(i + step, n))
            count = rows.stop - rows.start
            some = _rows(
                q[r, rows].reshape(count * H, D), keys, np.repeat(sees[rows], H, axis=0), scale,
                Dv, profile,
            )  # fmt: skip
            for name, value in some.items():
                found[name][r, rows] = value.reshape(found[name][r, rows].shape)
    return found


def slots_of(inputs: Mapping[str, Array], attrs: Attrs, r: int, n: int) -> Array | None:
    """Slots of a request's prefix rows and then of its tree rows; None if one is out of range."""
    slots = np.zeros(0, np.int64)
    if "prefix_len" in inputs:
        page_size, table = int(attrs["page_size"]), inputs["page_table"][r].astype(np.int64)
        prefix = int(inputs["prefix_len"][r])
        if not 0 <= prefix <= len(table) * page_size:
            return None
        t = np.arange(prefix)
        pages = table[t // page_size]
        if np.any(pages < 0):
            return None
        slots = pages * page_size + t % page_size
    if "tree_slots" in inputs:
        slots = np.concatenate([slots, inputs["tree_slots"][r, :n].astype(np.int64)])
    return slots if np.all((slots >= 0) & (slots < len(inputs["kv_pool"]))) else None


def _rows(
    q: Array, keys: Array, sees: Array, scale: float, Dv: int, profile: Profile | None
) -> dict[str, Array]:
    """One query a row: q [M, D], keys [n, D], sees [M, n]."""
    _M, D = q.shape
    v = keys[:, :Dv]
    s = np.where(sees, _product(q, keys.T) * scale, -np.inf)
    seen = np.any(sees, axis=1)
    top = np.where(seen, np.max(s, axis=1, initial=-np.inf), 0.0)
    p = nx.exp(s - top[:, None])
    mass = np.where(seen, nx.total(p), 1.0)
    out = _weighted(p, v) / mass[:, None]
    lse = np.where(seen, top + nx.log(mass), -np.inf)
    found = {"out": out, "lse": lse}
    if profile is None:
        return found

    # Errors of scores, absolute, and from them of weights, relative (first order).
    n = np.sum(sees, axis=1).astype(np.float64)
    s = np.where(sees, s, 0.0)
    spread = np.where(sees, top[:, None] - s, 0.0)
    upper = _ordered if _block(q, keys.T) == 0 else _upper
    absolute = upper(np.abs(q), np.abs(keys).T) * abs(scale)
    squares = np.sqrt(upper(q * q, (keys * keys).T)) * abs(scale)
    dot_hard, dot_gate = _dot(D, np.abs(s), absolute, squares, profile)
    score_hard = dot_hard + 2 * profile.u_in * absolute + 2 * U * np.abs(s)
    score_gate = dot_gate + profile.u_in * (5 * squares + 2 * np.abs(s)) + 2 * U * np.abs(s)
    # Scores that are zero term by term are exact, so are their weights (1) and rescales.
    inexact = np.where(np.any(sees & (absolute > 0), axis=1), 1.0, 0.0)[:, None]
    splits = np.minimum(n, 32.0)[:, None]
    rescales = np.ceil(n / 16)[:, None] + splits
    shaky = inexact * (EXP + rescales * (EXP + 2 * U))
    eta_hard = nx.expm1(np.minimum(score_hard + 3 * U * spread, 64.0)) + shaky
    eta_gate = np.minimum(score_gate, 64.0) + 2 * U * spread
    eta_gate = eta_gate + inexact * (EXP + np.sqrt(rescales) * (EXP + 2 * U))

    p = p / mass[:, None]
    u_p = inexact * profile.u_p
    size, v2 = np.abs(out), v * v
    average = _upper(p, np.abs(v))  # sum_j p_j |v_j|
    merge = U * (2 * np.abs(top) + nx.log(np.maximum(n, 1.0)))[:, None] + splits * (EXP + 2 * U)
    lost = np.zeros(())
    if profile.flush:
        lost = _upper(np.minimum(p, profile.flush * inexact / mass[:, None]), np.abs(v))
    tiny = profile.tiny + 2.0**-126 * n[:, None] * np.max(np.abs(v), axis=0, initial=0.0)
    common = (2 * U + profile.u_out) * size + lost + tiny

    weight = p * (eta_hard + u_p)
    hard = _upper(weight, np.abs(v)) + nx.total(weight)[:, None] * size
    hard = hard + ((n + 2)[:, None] * profile.u_sum + merge) * (average + size)
    hard = hard + (profile.u_in + profile.u_part) * average + common

    pv2 = np.sqrt(_upper(p * p, v2))  # || p o v ||_2
    off = _deviation(p * p, v, v2, out)  # || p o (v - out) ||_2
    _, sum_gate = _dot(n[:, None], size, average, pv2, profile)
    gate = _deviation((p * eta_gate) ** 2, v, v2, out) + sum_gate
    gate = gate + 3 * U * np.sqrt(n / 3)[:, None] * size + merge * off
    gate = gate + (u_p + profile.u_in + profile.u_part) * (3 * pv2 + size) + common

    sums = (n + 2) * profile.u_sum + 2 * EXP + 3 * U * np.abs(np.where(seen, lse, 0.0))
    lse_hard = nx.total(p * (score_hard + shaky)) + sums + merge[:, 0]
    bias = nx.total(p * (score_gate - dot_gate + (dot_gate if profile.tensor else 0.0)))
    lse_gate = np.sqrt(nx.total((p * eta_gate) ** 2)) + bias + 3 * U * np.sqrt(n / 3)
    lse_gate = lse_gate + 2 * EXP + 3 * U * np.abs(np.where(seen, lse, 0.0))
    lse_gate = lse_gate + U * (2 * np.abs(top) + nx.log(np.maximum(n, 1.0)))

    nothing = ~seen
    for name, value in (("out/hard", hard), ("out/gate", np.minimum(gate, hard))):
        found[name] = np.where(nothing[:, None], 0.0, value)
    for name, value in (("lse/hard", lse_hard), ("lse/gate", np.minimum(lse_gate, lse_hard))):
        found[name] = np.where(nothing, 0.0, value)
    return found


def _dot(
    length: float | Array, total: Array, absolute: Array, squares: Array, profile: Profile
) -> tuple[Array, Array]:
    """Error of a dot product of `length` terms: worst case, and in quadrature with lambda 3.

    `total` is |sum x y|, `absolute` sum |x y|, `squares` the 2-norm of x o y.
    """
    hard = (length + 2) * profile.u_sum * absolute
    gate = 3 * U * (np.sqrt(length / 3) * total + np.sqrt(length / 2) * squares)
    if profile.tensor:  # truncation: one sign, once per eight terms
        gate = gate + 2 * U * (length / 8 + 1) * np.maximum(total, squares)
    return hard, gate


def _product(a: Array, b: Array) -> Array:
    """a @ b: by BLAS where that is exact in blocks, else in fixed order over the inner axis."""
    block = _block(a, b)
    return _blocks(a, b, block) if block else _ordered(a, b)


def _block(a: Array, b: Array) -> int:
    """Length of inner axis over which a @ b is exact in f64; 0 when that is too short to use."""
    grid = nx.grid_bits(a) + nx.grid_bits(b)
    top = float(np.max(np.abs(a), initial=0.0)) * float(np.max(np.abs(b), initial=0.0))
    if top == 0:
        return max(int(a.shape[1]), 1)
    if grid > 900 or top * 2.0**grid > 2.0**46:
        return 0
    return int(2.0**52 / (top * 2.0**grid))


def _ordered(a: Array, b: Array) -> Array:
    y = np.zeros((a.shape[0], b.shape[1]))
    for k in range(a.shape[1]):
        y += a[:, k : k + 1] * b[k : k + 1]
    return y


def _blocks(a: Array, b: Array, block: int) -> Array:
    y = np.zeros((a.shape[0], b.shape[1]))
    for k in range(0, a.shape[1], max(block, 1)):
        y += np.matmul(a[:, k : k + block], b[k : k + block])
    return y


def _weighted(p: Array, v: Array) -> Array:
    """sum_j p_j v_j for weights in [0, 1]: 20-bit integers, three of them, four for large v."""
    y = np.zeros((p.shape[0], v.shape[1]))
    rest = p
    large = float(np.max(np.abs(v), initial=0.0)) > 256.0
    for bits in (20, 40, 60, 80) if large else (20, 40, 60):
        whole = np.floor(np.ldexp(rest, bits))
        rest = rest - np.ldexp(whole, -bits)
        y += np.ldexp(_product(whole, v), -bits)
    return y


def _upper(a: Array, b: Array) -> Array:
    """a @ b for non-negative factors, rounded up to 20 bits of each row of a and column of b."""
    left, ea = _round_up(a, 1)
    right, eb = _round_up(b, 0)
    return np.asarray(np.ldexp(_blocks(left, right, 1 << 12), ea + eb - 40))


def _round_up(x: Array, axis: int) -> tuple[Array, Array]:
    _, e = np.frexp(np.max(x, axis=axis, keepdims=True, initial=0.0))
    return np.ceil(np.ldexp(x, 20 - e)), e


def _deviation(w2: Array, v: Array, v2: Array, out: Array) -> Array:
    """sqrt(sum_j w2_j (v_j - out)^2), not below the true value but for rounding."""
    whole, e = _round_up(w2, 1)
    square, e2 = _round_up(v2, 0)
    second = np.ldexp(_blocks(whole, square, 1 << 12), e2 - 20)
    first = _product(whole, v)
    zeroth = nx.total(whole)[:, None]
    y = np.maximum(second - 2 * out * first + out * out * zeroth, 0.0)
    return np.asarray(np.sqrt(np.ldexp(y, e - 20)))
