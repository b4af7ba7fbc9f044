"""Reference of `silu_mul`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx


def reference(
    inputs: Mapping[str, NDArray[Any]], attrs: Mapping[str, Any], profile: str
) -> dict[str, NDArray[Any]]:
    """The contract's formula in f64, its budgets, and the status."""
    ok = nx.finite_rows(inputs["gate"]) & nx.finite_rows(inputs["up"])
    gate, up = (np.where(ok[:, None], inputs[name], 0.0) for name in ("gate", "up"))
    done = nx.swiglu(nx.exact(gate), nx.exact(up))
    _, hard = done.budget(nx.stored(profile))
    return {
        "out": done.value,
        "out/gate": np.where(ok[:, None], hard, 0.0),
        "out/hard": np.where(ok[:, None], hard, 0.0),
        "status": np.where(ok, 0, 1).astype(np.int32),
    }
