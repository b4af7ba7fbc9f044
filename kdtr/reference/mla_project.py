"""Reference of `mla_project`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.reference.rope import cos_sin, rotate


@dataclass(frozen=True)
class Convention:
    """What engines do differently. The defaults are the contract."""

    half_pairs: bool = False
    rope_sign: float = 1.0
    rope_first: bool = False  # q and kv stored as rope | latent
    value_rows: bool = False  # absorbs the last n rows of a head instead of its first
    norms: bool = True
    eps: float | None = None


def reference(
    inputs: Mapping[str, NDArray[Any]],
    attrs: Mapping[str, Any],
    profile: str,
    *,
    how: Convention = Convention(),
) -> dict[str, NDArray[Any]]:
    """The contract's formula in f64, its budgets, and the status."""
    positions, kv_b = inputs["positions"], inputs["kv_b"]
    h, _, c = kv_b.shape
    r = 2 * inputs["inv_freq"].shape[0]
    n = inputs["q_b"].shape[0] // h - r
    t = positions.shape[0]
    eps = attrs["eps"] if how.eps is None else how.eps
    ok = nx.finite_rows(inputs["x"]) & (positions >= 0)
    x = nx.exact(np.where(ok[:, None], inputs["x"], 0.0))

    half = profile != "f32"

    def times(v: nx.Rounded, w: nx.F64) -> nx.Rounded:
        return nx.linear(v, w, tensor=half)

    def kept(v: nx.Rounded, again: bool = False) -> nx.Rounded:  # between two stages
        return nx.bf16_or_f32(v, again=again) if half else v

    def norm(v: nx.Rounded, name: str) -> nx.Rounded:
        return nx.rms_scaled(v, inputs[name], eps) if how.norms else v

    cos, sin = cos_sin(positions, inputs["inv_freq"], attrs["rope_scale"])
    sin = sin * how.rope_sign

    def turn(v: nx.Rounded) -> nx.Rounded:
        return rotate(v, cos, sin, attrs["store"], how.half_pairs)

    a = kept(norm(kept(times(x, inputs["q_a"])), "q_a_norm"), again=True)
    q = kept(times(a, inputs["q_b"]), again=True).reshape(t, h, n + r)
    rows = np.s_[-n:] if how.value_rows else np.s_[:n]
    latent = [times(q[:, i, :n], kv_b[i, rows].T) for i in range(h)]
    z = kept(times(x, inputs["kv_a"]))
    parts = {
        "q": (_stack(latent, q.common), turn(q[..., n:])),
        "kv": (norm(z[:, :c], "kv_a_norm"), _flat(turn(z[:, c:].reshape(t, 1, r)))),
    }
    out: dict[str, NDArray[Any]] = {"status": np.where(ok, 0, 1).astype(np.int32)}
    for name, (first, second) in parts.items():
        pair = (second, first) if how.rope_first else (first, second)
        budgets = [part.budget(nx.stored(profile)) for part in pair]
        shown = ok.reshape(-1, *[1] * (first.value.ndim - 1))
        columns = {
            name: [part.value for part in pair],
            f"{name}/gate": [b[0] for b in budgets],
            f"{name}/hard": [b[1] for b in budgets],
        }
        for key, both in columns.items():
            out[key] = np.where(shown, np.concatenate(both, axis=-1), 0.0)
    return out


def _stack(parts: list[nx.Rounded], common: nx.F64) -> nx.Rounded:
    def join(name: str) -> nx.F64:
        return np.stack([getattr(p, name) for p in parts], axis=1)

    return nx.Rounded(join("value"), join("hard"), join("gate"), common)


def _flat(x: nx.Rounded) -> nx.Rounded:
    return nx.Rounded(x.value[:, 0], x.hard[:, 0], x.gate[:, 0], x.common[:, 0])
