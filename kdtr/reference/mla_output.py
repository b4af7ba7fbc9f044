"""Reference of `mla_output`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.reference.linear import add, finished


@dataclass(frozen=True)
class Convention:
    """What engines do differently. The defaults are the contract."""

    key_rows: bool = False  # takes the first v rows of a head instead of its last
    heads_inner: bool = False  # concatenates as column i * H + h


def reference(
    inputs: Mapping[str, NDArray[Any]],
    attrs: Mapping[str, Any],
    profile: str,
    *,
    how: Convention = Convention(),
) -> dict[str, NDArray[Any]]:
    """The contract's formula in f64, its budgets, and the status."""
    latent, kv_b, o = inputs["latent"], inputs["kv_b"], inputs["o"]
    t, h, _ = latent.shape
    v = o.shape[1] // h
    residual = inputs.get("residual")
    ok = nx.finite_rows(latent)
    if residual is not None:
        ok &= nx.finite_rows(residual)
        residual = np.where(ok[:, None], residual, 0.0)
    x = nx.exact(np.where(ok[:, None, None], latent, 0.0))
    rows = np.s_[:v] if how.key_rows else np.s_[kv_b.shape[1] - v :]
    half = profile != "f32"
    heads = [nx.linear(x[:, i], kv_b[i, rows], tensor=half) for i in range(h)]

    def join(name: str) -> nx.F64:
        stacked = np.stack([getattr(p, name) for p in heads], axis=1)
        if how.heads_inner:
            stacked = np.moveaxis(stacked, 1, 2)
        return stacked.reshape(t, h * v)

    values = nx.Rounded(join("value"), join("hard"), join("gate"), np.zeros((t, 1)))
    if half:
        values = nx.bf16_or_f32(values)
    done = add(nx.linear(values, o, tensor=half), residual)
    return finished(done, ok, "out", nx.stored(profile))
