"""FlashMLA's dense decoding for SM90 (the package sgl-flash-mla), each node a request of its own.

`nan` fills the rows of a page that hold no key with NaN, as the contract lets them be; `zeros` is
for a caller who clears them.
"""

from __future__ import annotations

import flash_mla
from common import blank, nodes, not_mla, store

from kdtr.adapter import Call


class Engine:
    """flash_mla_with_kvcache as an engine of kdtr."""

    __version__: str = flash_mla.__version__
    device = "cuda"

    def __init__(self, unused: float) -> None:
        self.unused = unused

    def unsupported(self, call: Call) -> str:
        """Types that it has no kernel for."""
        return not_mla(call)

    def verify_attn(self, call: Call) -> None:
        """One call for all nodes; its lse is [B, H, 1] in base e."""
        scale = float(call.attrs["scale"])
        blank(call)
        work = nodes(call, self.unused)
        if work is None:
            return
        out, lse = flash_mla.flash_mla_with_kvcache(
            work.q,
            work.cache[:, :, None],
            work.table,
            work.lengths,
            512,
            flash_mla.get_mla_metadata()[0],
            softmax_scale=scale,
            causal=False,
            use_legacy=True,
        )
        store(call, work, out[:, 0], lse[:, :, 0])


nan = Engine(float("nan"))
zeros = Engine(0.0)
