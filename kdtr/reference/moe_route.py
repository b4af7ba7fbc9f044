"""Reference of `moe_route`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.errors import ContractError


@dataclass(frozen=True)
class Convention:
    """What engines do differently. The defaults are the contract."""

    mask: float = -np.inf
    weights: Literal["scores", "choices"] = "scores"
    group_score: Literal["top2", "max", "unbiased"] = "top2"
    biased: bool = True
    grouped: bool = True
    applied: int = 1  # times the routed scaling factor is multiplied in
    renormalize: bool = True
    bias_dtype: Literal["f32", "bf16"] = "f32"
    last_wins: bool = False  # ties of experts to the higher id
    by_id: bool = False  # the chosen are listed by id


def descending(x: nx.F64) -> NDArray[np.int64]:
    """Indices of x [..., n] by value descending, then index ascending."""
    return np.argsort(-x, axis=-1, kind="stable")


def choose(
    scores: nx.F64, bias: nx.F64, attrs: Mapping[str, Any], how: Convention
) -> tuple[nx.F64, nx.F64, nx.F64]:
    """(choice before the mask, group score [T, G], choice after the mask), each [T, E] but one."""
    if how.bias_dtype == "bf16":
        bias = nx.round_bf16(bias)
    choice = scores + bias if how.biased else scores.copy()
    t, e = choice.shape
    n_group = attrs["n_group"]
    grouped = (scores if how.group_score == "unbiased" else choice).reshape(
        t, n_group, e // n_group
    )
    best = np.take_along_axis(grouped, descending(grouped)[..., :2], axis=-1)
    group = best[..., 0] if how.group_score == "max" else nx.total(best)
    kept = np.zeros((t, n_group), bool)
    np.put_along_axis(kept, descending(group)[:, : attrs["topk_group"]], True, axis=-1)
    if not how.grouped:
        kept[:] = True
    masked = np.where(np.repeat(kept, e // n_group, axis=1), choice, how.mask)
    return choice, group, masked


def route(
    logits: nx.F64,
    bias: nx.F64,
    attrs: Mapping[str, Any],
    how: Convention = Convention(),
) -> tuple[NDArray[np.int32], nx.F64, nx.F64]:
    """(ids [T, K], weights [T, K], their relative f32 error [T, K]) of finite rows."""
    scores = nx.sigmoid(logits)
    _, _, masked = choose(scores, bias, attrs, how)
    k = attrs["top_k"]
    ids = descending(masked)[:, :k]
    if how.last_wins:
        ids = masked.shape[1] - 1 - descending(masked[:, ::-1])[:, :k]
    if how.by_id:
        ids = np.sort(ids, axis=1)
    taken = np.take_along_axis(masked, ids, axis=1) > -np.inf
    s = np.take_along_axis(masked if how.weights == "choices" else scores, ids, axis=1)
    s = np.where(taken, s, 0.0)
    error = nx.sigmoid_error(np.take_along_axis(logits, ids, axis=1))
    w, relative = s, error + nx.UNIT_F32
    if attrs["renormalize"] and how.renormalize:
        total = nx.total(s)[:, None] + 1e-20
        w = s / total
        relative = relative + nx.total(s * error)[:, None] / total + (k + 1) * nx.UNIT_F32
    for _ in range(how.applied):
        w = w * attrs["scale"]
    return np.where(taken, ids, -1).astype(np.int32), w, relative


def require_qualified(logits: nx.F64, bias: nx.F64, attrs: Mapping[str, Any]) -> None:
    """Raise ContractError for a row whose ids a legal f32 rounding could change."""
    scores = nx.sigmoid(logits)
    choice, group, masked = choose(scores, bias, attrs, Convention())
    error = scores * nx.sigmoid_error(logits) + nx.UNIT_F32 * np.abs(choice) + nx.TINY_F32
    error = np.where(np.isfinite(error), error, 0.0)
    t, e = choice.shape
    per = e // attrs["n_group"]
    for r in range(t):
        order = descending(masked[r])
        _pairs(
            r,
            "experts",
            masked[r],
            error[r],
            order[: attrs["top_k"] + 1],
            lambda i, j, r=r: logits[r, i] == logits[r, j] and bias[i] == bias[j],
        )
        rows = choice[r].reshape(-1, per)
        top = np.take_along_axis(rows, descending(rows)[:, :2], 1)
        slack = 2 * error[r].reshape(-1, per).max(axis=1) + nx.UNIT_F32 * np.abs(group[r])
        slack = np.where(np.isfinite(slack), slack, 0.0)
        edge = descending(group[r])
        n = attrs["topk_group"]
        for i in edge[:n]:
            _pairs(
                r,
                "groups",
                group[r],
                slack,
                np.array([i, *edge[n:]]),
                lambda a, b, top=top: bool((top[a] == top[b]).all()),
                adjacent=False,
            )


def _pairs(
    row: int,
    what: str,
    x: nx.F64,
    error: nx.F64,
    order: NDArray[Any],
    same: Any,
    adjacent: bool = True,
) -> None:
    first = order[:-1] if adjacent else np.repeat(order[:1], len(order) - 1)
    for i, j in zip(first, order[1:], strict=True):
        if x[j] == -np.inf or x[i] - x[j] > error[i] + error[j] or same(i, j):
            continue
        raise ContractError(
            f"moe_route/row {row}",
            f"{what} {i} and {j} are too close to call",
            f"a gap above {error[i] + error[j]:.3g}",
            f"{x[i] - x[j]:.3g}",
        )


def reference(
    inputs: Mapping[str, NDArray[Any]],
    attrs: Mapping[str, Any],
    profile: str,
    *,
    how: Convention = Convention(),
) -> dict[str, NDArray[Any]]:
    """The contract's formula in f64, its budget, and the status.

    Raises ContractError for a row that is not margin-qualified.
    """
    bias = inputs["bias"]
    ok = ~np.isnan(inputs["logits"]).any(axis=1) & ~(np.isnan(bias) | (bias == np.inf)).any()
    logits = np.where(ok[:, None], inputs["logits"], 0.0)
    sane = bias if ok.any() else np.zeros_like(bias)
    require_qualified(logits[ok], sane, attrs)
    ids, weights, relative = route(logits, sane, attrs, how)
    hard = np.abs(weights) * relative + nx.TINY_F32 * np.where(weights > 0, 1e3, 1.0)
    return {
        "ids": np.where(ok[:, None], ids, -1).astype(np.int32),
        "weights": np.where(ok[:, None], weights, 0.0),
        "weights/gate": np.where(ok[:, None], hard, 0.0),
        "weights/hard": np.where(ok[:, None], hard, 0.0),
        "status": np.where(ok, 0, 1).astype(np.int32),
    }
