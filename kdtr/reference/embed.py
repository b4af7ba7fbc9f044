"""Reference of `embed`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def reference(
    inputs: Mapping[str, NDArray[Any]], attrs: Mapping[str, Any], profile: str
) -> dict[str, NDArray[Any]]:
    """Rows by id, as f32; a bad id gives a zero row and status 1."""
    ids, table = inputs["ids"], inputs["table"]
    ok = (ids >= 0) & (ids < table.shape[0])
    out = np.zeros((ids.shape[0], table.shape[1]), np.float32)
    out[ok] = table[ids[ok]]
    return {"out": out, "status": np.where(ok, 0, 1).astype(np.int32)}
