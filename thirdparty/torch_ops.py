"""Plain torch, as it is usually written: topk, argmax, eager attention, and the merge formula."""

from __future__ import annotations

import torch
from common import blank, requests

from kdtr.adapter import Call

__version__ = torch.__version__


def argmax(call: Call) -> None:
    """torch.argmax over the last axis."""
    x = call.inputs["logits"].torch()
    bad = torch.isnan(x).flatten(1).any(1)
    ids = torch.argmax(x, -1) if x.shape[-1] else torch.full(x.shape[:2], -1)
    call.outputs["ids"].write(torch.where(bad[:, None], -1, ids).int())
    call.outputs["status"].write(bad.int())


def topk_logprobs(call: Call) -> None:
    """torch.topk and torch.logsumexp in f32."""
    x, K = call.inputs["logits"].torch(), int(call.attrs["K"])
    bad = (torch.isnan(x) | (x == torch.inf)).flatten(1).any(1)
    lse = torch.logsumexp(x.float(), -1)
    values, ids = torch.topk(x, min(K, x.shape[-1]), dim=-1)
    absent = values == -torch.inf
    logprobs = torch.where(absent, -torch.inf, values.float() - lse[..., None])
    short = K - values.shape[-1]
    ids = torch.nn.functional.pad(torch.where(absent, -1, ids), (0, short), value=-1)
    logprobs = torch.nn.functional.pad(logprobs, (0, short), value=-torch.inf)
    call.outputs["ids"].write(torch.where(bad[:, None, None], -1, ids).int())
    call.outputs["logprobs"].write(torch.where(bad[:, None, None], -torch.inf, logprobs))
    call.outputs["lse"].write(torch.where(bad[:, None], -torch.inf, lse))
    call.outputs["status"].write(bad.int())


def merge_state(call: Call) -> None:
    """Weights by exp(lse_x - logaddexp(lse_a, lse_b))."""
    o_a, o_b = (call.inputs[n].torch().float() for n in ("o_a", "o_b"))
    a, b = (call.inputs[n].torch() for n in ("lse_a", "lse_b"))
    bad = torch.zeros(len(a), dtype=torch.bool)
    for x in (a, b):
        bad |= (torch.isnan(x) | (x == torch.inf)).flatten(1).any(1)
    lse = torch.logaddexp(a, b)
    o = torch.exp(a - lse)[..., None] * o_a + torch.exp(b - lse)[..., None] * o_b
    call.outputs["o"].write(torch.where(bad[:, None, None, None], 0.0, o))
    call.outputs["lse"].write(torch.where(bad[:, None, None], -torch.inf, lse))
    call.outputs["status"].write(bad.int())


def verify_attn(call: Call) -> None:
    """Eager attention in the input's type, softmax in f32, as in model code."""
    scale, Dv = float(call.attrs["scale"]), int(call.attrs["Dv"])
    blank(call)
    out, lse = call.outputs["out"].torch(), call.outputs["lse"].torch()
    for r, q, rows, sees, _ in requests(call):
        scores = torch.matmul(q, rows.T) * scale  # [n, H, m]
        scores = scores.masked_fill(~sees[:, None], -torch.inf).float()
        p = torch.softmax(scores, -1).to(q.dtype)
        out[r, : len(q)] = torch.matmul(p, rows[:, :Dv]).to(out.dtype)
        lse[r, : len(q)] = torch.logsumexp(scores, -1)
