"""Reference of `tree_sample`: the walk and the draw, one request at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
OK, BAD_INPUT, BAD_LINKS, CAPACITY = 0, 1, 2, 3


def reference(
    inputs: Mapping[str, Array], attrs: Mapping[str, Any], profile: str
) -> dict[str, Array]:
    """Accepted paths and draws of all requests.

    Args:
        inputs: tokens, next_token, next_sibling i32 [R, N]; n_nodes i32 [R]; probs f64 [R, N, V],
            whose sums are exact; coins f64 [R, L+1]; final_coin f64 [R].
        attrs: L, threshold_acc, threshold_single.
        profile: unused; every output is exact.

    Returns:
        accept_index and accepted_tokens i32 [R, L+1]; accept_len and status i32 [R];
        predicts i32 [R, N].
    """
    requests, slots = inputs["tokens"].shape
    steps = int(attrs["L"]) + 1
    out = {
        "accept_index": np.full((requests, steps), -1, np.int32),
        "accept_len": np.full(requests, -1, np.int32),
        "accepted_tokens": np.full((requests, steps), -1, np.int32),
        "predicts": np.full((requests, slots), -1, np.int32),
        "status": np.zeros(requests, np.int32),
    }
    for r in range(requests):
        status, path, emitted = walk({name: a[r] for name, a in inputs.items()}, attrs)
        out["status"][r] = status
        if status == OK and path:
            out["accept_index"][r, : len(path)] = path
            out["accept_len"][r] = len(path) - 1
            out["accepted_tokens"][r, : len(path)] = emitted
            out["predicts"][r, path] = emitted
    return out


def walk(row: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[int, list[int], list[int]]:
    """Status, path (root first) and emitted tokens of one request."""
    slots, vocab = row["probs"].shape
    nodes = int(row["n_nodes"])
    if not 0 <= nodes <= slots:
        return BAD_INPUT, [], []
    path: list[int] = [0]
    emitted: list[int] = []
    read = 0
    while nodes > 0:
        probs = row["probs"][path[-1]]
        coin, acc = row["coins"][len(path) - 1], 0.0
        tried: list[int] = []
        child = int(row["next_token"][path[-1]])
        while child != -1:
            read += 1
            if not 1 <= child < nodes or read > nodes - 1:
                return BAD_LINKS, [], []
            token = int(row["tokens"][child])
            if not 0 <= token < vocab or not 0 <= coin < 1 or not 0 <= probs[token] < np.inf:
                return BAD_INPUT, [], []
            p = float(probs[token])
            acc += p
            if p > 0 and (coin < acc / attrs["threshold_acc"] or p >= attrs["threshold_single"]):
                break
            tried.append(token)
            child = int(row["next_sibling"][child])
        if child == -1:
            drawn = draw(probs, tried, row["final_coin"])
            return (BAD_INPUT, [], []) if drawn is None else (OK, path, [*emitted, drawn])
        if len(path) > attrs["L"]:
            return CAPACITY, [], []
        path.append(child)
        emitted.append(token)
    return OK, [], []


def draw(probs: Array, tried: list[int], coin: float) -> int | None:
    """The id drawn from `probs` without the tried ones; None for bad input."""
    if not 0 <= coin < 1 or not ((probs >= 0) & (probs < np.inf)).all():
        return None
    residual = probs.copy()
    residual[tried] = 0.0
    running = np.cumsum(residual)
    if running.size == 0 or running[-1] == 0:
        return None
    above = running > coin * running[-1]
    return int(np.argmax(above) if above.any() else np.flatnonzero(residual)[-1])
