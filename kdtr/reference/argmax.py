"""Reference of `argmax@1`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def reference(
    inputs: Mapping[str, NDArray[Any]],
    attrs: Mapping[str, int | float | str | bool],
    profile: str,
) -> dict[str, NDArray[Any]]:
    """Greedy ids as the contract says. `logits` f64 [R, N, V]."""
    x = inputs["logits"]
    bad = np.isnan(x).any(axis=(1, 2))
    if x.shape[2] == 0:
        ids = np.full(x.shape[:2], -1, np.int32)
    else:
        is_top = x == np.max(np.where(np.isnan(x), -np.inf, x), axis=-1, keepdims=True)
        ids = np.where(bad[:, None], -1, np.argmax(is_top, axis=-1)).astype(np.int32)
    return {"ids": ids, "status": np.where(bad, 1, 0).astype(np.int32)}
