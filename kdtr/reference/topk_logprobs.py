"""Reference of `topk_logprobs@1`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kdtr import numerics as nx

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

INF = np.inf


def row_lse(x: NDArray[Any]) -> NDArray[np.float64]:
    """Log-sum-exp over the last axis in f64; -inf where no value is finite. [..., V] -> [...]."""
    top = np.max(x, axis=-1, initial=-INF)
    shift = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(invalid="ignore"):
        lse: NDArray[np.float64] = top + nx.log(nx.total(nx.exp(x - shift[..., None])))
    return lse


def lse_budget(lse: NDArray[np.float64], top: NDArray[np.float64]) -> NDArray[np.float64]:
    """One ulp of f32, less where that would reach below the row's maximum. See the contract."""
    known = np.isfinite(lse)
    value = np.where(known, lse, 0.0)
    gap = value - np.where(known, top, 0.0)
    exponent = np.frexp(np.maximum(np.abs(value), 1.0))[1] - 1
    ulp = np.ldexp(1.0, exponent - 23)
    budget = np.minimum(ulp, gap + ulp / 2 * (1 - 2.0**-20))
    return np.where(known, np.where(gap == 0, np.abs(value) * 2.0**-26, budget), 0.0)


def reference(
    inputs: Mapping[str, NDArray[Any]],
    attrs: Mapping[str, int | float | str | bool],
    profile: str,
) -> dict[str, NDArray[Any]]:
    """Candidates, log-probabilities and log-sum-exps as the contract says.

    Args:
        inputs: `logits` f64 [R, L, V].
        attrs: `K`.
        profile: "f32".
    """
    x = inputs["logits"]
    requests, depths, vocabulary = x.shape
    k = int(attrs["K"])
    bad = (np.isnan(x) | (x == INF)).any(axis=(1, 2))
    x = np.where(bad[:, None, None], -INF, x)

    lse = row_lse(x)
    kept = min(k, vocabulary)
    order = np.argsort(-(x + 0.0), axis=-1, kind="stable")[..., :kept]  # -0 + 0.0 is +0
    best = np.take_along_axis(x, order, -1)
    finite = best > -INF
    ids = np.full((requests, depths, k), -1, np.int32)
    logprobs = np.full((requests, depths, k), -INF, np.float32)
    ids[..., :kept] = np.where(finite, order, -1)
    lse32 = np.where(np.isfinite(lse), lse, 0.0).astype(np.float32)
    values = np.where(finite, best, 0.0).astype(np.float32)
    with np.errstate(over="ignore"):
        logprobs[..., :kept] = np.where(finite, values - lse32[..., None], np.float32(-INF))

    budget = lse_budget(lse, np.max(x, axis=-1, initial=-INF))
    return {
        "ids": ids,
        "logprobs": logprobs,
        "lse": lse,
        "lse/gate": budget,
        "lse/hard": budget,
        "status": np.where(bad, 1, 0).astype(np.int32),
    }
