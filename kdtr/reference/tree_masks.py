"""Reference of `tree_masks`: rows of bits, one request at a time."""

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
    """Masks and orders of all requests.

    Args:
        inputs: visible u8 [R, N, N]; parents, depths i32 [R, N]; n_nodes, prefix_len i32 [R].
        attrs: T and T8, the elements of full and packed8.
        profile: unused; every output is exact.

    Returns:
        qlen u8 [R, N, N], full u8 [T], packed32 u32 [R, N, ceil(N/32)], packed8 u8 [T8],
        indptr i32 [R+1], bfs_order and retrieve_index i32 [R, N], status i32 [R].
    """
    requests, slots = inputs["parents"].shape
    widths = np.maximum(inputs["prefix_len"].astype(np.int64), 0) + slots
    values, octets = slots * widths, (slots * widths + 7) // 8
    total, total8 = int(attrs["T"]), int(attrs["T8"])
    out = {
        "qlen": np.zeros((requests, slots, slots), np.uint8),
        "full": np.zeros(total, np.uint8),
        "packed32": np.zeros((requests, slots, (slots + 31) // 32), np.uint32),
        "packed8": np.zeros(total8, np.uint8),
        "indptr": np.minimum(np.cumsum([0, *octets]), total8).astype(np.int32),
        "bfs_order": np.full((requests, slots), -1, np.int32),
        "retrieve_index": np.full((requests, slots), -1, np.int32),
        "status": np.zeros(requests, np.int32),
    }
    start, start8 = 0, 0
    for r in range(requests):
        end, end8 = start + int(values[r]), start8 + int(octets[r])
        nodes = int(inputs["n_nodes"][r])
        status = check(inputs, r)
        if status == OK and (end > total or end8 > total8):
            status = CAPACITY
        if status == OK:
            see = np.zeros((slots, slots), np.uint8)
            see[:nodes, :nodes] = inputs["visible"][r, :nodes, :nodes] != 0
            rows = np.ones((slots, int(widths[r])), np.uint8)
            rows[:, int(widths[r]) - slots :] = see
            out["qlen"][r] = see
            out["full"][start:end] = rows.reshape(-1)
            out["packed8"][start8:end8] = np.packbits(rows.reshape(-1), bitorder="little")
            for j in range(slots):
                out["packed32"][r, :, j // 32] |= see[:, j].astype(np.uint32) << np.uint32(j % 32)
            out["bfs_order"][r, :nodes] = bfs_order(inputs, r, nodes)
            out["retrieve_index"][r, :nodes] = r * slots + np.arange(nodes)
        out["status"][r] = status
        start, start8 = end, end8
    return out


def check(inputs: Mapping[str, Array], r: int) -> int:
    """Status of request r, sizes of the outputs aside."""
    nodes = int(inputs["n_nodes"][r])
    if not 0 <= nodes <= inputs["parents"].shape[1] or inputs["prefix_len"][r] < 0:
        return BAD_INPUT
    parents, depths = inputs["parents"][r].tolist(), inputs["depths"][r].tolist()
    for i in range(nodes):
        if i == 0:
            fits = parents[0] == -1 and depths[0] == 0
        else:
            fits = 0 <= parents[i] < i and depths[i] == depths[parents[i]] + 1
        if not fits:
            return BAD_LINKS
    return OK


def bfs_order(inputs: Mapping[str, Array], r: int, nodes: int) -> list[int]:
    """Nodes by (depth, place of the parent, index)."""
    parents = inputs["parents"][r].tolist()
    order: list[int] = []
    level = [0] if nodes else []
    while level:
        order += level
        level = [i for parent in level for i in range(1, nodes) if parents[i] == parent]
    return order
