"""FlashInfer's MLA over paged latents, each node a request of its own.

`raw` gives its lse as it comes, in base 2; `fa3` and `fa2` ask it for base e. As in flashmla.py,
unused rows of a page hold NaN, and zeros in `fa3_zeros` and `fa2_zeros`.
"""

from __future__ import annotations

import flashinfer
import torch
from common import blank, nodes, not_mla, store

from kdtr.adapter import Call


class Engine:
    """BatchMLAPagedAttentionWrapper of one backend as an engine of kdtr."""

    __version__: str = flashinfer.__version__
    device = "cuda"

    def __init__(self, backend: str, unused: float, *, base_e: bool = True) -> None:
        self.backend, self.unused, self.base_e = backend, unused, base_e

    def unsupported(self, call: Call) -> str:
        """Types that it has no kernel for."""
        return not_mla(call)

    def verify_attn(self, call: Call) -> None:
        """One plan and one run for all nodes."""
        scale = float(call.attrs["scale"])
        blank(call)
        work = nodes(call, self.unused)
        if work is None:
            return
        q = work.q[:, 0]
        counts = torch.tensor([0, *work.pages], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        used = torch.arange(len(work.cache), dtype=torch.int32, device=q.device)
        wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(
            torch.empty(128 << 20, dtype=torch.int8, device=q.device), backend=self.backend
        )
        wrapper.plan(
            torch.arange(len(q) + 1, dtype=torch.int32, device=q.device),
            counts.to(q.device),
            used,
            work.lengths,
            q.shape[1],
            512,
            64,
            64,
            False,
            scale,
            q.dtype,
            q.dtype,
        )
        out, lse = wrapper.run(
            q[..., :512].contiguous(),
            q[..., 512:].contiguous(),
            work.cache[..., :512].contiguous(),
            work.cache[..., 512:].contiguous(),
            return_lse=True,
            return_lse_base_on_e=self.base_e,
        )
        store(call, work, out, lse)


raw = Engine("fa3", 0.0, base_e=False)
fa3 = Engine("fa3", float("nan"))
fa2 = Engine("fa2", float("nan"))
fa3_zeros = Engine("fa3", 0.0)
fa2_zeros = Engine("fa2", 0.0)
