"""Reference of `kv_commit@1`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]

OK, BAD_INPUT, CAPACITY = 0, 1, 3


def moves(
    one: Mapping[str, Array], page_size: int, slots: int
) -> tuple[int, list[tuple[int, int, int]]]:
    """Status of one request and its (path entry, source slot, destination slot) in path order."""
    nodes, steps = one["tree_slots"].size, one["accept_index"].size
    count, prefix = int(one["accept_len"]) + 1, int(one["prefix_len"])
    if count < 0 or count > min(steps, nodes):
        return BAD_INPUT, []
    if count == 0:
        return OK, []
    if prefix < 0:
        return BAD_INPUT, []
    if prefix + count > one["page_table"].size * page_size:
        return CAPACITY, []
    found = []
    for k in range(count):
        at = int(one["accept_index"][k])
        page = int(one["page_table"][(prefix + k) // page_size])
        if not (0 <= at < nodes and 0 <= page < slots // page_size):
            return BAD_INPUT, []
        source = int(one["tree_slots"][at])
        if not 0 <= source < slots:
            return BAD_INPUT, []
        found.append((at, source, page * page_size + (prefix + k) % page_size))
    return OK, found


def reference(
    inputs: Mapping[str, Array],
    attrs: Mapping[str, int | float | str | bool],
    profile: str,
) -> dict[str, Array]:
    """Rows, tables and lengths after the step, as the contract says.

    Args:
        inputs: rows u8 [layers, slots, row_bytes], page_table i32 [R, max_pages],
            tree_slots i32 [R, N], hidden u8 [R, N, hidden_bytes], accept_index i32 [R, steps],
            accept_len and prefix_len i32 [R].
        attrs: `page_size`.
        profile: "exact".
    """
    page_size = int(attrs["page_size"])
    rows, table, tree, hidden = (
        np.array(inputs[name]) for name in ("rows", "page_table", "tree_slots", "hidden")
    )
    before = inputs["rows"]
    new_len = np.array(inputs["prefix_len"])
    status = np.zeros(new_len.shape, np.int32)
    per_request = ("page_table", "tree_slots", "accept_index", "accept_len", "prefix_len")
    for r in range(new_len.size):
        one = {name: inputs[name][r] for name in per_request}
        status[r], path = moves(one, page_size, before.shape[1])
        new_len[r] += len(path)
        for k, (at, source, target) in enumerate(path):
            hidden[r, k] = inputs["hidden"][r, at]
            if page_size > 1:
                rows[:, target] = before[:, source]
                continue
            here, there = source, int(table[r, int(one["prefix_len"]) + k])
            for entries in (table[r], tree[r]):
                is_here, is_there = entries == here, entries == there
                entries[is_here], entries[is_there] = there, here
    return {
        "rows": rows,
        "page_table": table,
        "tree_slots": tree,
        "hidden": hidden,
        "new_len": new_len.astype(np.int32),
        "status": status,
    }
