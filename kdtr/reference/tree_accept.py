"""Reference of `tree_accept`: the walk, one request at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

OK, BAD_INPUT, BAD_LINKS, CAPACITY = 0, 1, 2, 3


def reference(
    inputs: Mapping[str, NDArray[Any]], attrs: Mapping[str, Any], profile: str
) -> dict[str, NDArray[Any]]:
    """Accepted paths of all requests.

    Args:
        inputs: tokens, next_token, next_sibling, target i32 [R, N]; n_nodes i32 [R].
        attrs: L, V.
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
        row = {name: array[r].tolist() for name, array in inputs.items()}
        out["status"][r], path = walk(row, slots, int(attrs["L"]), int(attrs["V"]))
        if path:
            out["accept_index"][r, : len(path)] = path
            out["accept_len"][r] = len(path) - 1
            out["accepted_tokens"][r, : len(path)] = inputs["target"][r, path]
            out["predicts"][r, path] = inputs["target"][r, path]
    return out


def walk(row: Mapping[str, Any], slots: int, depth_limit: int, vocab: int) -> tuple[int, list[int]]:
    """Status and path (root first) of one request; an empty path where it fails or is inactive."""
    nodes = row["n_nodes"]
    if not 0 <= nodes <= slots:
        return BAD_INPUT, []
    if nodes == 0:
        return OK, []
    path = [0]
    read = 0
    while True:
        wanted = row["target"][path[-1]]
        if not 0 <= wanted < vocab:
            return BAD_INPUT, []
        child = row["next_token"][path[-1]]
        while child != -1:
            read += 1
            if not 1 <= child < nodes or read > nodes - 1:
                return BAD_LINKS, []
            if row["tokens"][child] == wanted:
                break
            child = row["next_sibling"][child]
        if child == -1:
            return OK, path
        if len(path) > depth_limit:
            return CAPACITY, []
        path.append(child)
