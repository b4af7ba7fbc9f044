"""The peers that bench.py times beside ours. Each is optional: a missing package gives no peer.

Peers are PyPI packages (benchmarks/requirements.txt); none of their code is here.
"""

from __future__ import annotations

import heapq
import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Peer = Callable[[], Any]


def heap_tree(logprobs: NDArray[np.float32], budget: int) -> tuple[list[int], NDArray[np.uint8]]:
    """Best-first tree of one request with a heap on the host, and its visibility matrix.

    The published algorithm as ports write it in Python: (DDTree, arXiv 2604.12989, alg. 1).
    """
    depths, width = logprobs.shape
    rows = logprobs.astype(np.float64).tolist()
    heap: list[tuple[float, tuple[int, ...], int]] = [(-rows[0][0], (0,), 0)]
    parents: list[int] = [-1]
    while heap and len(parents) <= budget:
        negative, ranks, parent = heapq.heappop(heap)
        node = len(parents)
        parents.append(parent)
        depth, rank = len(ranks), ranks[-1]
        if rank + 1 < width:
            sibling = negative + rows[depth - 1][rank] - rows[depth - 1][rank + 1]
            heapq.heappush(heap, (sibling, (*ranks[:-1], rank + 1), parent))
        if depth < depths:
            heapq.heappush(heap, (negative - rows[depth][0], (*ranks, 0), node))
    visible = np.zeros((budget + 1, budget + 1), np.uint8)
    visible[0, 0] = 1
    for node in range(1, len(parents)):
        visible[node] = visible[parents[node]]
        visible[node, node] = 1
    return parents, visible


def host_tree(logits: torch.Tensor, K: int, budget: int) -> torch.Tensor:
    """From logits on the device to trees and masks on the device, by way of the host.

    What ports without a device builder do: top-k on the GPU, the heap and the visibility matrix
    in Python, copies both ways. [R, L, V] -> visible [R, N, N].
    """
    values, _ = torch.topk(logits, K, dim=-1)
    logprobs = values.float() - torch.logsumexp(logits.float(), -1, keepdim=True)
    host = logprobs.cpu().numpy()
    visible = np.stack([heap_tree(request, budget)[1] for request in host])
    found = torch.from_numpy(visible).cuda()
    torch.cuda.synchronize()
    return found


def _sgl_kernel() -> bool:
    """Load sglang-kernel's library for this GPU, whose path is in KDTR_SGL_KERNEL."""
    path = os.environ.get("KDTR_SGL_KERNEL", "")
    if not path:
        return False
    torch.ops.load_library(path)
    return True


def sglang_verify_tree_greedy(a: dict[str, Any], R: int, N: int, L: int) -> Peer | None:
    """sglang-kernel's accept walk, on the same tree."""
    if not _sgl_kernel():
        return None
    index = torch.arange(R * N, device="cuda").reshape(R, N)
    long = {n: a[n].long() for n in ("tokens", "next_token", "next_sibling", "target")}
    out = [torch.empty(s, dtype=torch.int32, device="cuda") for s in ((R * N,), (R, L + 1), (R,))]
    op = torch.ops.sgl_kernel.verify_tree_greedy

    def run() -> None:
        op(*out, long["tokens"], index, long["next_token"], long["next_sibling"], long["target"], 0)

    return run


def sglang_merge_state(parts: dict[str, torch.Tensor]) -> Peer | None:
    """sglang-kernel's merge of two attention states."""
    if not _sgl_kernel():
        return None
    o_a, o_b = (parts[n].flatten(0, 1) for n in ("o_a", "o_b"))
    lse_a, lse_b = (parts[n].flatten(0, 1) for n in ("lse_a", "lse_b"))
    out, lse = torch.empty_like(o_a), torch.empty_like(lse_a)
    op = torch.ops.sgl_kernel.merge_state_v2
    return lambda: op(o_a, lse_a, o_b, lse_b, out, lse)


def attention(a: dict[str, Any], P: int, page_size: int) -> dict[str, Peer]:
    """Attention peers: torch with the whole mask, FlashMLA over the prefix alone."""
    found: dict[str, Peer] = {}
    R, N, H, _ = a["q"].shape
    if R * N * H * P <= 1 << 31:
        found["torch eager, mask"] = _torch_attention(a, P, page_size)
    flash = _flash_mla(a, P, page_size)
    if flash is not None:
        found["FlashMLA, prefix only, no mask"] = flash
    return found


def _torch_attention(a: dict[str, Any], P: int, page_size: int) -> Peer:
    R, N, H, D = a["q"].shape
    t = torch.arange(P, device="cuda")
    slots = a["page_table"].long()[:, t // page_size] * page_size + t % page_size
    slots = torch.cat([slots, a["tree_slots"].long()], 1)
    mask = torch.ones(R, N, P + N, dtype=torch.bool, device="cuda")
    mask[:, :, P:] = a["visible"].bool()
    mask = mask.repeat_interleave(H, 1)
    q = a["q"].reshape(R, N * H, D)

    def run() -> torch.Tensor:
        keys = a["kv_pool"][slots]
        scores = (q @ keys.transpose(1, 2)).float() * a["scale"]
        weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)
        return weights.to(q.dtype) @ keys[..., : a["Dv"]]

    return run


def _flash_mla(a: dict[str, Any], P: int, page_size: int) -> Peer | None:
    if page_size != 64:
        return None
    try:
        module = importlib.import_module("flash_mla")  # of the wheel sgl-flash-mla
    except ImportError:
        return None
    q = a["q"]
    cache = a["kv_pool"][: a["kv_pool"].shape[0] // 64 * 64].reshape(-1, 64, 1, q.shape[3])
    lengths = torch.full((q.shape[0],), P, dtype=torch.int32, device="cuda")
    plan = module.get_mla_metadata()[0]

    def run() -> Any:
        return module.flash_mla_with_kvcache(
            q, cache, a["page_table"], lengths, a["Dv"], plan, softmax_scale=a["scale"],
            causal=False, use_legacy=True,
        )  # fmt: skip

    run()  # fills the plan, which a captured call cannot
    return run
