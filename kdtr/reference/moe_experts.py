"""Reference of `moe_experts`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx


@dataclass(frozen=True)
class Convention:
    """What engines do differently. The defaults are the contract."""

    high_nibble_first: bool = False
    twos_complement: bool = False
    scale_shift: int = 0  # group scales taken this many groups later
    gate_up_swapped: bool = False
    shared_factor: float = 1.0
    shared: bool = True
    weighted: bool = True
    round_weights: bool | None = None  # None: as the format says
    round_products: bool = False  # gate and up to bf16 before silu
    round_experts: bool = False  # each expert's result to bf16 before they are combined
    round_sum: bool = False  # the combination to bf16 before the residual
    factors_in: str = "f32"  # what the routing weights are rounded to


def unpack(
    packed: NDArray[np.int32],
    scale: nx.F64,
    group: int,
    rounded: bool,
    how: Convention = Convention(),
) -> nx.F64:
    """int4 words [..., n/8] and scales [..., n/group] to weights [..., n]."""
    lanes = np.arange(8)[::-1] if how.high_nibble_first else np.arange(8)
    words = packed.astype(np.int64)[..., None] & 0xFFFFFFFF
    codes = (words >> (4 * lanes)) & 15
    values = np.where(codes > 7, codes - 16, codes) if how.twos_complement else codes - 8
    values = values.reshape(*packed.shape[:-1], -1).astype(np.float64)
    wide = np.repeat(np.roll(scale, -how.scale_shift, axis=-1), group, axis=-1)
    out = values * wide
    return nx.round_bf16(out) if rounded else out


def expert(
    x: nx.Rounded, weights: tuple[nx.F64, nx.F64, nx.F64], stored: str, how: Convention
) -> nx.Rounded:
    """down @ (silu(gate @ x) * (up @ x)) of rows x [n, D] of the dtype `stored`."""
    gate, up, down = weights
    g, u = nx.linear(x, gate), nx.linear(x, up)
    if how.round_products:
        g, u = (nx.exact(nx.round_bf16(y.value)) for y in (g, u))
    hidden = nx.swiglu(u, g) if how.gate_up_swapped else nx.swiglu(g, u)
    y = nx.linear(hidden if stored == "f32" else nx.bf16_or_f32(hidden), down)
    return nx.exact(nx.round_bf16(y.value)) if how.round_experts else y


def reference(
    inputs: Mapping[str, NDArray[Any]],
    attrs: Mapping[str, Any],
    profile: str,
    *,
    how: Convention = Convention(),
) -> dict[str, NDArray[Any]]:
    """The contract's formula in f64, its budgets, and the status."""
    x, ids, factors = inputs["x"], inputs["ids"], nx.rounded(inputs["weights"], how.factors_in)
    residual, stored = inputs.get("residual"), nx.stored(profile)
    experts, load = _experts(inputs, attrs, how)
    ok = nx.finite_rows(x) & nx.finite_rows(factors)
    ok &= ((ids >= -1) & (ids < experts)).all(axis=1)
    if residual is not None:
        ok &= nx.finite_rows(residual)
    value, bound, quad, terms = (np.zeros_like(x) for _ in range(4))
    size = np.zeros_like(x)

    def add(rows: NDArray[Any], part: nx.Rounded, factor: nx.F64) -> None:
        f = np.abs(factor)
        value[rows] += part.value * factor
        size[rows] += np.abs(part.value) * f
        bound[rows] += part.hard * f
        quad[rows] += (part.gate * f) ** 2
        terms[rows] += 1.0

    for k in range(ids.shape[1]):
        for e in range(experts):
            rows = np.flatnonzero(ok & (ids[:, k] == e))
            if rows.size:
                part = expert(nx.exact(x[rows]), load(e), stored, how)
                add(rows, part, factors[rows, k, None] if how.weighted else np.ones((1, 1)))
    if "shared_gate" in inputs and how.shared:
        rows = np.flatnonzero(ok)
        weights = inputs["shared_gate"], inputs["shared_up"], inputs["shared_down"]
        part = expert(nx.exact(x[rows]), weights, stored, how)
        add(rows, part, np.full((1, 1), how.shared_factor))
    if how.round_sum:
        value[:] = nx.round_bf16(value)
    if residual is not None:
        rows = np.flatnonzero(ok)
        add(rows, nx.exact(residual[rows]), np.ones((1, 1)))
    own = (terms + 1) * nx.UNIT_F32 * size
    store = np.abs(value) * (0.0 if stored == "f32" else nx.unit(stored))
    hard = bound + own + nx.TINY_F32 + store
    own = np.sqrt(quad + own**2) + nx.UNIT_F32 * np.abs(value) + nx.TINY_F32
    gate = np.minimum(own + store, hard)
    return {
        "out": value,
        "out/gate": np.where(ok[:, None], gate, 0.0),
        "out/hard": np.where(ok[:, None], hard, 0.0),
        "status": np.where(ok, 0, 1).astype(np.int32),
    }


def _experts(
    inputs: Mapping[str, NDArray[Any]], attrs: Mapping[str, Any], how: Convention
) -> tuple[int, Any]:
    names = ("gate", "up", "down")
    if attrs["format"] == "dense":
        return inputs["gate"].shape[0], lambda e: tuple(inputs[n][e] for n in names)
    rounded = attrs["format"] == "w4_bf16" if how.round_weights is None else how.round_weights

    def load(e: int) -> tuple[nx.F64, ...]:
        return tuple(
            unpack(inputs[f"{n}_packed"][e], inputs[f"{n}_scale"][e], attrs["group"], rounded, how)
            for n in names
        )

    return inputs["gate_packed"].shape[0], load
