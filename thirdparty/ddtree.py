"""The best-first search of DDTree (arXiv 2604.12989, algorithm 1) as ports write it in Python.

Written anew from the paper and its ports. `published` orders equal weights by the tuple of ranks,
as the ports that keep it in their heap entries do; `counter` by the order of insertion, as a
heap with a counter does. Neither knows absent candidates (log-prob -inf).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr.adapter import Call

Array = NDArray[Any]
Key = Callable[[tuple[int, ...]], Any]
_ZEROED = ("positions", "weights", "visible")  # unused slots of the others hold -1


def grow(logprobs: Array, budget: int, key: Key) -> list[tuple[int, int, int, float]]:
    """Nodes in pop order: (parent, depth, rank, weight); the root is parent 0 and not listed."""
    depths, width = logprobs.shape
    if budget <= 0 or depths == 0 or width == 0:
        return []
    rows = logprobs.astype(np.float64).tolist()
    heap: list[Any] = [(-rows[0][0], key((0,)), (0,), 0)]
    nodes: list[tuple[int, int, int, float]] = []
    while heap and len(nodes) < budget:
        negative, _, ranks, parent = heapq.heappop(heap)
        depth, rank, weight = len(ranks), ranks[-1], -negative
        nodes.append((parent, depth, rank, weight))
        if rank + 1 < width:
            other = (*ranks[:-1], rank + 1)
            sibling = weight - rows[depth - 1][rank] + rows[depth - 1][rank + 1]
            heapq.heappush(heap, (-sibling, key(other), other, parent))
        if depth < depths:
            first = (*ranks, 0)
            heapq.heappush(heap, (-(weight + rows[depth][0]), key(first), first, len(nodes)))
    return nodes


def refused(logprobs: Array, ids: Array, root: int, prefix: int) -> bool:
    """What the contract calls bad_input."""
    if np.isnan(logprobs).any() or (logprobs > 0).any():
        return True
    if (logprobs[:, 1:] > logprobs[:, :-1]).any():
        return True
    for row, real in zip(ids, logprobs > -np.inf, strict=True):
        named = row[real]
        if (named < 0).any() or len(np.unique(named)) != len(named):
            return True
    return root < 0 or not 0 <= prefix <= 2**31 - 1 - len(logprobs)


class Builder:
    """An engine with tree_build, in one order of equal weights."""

    __version__ = "arXiv 2604.12989"
    device = "cpu"

    def __init__(self, key: Callable[[], Key]) -> None:
        self.key = key

    def unsupported(self, call: Call) -> str:
        """SGLang's order is not one of these."""
        order = call.attrs["tie_order"]
        return "" if order == "ranks" else f"tie_order {order} is not what DDTree does"

    def tree_build(self, call: Call) -> None:
        """One request after the other; links and positions from the nodes."""
        logprobs, ids = (call.inputs[n].numpy() for n in ("logprobs", "ids"))
        roots, prefixes = (call.inputs[n].numpy() for n in ("root_token", "prefix_len"))
        budget = int(call.attrs["budget"])
        if budget < 0 or call.attrs["tie_order"] != "ranks":
            raise ValueError(f"budget {budget}")
        names = [
            "tokens",
            "depths",
            "parents",
            "next_token",
            "next_sibling",
            "positions",
            "weights",
            "visible",
        ]
        out = {name: call.outputs[name].numpy() for name in names}
        count, status = (call.outputs[n].numpy() for n in ("n_nodes", "status"))
        for name in names:
            out[name][...] = 0 if name in _ZEROED else -1
        for r in range(len(roots)):
            status[r] = refused(logprobs[r], ids[r], int(roots[r]), int(prefixes[r]))
            count[r] = 0
            if status[r]:
                continue
            nodes = grow(logprobs[r], budget, self.key())
            count[r] = 1 + len(nodes)
            out["tokens"][r, 0], out["depths"][r, 0] = roots[r], 0
            out["positions"][r, 0], out["visible"][r, 0, 0] = prefixes[r], 1
            last: dict[int, int] = {}
            for i, (parent, depth, rank, weight) in enumerate(nodes, 1):
                out["tokens"][r, i] = ids[r, depth - 1, rank]
                out["depths"][r, i], out["parents"][r, i] = depth, parent
                out["positions"][r, i], out["weights"][r, i] = prefixes[r] + depth, weight
                out["visible"][r, i] = out["visible"][r, parent]
                out["visible"][r, i, i] = 1
                if parent in last:
                    out["next_sibling"][r, last[parent]] = i
                else:
                    out["next_token"][r, parent] = i
                last[parent] = i


def _counted() -> Key:
    numbers = itertools.count()
    return lambda _: next(numbers)


published = Builder(lambda: lambda ranks: ranks)
counter = Builder(_counted)
