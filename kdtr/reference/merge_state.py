"""Reference of `merge_state@1`: elementwise f64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kdtr import numerics as nx

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

U = 2.0**-24  # unit roundoff of f32
EXP = 2.0**-22  # relative error that an exp or a log may have
OUT = {
    "f32": (2.0**-24, nx.round_f32),
    "bf16": (2.0**-8, nx.round_bf16),
    "f16": (2.0**-11, nx.round_f16),
}
TINY = {"f32": 2.0**-125, "bf16": 2.0**-125, "f16": 2.0**-24}  # what flushing subnormals costs


def reference(
    inputs: Mapping[str, NDArray[Any]],
    attrs: Mapping[str, int | float | str | bool],
    profile: str,
) -> dict[str, NDArray[Any]]:
    """Merge two states.

    Args:
        inputs: o_a, o_b f64 [R, N, H, Dv]; lse_a, lse_b f64 [R, N, H], natural log.
        attrs: none.
        profile: the dtype of o: "f32", "bf16" or "f16".

    Returns:
        o [R, N, H, Dv], lse [R, N, H] with their "/gate" and "/hard"; status [R].
    """
    lse_a, lse_b = inputs["lse_a"], inputs["lse_b"]
    refused = np.isnan(lse_a) | np.isnan(lse_b) | (lse_a == np.inf) | (lse_b == np.inf)
    bad = np.any(refused, axis=(1, 2))
    empty_a, empty_b = lse_a == -np.inf, lse_b == -np.inf
    both = ~empty_a & ~empty_b & ~bad[:, None, None]
    u_out, rounded = OUT[profile]

    # Sides that do not count are replaced before any arithmetic touches them.
    a, b = np.where(both, lse_a, 0.0), np.where(both, lse_b, 0.0)
    o_a = np.where(both[..., None], inputs["o_a"], 0.0)
    o_b = np.where(both[..., None], inputs["o_b"], 0.0)
    top = np.maximum(a, b)
    w_a, w_b = nx.exp(a - top), nx.exp(b - top)
    total = w_a + w_b
    p_a, p_b = (w_a / total)[..., None], (w_b / total)[..., None]
    o = p_a * o_a + p_b * o_b
    lse = top + nx.log(total)

    gap = np.abs(a - b)
    base = np.maximum(np.abs(a), np.abs(b))  # 2u of it: an lse taken to base 2 before the shift
    steady = EXP + 2 * U * gap
    worst = nx.expm1(np.minimum(2 * (steady + 2 * U * base), 64.0))
    apart = np.abs(o_a - o_b)
    both_p = p_a * p_b
    mass = p_a * np.abs(o_a) + p_b * np.abs(o_b)
    tiny = TINY[profile]
    o_hard = (
        apart * np.minimum(both_p * worst[..., None], 1.0)
        + 6 * U * mass
        + (2 * U + u_out) * np.abs(o)
        + tiny
    )
    o_gate = (
        apart * np.minimum(both_p * steady[..., None], 1.0)
        + 3 * U * mass
        + (U + u_out) * np.abs(o)
        + tiny
    )
    less = np.minimum(p_a, p_b)[..., 0]
    lse_hard = np.minimum(less * worst, 1.0) + EXP + 2 * U + 3 * U * np.abs(lse) + 2 * U * base
    lse_gate = np.minimum(less * steady, 1.0) + EXP / 2 + U + U * np.abs(lse)

    # One side alone is copied: exact, unless o is too narrow for it.
    only_a, only_b = empty_b & ~empty_a, empty_a & ~empty_b
    keep = ~bad[:, None, None]
    copy = np.where((only_a & keep)[..., None], inputs["o_a"], 0.0)
    copy = np.where((only_b & keep)[..., None], inputs["o_b"], copy)
    half_ulp = np.where(rounded(copy) == copy, 0.0, u_out * np.abs(copy) + tiny)
    lone = np.where(only_a, lse_a, np.where(only_b, lse_b, -np.inf))
    wide = both[..., None]
    return {
        "o": np.where(wide, o, copy),
        "o/gate": np.where(wide, o_gate, half_ulp),
        "o/hard": np.where(wide, o_hard, half_ulp),
        "lse": np.where(both, lse, np.where(keep, lone, -np.inf)),
        "lse/gate": np.where(both, lse_gate, 0.0),
        "lse/hard": np.where(both, lse_hard, 0.0),
        "status": bad.astype(np.int32),
    }
