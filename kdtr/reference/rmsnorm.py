"""Reference of `rmsnorm`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx


def reference(
    inputs: Mapping[str, NDArray[Any]],
    attrs: Mapping[str, Any],
    profile: str,
) -> dict[str, NDArray[Any]]:
    """The contract's formula in f64, its budgets, and the status."""
    dtype = nx.stored(profile)
    ok = nx.finite_rows(inputs["x"])
    x = np.where(ok[:, None], inputs["x"], 0.0)
    w, eps = inputs["weight"], attrs["eps"]
    done = nx.rms_scaled(nx.exact(x), w, eps)
    if attrs["variant"] == "f32_then_round":
        value, (gate, hard) = done.value, done.budget(dtype)
    else:
        inner = nx.rms_scaled(nx.exact(x), np.ones_like(w), eps)
        error = inner.budget()[1]
        low, high = (nx.rounded(inner.value + s * error, dtype) for s in (-1, 1))
        mid = nx.rounded(inner.value, dtype)
        value = w * mid
        own = 2 * nx.UNIT_F32 * np.abs(value) + nx.unit(dtype) * np.abs(value) + nx.TINY_F32
        hard = gate = own + np.abs(w) * np.maximum(high - mid, mid - low)
    zero = ~ok[:, None]
    return {
        "out": np.where(zero, 0.0, value),
        "out/gate": np.where(zero, 0.0, gate),
        "out/hard": np.where(zero, 0.0, hard),
        "status": np.where(ok, 0, 1).astype(np.int32),
    }
