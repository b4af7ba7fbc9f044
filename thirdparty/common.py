"""What the adapters share: a paged, batched call of verify_attn as tensors that a library takes.

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
        slots = torch.zeros(0, dtype=torch.long, device=q.device)
        bad = not 0 <= n <= q.shape[1]
        if not bad and part != "tail":
            bad = not 0 <= lengths[r] <= table.shape[1] * page_size
            if not bad:
                t = torch.arange(lengths[r], device=q.device)
                pages = table[r, t // page_size]
                bad = bool((pages < 0).any())
                slots = pages * page_size + t % page_size
        prefix = len(slots)
        if not bad and part != "prefix":
            slots = torch.cat([slots, tree[r, :n]])
        if bad or bool(((slots < 0) | (slots >= len(pool))).any()):
            status[r] = 1
            continue
        sees = torch.ones(n, len(slots), dtype=torch.bool, device=q.device)
        if part != "prefix":
            sees[:, prefix:] = visible[r, :n, :n] != 0
        yield Request(r, q[r, :n], pool[slots], sees, prefix)


class Nodes(NamedTuple):
    """Nodes as requests of their own, in the widths of MLA and in pages of 64.

    A node's output is that of its ancestor path run alone, so a decoding kernel without a tree
    mask computes it. Columns past D hold zeros, and rows past a node's last key what `unused` is.

    Attributes:
        index: request and node of each row of the batch, B pairs.
        q: [B, 1, H, 576].
        cache: [pages, 64, 576].
        table: [B, most pages], i32.
        lengths: keys of each node, i32 [B].
        pages: pages of each node, B numbers.
    """

    index: list[tuple[int, int]]
    q: torch.Tensor
    cache: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    pages: list[int]


def nodes(call: Call, unused: float) -> Nodes | None:
    """Every node of the requests that have anything to compute; None when there is none."""
    index, queries, keys = [], [], []
    for r, q, rows, sees, _ in requests(call):
        for i in range(len(q)):
            index.append((r, i))
            queries.append(torch.nn.functional.pad(q[i], (0, 576 - q.shape[-1])))
            keys.append(torch.nn.functional.pad(rows[sees[i]], (0, 576 - q.shape[-1])))
    if not index:
        return None
    pages = [-(-len(k) // 64) for k in keys]
    device, first = keys[0].device, 0
    cache = torch.full((max(sum(pages), 1), 64, 576), unused, dtype=keys[0].dtype, device=device)
    table = torch.zeros(len(index), max(*pages, 1), dtype=torch.int32)
    for b, (k, count) in enumerate(zip(keys, pages, strict=True)):
        cache.view(-1, 576)[64 * first : 64 * first + len(k)] = k
        table[b, :count] = torch.arange(first, first + count)
        first += count
    lengths = torch.tensor([len(k) for k in keys], dtype=torch.int32, device=device)
    return Nodes(index, torch.stack(queries)[:, None], cache, table.to(device), lengths, pages)


def not_mla(call: Call) -> str:
    """Why a call is not one for `nodes` and a kernel of 16-bit types, or an empty text."""
    q, out = call.inputs["q"], call.outputs["out"]
    if q.dtype == "f32":
        return "no kernel for f32"
    if out.dtype != q.dtype:
        return f"out comes in {q.dtype}, not {out.dtype}"
    if q.shape[-1] > 576 or out.shape[-1] > 512:
        return f"D and Dv are at most 576 and 512, got {q.shape[-1]} and {out.shape[-1]}"
    return ""


def store(call: Call, work: Nodes, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Results of `nodes`: out [B, H, 512], lse [B, H]."""
    r, i = torch.tensor(work.index, device=out.device).T
    call.outputs["out"].torch()[r, i] = out[..., : int(call.attrs["Dv"])]
    call.outputs["lse"].torch()[r, i] = lse


def blank(call: Call, *, lse: bool = True) -> None:
    """What the contract wants of rows that see nothing."""
    call.outputs["out"].torch().zero_()
    if lse:
        call.outputs["lse"].torch().fill_(float("-inf"))
