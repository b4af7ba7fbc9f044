"""What the adapters share: a paged, batched call of verify_attn as dense tensors, one request each.

The adapters do what a caller of these libraries does: they refuse bad requests, gather pages and
write the rows that the library has no notion of (inactive requests, slots past n_nodes).
Everything that a library computes is its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from kdtr.adapter import Call


class Request(NamedTuple):
    """One request: q [n, H, D], rows [m, D], sees bool [n, m], prefix = rows before the tree."""

    index: int
    q: torch.Tensor
    rows: torch.Tensor
    sees: torch.Tensor
    prefix: int


def requests(call: Call) -> Iterator[Request]:
    """The requests that have anything to compute; status and the rows of all others are written."""
    part, page_size = call.attrs["part"], int(call.attrs["page_size"])
    q, pool = call.inputs["q"].torch(), call.inputs["kv_pool"].torch()
    counts = call.inputs["n_nodes"].torch().tolist()
    status = call.outputs["status"].torch()
    status.zero_()
    if part != "tail":
        table = call.inputs["page_table"].torch().long()
        lengths = call.inputs["prefix_len"].torch().tolist()
    if part != "prefix":
        tree, visible = call.inputs["tree_slots"].torch().long(), call.inputs["visible"].torch()
    for r, n in enumerate(counts):
        if n == 0:
            continue
        slots = torch.zeros(0, dtype=torch.long)
        bad = not 0 <= n <= q.shape[1]
        if not bad and part != "tail":
            bad = not 0 <= lengths[r] <= table.shape[1] * page_size
            if not bad:
                t = torch.arange(lengths[r])
                pages = table[r, t // page_size]
                bad = bool((pages < 0).any())
                slots = pages * page_size + t % page_size
        prefix = len(slots)
        if not bad and part != "prefix":
            slots = torch.cat([slots, tree[r, :n]])
        if bad or bool(((slots < 0) | (slots >= len(pool))).any()):
            status[r] = 1
            continue
        sees = torch.ones(n, len(slots), dtype=torch.bool)
        if part != "prefix":
            sees[:, prefix:] = visible[r, :n, :n] != 0
        yield Request(r, q[r, :n], pool[slots], sees, prefix)


def blank(call: Call, *, lse: bool = True) -> None:
    """What the contract wants of rows that see nothing."""
    call.outputs["out"].torch().zero_()
    if lse:
        call.outputs["lse"].torch().fill_(float("-inf"))
