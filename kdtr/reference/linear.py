"""Reference of `linear`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx


def add(x: nx.Rounded, y: nx.F64 | None) -> nx.Rounded:
    """x plus an exact residual, rounded; x itself where there is none."""
    if y is None:
        return x
    value = x.value + y
    own = nx.UNIT_F32 * np.abs(value)
    return nx.Rounded(value, x.hard + own, x.gate + own, x.common)


def reference(
    inputs: Mapping[str, NDArray[Any]], attrs: Mapping[str, Any], profile: str
) -> dict[str, NDArray[Any]]:
    """The contract's formula in f64, its budgets, and the status."""
    residual = inputs.get("residual")
    ok = nx.finite_rows(inputs["x"])
    if residual is not None:
        ok &= nx.finite_rows(residual)
        residual = np.where(ok[:, None], residual, 0.0)
    x = np.where(ok[:, None], inputs["x"], 0.0)
    product = nx.linear(nx.exact(x), inputs["weight"], tensor=profile != "f32")
    return finished(add(product, residual), ok, "out", nx.stored(profile))


def finished(
    done: nx.Rounded, ok: NDArray[np.bool_], name: str, dtype: str
) -> dict[str, NDArray[Any]]:
    """Output `name`, stored as `dtype`, with its budgets and the status; failed rows 0."""
    gate, hard = done.budget(dtype)
    rows = ok.reshape(-1, *[1] * (done.value.ndim - 1))
    return {
        name: np.where(rows, done.value, 0.0),
        f"{name}/gate": np.where(rows, gate, 0.0),
        f"{name}/hard": np.where(rows, hard, 0.0),
        "status": np.where(ok, 0, 1).astype(np.int32),
    }
