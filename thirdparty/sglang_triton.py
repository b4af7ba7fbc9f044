"""SGLang's Triton kernels, compiled on a GPU, else interpreted: files of an unzipped sglang wheel.

With TRITON_INTERPRET=1 they are interpreted on a machine with a GPU too. KDTR_SGLANG names the
folder that holds `sglang/`. Its kernels' own modules are imported; the rest of SGLang, which they
ask only for the platform, is stood in for.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from common import blank, requests

from kdtr.adapter import Call

HOME = Path(os.environ["KDTR_SGLANG"])
COMPILED = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET", "0") != "1"
os.environ["TRITON_INTERPRET"] = "0" if COMPILED else "1"
__version__ = "0.5.23"
device = "cuda" if COMPILED else "cpu"
outputs = {"tree_build": [
    "n_nodes", "tokens", "depths", "parents", "positions", "next_token", "next_sibling",
    "visible", "status",
]}  # fmt: skip


def _package(name: str, **content: Any) -> None:
    module = types.ModuleType(name)
    module.__path__ = [str(HOME / name.replace(".", "/"))]
    module.__dict__.update(content)
    sys.modules[name] = module


class _Off:
    """An environment switch that is off, whatever its name."""

    def __getattr__(self, name: str) -> Any:
        return types.SimpleNamespace(get=lambda: False)


def _no(*_: Any) -> bool:
    return False


def _is_cuda() -> bool:
    return COMPILED


for _name in ("sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.attention",
              "sglang.kernels.ops.speculative", "sglang.srt"):  # fmt: skip
    _package(_name)
_package("sglang.srt.environ", envs=_Off())
_utils = types.ModuleType("sglang.srt.utils")
_utils.__getattr__ = lambda name: _is_cuda if name == "is_cuda" else _no  # type: ignore[method-assign]
sys.modules["sglang.srt.utils"] = _utils
_flashinfer = sys.modules.get("flashinfer")
_package("flashinfer", top_k=None)  # asked for by a function that is not called here

from sglang.kernels.ops.attention.extend_attention import (  # noqa: E402
    extend_attention_fwd,
)
from sglang.kernels.ops.speculative import uno_tree  # noqa: E402

del sys.modules["flashinfer"]
if _flashinfer is not None:
    sys.modules["flashinfer"] = _flashinfer


def unsupported(call: Call) -> str:
    """The limits that SGLang states, and what Triton's interpreter gets wrong."""
    if call.op.startswith("verify_attn"):
        wrong = call.inputs["q"].dtype == "bf16" and not COMPILED
        return "Triton's interpreter is not exact in bf16" if wrong else ""
    _, L, K = call.inputs["logprobs"].shape
    budget = int(call.attrs["budget"])
    if call.attrs["tie_order"] != "uno":
        return f"tie_order {call.attrs['tie_order']} is not what UNO does"
    if budget < 0:
        return "a negative budget"
    Q = budget + 1
    if Q > 128 or Q * K > 2048 or K < 1 or L < 1:
        return f"UNO wants Q <= 128 and Q K <= 2048, got Q {Q}, K {K}"
    if uno_tree._candidate_tree_capacity(L, K, Q) < Q:
        return "UNO's trees are full: fewer candidates than nodes"
    if L + 1 > Q:
        return "UNO wants more nodes than depths"
    return ""


def verify_attn(call: Call) -> None:
    """extend_attention_fwd with a custom mask and the lse that it stores."""
    scale, Dv = float(call.attrs["scale"]), int(call.attrs["Dv"])
    blank(call)
    out, lse = call.outputs["out"].torch(), call.outputs["lse"].torch()
    for r, q, rows, sees, prefix in requests(call):
        n, H, D = q.shape
        tail = rows[prefix:]
        if len(tail) == 0:  # part "prefix": the new tokens exist, and are skipped
            tail = q.new_zeros(n, D)
        y = q.new_empty(n, H, Dv)
        got = lse.new_empty(n, H)
        full = torch.ones(n, prefix + n, dtype=torch.uint8, device=q.device)
        full[:, : sees.shape[1]] = sees
        keys = rows[:prefix, None].contiguous()
        if prefix == 0:
            keys = q.new_zeros(1, 1, D)
        extend_attention_fwd(
            q.contiguous(),
            tail[:, None].contiguous(),
            tail[:, None, :Dv].contiguous(),
            y,
            keys,
            keys[..., :Dv].contiguous(),
            torch.tensor([0, n], dtype=torch.int32, device=q.device),
            torch.tensor([0, prefix], dtype=torch.int32, device=q.device),
            torch.arange(max(prefix, 1), dtype=torch.int64, device=q.device),
            full.flatten(),
            False,
            torch.tensor([0, full.numel()], dtype=torch.int64, device=q.device),
            n,
            1.0,
            1.0,
            sm_scale=scale,
            lse_extend=got,
            skip_extend=call.attrs["part"] == "prefix",
        )
        out[r, :n] = y
        lse[r, :n] = got


def tree_build(call: Call) -> None:
    """_build_tree_kernel alone, on the candidates of the call; links from its edges."""
    logprobs, ids = (call.inputs[n].torch() for n in ("logprobs", "ids"))
    roots, prefixes = (call.inputs[n].torch() for n in ("root_token", "prefix_len"))
    R, L, K = logprobs.shape
    Q = int(call.attrs["budget"]) + 1
    if call.attrs["tie_order"] != "uno":
        raise ValueError(call.attrs["tie_order"])
    bad = _refused(logprobs, ids, roots, prefixes)
    ids = ids.long().contiguous()
    logprobs = torch.where(bad[:, None, None], 0.0, logprobs)
    tokens = ids.new_empty(R, Q - 1)
    edges = ids.new_empty(R, Q - 1)
    parent_width = max(K * max(L - 1, 0) + 1, Q)
    parent_list = ids.new_empty(R, parent_width)
    depths = torch.zeros(R, Q, dtype=torch.int32, device=ids.device)
    masses = torch.zeros(R, Q, device=ids.device)
    if Q > 1 and R > 0:
        block = 1 << (Q * K - 1).bit_length()
        uno_tree._build_tree_kernel[(R,)](
            ids, logprobs.contiguous(), tokens, edges, parent_list, depths, masses,
            TOKEN_BATCH_STRIDE=ids.stride(0), TOKEN_DEPTH_STRIDE=ids.stride(1),
            TOKEN_RANK_STRIDE=ids.stride(2), PROB_BATCH_STRIDE=L * K, PROB_DEPTH_STRIDE=K,
            PROB_RANK_STRIDE=1, PARENT_BATCH_STRIDE=parent_width, NUM_DEPTHS=L, K=K, Q=Q,
            BLOCK_CANDIDATES=max(block, parent_width), num_warps=8, num_stages=1,
        )  # fmt: skip
    _write(call, *(x.cpu() for x in (bad, tokens, edges, depths, roots, prefixes)), K)


def _refused(
    logprobs: torch.Tensor, ids: torch.Tensor, roots: torch.Tensor, prefixes: torch.Tensor
) -> torch.Tensor:
    from ddtree import refused  # noqa: PLC0415 (an adapter beside this one)

    lp, names = logprobs.cpu().numpy(), ids.cpu().numpy()
    return torch.tensor(
        [refused(lp[r], names[r], int(roots[r]), int(prefixes[r])) for r in range(len(roots))],
        dtype=torch.bool,
        device=logprobs.device,
    )


def _write(
    call: Call,
    bad: torch.Tensor,
    tokens: torch.Tensor,
    edges: torch.Tensor,
    depths: torch.Tensor,
    roots: torch.Tensor,
    prefixes: torch.Tensor,
    K: int,
) -> None:
    given = {name: call.outputs[name].torch() for name in outputs["tree_build"]}
    zeroed = ("positions", "visible", "n_nodes", "status")
    out = {
        name: torch.full(tensor.shape, 0 if name in zeroed else -1, dtype=tensor.dtype)
        for name, tensor in given.items()
    }
    out["status"].copy_(bad.int())
    for r in range(len(roots)):
        if bad[r]:
            continue
        Q = tokens.shape[1] + 1
        out["n_nodes"][r] = Q
        out["tokens"][r, 0], out["depths"][r, 0] = roots[r], 0
        out["positions"][r, 0], out["visible"][r, 0, 0] = prefixes[r], 1
        last: dict[int, int] = {}
        for i in range(1, Q):
            parent = int(edges[r, i - 1]) // K
            out["tokens"][r, i] = tokens[r, i - 1]
            out["depths"][r, i], out["parents"][r, i] = depths[r, i], parent
            out["positions"][r, i] = prefixes[r] + depths[r, i]
            out["visible"][r, i] = out["visible"][r, parent]
            out["visible"][r, i, i] = 1
            if parent in last:
                out["next_sibling"][r, last[parent]] = i
            else:
                out["next_token"][r, parent] = i
            last[parent] = i
    for name, tensor in given.items():
        tensor.copy_(out[name])
