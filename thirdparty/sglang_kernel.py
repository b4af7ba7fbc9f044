"""Two kernels of the package sglang-kernel: its walk over a verified tree, and its merge.

KDTR_SGL_KERNEL is the path of its library for this GPU, sgl_kernel/sm90/common_ops.abi3.so of the
unzipped wheel; nothing else of the package is needed.
"""

from __future__ import annotations

import os

import torch

from kdtr.adapter import Call

torch.ops.load_library(os.environ["KDTR_SGL_KERNEL"])

__version__ = "0.4.5"
device = "cuda"
outputs = {
    "tree_accept": ["accept_index", "accept_len", "accepted_tokens", "predicts"],
    "merge_state": ["o", "lse"],
}  # neither has a status


def unsupported(call: Call) -> str:
    """Widths that merge_state_v2 refuses, and types that it does not turn into each other."""
    if call.op.startswith("tree_accept"):
        return ""
    o_a, o = call.inputs["o_a"], call.outputs["o"]
    if o.dtype != o_a.dtype:
        return f"o comes in {o_a.dtype}, not {o.dtype}"
    pack = 4 if o_a.dtype == "f32" else 8
    if o_a.shape[-1] % pack or o_a.shape[-1] == 0:
        return f"Dv must be a multiple of {pack}, got {o_a.shape[-1]}"
    return ""


def merge_state(call: Call) -> None:
    """merge_state_v2 over [R N, H, Dv]."""
    o_a, o_b = (call.inputs[n].torch().flatten(0, 1) for n in ("o_a", "o_b"))
    lse_a, lse_b = (call.inputs[n].torch().flatten(0, 1) for n in ("lse_a", "lse_b"))
    o, lse = (call.outputs[n].torch().flatten(0, 1) for n in ("o", "lse"))
    if len(o_a):
        torch.ops.sgl_kernel.merge_state_v2(o_a, lse_a, o_b, lse_b, o, lse)


def tree_accept(call: Call) -> None:
    """verify_tree_greedy, which trusts every link: a tree that would lead it out ends the run.

    Rows of inactive and bad requests stay -1. accepted_tokens are predicts along accept_index,
    which is where SGLang's caller takes them.
    """
    names = ("tokens", "next_token", "next_sibling", "target")
    host = [call.inputs[n].torch().cpu() for n in names]
    counts = call.inputs["n_nodes"].torch().tolist()
    L, _ = int(call.attrs["L"]), int(call.attrs["V"])
    out = {n: call.outputs[n].torch() for n in outputs["tree_accept"]}
    for tensor in out.values():
        tensor.fill_(-1)
    _, N = host[0].shape
    rows = [r for r, n in enumerate(counts) if 0 < n <= N]
    for r in rows:
        if why := lost(*(x[r].tolist() for x in host), counts[r], L):
            raise ValueError(f"verify_tree_greedy would follow {why} in request {r}")
    if not rows:
        return
    gpu = out["predicts"].device
    tokens, following, siblings, target = (x[rows].long().to(gpu) for x in host)
    index = torch.arange(len(rows) * N, device=gpu).reshape(-1, N)
    predicts = torch.full((len(rows) * N,), -1, dtype=torch.int32, device=gpu)
    path = torch.full((len(rows), L + 1), -1, dtype=torch.int32, device=gpu)
    length = torch.full((len(rows),), -1, dtype=torch.int32, device=gpu)
    torch.ops.sgl_kernel.verify_tree_greedy(
        predicts, path, length, tokens, index, following, siblings, target
    )
    there = path >= 0
    emitted = torch.where(there, predicts[path.clamp(min=0).long()], -1)
    out["accept_index"][rows] = torch.where(there, path - index[:, :1].int(), -1)
    out["accept_len"][rows] = length
    out["accepted_tokens"][rows] = emitted
    out["predicts"][rows] = predicts.reshape(-1, N)


def lost(
    tokens: list[int],
    following: list[int],
    siblings: list[int],
    target: list[int],
    n: int,
    L: int,
) -> str:
    """What would lead the walk of verify_tree_greedy out of a tree of n nodes, or round in it."""
    node = 0
    for _ in range(L):
        child = following[node]
        for _ in range(n + 1):
            if child == -1 or (0 <= child < n and tokens[child] == target[node]):
                break
            if not 0 <= child < n:
                return f"link {child}, past {n} nodes,"
            child = siblings[child]
        else:
            return "a cycle of siblings"
        if child == -1:
            return ""
        node = child
    return ""
