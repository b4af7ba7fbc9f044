"""Reference of `tree_build`: a binary heap over (weight, rank tuple), one request at a time."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Outputs = dict[str, NDArray[Any]]


def reference(
    inputs: Mapping[str, NDArray[Any]], attrs: Mapping[str, Any], profile: str
) -> Outputs:
    """Trees of all requests.

    Args:
        inputs: logprobs f64 [R, L, K], ids i32 [R, L, K], root_token and prefix_len i32 [R].
        attrs: budget, tie_order.
        profile: unused; every output is exact.

    Returns:
        n_nodes and status i32 [R]; tokens, depths, parents, positions, next_token, next_sibling
        i32 [R, B+1]; visible u8 [R, B+1, B+1]; weights f64 [R, B+1].
    """
    requests, slots = inputs["ids"].shape[0], int(attrs["budget"]) + 1
    out = pads(requests, slots)
    for r in range(requests):
        if is_bad(inputs, r):
            out["status"][r] = 1
        else:
            fill(out, r, inputs, best_first(inputs, r, attrs))
    return out


def pads(requests: int, slots: int) -> Outputs:
    """Outputs of requests without any node."""
    links = ("tokens", "depths", "parents", "next_token", "next_sibling")
    return {
        "n_nodes": np.zeros(requests, np.int32),
        **{name: np.full((requests, slots), -1, np.int32) for name in links},
        "positions": np.zeros((requests, slots), np.int32),
        "visible": np.zeros((requests, slots, slots), np.uint8),
        "weights": np.zeros((requests, slots)),
        "status": np.zeros(requests, np.int32),
    }


def is_bad(inputs: Mapping[str, NDArray[Any]], r: int) -> bool:
    """Whether request r's inputs break the contract."""
    depth_limit = inputs["ids"].shape[1]
    if inputs["root_token"][r] < 0 or not 0 <= inputs["prefix_len"][r] <= 2**31 - 1 - depth_limit:
        return True
    for lp, ids in zip(inputs["logprobs"][r], inputs["ids"][r], strict=True):
        present = ids[lp != -np.inf].tolist()
        if (
            not (lp <= 0).all()
            or (lp[1:] > lp[:-1]).any()
            or len(set(present)) < len(present)
            or min(present, default=0) < 0
        ):
            return True
    return False


def best_first(
    inputs: Mapping[str, NDArray[Any]], r: int, attrs: Mapping[str, Any]
) -> list[tuple[float, tuple[int, ...], int]]:
    """Popped nodes of request r as (weight, rank tuple, parent index), node 1 first."""
    lp, ids = inputs["logprobs"][r].tolist(), inputs["ids"][r].tolist()
    uno = attrs["tie_order"] == "uno"
    heap: list[tuple[Any, ...]] = []

    def push(weight: float, ranks: tuple[int, ...], parent: int) -> None:
        depth, rank = len(ranks), ranks[-1]
        tie = (depth, rank, ids[depth - 1][rank], parent) if uno else ranks
        heapq.heappush(heap, (-weight, tie, weight, ranks, parent))

    def push_child(weight: float, ranks: tuple[int, ...], node: int) -> None:
        row = lp[len(ranks)] if len(ranks) < len(lp) else []
        if row and row[0] != -np.inf:
            push(weight + row[0], (*ranks, 0), node)

    popped: list[tuple[float, tuple[int, ...], int]] = []
    push_child(0.0, (), 0)
    while heap and len(popped) < int(attrs["budget"]):
        _, _, weight, ranks, parent = heapq.heappop(heap)
        popped.append((weight, ranks, parent))
        push_child(weight, ranks, len(popped))
        row, rank = lp[len(ranks) - 1], ranks[-1]
        if rank + 1 < len(row) and row[rank + 1] != -np.inf:
            push((weight - row[rank]) + row[rank + 1], (*ranks[:-1], rank + 1), parent)
    return popped


def fill(
    out: Outputs,
    r: int,
    inputs: Mapping[str, NDArray[Any]],
    popped: list[tuple[float, tuple[int, ...], int]],
) -> None:
    """Write request r's tree, popped as `best_first` gives it, into padded outputs."""
    ids, prefix = inputs["ids"][r], int(inputs["prefix_len"][r])
    out["n_nodes"][r] = 1 + len(popped)
    out["tokens"][r, 0] = inputs["root_token"][r]
    out["depths"][r, 0] = 0
    out["positions"][r, 0] = prefix
    out["visible"][r, 0, 0] = 1
    last_child = [-1] * (1 + len(popped))
    for node, (weight, ranks, parent) in enumerate(popped, start=1):
        depth = len(ranks)
        out["tokens"][r, node] = ids[depth - 1, ranks[-1]]
        out["depths"][r, node] = depth
        out["parents"][r, node] = parent
        out["positions"][r, node] = prefix + depth
        out["weights"][r, node] = weight
        out["visible"][r, node] = out["visible"][r, parent]
        out["visible"][r, node, node] = 1
        if last_child[parent] < 0:
            out["next_token"][r, parent] = node
        else:
            out["next_sibling"][r, last_child[parent]] = node
        last_child[parent] = node
