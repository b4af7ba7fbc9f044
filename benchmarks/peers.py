"""The peers that bench.py times beside ours. Each is optional: a missing package gives no peer.

Peers are PyPI packages (benchmarks/requirements.txt); none of their code is here. SGLang's Triton
files come from its wheel, unzipped in the folder that KDTR_SGLANG names, and sglang-kernel's
library for this GPU is the file that KDTR_SGL_KERNEL names.
"""

from __future__ import annotations

import heapq
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Tensors = dict[str, torch.Tensor]


@dataclass
class Peer:
    """A call of somebody else's.

    Attributes:
        run: the call, enqueued on torch's current stream.
        check: an empty text when the outputs of the last run are right, else what is wrong; None
            where nothing says what is right.
        host: it runs on the host and waits for the GPU, so that it is timed by a wall clock.
    """

    run: Callable[[], Any]
    check: Callable[[], str] | None = None
    host: bool = False


def made(make: Callable[[], Peer]) -> Peer:
    """What `make` gives; what it raises is kept, for the record says why a peer failed."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 (whatever a package raises)
        reason = error

        def run() -> None:
            raise reason

        return Peer(run)


def versions() -> dict[str, str]:
    """Of the packages that are here, by name."""
    names = [n for n in ("flash_mla", "flashinfer", "triton") if importlib.util.find_spec(n)]
    found = {name: str(importlib.import_module(name).__version__) for name in names}
    if _sgl_kernel():
        found["sglang-kernel"] = "0.4.5"
    if os.environ.get("KDTR_SGLANG"):
        found["sglang"] = _sglang().__version__
    return found


# --- trees on the host --------------------------------------------------------------------------
def heap_tree(
    logprobs: NDArray[np.float32], budget: int
) -> tuple[list[int], list[int], NDArray[np.uint8]]:
    """Best-first tree of one request with a heap on the host: parents, ranks, visibility.

    The published algorithm as ports write it in Python: (DDTree, arXiv 2604.12989, alg. 1).
    """
    depths, width = logprobs.shape
    rows = logprobs.astype(np.float64).tolist()
    heap: list[tuple[float, tuple[int, ...], int]] = [(-rows[0][0], (0,), 0)]
    parents: list[int] = [-1]
    last: list[int] = [-1]
    while heap and len(parents) <= budget:
        negative, ranks, parent = heapq.heappop(heap)
        node = len(parents)
        parents.append(parent)
        depth, rank = len(ranks), ranks[-1]
        last.append(rank)
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
    return parents, last, visible


def host_tree(logits: torch.Tensor, K: int, budget: int) -> Tensors:
    """From logits on the device to verify tensors on the device, by way of the host.

    What ports without a device builder do: top-k on the GPU, heap, links and visibility matrix in
    Python, copies both ways. [R, L, V] -> tokens, depths, next_token, next_sibling [R, N] and
    visible [R, N, N].
    """
    values, ids = torch.topk(logits, K, dim=-1)
    logprobs = values.float() - torch.logsumexp(logits.float(), -1, keepdim=True)
    host, names = logprobs.cpu().numpy(), ids.cpu().numpy()
    R, N = len(host), budget + 1
    links = {
        name: np.full((R, N), -1, np.int32)
        for name in ("tokens", "depths", "next_token", "next_sibling")
    }
    visible = np.zeros((R, N, N), np.uint8)
    for r in range(R):
        parents, ranks, visible[r] = heap_tree(host[r], budget)
        depth, youngest = [0] * len(parents), [-1] * len(parents)
        links["tokens"][r, 0] = links["depths"][r, 0] = 0
        for node in range(1, len(parents)):
            parent = parents[node]
            depth[node] = depth[parent] + 1
            links["depths"][r, node] = depth[node]
            links["tokens"][r, node] = names[r, depth[node] - 1, ranks[node]]
            if youngest[parent] < 0:
                links["next_token"][r, parent] = node
            else:
                links["next_sibling"][r, youngest[parent]] = node
            youngest[parent] = node
    found = {name: torch.from_numpy(x).cuda() for name, x in links.items()}
    found["visible"] = torch.from_numpy(visible).cuda()
    torch.cuda.synchronize()
    return found


# --- SGLang -------------------------------------------------------------------------------------
@cache
def _sgl_kernel() -> bool:
    """Load sglang-kernel's library."""
    path = os.environ.get("KDTR_SGL_KERNEL", "")
    if path:
        torch.ops.load_library(path)
    return bool(path)


@cache
def _sglang() -> Any:
    """The adapter that imports SGLang's Triton files without the rest of SGLang."""
    folder = str(Path(__file__).resolve().parent.parent / "thirdparty")
    sys.path.append(folder)
    try:
        return importlib.import_module("sglang_triton")
    finally:
        sys.path.remove(folder)


def sglang_verify_tree_greedy(a: dict[str, Any], out: Tensors, L: int) -> dict[str, Peer]:
    """sglang-kernel's accept walk, on the same trees; right when its paths are ours."""
    if not _sgl_kernel():
        return {}
    R, N = a["tokens"].shape
    index = torch.arange(R * N, device="cuda").reshape(R, N)
    long = [a[n].long() for n in ("tokens", "next_token", "next_sibling", "target")]
    predicts, path, length = (
        torch.full(s, -1, dtype=torch.int32, device="cuda") for s in ((R * N,), (R, L + 1), (R,))
    )
    op = torch.ops.sgl_kernel.verify_tree_greedy

    def check() -> str:
        same = torch.equal(length, out["accept_len"])
        there = torch.arange(L + 1, device="cuda") <= out["accept_len"][:, None]
        wanted = out["accept_index"] + index[:, :1].int()
        return "" if same and torch.equal(path[there], wanted[there]) else "other paths than ours"

    run = lambda: op(predicts, path, length, long[0], index, *long[1:])  # noqa: E731
    return {"sglang verify_tree_greedy": Peer(run, check)}


def sglang_merge_state(parts: Tensors, wrong: Callable[[torch.Tensor], str]) -> dict[str, Peer]:
    """sglang-kernel's merge of two attention states, held to the same roundings as ours."""
    if not _sgl_kernel():
        return {}
    o_a, o_b = (parts[n].flatten(0, 1) for n in ("o_a", "o_b"))
    lse_a, lse_b = (parts[n].flatten(0, 1) for n in ("lse_a", "lse_b"))
    out, lse = torch.empty_like(o_a), torch.empty_like(lse_a)
    op = torch.ops.sgl_kernel.merge_state_v2
    return {
        "sglang merge_state_v2": Peer(
            lambda: op(o_a, lse_a, o_b, lse_b, out, lse),
            lambda: wrong(out.reshape(parts["o_a"].shape)),
        )
    }


def sglang_uno(logits: torch.Tensor, K: int, budget: int) -> dict[str, Peer]:
    """SGLang's UNO builder, from logits to the tensors of verification, as its worker calls it.

    build_uno_tree_proposal, then build_tree_kernel_efficient with a mask of the tree alone, which
    is timed apart too. Its top-k is FlashInfer's where that can be had, else torch's; the second
    row is without any. It is right when mask and links fit the tree that it chose; which nodes it
    chooses is for thirdparty/sglang_triton.py to judge.
    """
    if not os.environ.get("KDTR_SGLANG") or not _sgl_kernel():
        return {}
    uno = _sglang().uno_tree
    how, top_k = "torch.topk", lambda x, k, **_: torch.topk(x, k)
    if importlib.util.find_spec("flashinfer"):
        module = importlib.import_module("flashinfer")
        try:  # it is compiled at its first call, and older versions have none
            module.top_k(logits.flatten(0, 1), K, sorted=True)
            how, top_k = f"flashinfer {module.__version__} top_k", module.top_k
        except Exception as error:  # noqa: BLE001 (whatever the compilation raises)
            print(f"    no flashinfer top_k: {type(error).__name__}")
    ready = torch.topk(logits.flatten(0, 1), K)
    R, L, _ = logits.shape
    N = budget + 1
    roots = torch.zeros(R, dtype=torch.long, device="cuda")
    lengths = torch.full((R,), 1000, dtype=torch.long, device="cuda")
    workspace: Tensors = {}
    state: dict[str, Any] = {}

    def propose(select: Callable[..., Any] = top_k) -> None:
        uno._flashinfer_top_k = select  # noqa: SLF001 (its import was stood in for)
        state["tree"] = uno.build_uno_tree_proposal(
            roots, logits, max_nodes=N, candidate_top_k=K, temperature=1.0, workspace=workspace
        )

    def link() -> None:
        if not state:
            propose()
        tree = state["tree"]
        tokens = torch.cat((tree.root_tokens.unsqueeze(1), tree.draft_tokens), dim=1)
        mask = torch.full((R * N * N,), True, dtype=torch.bool, device="cuda")
        links = torch.full((3, R, N), -1, dtype=torch.long, device="cuda")
        positions = torch.empty(R * N, dtype=torch.long, device="cuda")
        torch.ops.sgl_kernel.build_tree_kernel_efficient(
            tree.parent_list, tree.top_scores_index, lengths, mask, positions, *links, K, L, N, 1
        )
        state.update(tokens=tokens, mask=mask, links=links, positions=positions)

    def whole(select: Callable[..., Any] = top_k) -> None:
        propose(select)
        link()

    def check() -> str:
        parents = (state["tree"].top_scores_index // K).cpu()
        visible = torch.zeros(R, N, N, dtype=torch.bool)
        visible[:, 0, 0] = True
        child, sibling = (torch.full((R, N), -1) for _ in range(2))
        for r in range(R):
            youngest: dict[int, int] = {}
            for i in range(1, N):
                parent = int(parents[r, i - 1])
                visible[r, i] = visible[r, parent]
                visible[r, i, i] = True
                if parent in youngest:
                    sibling[r, youngest[parent]] = i
                else:
                    child[r, parent] = i
                youngest[parent] = i
        for name, got, want in (
            ("mask", state["mask"].reshape(R, N, N), visible),
            ("child links", state["links"][1], child),
            ("sibling links", state["links"][2], sibling),
        ):
            if not torch.equal(got.cpu(), want):
                return f"its {name} do not fit its tree"
        return ""

    return {
        f"sglang UNO, logits to verify tensors, {how}": Peer(whole, check),
        "the same, its top-k given": Peer(lambda: whole(lambda *_, **__: ready), check),
        "sglang build_tree_kernel_efficient alone": Peer(link, check),
    }


# --- attention ----------------------------------------------------------------------------------
Wrong = Callable[[Tensors, bool], str]  # outputs, whether they are of the prefix alone


def attention(a: dict[str, Any], P: int, page_size: int, wrong: Wrong) -> dict[str, Peer]:
    """Attention peers: with the whole mask torch and SGLang, over the prefix alone the others."""
    R, N, H, _ = a["q"].shape
    found: dict[str, Peer] = {}
    if R * N * H * P <= 1 << 31:
        found["torch eager, tree mask"] = _torch_attention(a, P, page_size)
    if os.environ.get("KDTR_SGLANG"):
        found["sglang extend_attention_fwd, tree mask"] = made(
            lambda: _sglang_extend(a, P, page_size, wrong)
        )
    if page_size == 64 and importlib.util.find_spec("flash_mla"):
        found["FlashMLA, prefix only, no mask"] = made(lambda: _flash_mla(a, P, wrong))
    if importlib.util.find_spec("flashinfer"):
        for backend in ("fa3", "fa2"):
            found[f"FlashInfer {backend}, prefix only, no mask"] = made(
                lambda b=backend: _flashinfer(a, P, page_size, wrong, b)  # type: ignore[misc]
            )
    return found


def _flash_mla(a: dict[str, Any], P: int, wrong: Wrong) -> Peer:
    flash = flash_mla(a, P)
    assert flash is not None
    outputs, run = flash
    return Peer(run, lambda: wrong(outputs(), True))


def _slots(a: dict[str, Any], P: int, page_size: int) -> torch.Tensor:
    t = torch.arange(P, device="cuda")
    return a["page_table"].long()[:, t // page_size] * page_size + t % page_size


def _torch_attention(a: dict[str, Any], P: int, page_size: int) -> Peer:
    """Scores in bf16 before the softmax, as model code has it: outside of every budget."""
    R, N, H, D = a["q"].shape
    slots = torch.cat([_slots(a, P, page_size), a["tree_slots"].long()], 1)
    mask = torch.ones(R, N, P + N, dtype=torch.bool, device="cuda")
    mask[:, :, P:] = a["visible"].bool()
    mask = mask.repeat_interleave(H, 1)
    q = a["q"].reshape(R, N * H, D)

    def run() -> torch.Tensor:
        keys = a["kv_pool"][slots]
        scores = (q @ keys.transpose(1, 2)).float() * a["scale"]
        weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)
        return weights.to(q.dtype) @ keys[..., : a["Dv"]]

    return Peer(run)


def _sglang_extend(a: dict[str, Any], P: int, page_size: int, wrong: Wrong) -> Peer:
    """extend_attention_fwd: prefix rows by slot, tree rows packed, the tree's mask, its lse."""
    R, N, H, D = a["q"].shape
    Dv = int(a["Dv"])
    forward = _sglang().extend_attention_fwd
    q = a["q"].reshape(R * N, H, D)
    tail = a["kv_pool"][a["tree_slots"].long().flatten()][:, None].contiguous()
    mask = torch.ones(R, N, P + N, dtype=torch.uint8, device="cuda")
    mask[:, :, P:] = a["visible"]
    flat = mask.flatten()
    rows = a["kv_pool"][:, None]
    out, lse = q.new_empty(R * N, H, Dv), torch.empty(R * N, H, device="cuda")
    starts = torch.arange(R + 1, dtype=torch.int32, device="cuda")
    bounds = (starts * N, starts * P, _slots(a, P, page_size).flatten())
    masks = starts.long() * N * (P + N)

    def run() -> None:
        forward(
            q, tail, tail[..., :Dv], out, rows, rows[..., :Dv], *bounds, flat, False, masks, N,
            1.0, 1.0, sm_scale=a["scale"], lse_extend=lse,
        )  # fmt: skip

    def check() -> str:
        return wrong({"out": out.reshape(R, N, H, Dv), "lse": lse.reshape(R, N, H)}, False)

    return Peer(run, check)


def flash_mla(
    a: dict[str, Any], P: int
) -> tuple[Callable[[], Tensors], Callable[[], Tensors]] | None:
    """FlashMLA over the prefix: what the last run gave as the contract has it, and the run.

    The run gives `out` [R, N, H, Dv] and `lse` [R, H, N]. None without the package.
    """
    try:
        module = importlib.import_module("flash_mla")  # of the package sgl-flash-mla
    except ImportError:
        return None
    q = a["q"]
    pages = a["kv_pool"][: a["kv_pool"].shape[0] // 64 * 64].reshape(-1, 64, 1, q.shape[3])
    lengths = torch.full((q.shape[0],), P, dtype=torch.int32, device="cuda")
    plan = module.get_mla_metadata()[0]
    given: Tensors = {}

    def run() -> Tensors:
        given["out"], given["lse"] = module.flash_mla_with_kvcache(
            q, pages, a["page_table"], lengths, a["Dv"], plan, softmax_scale=a["scale"],
            causal=False, use_legacy=True,
        )  # fmt: skip
        return given

    run()  # fills the plan, which a captured call cannot
    return lambda: {"out": given["out"], "lse": given["lse"].transpose(1, 2)}, run


def _flashinfer(a: dict[str, Any], P: int, page_size: int, wrong: Wrong, backend: str) -> Peer:
    """FlashInfer's MLA over the prefix; its lse is asked for in base e."""
    module = importlib.import_module("flashinfer.mla")
    R, N, H, D = a["q"].shape
    per = a["page_table"].shape[1]
    q = a["q"].reshape(R * N, H, D)
    pages = a["kv_pool"][: a["kv_pool"].shape[0] // page_size * page_size]
    pages = pages.reshape(-1, page_size, D)
    parts = [
        x.contiguous() for x in (q[..., :512], q[..., 512:], pages[..., :512], pages[..., 512:])
    ]
    starts = torch.arange(R + 1, dtype=torch.int32, device="cuda")
    lengths = torch.full((R,), P, dtype=torch.int32, device="cuda")
    workspace = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    wrapper = module.BatchMLAPagedAttentionWrapper(workspace, backend=backend)
    wrapper.plan(
        starts * N, starts * per, a["page_table"].flatten(), lengths, H, 512, 64, page_size,
        False, a["scale"], q.dtype, q.dtype,
    )  # fmt: skip
    out, lse = torch.empty_like(parts[0]), torch.empty(R * N, H, device="cuda")

    def run() -> None:
        wrapper.run(*parts, out=out, lse=lse, return_lse=True, return_lse_base_on_e=True)

    def check() -> str:
        return wrong({"out": out.reshape(R, N, H, 512), "lse": lse.reshape(R, N, H)}, True)

    return Peer(run, check)

    return run


def torch_linear(a: dict[str, torch.Tensor], _: dict[str, Any]) -> Peer:
    """torch's linear, by cuBLAS, in the dtype of its inputs."""
    return Peer(lambda: torch.nn.functional.linear(a["x"], a["weight"]))


def torch_mla_project(a: dict[str, torch.Tensor], attrs: dict[str, Any]) -> Peer:
    """The same operations in eager torch, intermediates in the dtype of the rows."""
    T, (H, _, C) = a["x"].shape[0], a["kv_b"].shape
    r = 2 * a["inv_freq"].shape[0]
    n = a["q_b"].shape[0] // H - r
    keys = a["kv_b"][:, :n]
    linear, norm = torch.nn.functional.linear, torch.nn.functional.rms_norm

    def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1)
        return turned.flatten(-2).to(x.dtype)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        angle = a["positions"].float()[:, None] * a["inv_freq"]
        cos, sin = torch.cos(angle)[:, None], torch.sin(angle)[:, None]
        latent = norm(linear(a["x"], a["q_a"]), (a["q_a"].shape[0],), a["q_a_norm"], attrs["eps"])
        q = linear(latent, a["q_b"]).view(T, H, n + r)
        absorbed = torch.bmm(q[..., :n].transpose(0, 1), keys).transpose(0, 1)
        z = linear(a["x"], a["kv_a"])
        row = norm(z[:, :C], (C,), a["kv_a_norm"], attrs["eps"])
        return (
            torch.cat([absorbed, turn(q[..., n:], cos, sin)], -1),
            torch.cat([row, turn(z[:, None, C:], cos, sin)[:, 0]], -1),
        )

    return Peer(run)


def torch_mla_output(a: dict[str, torch.Tensor], _: dict[str, Any]) -> Peer:
    """The same operations in eager torch."""
    H = a["kv_b"].shape[0]
    v = a["o"].shape[1] // H
    values = a["kv_b"][:, -v:].transpose(1, 2)

    def run() -> torch.Tensor:
        mine = torch.bmm(a["latent"].transpose(0, 1), values).transpose(0, 1)
        return torch.nn.functional.linear(mine.flatten(1), a["o"])

    return Peer(run)
