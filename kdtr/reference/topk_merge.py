"""Reference of `topk_merge@1`: one sort and one log-sum-exp over the shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kdtr.reference.topk_logprobs import row_lse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

INF = np.inf


def lse_budget(lse: NDArray[np.float64], top: NDArray[np.float64]) -> NDArray[np.float64]:
    """One ulp of f32, less near the greatest part `top`; the nearest f32 where it is alone.

    Both [...], as is the result. See the contract.
    """
    known = np.isfinite(lse)
    value = np.where(known, lse, 0.0)
    gap = value - np.where(known, top, 0.0)
    ulp = np.ldexp(1.0, np.frexp(np.maximum(np.abs(value), 1.0))[1] - 24)
    near = np.abs(value - value.astype(np.float32)) * (1 + 2.0**-20)
    copied = np.maximum(near, np.abs(value) * 2.0**-26)
    summed = np.minimum(ulp, gap + ulp / 2 * (1 - 2.0**-20))
    return np.where(known, np.maximum(copied, np.where(gap > 0, summed, 0.0)), 0.0)


def reference(
    inputs: Mapping[str, NDArray[Any]],
    attrs: Mapping[str, int | float | str | bool],
    profile: str,
) -> dict[str, NDArray[Any]]:
    """The whole vocabulary's candidates, log-probabilities and log-sum-exps.

    Args:
        inputs: part_ids i32 [S, R, L, K], part_values f64 [S, R, L, K], part_lse f64 [S, R, L],
            part_status i32 [S, R], first i32 [S].
        attrs: none.
        profile: "f32".
    """
    parts = np.moveaxis(inputs["part_lse"], 0, -1)  # [R, L, S]
    refused = (np.isnan(parts) | (parts == INF)).any(axis=(1, 2))
    bad = refused | (inputs["part_status"] != 0).any(axis=0)
    parts = np.where(bad[:, None, None], -INF, parts)
    lse = row_lse(parts)

    shards, requests, depths, k = inputs["part_ids"].shape
    real = (inputs["part_ids"] >= 0) & ~bad[:, None, None]
    ids = np.where(real, inputs["part_ids"] + inputs["first"][:, None, None, None], -1)
    values = np.where(real, inputs["part_values"], -INF)
    ids, values = (
        np.moveaxis(a, 0, 2).reshape(requests, depths, shards * k) for a in (ids, values)
    )
    # Ids ascending, then a stable sort by value: ties stay in order of id. -0 + 0.0 is +0.
    order = np.argsort(ids, axis=-1, kind="stable")
    by_value = np.argsort(-(np.take_along_axis(values, order, -1) + 0.0), axis=-1, kind="stable")
    order = np.take_along_axis(order, by_value, -1)[..., :k]
    kept = order.shape[-1]  # 0 without shards
    best, best_values = (np.take_along_axis(a, order, -1) for a in (ids, values))

    found = np.full((requests, depths, k), -1, np.int32)
    logprobs = np.full((requests, depths, k), -INF, np.float32)
    found[..., :kept] = best
    lse32 = np.where(np.isfinite(lse), lse, 0.0).astype(np.float32)
    finite = np.where(best >= 0, best_values, 0.0).astype(np.float32)
    with np.errstate(over="ignore"):
        logprobs[..., :kept] = np.where(best >= 0, finite - lse32[..., None], np.float32(-INF))

    budget = lse_budget(lse, np.max(parts, axis=-1, initial=-INF))
    return {
        "ids": found,
        "logprobs": logprobs,
        "lse": lse,
        "lse/gate": budget,
        "lse/hard": budget,
        "status": bad.astype(np.int32),
    }
