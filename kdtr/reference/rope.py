"""Reference of `rope`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx


def cos_sin(positions: NDArray[Any], inv_freq: nx.F64, scale: float) -> tuple[nx.F64, nx.F64]:
    """scale * cos and scale * sin [T, F] of the angle, which is one f32 product."""
    angle = nx.round_f32(np.maximum(positions, 0).astype(np.float64)[:, None] * inv_freq)
    sin, cos = nx.sincos(angle)
    return cos * scale, sin * scale


def rotate(
    x: nx.Rounded, cos: nx.F64, sin: nx.F64, store: str = "halves", half_pairs: bool = False
) -> nx.Rounded:
    """Pairs (2i, 2i+1) of x [T, H, 2F] turned by the angles [T, F].

    `half_pairs` takes (i, F + i) instead, a known mistake.
    """
    c, s = cos[:, None, :], sin[:, None, :]
    f = cos.shape[-1]
    first, second = (
        (np.s_[..., :f], np.s_[..., f:]) if half_pairs else (np.s_[..., 0::2], np.s_[..., 1::2])
    )

    def turn(v: nx.F64) -> tuple[nx.F64, nx.F64]:
        return v[first] * c - v[second] * s, v[second] * c + v[first] * s

    def spread(v: nx.F64) -> tuple[nx.F64, nx.F64]:
        return (
            np.abs(v[first] * c) + np.abs(v[second] * s),
            np.abs(v[second] * c) + np.abs(v[first] * s),
        )

    def quadrature(v: nx.F64) -> tuple[nx.F64, nx.F64]:
        return (
            np.sqrt((v[first] * c) ** 2 + (v[second] * s) ** 2),
            np.sqrt((v[second] * c) ** 2 + (v[first] * s) ** 2),
        )

    def join(a: nx.F64, b: nx.F64) -> nx.F64:
        if store == "halves":
            return np.concatenate([a, b], axis=-1)
        return np.stack([a, b], axis=-1).reshape(*a.shape[:-1], 2 * f)

    u = nx.UNIT_F32
    own = 7 * u * join(*spread(x.value))
    hard = join(*spread(x.hard)) + own
    gate = np.sqrt(join(*quadrature(x.gate)) ** 2 + own**2)
    return nx.Rounded(join(*turn(x.value)), hard, gate, x.common)


def reference(
    inputs: Mapping[str, NDArray[Any]],
    attrs: Mapping[str, Any],
    profile: str,
    *,
    half_pairs: bool = False,
) -> dict[str, NDArray[Any]]:
    """The contract's formula in f64, its budgets, and the status."""
    positions, inv_freq, start = inputs["positions"], inputs["inv_freq"], attrs["start"]
    ok = nx.finite_rows(inputs["x"]) & (positions >= 0)
    x = np.where(ok[:, None, None], inputs["x"], 0.0)
    cos, sin = cos_sin(positions, inv_freq, attrs["scale"])
    stop = start + 2 * inv_freq.shape[0]
    turned = rotate(nx.exact(x[..., start:stop]), cos, sin, attrs["store"], half_pairs)
    out, gate, hard = x.copy(), np.zeros_like(x), np.zeros_like(x)
    out[..., start:stop] = turned.value
    gate[..., start:stop], hard[..., start:stop] = turned.budget(nx.stored(profile))
    rows = ok[:, None, None]
    return {
        "out": out,
        "out/gate": np.where(rows, gate, 0.0),
        "out/hard": np.where(rows, hard, 0.0),
        "status": np.where(ok, 0, 1).astype(np.int32),
    }
