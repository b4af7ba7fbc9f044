"""torch's scaled_dot_product_attention with a mask. It gives no lse, so none is checked."""

from __future__ import annotations

import torch
from common import blank, requests

from kdtr.adapter import Call

__version__ = torch.__version__
outputs = {"verify_attn": ["out", "status"]}


def verify_attn(call: Call) -> None:
    """One kv head for all query heads."""
    scale, Dv = float(call.attrs["scale"]), int(call.attrs["Dv"])
    blank(call, lse=False)
    out = call.outputs["out"].torch()
    for r, q, rows, sees, _ in requests(call):
        y = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            rows[None, None],
            rows[None, None, :, :Dv],
            attn_mask=sees,
            scale=scale,
            enable_gqa=True,
        )
        out[r, : len(q)] = y[0].transpose(0, 1).to(out.dtype)
