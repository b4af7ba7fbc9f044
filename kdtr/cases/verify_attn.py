"""Cases of `verify_attn@1`.

A `Scene` holds the logical rows of each request; `Scene.inputs` scatters them over pages, pads
everything that no node sees with poison, and gives the arguments of one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr import recorded
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.verify_attn import attention, slots_of

Array = NDArray[Any]
NAN, INF = np.nan, np.inf
K25 = float(np.float32(0.14467963))  # (128 + 64)^-1/2 mscale^2 of Kimi K2.5
V3 = float(np.float32(0.13523378))  # of DeepSeek-V3
GARBAGE = (2**30, -7, -(2**31), 2**31 - 1)
ROUND: Mapping[str, Callable[[Array], Array]] = {
    "f32": lambda x: x,
    "bf16": nx.round_bf16,
    "f16": nx.round_f16,
}
GRID = {"f32": 18, "bf16": 14, "f16": 14}
WIDTH, VALUES = 12, 8  # D and Dv of cases that are about something else


def _all(dtype: str, out: str = "") -> dict[str, str]:
    return {"q": dtype, "kv_pool": dtype, "out": out or dtype}


@dataclass
class Scene:
    """Logical rows: q [R, N, H, D]; per request prefix [P, D], tree [n, D], parents [n]."""

    seed: int
    q: Array
    prefix: list[Array]
    tree: list[Array]
    parents: list[Array]

    @property
    def nodes(self) -> int:
        """Node slots N."""
        return int(self.q.shape[1])

    def visible(self, r: int) -> Array:
        """Ancestors-or-self of each node: bool [n, n]."""
        n = len(self.parents[r])
        sees = np.zeros((n, n), bool)
        for i in range(n):
            if i > 0:
                sees[i] = sees[self.parents[r][i]]
            sees[i, i] = True
        return sees

    def inputs(
        self,
        page: int = 1,
        part: str = "whole",
        *,
        poison: float = NAN,
        shuffle: bool = True,
        visible: Sequence[Array] | None = None,
        spare_pages: int = 1,
    ) -> dict[str, Array]:
        """The arguments of one call; whatever no node sees holds `poison` or garbage."""
        R, N, _, D = self.q.shape
        counts = [-(-len(p) // page) for p in self.prefix]
        n_tree = sum(map(len, self.tree))
        total = sum(counts) + -(-n_tree // page) + spare_pages
        order = _permutation(self.seed + 7, total) if shuffle else np.arange(total)
        pool = np.full((total * page, D), poison)
        max_pages = max(counts, default=0) + 1
        table = np.resize(np.array(GARBAGE, np.int32), (R, max_pages))
        slots = np.resize(np.array(GARBAGE, np.int32), (R, N))
        marks = np.full((R, N, N), 0xA5, np.uint8)
        start = 0
        free = (order[sum(counts) :, None] * page + np.arange(page)).ravel()
        if shuffle:
            free = free[_permutation(self.seed + 8, len(free))]
        for r in range(R):
            pages = order[start : start + counts[r]]
            start += counts[r]
            table[r, : counts[r]] = pages
            t = np.arange(len(self.prefix[r]))
            pool[pages[t // page] * page + t % page] = self.prefix[r]
            n = len(self.tree[r])
            mine, free = free[:n], free[n:]
            slots[r, :n] = mine
            pool[mine] = self.tree[r]
            marks[r, :n, :n] = self.visible(r) if visible is None else visible[r]
        found = {
            "q": self.q,
            "kv_pool": pool,
            "n_nodes": np.array([len(t) for t in self.tree], np.int32),
        }
        if part != "tail":
            found["page_table"] = table
            found["prefix_len"] = np.array([len(p) for p in self.prefix], np.int32)
        if part != "prefix":
            found["tree_slots"] = slots
            found["visible"] = marks
        return found


def _permutation(seed: int, n: int) -> Array:
    return np.argsort(nx.raw_bits(seed, n), kind="stable")


def _parents(seed: int, n: int, shape: str) -> Array:
    if shape == "chain":
        return np.arange(n) - 1
    if shape == "star":
        return np.zeros(n, np.int64)
    below = np.maximum(np.arange(n), 1)
    return (nx.integers(seed, (n,), 0, 1 << 20) * below) >> 20


def scene(
    seed: int,
    sizes: Sequence[tuple[int, int]],
    *,
    H: int = 2,
    D: int = WIDTH,
    N: int | None = None,
    dtype: str = "f32",
    trees: str | Sequence[str] = "random",
    gain: float = 1.0,
) -> Scene:
    """Random rows for requests of (prefix length, nodes); queries of pad nodes are NaN."""
    N = max((n for _, n in sizes), default=0) if N is None else N
    R = len(sizes)

    def normal(offset: int, shape: tuple[int, ...]) -> Array:
        return ROUND[dtype](nx.normal(seed + offset, shape, GRID[dtype]))

    q = ROUND[dtype](normal(1, (R, N, H, D)) * gain)
    for r, (_, n) in enumerate(sizes):
        q[r, n:] = NAN
    shapes = [trees] * R if isinstance(trees, str) else list(trees)
    return Scene(
        seed,
        q,
        [normal(100 + 2 * r, (p, D)) for r, (p, _) in enumerate(sizes)],
        [normal(101 + 2 * r, (n, D)) for r, (_, n) in enumerate(sizes)],
        [_parents(seed + 50 + r, n, shapes[r]) for r, (_, n) in enumerate(sizes)],
    )


def _needle(x: Scene, r: int, prefix: Sequence[int], tree: Sequence[int], Dv: int) -> None:
    """Give the named rows nearly all the mass of whoever sees them, by the first rope column.

    The values of rows are untouched, so that which row was seen shows in every column.
    """
    x.q[r, : len(x.tree[r]), :, Dv] = 4.0
    for rows, named in ((x.prefix[r], prefix), (x.tree[r], tree)):
        rows[:, Dv] = -2.0
        for j in named:
            rows[j, Dv] = 3.875 + 4.0
    # 4 * (7.875 + 2) * scale: 5 nats above the rest at K25


def _membership(x: Scene, Dv: int, window: int, group: int, stride: int) -> None:
    """Equal scores, and values that name keys: column c marks the keys of one group.

    q is zero but for the rope part, where keys are zero: every score is exactly 0. Keys from
    `window` on (counted over prefix, then tree) are named, `group` to a column; with `stride` 1
    neighbours share a column, else keys `stride` apart do.
    """
    x.q[..., :Dv] = np.where(np.isnan(x.q[..., :Dv]), NAN, 0.0)
    for prefix, tree in zip(x.prefix, x.tree, strict=True):
        rows = np.concatenate([prefix, tree])
        rows[:] = 0.0
        j = np.arange(len(rows)) - window
        column = j // group if stride == 1 else j % stride
        named = (j >= 0) & (column < Dv) & (j < group * Dv)
        rows[np.flatnonzero(named), column[named]] = 1.0
        prefix[:], tree[:] = rows[: len(prefix)], rows[len(prefix) :]


def _attrs(page: int = 1, part: str = "whole", Dv: int = VALUES, scale: float = K25) -> Attrs:
    return {"scale": scale, "page_size": page, "part": part, "Dv": Dv}


# --- families -----------------------------------------------------------------------------------


def _random(
    seed: int, sizes: Sequence[tuple[int, int]], page: int = 1, part: str = "whole", **shape: Any
) -> Callable[[], Arrays]:
    return lambda: scene(seed, sizes, **shape).inputs(page, part)


def _needles(
    seed: int, size: tuple[int, int], prefix: Sequence[int], tree: Sequence[int], page: int,
    *, D: int = WIDTH, Dv: int = VALUES, dtype: str = "f32", H: int = 2, trees: str = "random",
) -> Callable[[], Arrays]:  # fmt: skip
    def make() -> Arrays:
        x = scene(seed, [size], D=D, dtype=dtype, H=H, trees=trees)
        _needle(x, 0, prefix, tree, Dv)
        return x.inputs(page)

    return make


def _edges(seed: int, page: int, where: str) -> Callable[[], Arrays]:
    """Prefixes around a page edge, the first or the last key of each a needle."""

    def make() -> Arrays:
        lengths = (0, 1, page - 1, page, page + 1) if page == 16 else (page + 1, page - 1, page)
        x = scene(seed, [(p, 2) for p in lengths], H=1)
        for r, p in enumerate(lengths):
            _needle(x, r, [p - 1 if where == "last" else 0] if p else [], [], VALUES)
        return x.inputs(page)

    return make


def _members(
    seed: int, sizes: Sequence[tuple[int, int]], page: int, *, Dv: int, D: int, window: int = 0,
    group: int = 8, stride: int = 1, dtype: str = "f32", H: int = 1, part: str = "whole",
    trees: str = "random",
) -> Callable[[], Arrays]:  # fmt: skip
    def make() -> Arrays:
        x = scene(seed, sizes, D=D, dtype=dtype, H=H, trees=trees)
        _membership(x, Dv, window, group, stride)
        return x.inputs(page, part)

    return make


def _large_strangers() -> Arrays:
    """Rows that a node must not see score 60 nats higher and hold values of 2^10."""
    x = scene(300, [(20, 12), (33, 9)], trees=("random", "star"))
    for r in range(2):
        _needle(x, r, (), (), VALUES)
        x.tree[r][1:, VALUES] = 7.875
        leaves = [j for j in range(1, len(x.tree[r])) if not np.any(x.parents[r][1:] == j)]
        for j in leaves:
            x.tree[r][j, :VALUES] = np.where(x.tree[r][j, :VALUES] < 0, -1024.0, 1024.0)
            x.tree[r][j, VALUES] = 100.0
    return x.inputs(16)


def _unseen_rows(poison: float, **shape: Any) -> Arrays:
    """Tree rows that nobody sees, not even their own node, hold poison."""
    x = scene(310, [(18, 9), (0, 7)], **shape)
    visible = [x.visible(r) for r in range(2)]
    for r, unseen in ((0, (3, 8)), (1, (0, 5))):
        for j in unseen:
            visible[r][:, j] = False
            x.tree[r][j] = poison
    return x.inputs(16, poison=poison, visible=visible)


def _masked_rows(**shape: Any) -> Arrays:
    """Nodes that see nothing at all, beside nodes that do."""
    x = scene(320, [(0, 8), (0, 5), (3, 4)], **shape)
    visible = [x.visible(r) for r in range(3)]
    visible[0][[2, 7]] = False
    visible[1][:] = False
    visible[2][1] = False  # sees the prefix still
    return x.inputs(16, visible=visible)


def _not_a_tree(n: int = 9, **shape: Any) -> Arrays:
    """Any mask is legal: every other row, not always one's own, with bytes other than 1."""
    x = scene(330, [(5, n)], **shape)
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    marks = np.where((i * 3 + j * 2) % 4 < 2, 1, 0).astype(np.uint8)
    inputs = x.inputs(1)
    some = np.array([1, 2, 4, 128, 255, 1, 254, 16, 2], np.uint8)
    inputs["visible"][0] = marks * np.resize(some, n)
    return inputs


def _shifted(seed: int, level: float, spread: float) -> Callable[[], Arrays]:
    """All scores near `level`: the first rope column adds it, at scale 1/8."""

    def make() -> Arrays:
        x = scene(seed, [(70, 6), (0, 5)])
        x.q = np.ldexp(np.rint(np.ldexp(x.q, 9)), -10)
        x.q[..., VALUES] = np.where(np.isnan(x.q[..., VALUES]), NAN, 256.0)
        for rows in (*x.prefix, *x.tree):
            rows[:] = np.ldexp(np.rint(np.ldexp(rows, 10)), -10)  # so that scores are exact
            rows[:, VALUES] = level * 8 / 256 + np.rint(rows[:, VALUES] * spread * 4) / 16
        return x.inputs(16)

    return make


def _ascending(**shape: Any) -> Arrays:
    """Scores that rise over the keys: the running maximum changes in each tile."""
    x = scene(350, [(140, 3)], **shape)
    x.q[..., VALUES] = 4.0
    for rows, first in ((x.prefix[0], 0), (x.tree[0], 140)):
        rows[:, VALUES] = (np.arange(len(rows)) + first) / 8 - 12
    return x.inputs(16)


def _descending() -> Arrays:
    x = scene(351, [(140, 3)])
    x.q[..., VALUES] = 4.0
    for rows, first in ((x.prefix[0], 0), (x.tree[0], 140)):
        rows[:, VALUES] = 12 - (np.arange(len(rows)) + first) / 8
    return x.inputs(16)


def _halves() -> Arrays:
    """First half of the keys 15 nats below the second, with values that still show."""
    x = scene(352, [(128, 3)])
    x.q[..., VALUES] = 4.0
    x.q[..., :VALUES] = 0.0
    x.prefix[0][:, VALUES] = np.where(np.arange(128) < 64, -26.0, 0.0)
    x.prefix[0][:64, :VALUES] *= 2.0**20
    x.tree[0][:, VALUES] = 0.0
    return x.inputs(16)


def _equal_keys() -> Arrays:
    """Exact ties: every key occurs twice or more, values differ in the columns past D's keys."""
    x = scene(360, [(24, 6)])
    x.prefix[0][:] = x.prefix[0][np.arange(24) // 3]
    x.tree[0][:] = x.prefix[0][0]
    return x.inputs(16)


def _large_values(dtype: str = "f32") -> Arrays:
    """Values near 2^100 and subnormal ones, or of 2^-114; scores stay small (q is 0 there)."""
    x = scene(370, [(9, 4)], dtype=dtype)
    x.q[..., :VALUES] = 0.0
    for rows in (x.prefix[0], x.tree[0]):
        rows[:, :3] = ROUND[dtype](np.ldexp(np.rint(rows[:, :3] * 64), 94))
        small = np.rint(rows[:, 3:6] * 64)
        rows[:, 3:6] = ROUND[dtype](np.ldexp(small, -149 if dtype == "f32" else -120))
        rows[:, 6:8] = np.where(rows[:, 6:8] < 0, -0.0, 0.0)
    return x.inputs(1)


def _outlier_channels() -> Arrays:
    """A few columns 30 times the rest, as in recorded activations."""
    x = scene(380, [(60, 6)], dtype="bf16")
    for rows in (*x.prefix, *x.tree):
        rows[:, [3, 6]] = nx.round_bf16(np.rint(rows[:, [3, 6]] * 32))
        rows[:, 3] = nx.round_bf16(rows[:, 3] + 64.0)
    x.q[..., [3, 6]] = np.ldexp(x.q[..., [3, 6]], -4)
    x.q = nx.round_bf16(np.ldexp(np.rint(np.ldexp(x.q, 14)), -14))
    return x.inputs(16)


def _scaled(seed: int, gain: float, dtype: str = "f32") -> Callable[[], Arrays]:
    def make() -> Arrays:
        x = scene(seed, [(50, 7)], dtype=dtype)
        grid = GRID[dtype]
        x.q = ROUND[dtype](np.ldexp(np.rint(np.ldexp(x.q * gain, grid)), -grid))
        return x.inputs(16)

    return make


def _page_out_of_range(**shape: Any) -> Arrays:
    """One fault a request, good requests between them."""
    x = scene(400, [(20, 3)] * 12, H=1, **shape)
    inputs = x.inputs(16)
    pages = len(inputs["kv_pool"]) // 16
    inputs["n_nodes"][8] = 4
    inputs["n_nodes"][9] = -1
    inputs["page_table"][1, 1] = pages  # first page past the pool
    inputs["page_table"][2, 0] = -1
    inputs["prefix_len"][4] = 3 * 16 + 1  # one row more than the table names
    inputs["page_table"][4] = inputs["page_table"][4, 0]
    inputs["prefix_len"][5] = -1
    inputs["page_table"][10, 0] = 2**31 - 1  # 32-bit page * 16 wraps to -16
    inputs["tree_slots"][6, 2] = pages * 16
    inputs["tree_slots"][7, 0] = -1
    return inputs


def _scored(dtype: str, slots: int, shape: tuple[int, int], Dv: int, D: int, sign: int) -> Arrays:
    """Queries [R, N, 1, D] and a pool, for scores of `sign` / 4 times a product.

    Even nodes' scores rise by 1/4 for each unit of a row's column Dv + 1; odd nodes' are 100
    where column Dv is 1, else near 0.
    """
    q = nx.normal(420, (*shape, 1, D), GRID[dtype])
    pool = nx.normal(421, (slots, D), GRID[dtype])
    q[..., :Dv] /= 16 if Dv > 64 else 4
    q[..., Dv:] = 0.0
    q[:, ::2, 0, Dv + 1] = sign
    q[:, 1::2, 0, Dv] = sign * 400.0
    pool[:, Dv:] = 0.0
    return {"q": ROUND[dtype](q), "kv_pool": ROUND[dtype](pool)}


def _odd_requests(
    part: str, page: int, *, Dv: int, dtype: str, D: int = 0, sign: int = -1
) -> Arrays:
    """Requests over the same rows, good ones and refused ones; the pool ends inside a page.

    The prefix fills its table, and a tile of 64 keys and more. Page 0 is NaN.
    """
    full, N = -(-66 // page), 3
    P, tree = full * page, (full + 1) * page
    slots = tree + 5
    inputs = dict(_scored(dtype, slots, (17, N), Dv, D or Dv + 3, sign))
    q, pool = inputs["q"], inputs["kv_pool"]
    pages = np.arange(full, 0, -1)
    t = np.arange(P)
    pool[pages[t // page] * page + t % page, Dv + 1] = t
    pool[tree:, Dv + 1] = P + np.arange(5)
    pool[tree:, Dv + 2] = 234.0
    pool[full * page, Dv] = 1.0
    pool[:page] = NAN
    n_nodes = np.full(17, 2, np.int32)
    table = np.tile(pages.astype(np.int32), (17, 1))
    length = np.full(17, P, np.int32)
    at = np.tile(np.array([tree + 2, tree, tree + 1], np.int32), (17, 1))
    sees = np.tile(np.array([[0, 2, 0], [1, 255, 0], [128, 0, 4]], np.uint8), (17, 1, 1))
    n_nodes[[0, 2, 8, 9]] = 3
    length[[2, 9]] = 0
    table[[2, 9]] = np.resize(GARBAGE, full)
    # 2: nobody sees rows 0 and 1, node 1 sees nothing; 3 to 5: more nodes than N, less than 0, none
    at[2, :2] = 0
    sees[2] = [[0, 0, 1], [0, 0, 0], [0, 0, 255]]
    n_nodes[3:6] = N + 1, -1, 0
    length[5], at[5], table[5], sees[5] = -5, -1, -1, 0xA5
    # 6 to 8: slots below 0 and past the pool, one of them of a row that nobody sees
    at[6, 0], at[7, 1], at[8, 2] = -1, slots, slots
    sees[8, :, 2] = 0
    q[1, 1, 0, Dv : Dv + 2] = 0.0, sign  # whose mask is n_nodes behind the first
    q[9, ..., Dv:] = 0.0  # all scores that node sees near -60,000
    q[9, ..., Dv + 2] = sign * -1024.0
    # 10, 11: to the last row of the pool, and one more; 12, 13: pages of no rows, one that wraps
    for r, last in ((10, slots - 1), (11, slots)):
        table[r, -1], length[r] = last // page, (full - 1) * page + last % page + 1
    table[12, 0], table[13, 0] = -1, min(2**32 // page, 2**31 - 1)
    length[14:17] = -1, P + 1, 2**31 - 1
    for r, n in enumerate(np.clip(n_nodes, 0, N)):
        q[r, n:], at[r, n:] = NAN, np.resize(GARBAGE, N - n)
        sees[r, n:], sees[r, 1:, n:] = 0xA5, 0xA5  # but for node 0's: rows that are too near show
    inputs["n_nodes"] = n_nodes
    if part != "tail":
        inputs.update(page_table=table, prefix_len=length)
    if part != "prefix":
        inputs.update(tree_slots=at, visible=sees)
    has = {"whole": range(17), "prefix": [*range(6), *range(10, 17)], "tail": range(10)}[part]
    return {name: x if name == "kv_pool" else x[list(has)] for name, x in inputs.items()}


def _tail_of_65(dtype: str, *, Dv: int = 1, D: int = 3, sign: int = -1) -> Arrays:
    """More tree rows than a tile of 64 keys; a request whose node 32 of 33 has no row."""
    inputs = dict(_scored(dtype, 65, (2, 65), Dv, D, sign))
    at = np.resize(_permutation(422, 65).astype(np.int32), (2, 65))
    inputs["kv_pool"][at[0], Dv + 1] = np.arange(65)
    inputs["kv_pool"][at[0, 0], Dv] = 1.0
    at[1, 32] = 65
    inputs["q"][1, 33:] = NAN
    marks = np.ones((2, 65, 65), np.uint8)
    return {**inputs, "n_nodes": np.array([65, 33], np.int32), "tree_slots": at, "visible": marks}


def _lengths_that_wrap(**shape: Any) -> Arrays:
    """Lengths to which nothing can be added in 32 bits."""
    inputs = scene(406, [(20, 3)] * 6, H=1, D=4, **shape).inputs(16)
    inputs["prefix_len"][[1, 3]] = 2**31 - 1, 2**31 - 15
    inputs["n_nodes"][4] = 2**31 - 1
    return inputs


def _table_full(**shape: Any) -> Arrays:
    """Prefixes that fill every page of the table, and one row less."""
    inputs = scene(407, [(32, 3), (31, 2), (32, 1)], **shape).inputs(16)
    inputs["page_table"] = inputs["page_table"][:, :2].copy()
    return inputs


def _without(axis: str, **shape: Any) -> Arrays:
    """No "nodes", "heads", "table" or "pool"; the last request needs one, unless it is heads."""
    heads = 0 if axis == "heads" else 2
    sizes = [(0, 0), (0, 0 if axis == "nodes" else 2)]
    inputs = scene(408, sizes, H=heads, **shape).inputs(1)
    if axis == "nodes":
        inputs["n_nodes"][1] = 2
    elif axis == "heads":
        inputs["n_nodes"][1] = 3
    elif axis == "table":
        more = scene(409, [(0, 2)] * 3, **shape).inputs(1)
        more["page_table"] = more["page_table"][:, :0].copy()
        more["prefix_len"][2] = 1
        return more
    else:
        inputs["kv_pool"] = inputs["kv_pool"][:0].copy()
    return inputs


def _shared_rows(**shape: Any) -> Arrays:
    """Requests with one prefix, a page that comes twice, nodes in prefix pages, two on one slot."""
    inputs = scene(416, [(37, 5), (37, 4), (48, 3)], **shape).inputs(16)
    table, slots, pool = inputs["page_table"], inputs["tree_slots"], inputs["kv_pool"]
    table[1, :2] = table[0, :2]
    table[2, 1] = table[2, 0]
    for r in range(2):  # right behind the prefix, as where the next tokens would go
        behind = table[r, 2] * 16 + 5 + np.arange(4)
        pool[behind] = pool[slots[r, :4]]
        slots[r, :4] = behind
    slots[0, 4] = slots[0, 1]
    slots[2, 1] = table[2, 0] * 16 + 3
    return inputs


def _one_page() -> Arrays:
    """D 576, page 64, and a pool of one page, with prefix and tree in it."""
    x = scene(1350, [(5, 2)], H=1, D=576, dtype="f16")
    pool = np.full((64, 576), NAN)
    pool[:5], pool[[60, 7]] = x.prefix[0], x.tree[0]
    return {
        **x.inputs(64),
        "kv_pool": pool,
        "page_table": np.array([[0, 1]], np.int32),
        "tree_slots": np.array([[60, 7]], np.int32),
    }


def _means(
    seed: int, size: tuple[int, int], page: int, part: str = "whole", **shape: Any
) -> Callable[[], Arrays]:
    """Queries of head 0 are zero: its weights are equal and exact, its output is a plain mean."""

    def make() -> Arrays:
        x = scene(seed, [size], **shape)
        x.q[0, : size[1], 0] = 0.0
        return x.inputs(page, part)

    return make


def _far_needles(seed: int, page: int, dtype: str = "f32") -> Callable[[], Arrays]:
    """5,003 prefix rows of which a few, on both sides of powers of two, hold values."""
    named = [0, 255, 256, 511, 512, 1023, 1024, 2047, 2048, 4095, 4096, 5002]

    def make() -> Arrays:
        x = scene(seed, [(5003, 2)], H=1, D=3, dtype=dtype)
        x.prefix[0][np.setdiff1d(np.arange(5003), named), :2] = 0.0
        _needle(x, 0, named, [], 2)
        return x.inputs(page)

    return make


def _page_wraps(**shape: Any) -> Arrays:
    """Page ids whose slot wraps to a valid one in 32 bits."""
    x = scene(405, [(20, 2)] * 4, **shape)
    inputs = x.inputs(16)
    inputs["page_table"][1, 0] = 2**28  # times 16 = 2^32, which is slot 0 in 32 bits
    inputs["page_table"][2, 1] = 2**28 + 1
    return inputs


def _unused_out_of_range(**shape: Any) -> Arrays:
    """Everything that may hold garbage does; nothing of it may be refused."""
    x = scene(410, [(16, 3), (0, 4), (17, 0), (1, 1)], **shape)
    inputs = x.inputs(16)
    inputs["prefix_len"][2] = -5  # an inactive request is not read
    inputs["page_table"][2] = -1
    return inputs


def _pool_edge(**shape: Any) -> Arrays:
    """The pool ends inside a page: a used row past its end is refused, an unused one is not."""
    x = scene(415, [(20, 2), (20, 2), (16, 2)], **shape)
    inputs = x.inputs(16, shuffle=False, spare_pages=2)
    inputs["kv_pool"] = inputs["kv_pool"][: 16 * 7 + 5].copy()
    inputs["kv_pool"][16 * 7 :] = x.prefix[1][:5]
    inputs["page_table"][0, 1] = 7  # needs rows 0..3 of page 7: there
    inputs["page_table"][1, 1] = 7
    inputs["prefix_len"][1] = 22  # needs rows 0..5: one is missing
    return inputs


def _real(
    layer: int, rows: Sequence[int], queries: Sequence[int], heads: slice, prefix: int, page: int,
    dtype: str, part: str = "whole",
) -> Callable[[], Arrays]:  # fmt: skip
    """Recorded queries and latent rows, on a grid of 2^-14."""

    def make() -> Arrays:
        taken = recorded.load(f"mla_layer{layer}")

        def snap(a: Array) -> Array:
            return ROUND[dtype](np.ldexp(np.rint(np.ldexp(a.astype(np.float64), 14)), -14))

        kv, q = snap(taken["kv"][list(rows)]), snap(taken["q"][list(queries)][:, heads])
        n = len(q)
        x = Scene(
            500 + layer, q[None], [kv[:prefix]], [kv[prefix : prefix + n]],
            [_parents(500 + layer, n, "random")],
        )  # fmt: skip
        return x.inputs(page, part)

    return make


def cases() -> Iterator[Case]:
    """All cases, in order."""
    yield from _named()
    yield from _masks()
    yield from _long()
    yield from _pages()
    yield from _sizes()
    yield from _scores()
    yield from _dtypes()
    yield from _half()
    yield from _tensor_cores()
    yield from _refusals()
    yield from _recorded()


def _named() -> Iterator[Case]:
    """Shapes of production, and the same shapes narrowed to fit the small tier."""
    shapes = (
        ("h16_p2048_b16", 16, 2048, 17),
        ("h64_p128_b32", 64, 128, 33),
        ("h64_p512_b8", 64, 512, 9),
        ("h8_p0_b8", 8, 0, 9),
        ("h32_p1024_b24", 32, 1024, 25),
        ("h8_p2048_b32", 8, 2048, 33),
    )
    for seed, (name, H, P, N) in enumerate(shapes):
        for dtype, profile in (("f32", "f32"), ("bf16", "bf16_f32acc_pbf16")):
            yield Case(
                name=name if dtype == "f32" else f"{name}_bf16",
                catches="any fault that shows at production shape",
                inputs=_random(10 * seed, [(P, N)], 64 if dtype == "bf16" else 1, H=H, D=576,
                               dtype=dtype),
                attrs=_attrs(64 if dtype == "bf16" else 1, Dv=512), dtypes=_all(dtype),
                profile=profile, family="random", seed=10 * seed, tier="full",
            )  # fmt: skip
    narrow = (
        ("h16_p2048_b16_narrow", 16, 2048, 17, 6, 2, "bf16", ("scale_from_width",)),
        ("h64_p128_b32_narrow", 64, 128, 33, 3, 1, "bf16", ("heads_past_32",)),
        ("h64_p512_b8_narrow", 64, 512, 9, 6, 2, "f32", ("heads_past_32",)),
        (
            "h8_p0_b8_narrow",
            8,
            0,
            9,
            24,
            16,
            "f32",
            ("tree_skipped_without_prefix", "masked_split_is_nan"),
        ),
        ("h32_p1024_b24_narrow", 32, 1024, 25, 6, 2, "bf16", ("prefix_window_256",)),
        ("h8_p2048_b32_narrow", 8, 2048, 33, 6, 2, "bf16", ("sees_all_nodes",)),
    )
    for seed, (name, H, P, N, D, Dv, dtype, kills) in enumerate(narrow):
        yield Case(
            name=name,
            catches="heads, prefix and budget of a production shape: head and tile limits",
            inputs=_random(100 + 10 * seed, [(P, N)], 64, H=H, D=D, dtype=dtype),
            attrs=_attrs(64, Dv=Dv, scale=1.0 if D < 24 else K25), dtypes=_all(dtype),
            profile="f32" if dtype == "f32" else "bf16_f32acc_pbf16", family="random",
            seed=100 + 10 * seed, kills=kills,
        )  # fmt: skip


def _masks() -> Iterator[Case]:
    yield Case(
        name="random",
        catches="wrong mask, scale, lse or layout: nothing special, everything shows",
        inputs=_random(200, [(20, 9), (37, 12)], 16), attrs=_attrs(16), profile="f32",
        family="random", seed=200, flags=("ragged",),
        kills=("causal_mask", "sees_all_nodes", "sibling_leak", "no_self", "parent_only",
               "mask_transposed", "root_not_seen", "lse_base_2", "scale_from_width",
               "scale_missing", "rope_first", "rope_dropped", "page_table_of_request_0",
               "prefix_len_of_request_0", "mask_of_request_0", "query_of_request_0",
               "mask_stride_n_nodes", "head_0_query", "lse_is_max", "lse_without_max",
               "p_rounded_to_bf16", "o_in_bf16"),
        wrong=("causal_instead_of_ancestor", "sees_siblings", "no_self", "lse_base_2",
               "scale_is_width_power_minus_half", "rope_first"),
    )  # fmt: skip
    yield Case(
        name="chain",
        catches="control: a linear tree, where causal and ancestor masks agree",
        inputs=_random(210, [(20, 9)], 16, trees="chain"),
        attrs=_attrs(16),
        profile="f32",
        family="random",
        seed=210,
        kills=("mask_transposed", "prefix_is_causal"),
        wrong=("mask_transposed",),
    )
    yield Case(
        name="star",
        catches="siblings that see one another: only the root is an ancestor",
        inputs=_random(220, [(20, 9)], 16, trees="star"),
        attrs=_attrs(16),
        profile="f32",
        family="random",
        seed=220,
        kills=("causal_mask", "sibling_leak"),
        wrong=("causal_instead_of_ancestor", "sees_siblings"),
    )
    yield Case(
        name="same_size_other_topology",
        catches="one request's mask used for all: equal node counts hide it",
        inputs=_random(230, [(10, 8)] * 3, trees=("chain", "star", "random")),
        attrs=_attrs(),
        profile="f32",
        family="random",
        seed=230,
        flags=("ragged",),
        kills=("mask_of_request_0",),
    )
    yield Case(
        name="large_strangers",
        catches="a leak from siblings or cousins: their rows dominate and hold large values",
        inputs=_large_strangers,
        attrs=_attrs(16),
        profile="f32",
        family="needle",
        seed=300,
        kills=("causal_mask", "sibling_leak", "sees_all_nodes"),
        wrong=("causal_instead_of_ancestor", "sees_siblings"),
    )
    for name, poison in (("unseen_rows_nan", NAN), ("unseen_rows_inf", INF)):
        yield Case(
            name=name,
            catches="a masked row multiplied by a weight of zero instead of skipped",
            inputs=partial(_unseen_rows, poison), attrs=_attrs(16), profile="f32",
            family="poison", seed=310, flags=("poison",), kills=("unseen_row_times_zero",),
        )  # fmt: skip
    yield Case(
        name="rows_that_see_nothing",
        catches="a fully masked row: NaN, the mean of V, or lse +inf instead of (0, -inf)",
        inputs=_masked_rows,
        attrs=_attrs(16),
        profile="f32",
        family="extreme",
        seed=320,
        kills=("empty_lse_is_plus_inf", "empty_row_is_mean", "empty_row_is_nan"),
        wrong=("empty_lse_is_plus_inf", "empty_row_is_mean"),
    )
    yield Case(
        name="any_mask",
        catches="a mask taken for granted to be a tree in which each node sees itself, or visible "
        "bytes compared with 1",
        inputs=_not_a_tree,
        attrs=_attrs(),
        profile="f32",
        family="hand",
        seed=330,
        kills=("visible_is_bit_0", "visible_is_1", "mask_transposed", "no_self", "sees_itself"),
    )
    yield Case(
        name="any_mask_of_70",
        catches="tiles above the diagonal skipped, as if rows saw only what came before them",
        inputs=lambda: _not_a_tree(70, H=1, D=6),
        attrs=_attrs(Dv=2),
        profile="f32",
        family="hand",
        seed=330,
        kills=("tiles_above_diagonal_skipped", "visible_is_bit_0", "mask_transposed"),
    )
    yield Case(
        name="pad_nodes",
        catches="nodes past n_nodes attended, seen or not written",
        inputs=_random(240, [(12, 3), (5, 7), (9, 1)], N=8),
        attrs=_attrs(),
        profile="f32",
        family="poison",
        seed=240,
        flags=("ragged", "poison"),
        kills=(
            "query_rows_packed",
            "out_rows_packed",
            "short_prefix_dropped",
            "pad_nodes_seen",
            "pad_rows_computed",
            "pad_rows_not_written",
        ),
    )
    for dtype, profile in (("f32", "f32"), ("bf16", "bf16_f32acc_pbf16")):
        windows = (("end", 115, 4, 1), ("start", 0, 4, 1), ("regrouped", 115, 4, VALUES))
        for name, window, group, stride in windows if dtype == "f32" else windows[:1]:
            yield Case(
                name=f"membership_{name}" + ("" if dtype == "f32" else "_bf16"),
                catches="a dropped or leaked key: equal scores, and columns that name the keys",
                inputs=_members(
                    600, [(130, 17)], 16, Dv=VALUES, D=WIDTH, window=window, group=group,
                    stride=stride, dtype=dtype,
                ),
                attrs=_attrs(16), dtypes=_all(dtype), profile=profile, family="membership",
                seed=600, flags=("membership",),
                kills=("last_prefix_key_dropped", "causal_mask", "sibling_leak", "no_self",
                       "one_past_prefix") if name != "start" else ("first_prefix_key_dropped",),
                wrong=("last_prefix_key_dropped",)
                if (name, dtype) == ("end", "f32") else (),
            )  # fmt: skip
    yield Case(
        name="membership_mla",
        catches="a dropped or leaked key, read out at D 576, Dv 512",
        inputs=_members(610, [(33, 4)], 1, Dv=512, D=576, group=1, dtype="bf16"),
        attrs=_attrs(Dv=512),
        dtypes=_all("bf16"),
        profile="bf16_f32acc_pbf16",
        family="membership",
        seed=610,
        flags=("membership",),
        kills=("last_prefix_key_dropped", "first_prefix_key_dropped", "sibling_leak"),
    )


def _long() -> Iterator[Case]:
    """Prefixes as long as in production; the mask, page and split faults of large sizes."""
    for prefix, D, Dv in ((4099, 576, 512), (32771, 576, 512), (131073, 72, 64)):
        for where in ("start", "end") if prefix < 5000 else ("end",):
            group = 8 if prefix < 100_000 else 4  # few to a column, or one key less is legal
            window = 0 if where == "start" else max(0, prefix + 3 - group * Dv)
            yield Case(
                name=f"membership_{where}_of_{prefix}",
                catches="a key dropped or leaked at split, page and tile edges of long prefixes",
                inputs=_members(
                    620, [(prefix, 3)], 64, Dv=Dv, D=D, window=window, group=group, dtype="bf16"
                ),
                attrs=_attrs(64, Dv=Dv),
                dtypes=_all("bf16"),
                profile="bf16_f32acc_pbf16",
                family="membership",
                seed=620,
                flags=("membership",),
                tier="full",
            )
    yield Case(
        name="needle_last_of_32768",
        catches="the last key of a long prefix lost to a split",
        inputs=_needles(1340, (32768, 3), [32767], [], 64, D=576, Dv=512, dtype="bf16", H=8),
        attrs=_attrs(64, Dv=512),
        dtypes=_all("bf16"),
        profile="bf16_f32acc_pbf16",
        family="needle",
        seed=1340,
        tier="full",
    )


def _pages() -> Iterator[Case]:
    for page in (1, 16, 64):
        yield Case(
            name=f"pages_of_{page}",
            catches="page ids taken for slots, token index for page index, pages in pool order",
            inputs=_random(700 + page, [(page + 3, 3), (2 * page, 4), (max(page - 1, 1), 2)], page),
            attrs=_attrs(page),
            profile="f32",
            family="random",
            seed=700 + page,
            flags=("ragged", "poison"),
            kills=("tree_rows_follow_prefix", "page_table_ignored")
            + (("page_id_is_slot", "partial_page_skipped") if page > 1 else ())
            + (("page_size_is_16",) if page == 64 else ()),
            wrong=("page_id_is_slot",) if page == 16 else (),
        )
    for page in (16, 64):
        for where in ("first", "last"):
            kills: tuple[str, ...] = (f"{where}_prefix_key_dropped",)
            if where == "last":
                kills += ("partial_page_skipped",)
            if page == 16:
                kills += ("tree_skipped_without_prefix",)
            yield Case(
                name=f"needle_{where}_page_{page}",
                catches="the key at the edge of prefix and page: it holds the mass",
                inputs=_edges(800 + page, page, where),
                attrs=_attrs(page),
                profile="f32",
                family="needle",
                seed=800 + page,
                flags=("ragged",),
                kills=kills,
            )
    yield Case(
        name="needle_past_the_prefix",
        catches="one key too many: the slot behind the prefix dominates",
        inputs=_stale_tail,
        attrs=_attrs(16),
        profile="f32",
        family="needle",
        seed=820,
        kills=("one_past_prefix", "page_tail_read"),
    )
    yield Case(
        name="page_tails_nan",
        catches="page tails or unused pages read and multiplied by zero",
        inputs=_random(830, [(13, 3), (30, 2)], 16),
        attrs=_attrs(16),
        profile="f32",
        family="poison",
        seed=830,
        flags=("poison", "ragged"),
        kills=("one_past_prefix", "page_tail_times_zero"),
    )
    yield Case(
        name="page_tails_large",
        catches="page tails read: they hold large finite values",
        inputs=lambda: scene(830, [(13, 3), (30, 2)]).inputs(16, poison=2.0**40),
        attrs=_attrs(16),
        profile="f32",
        family="poison",
        seed=830,
        flags=("poison", "ragged"),
        kills=("one_past_prefix",),
    )
    yield Case(
        name="part_prefix",
        catches="the prefix part with a causal end, as a chunked prefill would have",
        inputs=_random(850, [(21, 5), (40, 9)], 16, "prefix"),
        attrs=_attrs(16, "prefix"),
        profile="f32",
        family="random",
        seed=850,
        flags=("ragged",),
        kills=("prefix_is_causal", "last_prefix_key_dropped"),
    )
    yield Case(
        name="part_tail",
        catches="the tail part: tree rows alone",
        inputs=_random(860, [(21, 5), (40, 9)], 16, "tail"),
        attrs=_attrs(16, "tail"),
        profile="f32",
        family="random",
        seed=860,
        flags=("ragged",),
        kills=("causal_mask", "no_self"),
        wrong=("causal_instead_of_ancestor",),
    )
    narrow = ("width_tail_dropped", "value_tail_not_written")
    for dtype in ("bf16", "f16"):
        for part, page, kills in (
            ("prefix", 64, ("prefix_is_causal", "last_prefix_key_dropped", "page_size_is_16")),
            ("tail", 1, ("causal_mask", "no_self")),
        ):
            yield Case(
                name=f"part_{part}_{dtype}",
                catches=f"a causal {part}, or columns past the last full 16 dropped, in this type",
                inputs=_random(880, [(21, 5), (40, 9)], page, part, H=1, D=19, dtype=dtype),
                attrs=_attrs(page, part, Dv=17),
                dtypes=_all(dtype),
                profile=f"{dtype}_f32acc",
                family="random",
                seed=880,
                flags=("ragged",),
                kills=kills + narrow + _in_branch(part, dtype, dtype, narrow),
            )
    yield Case(
        name="part_prefix_empty",
        catches="the prefix part without a prefix: every row is empty",
        inputs=_random(870, [(0, 3), (2, 2)], 16, "prefix"),
        attrs=_attrs(16, "prefix"),
        profile="f32",
        family="extreme",
        seed=870,
        kills=("empty_row_is_nan",),
    )
    for part in ("prefix", "tail", "whole"):
        yield Case(
            name="parts_f32_out" if part == "prefix" else f"{part}_f32_out",
            catches="parts that go to a merge: f32 out of bf16 rows, not rounded to bf16; one "
            "head's weights are equal, so that rounding them hides nothing",
            inputs=_means(880, (50, 5), 16, part, D=19, dtype="bf16"),
            attrs=_attrs(16, part, Dv=17),
            dtypes=_all("bf16", "f32"),
            profile="bf16_f32acc_pbf16_f32out",
            family="random",
            seed=880,
            kills=("f32_out_through_bf16", *narrow, *_in_branch(part, "bf16", "f32", narrow)),
        )
    for page in (1, 16, 64):
        yield Case(
            name=f"prefix_5003_page_{page}",
            catches="a prefix, or its page table, cut to a power of two",
            inputs=_far_needles(890 + page, page),
            attrs=_attrs(page, Dv=2, scale=1.0),
            profile="f32",
            family="needle",
            seed=890 + page,
            kills=("prefix_past_4096", "last_prefix_key_dropped")
            + (("table_past_256",) if page < 64 else ("table_past_64",)),
        )
    yield Case(
        name="shared_rows",
        catches="pages and slots taken to have one owner: requests share a prefix, a page comes "
        "twice in a table, nodes lie in prefix pages, two of them on one slot",
        inputs=_shared_rows,
        attrs=_attrs(16),
        profile="f32",
        family="random",
        seed=416,
        flags=("ragged",),
        kills=("shared_page_dropped", "repeated_slot_dropped"),
    )
    yield Case(
        name="table_full",
        catches="a prefix that fills its page table refused",
        inputs=_table_full,
        attrs=_attrs(16),
        profile="f32",
        family="random",
        seed=407,
        flags=("ragged",),
        kills=("full_table_refused",),
    )


def _stale_tail() -> Arrays:
    """A rejected row still stands behind the prefix; it would win every query."""
    x = scene(820, [(19, 3)])
    _needle(x, 0, [], [], VALUES)
    inputs = x.inputs(16, poison=2.0)
    page = int(inputs["page_table"][0, 1])
    inputs["kv_pool"][page * 16 + 3 : page * 16 + 16, VALUES] = 100.0
    return inputs


def _sizes() -> Iterator[Case]:
    for n in (1, 2, 31, 32, 33, 63, 64, 65):
        kills: tuple[str, ...] = ()
        if n >= 33:
            kills = ("columns_past_32_hidden", "mask_word_wraps")
        if n == 33:
            kills += ("slots_past_32_accepted",)
        if n == 65:
            kills += ("columns_past_64_hidden",)
        yield Case(
            name=f"nodes_{n}",
            catches="mask words and node tiles at their edges: the last rows dominate"
            + (", and the last of 33 slots is out of range" if n == 33 else ""),
            inputs=_wide_tree(900 + n, n, again=n == 33),
            attrs=_attrs(1, Dv=4, scale=0.5),
            profile="f32",
            family="needle_alt",
            seed=900 + n,
            kills=kills,
        )
    yield Case(
        name="nodes_257",
        catches="nodes or mask columns past 64, 128 or 256 dropped: the last rows dominate",
        inputs=_wide_tree(1157, 257, trees="star"),
        attrs=_attrs(1, Dv=2, scale=0.5),
        profile="f32",
        family="needle_alt",
        seed=1157,
        kills=("columns_past_64_hidden", "columns_past_128_hidden", "columns_past_256_hidden",
               "nodes_past_65", "nodes_past_256"),
    )  # fmt: skip
    yield Case(
        name="batch_257",
        catches="more requests than a warp, or a block of them",
        inputs=_random(1260, [*((r % 3, r % 2) for r in range(256)), (2, 1)], 1, H=1, D=4),
        attrs=_attrs(1, Dv=2),
        profile="f32",
        family="random",
        seed=1260,
        flags=("ragged",),
        kills=("requests_past_64", "requests_past_256"),
    )
    for keys in (63, 64, 65, 127, 129):
        kills = ()
        if keys in (65, 129):
            kills = ("tail_tile_dropped",)
        if keys % 64:
            kills += ("tail_tile_weighs_one",)
        yield Case(
            name=f"keys_{keys}",
            catches="key tiles at their edges; padded keys of a tile that count as exp(0)",
            inputs=_negative_scores(1000 + keys, keys),
            attrs=_attrs(1, Dv=8, scale=0.5),
            profile="f32",
            family="needle",
            seed=1000 + keys,
            kills=kills,
        )
    for D, Dv in ((1, 1), (33, 31), (65, 64), (40, 40), (17, 0), (0, 0)):
        yield Case(
            name=f"width_{D}_values_{Dv}",
            catches="row widths that are no multiple of a vector, or rows without columns",
            inputs=_random(1100 + D, [(10, 4)], 1, D=D),
            attrs=_attrs(1, Dv=Dv),
            profile="f32",
            family="random",
            seed=1100 + D,
            kills=(("width_tail_dropped",) if D > 1 else ("lse_is_max",))
            + (("value_tail_not_written",) if Dv in (31, 40) else ()),
        )
    for H in (1, 3, 17):
        yield Case(
            name=f"heads_{H}",
            catches="head tiles: counts below, between and above a tile",
            inputs=_random(1200 + H, [(9, 3)], 1, H=H),
            attrs=_attrs(),
            profile="f32",
            family="random",
            seed=1200 + H,
            kills=("heads_past_16",) if H == 17 else (),
        )
    yield Case(
        name="heads_129",
        catches="more heads than a block of 64 or 128",
        inputs=_random(1329, [(3, 1)], 1, H=129, D=6),
        attrs=_attrs(Dv=3),
        profile="f32",
        family="random",
        seed=1329,
        kills=("heads_past_64", "heads_past_128"),
    )
    yield Case(
        name="head_and_node_order",
        catches="lse laid out as [R, H, N], or out as [R, H, N, Dv]",
        inputs=_random(1220, [(9, 5)], 1, H=3),
        attrs=_attrs(),
        profile="f32",
        family="random",
        seed=1220,
        kills=("lse_heads_first", "out_heads_first"),
        wrong=("lse_heads_first",),
    )
    yield Case(
        name="ragged_batch",
        catches="any mix-up between requests; the last one is the largest",
        inputs=_random(1230, [(0, 1), (5, 0), (33, 6), (1, 2), (64, 8)], 16),
        attrs=_attrs(16), profile="f32", family="random", seed=1230,
        flags=("ragged", "poison"),
        kills=("page_table_of_request_0", "prefix_len_of_request_0", "query_of_request_0",
               "tree_skipped_without_prefix"),
    )  # fmt: skip
    yield Case(
        name="no_requests",
        catches="an empty batch that crashes or fails",
        inputs=lambda: scene(1240, [], N=3).inputs(16),
        attrs=_attrs(16),
        profile="f32",
        seed=1240,
        null_ok="there is nothing to write",
    )
    for axis, kills in (
        ("nodes", ("nothing_without_elements",)), ("heads", ("nothing_without_elements",)),
        ("table", ("empty_table_refused",)), ("pool", ("empty_pool_refused",)),
    ):  # fmt: skip
        yield Case(
            name=f"no_{axis}",
            catches=f"no {axis} at all: a launch that fails, a status that is not written, or "
            "requests refused that need none",
            inputs=partial(_without, axis),
            attrs=_attrs(),
            profile="f32",
            seed=408,
            kills=kills,
        )
    yield Case(
        name="all_inactive",
        catches="inactive requests that are refused or left unwritten",
        inputs=_random(1250, [(0, 0), (5, 0)], 16, N=2),
        attrs=_attrs(16),
        profile="f32",
        seed=1250,
        kills=("pad_rows_not_written",),
    )


def _wide_tree(seed: int, n: int, *, again: bool = False, **shape: Any) -> Callable[[], Arrays]:
    """Each node's own row and its parent's hold its mass: the last columns of the mask matter.

    `again`: a second request is the first, but for its last slot, which is out of range.
    """

    def make() -> Arrays:
        x = scene(seed, [(3, n)], H=1, D=8, **shape)
        # Later rows score higher; 256 sixteenths are what bf16 can hold.
        x.tree[0][:, 4] = np.minimum(np.arange(n), 256) / 16.0
        x.q[0, :, :, 4] = 3.0
        inputs = x.inputs(1)
        if again:
            for name in inputs.keys() - {"kv_pool"}:
                inputs[name] = np.concatenate([inputs[name]] * 2)
            inputs["tree_slots"][1, n - 1] = len(inputs["kv_pool"])
        return inputs

    return make


def _negative_scores(seed: int, keys: int) -> Callable[[], Arrays]:
    """All scores near -8, so that a padded key with score 0 would win; the last key stands out."""

    def make() -> Arrays:
        x = scene(seed, [(keys - 1, 1)], H=2, D=12)
        x.q[..., 8:] = 0.0
        x.q[..., 8] = 4.0
        for rows in (x.prefix[0], x.tree[0]):
            rows[:, 8] = -4.0
        if keys > 1:
            x.prefix[0][-1, 8] = -2.5
        return x.inputs(1)

    return make


def _levels(level: tuple[float, float], dtype: str) -> Callable[[], Arrays]:
    """Scores near the product of `level` / 8, a few steps apart, on the grid of 16-bit types."""

    def make() -> Arrays:
        x = scene(397, [(40, 5), (0, 4)], H=1, D=4, dtype=dtype)
        x.q = np.ldexp(x.q, -10)
        x.q[..., 2] = np.where(np.isnan(x.q[..., 2]), NAN, level[0])
        for rows in (*x.prefix, *x.tree):
            rows[:, 2] = level[1] + np.arange(len(rows)) % 4
        return x.inputs(16)

    return make


def _far(seed: int, dtype: str) -> Callable[[], Arrays]:
    """D 576; in bf16 the pool is so large that element offsets pass 2^16."""
    page, spare = (16, 6) if dtype == "bf16" else (1, 0)
    return lambda: scene(seed, [(21, 2)], H=1, D=576, dtype=dtype).inputs(page, spare_pages=spare)


def _scores() -> Iterator[Case]:
    yield Case(
        name="scores_near_minus_60000",
        catches="a finite mask value such as -10000: every valid score is below it",
        inputs=_shifted(340, -6e4, 1.0),
        attrs=_attrs(16, scale=0.125),
        profile="f32",
        family="extreme",
        seed=340,
        kills=("masked_score_is_small", "no_max_shift"),
    )
    yield Case(
        name="scores_near_2000",
        catches="exp without the shift by the row maximum, or a constant shift",
        inputs=_shifted(341, 2000.0, 1.0),
        attrs=_attrs(16, scale=0.125),
        profile="f32",
        family="extreme",
        seed=341,
        kills=("no_max_shift", "constant_shift"),
    )
    yield Case(
        name="ascending_scores",
        catches="output or sum not rescaled when a later tile raises the maximum",
        inputs=_ascending,
        attrs=_attrs(16),
        profile="f32",
        family="needle_alt",
        seed=350,
        kills=("output_not_rescaled", "sum_not_rescaled"),
    )
    yield Case(
        name="descending_scores",
        catches="a later tile with a lower maximum that replaces the running one",
        inputs=_descending,
        attrs=_attrs(16),
        profile="f32",
        family="needle_alt",
        seed=351,
        kills=("tile_max_replaces_max",),
    )
    yield Case(
        name="light_half",
        catches="splits merged by equal weight, by base-2 weights, or a light split dropped",
        inputs=_halves,
        attrs=_attrs(16),
        profile="f32",
        family="needle_alt",
        seed=352,
        kills=("splits_averaged", "splits_merged_base_2", "light_split_dropped"),
    )
    yield Case(
        name="equal_keys",
        catches="exact ties: equal keys share the mass, none wins",
        inputs=_equal_keys,
        attrs=_attrs(16),
        profile="f32",
        family="tie",
        seed=360,
        kills=("ties_win_once",),
    )
    yield Case(
        name="large_and_subnormal_values",
        catches="sums that overflow, or lose signs and subnormals by more than a flush",
        inputs=_large_values,
        attrs=_attrs(1),
        profile="f32",
        family="extreme",
        seed=370,
        kills=("causal_mask",),
    )
    yield Case(
        name="large_and_small_values_bf16",
        catches="bf16 rows that pass through f16, whose range is too small for them",
        inputs=partial(_large_values, "bf16"),
        attrs=_attrs(1),
        dtypes=_all("bf16"),
        profile="bf16_f32acc_pbf16",
        family="extreme",
        seed=370,
        kills=("rows_through_f16", "causal_mask"),
    )
    yield Case(
        name="outlier_channels",
        catches="columns far larger than the rest, as in recorded activations",
        inputs=_outlier_channels,
        attrs=_attrs(16),
        dtypes=_all("bf16"),
        profile="bf16_f32acc_pbf16",
        family="scaled",
        seed=380,
        kills=("scale_missing", "lse_base_2"),
    )
    for name, gain in (("sharp", 4.0), ("flat", 2.0**-10)):
        yield Case(
            name=f"{name}_softmax",
            catches="logits four times as large, or nearly zero: base, scale and weight faults",
            inputs=_scaled(390, gain),
            attrs=_attrs(16),
            profile="f32",
            family="scaled",
            seed=390,
            kills=("lse_base_2", "no_self"),
        )
    for name, scale in (("v3", V3), ("one", 1.0), ("quarter_power", 2.0**-5)):
        yield Case(
            name=f"scale_{name}",
            catches="a scale that is computed instead of read",
            inputs=_random(395, [(20, 4)], 1),
            attrs=_attrs(scale=scale),
            profile="f32",
            family="random",
            seed=395,
            kills=("scale_from_width", "scale_built_in", "scale_without_mscale")
            + (("scale_missing",) if scale != 1.0 else ()),
            wrong=("scale_is_width_power_minus_half",) if scale == V3 else (),
        )

    for name, scale, fault in (
        ("zero", 0.0, "scale_zero_is_default"),
        ("negative", -0.25, "scale_without_sign"),
    ):
        yield Case(
            name=f"scale_{name}",
            catches="a scale of 0 taken for none given, or one below 0 for its magnitude",
            inputs=_random(396, [(20, 4), (0, 3)], 1),
            attrs=_attrs(scale=scale),
            profile="f32",
            family="random",
            seed=396,
            kills=(fault, "scale_from_width"),
            wrong=("scale_is_width_power_minus_half",),
        )


def _dtypes() -> Iterator[Case]:
    table = (
        ("bf16", "bf16_f32acc_pbf16"), ("bf16", "bf16_f32acc"), ("bf16", "bf16_splits_bf16"),
        ("f16", "f16_f32acc"), ("f16", "f16_f32acc_pf16"), ("f32", "tf32"),
    )  # fmt: skip
    for seed, (dtype, profile) in enumerate(table):
        yield Case(
            name=f"profile_{profile}",
            catches="mask, scale or lse faults in this arithmetic",
            inputs=_random(1300 + seed, [(30, 6), (17, 9)], 16, H=1, dtype=dtype),
            attrs=_attrs(16),
            dtypes=_all(dtype),
            profile=profile,
            family="random",
            seed=1300 + seed,
            flags=("ragged",),
            kills=("causal_mask", "no_self", "lse_base_2", "scale_missing", "rope_first"),
        )
    for dtype, profile in (("f32", "f32"), ("bf16", "bf16_f32acc_pbf16")):
        yield Case(
            name=f"mla_{dtype}",
            catches="D 576 and Dv 512: latent and rope halves, value width, softmax scale",
            inputs=_far(1320, dtype),
            attrs=_attrs(16 if dtype == "bf16" else 1, Dv=512),
            dtypes=_all(dtype),
            profile=profile,
            family="random",
            seed=1320,
            kills=("rope_first", "scale_from_width", "lse_base_2", "scale_missing")
            + (("offset_in_16_bits",) if dtype == "bf16" else ()),
        )
    yield Case(
        name="mla_needle_bf16",
        catches="D 576, Dv 512: the last key of the prefix and each node's own row",
        inputs=_needles(1330, (17, 3), [16], [0, 1, 2], 1, D=576, Dv=512, dtype="bf16", H=1),
        attrs=_attrs(Dv=512),
        dtypes=_all("bf16"),
        profile="bf16_f32acc_pbf16",
        family="needle",
        seed=1330,
        kills=("last_prefix_key_dropped", "no_self", "rope_dropped"),
    )
    yield Case(
        name="mla_scale_zero",
        catches="D 576, Dv 512: a scale of 0 taken for none given",
        inputs=_random(1345, [(4, 2)], 1, H=1, D=576, dtype="bf16"),
        attrs=_attrs(Dv=512, scale=0.0),
        dtypes=_all("bf16"),
        profile="bf16_f32acc_pbf16",
        family="random",
        seed=1345,
        kills=("scale_zero_is_default", "scale_missing", "no_self"),
    )
    yield Case(
        name="mla_f32_out",
        catches="D 576, Dv 512: f32 out of bf16 rows, not rounded to bf16",
        inputs=_means(1346, (3, 1), 1, "prefix", H=2, D=576, dtype="bf16"),
        attrs=_attrs(1, "prefix", Dv=512),
        dtypes=_all("bf16", "f32"),
        profile="bf16_f32acc_pbf16_f32out",
        family="random",
        seed=1346,
        kills=("f32_out_through_bf16", "last_prefix_key_dropped"),
    )
    yield Case(
        name="mla_f16",
        catches="D 576, Dv 512 in f16, page 64, prefix and tree in one page",
        inputs=_one_page,
        attrs=_attrs(64, Dv=512),
        dtypes=_all("f16"),
        profile="f16_f32acc_pf16",
        family="random",
        seed=1350,
        flags=("poison",),
        kills=("no_self", "last_prefix_key_dropped"),
    )
    yield Case(
        name="f16_small_weights",
        catches="P in f16 that flushes weights which together matter",
        inputs=_random(1340, [(300, 2)], 16, H=1, dtype="f16"),
        attrs=_attrs(16),
        dtypes=_all("f16"),
        profile="f16_f32acc_pf16",
        family="random",
        seed=1340,
        kills=("tail_tile_dropped",),
    )


def _half() -> Iterator[Case]:
    """Conditions of f32 cases for kernels that take 16-bit types only."""
    for dtype in ("bf16", "f16"):
        shape: dict[str, Any] = {"H": 1, "D": 4, "dtype": dtype}
        rows = [(r % 3, r % 2) for r in range(257)]
        table: tuple[
            tuple[str, str, Callable[[], Arrays], int, int, float, tuple[str, ...]], ...
        ] = (
            ("rows_that_see_nothing",
             "NaN, the mean of V or lse +inf for a node that sees nothing",
             partial(_masked_rows, **shape), 16, 2, K25,
             ("empty_lse_is_plus_inf", "empty_row_is_mean", "empty_row_is_nan")),
            ("unseen_rows_nan",
             "a tree row that nobody sees, multiplied by a weight of zero instead of skipped",
             partial(_unseen_rows, NAN, **shape), 16, 2, K25, ("unseen_row_times_zero",)),
            ("any_mask_of_70",
             "mask tiles above the diagonal skipped, or one bit of a visible byte looked at",
             partial(_not_a_tree, 70, **shape), 1, 2, K25,
             ("tiles_above_diagonal_skipped", "visible_is_bit_0", "mask_transposed",
              "sees_itself")),
            ("nodes_130", "nodes or mask columns past 64 or 128 dropped: the last rows dominate",
             _wide_tree(1157, 130, dtype=dtype), 1, 2, 0.5,
             ("columns_past_64_hidden", "columns_past_128_hidden", "nodes_past_65")),
            ("batch_257", "requests past those of a block of 64 left out",
             _random(1261, rows, 1, **shape), 1, 2, K25, ("requests_past_64",)),
            ("heads_129", "heads past 16, 64 or 128 that use the queries of the first ones",
             _random(1330, [(3, 1)], 1, H=129, D=4, dtype=dtype), 1, 2, K25,
             ("heads_past_16", "heads_past_64", "heads_past_128")),
            ("prefix_5003_page_16", "a prefix, or its page table, cut to a power of two",
             _far_needles(906, 16, dtype), 16, 2, 1.0, ("prefix_past_4096", "table_past_256")),
            ("scores_near_minus_60000", "hidden scores of -10000, which are above every valid one",
             _levels((2048.0, -234.0), dtype), 16, 2, 0.125,
             ("masked_score_is_small", "no_max_shift")),
            ("scores_near_2000", "exp without the shift by the row maximum, or a constant shift",
             _levels((64.0, 250.0), dtype), 16, 2, 0.125, ("no_max_shift", "constant_shift")),
            ("scale_negative", "a scale below 0 taken for its magnitude",
             _random(396, [(20, 4), (0, 3)], 1, **shape), 1, 2, -0.25,
             ("scale_without_sign", "tree_skipped_without_prefix")),
            ("lengths_that_wrap",
             "a length near 2^31 that wraps to nothing when a page is added to it",
             partial(_lengths_that_wrap, dtype=dtype), 16, 2, K25, ("length_wraps",)),
            ("page_ids_that_wrap",
             "page times page size in 32 bits: an absurd page id becomes a valid slot",
             partial(_page_wraps, **shape), 16, 2, K25, ("slot_in_32_bits",)),
            ("pool_ends_inside_a_page",
             "a page checked whole, or by its first row alone, not by the rows that are used",
             partial(_pool_edge, **shape), 16, 2, K25,
             ("whole_page_checked", "page_start_checked")),
            ("unused_garbage", "unused table entries or an inactive request checked",
             partial(_unused_out_of_range, **shape), 16, 2, K25,
             ("unused_page_refused", "inactive_request_checked")),
            ("table_full", "a prefix that fills its page table refused",
             partial(_table_full, **shape), 16, 2, K25, ("full_table_refused",)),
            ("shared_rows", "pages and slots taken to have one owner and to come once",
             partial(_shared_rows, **shape), 16, 2, K25,
             ("shared_page_dropped", "repeated_slot_dropped")),
            ("width_33_values_31",
             "columns past the last full 16 left out of scores, or not written",
             _random(1133, [(10, 4)], 1, H=1, D=33, dtype=dtype), 1, 31, K25,
             ("width_tail_dropped", "value_tail_not_written")),
            ("no_nodes", "a status that is not written when there are no nodes to write",
             partial(_without, "nodes", D=4, dtype=dtype), 1, 2, K25,
             ("nothing_without_elements",)),
            ("no_table", "requests without a prefix refused because the table has no pages",
             partial(_without, "table", D=4, dtype=dtype), 1, 2, K25, ("empty_table_refused",)),
            ("no_pool", "requests without rows refused because the pool has no slots",
             partial(_without, "pool", D=4, dtype=dtype), 1, 2, K25, ("empty_pool_refused",)),
        )  # fmt: skip
        for name, catches, inputs, page, Dv, scale, kills in (
            table if dtype == "bf16" else table[:8]
        ):
            yield Case(
                name=f"{name}_{dtype}",
                catches=catches,
                inputs=inputs,
                attrs=_attrs(page, Dv=Dv, scale=scale),
                dtypes=_all(dtype),
                profile="bf16_f32acc_pbf16" if dtype == "bf16" else "f16_f32acc_pf16",
                family="hand",
                flags=("ragged",) if name == "batch_257" else (),
                kills=kills,
            )


def _tensor_cores() -> Iterator[Case]:
    """What a kernel of its own for D 576 and Dv 512 can get wrong; other cases do not reach it."""
    bf16, f16 = "bf16_f32acc_pbf16", "f16_f32acc_pf16"
    lengths = [(0, 5), (31, 1), (33, 9), (64, 3), (0, 0), (130, 17)]

    def mla(inputs: Callable[..., Arrays], *given: Any, dtype: str = "bf16", **shape: Any) -> Any:
        return partial(inputs, *given, D=576, dtype=dtype, **shape)

    for name, catches, inputs, page, profile, flags in (
        ("ragged_batch", "lengths around tiles, and rows of several nodes in a block",
         _random(1400, lengths, 16, H=3, D=576, dtype="bf16"), 16, bf16, ("ragged",)),
        ("many_nodes", "masks of a block whose rows are all of different nodes",
         _members(1401, [(40, 70)], 1, Dv=512, D=576, group=1, dtype="bf16"), 1, bf16,
         ("membership",)),
        ("heads_17", "blocks that begin and end inside a node",
         _random(1402, [(127, 8), (95, 5)], 64, H=17, D=576, dtype="f16"), 64, f16, ("ragged",)),
        ("splits", "a key lost or doubled between splits",
         _members(1403, [(2500, 3), (1100, 2)], 16, Dv=512, D=576, window=900, group=4,
                  dtype="f16"), 16, f16, ("ragged", "membership")),
        ("ascending_scores", "output or sum not rescaled when a tile raises the maximum",
         mla(_ascending), 16, bf16, ()),
        ("unseen_rows_nan", "a row that nobody sees, multiplied by a weight of 0",
         mla(_unseen_rows, NAN), 16, bf16, ("poison",)),
        ("rows_that_see_nothing", "NaN or a mean for a row without keys",
         mla(_masked_rows, dtype="f16"), 16, f16, ()),
        ("any_mask", "a mask taken for a tree, or a byte for a bit",
         mla(_not_a_tree, 70), 1, bf16, ()),
        ("refused_requests", "a refused request that is read, or that fails its batch",
         mla(_page_out_of_range), 16, bf16, ("ragged",)),
    ):  # fmt: skip
        yield Case(
            name=f"mla_{name}", catches=f"at D 576, Dv 512: {catches}", inputs=inputs,
            attrs=_attrs(page, Dv=512), dtypes=_all(profile.split("_")[0]), profile=profile,
            family="random", tier="full", flags=flags,
        )  # fmt: skip
    for part, dtype, out, page in (
        ("whole", "bf16", "bf16", 64), ("whole", "f16", "f16", 1), ("prefix", "bf16", "f32", 16),
        ("prefix", "f16", "f16", 64), ("tail", "bf16", "bf16", 1), ("tail", "f16", "f32", 1),
    ):  # fmt: skip
        odd: tuple[tuple[str, str, Callable[..., Arrays]], ...] = (
            ("refused_requests",
             "a row outside the pool accepted or one in it refused, or a mask byte read as a bit",
             partial(_odd_requests, part, page, dtype=dtype)),
            ("nodes_65", "sums not rescaled to the running maximum, or slots past 32 not checked",
             partial(_tail_of_65, dtype)),
        )  # fmt: skip
        for name, catches, inputs in odd if part == "tail" else odd[:1]:
            yield Case(
                name=f"mla_{name}{_branch(part, dtype, out)}",
                catches=f"at D 576, Dv 512, in this part and type: {catches}",
                inputs=partial(inputs, Dv=512, D=576, sign=1),
                attrs=_attrs(page, part, Dv=512, scale=0.25), dtypes=_all(dtype, out),
                profile=_profile(dtype, "" if dtype == "f16" else out), family="hand", seed=420,
                tier="full", flags=("ragged",),
            )  # fmt: skip
    for part in ("prefix", "tail"):
        yield Case(
            name=f"mla_part_{part}",
            catches=f"at D 576, Dv 512: the {part} alone, with its output in f32 for a merge",
            inputs=_random(1404, [(70, 12), (3, 20)], 16, part, H=4, D=576, dtype="bf16"),
            attrs=_attrs(16, part, Dv=512), dtypes=_all("bf16", "f32"),
            profile="bf16_f32acc_pbf16_f32out", family="random", seed=1404, tier="full",
            flags=("ragged",),
        )  # fmt: skip


def _refusals() -> Iterator[Case]:
    yield Case(
        name="refused_requests",
        catches="out-of-range pages, slots and lengths that are used; the rest of the batch is ok",
        inputs=_page_out_of_range, attrs=_attrs(16), profile="f32", family="hand", seed=400,
        flags=("ragged",),
        kills=("bad_page_accepted", "bad_slot_accepted", "long_prefix_accepted",
               "many_nodes_accepted", "bad_request_fails_batch", "refused_rows_not_written"),
        wrong=("bad_request_fails_batch",),
    )  # fmt: skip
    yield from _branches()
    yield Case(
        name="lengths_that_wrap",
        catches="a length near 2^31 that wraps to nothing when a page is added to it",
        inputs=_lengths_that_wrap,
        attrs=_attrs(16, Dv=2),
        profile="f32",
        family="hand",
        seed=406,
        flags=("ragged",),
        kills=("length_wraps", "status_always_ok"),
    )
    yield Case(
        name="page_ids_that_wrap",
        catches="page times page size in 32 bits: an absurd page id becomes a valid slot",
        inputs=_page_wraps,
        attrs=_attrs(16),
        profile="f32",
        family="hand",
        seed=405,
        kills=("slot_in_32_bits",),
    )
    yield Case(
        name="unused_garbage",
        catches="unused table entries, slots or inactive requests refused or read",
        inputs=_unused_out_of_range,
        attrs=_attrs(16),
        profile="f32",
        family="poison",
        seed=410,
        flags=("ragged", "poison"),
        kills=("unused_page_refused", "inactive_request_checked"),
        wrong=("inactive_request_checked",),
    )
    yield Case(
        name="pool_ends_inside_a_page",
        catches="a page checked whole instead of the rows that are used",
        inputs=_pool_edge,
        attrs=_attrs(16),
        profile="f32",
        family="hand",
        seed=415,
        kills=("whole_page_checked", "page_start_checked"),
    )


def _branches() -> Iterator[Case]:
    """Refusals, masks and scores in each part and type, where a kernel may have its own code."""
    shared = ("many_nodes_accepted", "negative_lengths_accepted", "bad_request_fails_batch",
              "refused_rows_not_written", "status_always_ok", "pad_rows_computed",
              "scale_without_sign")  # fmt: skip
    prefix = ("full_table_refused", "bad_page_accepted", "negative_page_accepted",
              "long_prefix_accepted", "length_wraps", "inactive_request_checked",
              "sum_not_rescaled", "output_not_rescaled", "tile_max_overflows")  # fmt: skip
    tail = ("bad_slot_accepted", "negative_slot_accepted", "unseen_slot_accepted",
            "sees_itself", "visible_is_bit_0", "visible_is_1", "visible_is_signed",
            "mask_stride_n_nodes", "slot_stride_n_nodes", "unseen_row_times_zero",
            "empty_row_is_nan", "masked_score_is_small")  # fmt: skip
    ends = ("page_start_checked", "whole_page_checked", "slot_in_32_bits")
    branches = (
        ("whole", "bf16", "bf16", 1), ("whole", "f16", "f16", 64), ("whole", "bf16", "f32", 16),
        ("prefix", "f32", "f32", 1), ("prefix", "bf16", "bf16", 64),
        ("prefix", "f16", "f16", 16), ("prefix", "bf16", "f32", 16),
        ("tail", "f32", "f32", 1), ("tail", "bf16", "bf16", 64),
        ("tail", "f16", "f16", 16), ("tail", "bf16", "f32", 16),
    )  # fmt: skip
    pages = "a full table or a page that ends with the pool refused, a page outside it accepted"
    marks = "a slot outside the pool accepted, a mask byte read as a bit, a node that sees itself"
    wrong = {"whole": f"{pages}; {marks}", "prefix": f"{pages}; sums not rescaled", "tail": marks}
    kills: tuple[str, ...]
    for part, dtype, out, page in branches:
        kills = shared
        if part != "tail":
            kills += prefix + (ends if page > 1 else ("prefix_len_of_request_0",))
        if part != "prefix":
            kills += tail
        yield Case(
            name=f"refused_requests{_branch(part, dtype, out)}",
            catches=f"in this part and type: {wrong[part]}, or the sign of the scale dropped",
            inputs=partial(_odd_requests, part, page, Dv=2, dtype=dtype),
            attrs=_attrs(page, part, Dv=2, scale=-0.25),
            dtypes=_all(dtype, out),
            profile=_profile(dtype, out),
            family="hand",
            seed=420,
            flags=("ragged", "poison"),
            kills=kills + _in_branch(part, dtype, out, kills),
        )
    for dtype, out in (("bf16", "bf16"), ("f16", "f16"), ("f16", "f32")):
        kills = ("slots_past_32_accepted", "sum_not_rescaled", "output_not_rescaled",
                 "tile_max_overflows", "columns_past_64_hidden")  # fmt: skip
        yield Case(
            name=f"nodes_65{_branch('tail', dtype, out)}",
            catches="in this part and type, with more nodes than a tile has keys: sums not "
            "rescaled to the running maximum, or slots past 32 not checked",
            inputs=partial(_tail_of_65, dtype),
            attrs=_attrs(1, "tail", Dv=1, scale=-0.25),
            dtypes=_all(dtype, out),
            profile=_profile(dtype, "" if dtype == "f16" else out),
            family="hand",
            seed=420,
            kills=kills + _in_branch("tail", dtype, out, kills),
        )


def _branch(part: str, dtype: str, out: str) -> str:
    """The end of a name: part and type, as far as they are not the whole in f32."""
    kind = "" if dtype == out == "f32" else f"_{dtype}" if dtype == out else "_f32_out"
    return ("" if part == "whole" else f"_{part}") + kind


def _profile(dtype: str, out: str) -> str:
    if dtype == "f32":
        return "f32"
    return f"{dtype}_f32acc_p{dtype}" + ("_f32out" if out == "f32" else "")


def _in_branch(part: str, dtype: str, out: str, kills: Sequence[str]) -> tuple[str, ...]:
    """Those of the faults that are also planted in this branch alone."""
    if part == "whole" or dtype == out == "f32":
        return ()
    planted = {
        "prefix": ("full_table_refused", "page_start_checked", "bad_page_accepted",
                   "negative_page_accepted", "value_tail_not_written", "scale_without_sign",
                   "sum_not_rescaled", "tile_max_overflows"),
        "tail": ("bad_slot_accepted", "negative_slot_accepted", "slots_past_32_accepted",
                 "sees_itself", "visible_is_bit_0", "mask_stride_n_nodes",
                 "unseen_row_times_zero", "value_tail_not_written", "empty_row_is_nan",
                 "masked_score_is_small", "scale_without_sign", "sum_not_rescaled",
                 "tile_max_overflows"),
    }  # fmt: skip
    return tuple(f"{k}_in{_branch(part, dtype, out)}" for k in kills if k in planted[part])


def _recorded() -> Iterator[Case]:
    for layer, kills in ((0, ("causal_mask",)), (14, ("first_prefix_key_dropped",)), (29, ())):
        yield Case(
            name=f"recorded_layer_{layer}",
            catches="real activations: attention sinks, outlier columns, sharp and flat heads",
            inputs=_real(layer, range(34), range(0, 12, 3), slice(4, 5), 30, 1, "bf16"),
            attrs=_attrs(Dv=512, scale=0.125), dtypes=_all("bf16"),
            profile="bf16_f32acc_pbf16", family="real", seed=500 + layer, kills=kills,
            provenance=recorded.provenance(f"mla_layer{layer}"),
        )  # fmt: skip
        yield Case(
            name=f"recorded_layer_{layer}_full",
            catches="real activations: attention sinks, outlier columns, sharp and flat heads",
            inputs=_real(layer, range(512), range(16), slice(0, 9), 496, 64, "f16"),
            attrs=_attrs(64, Dv=512, scale=0.125), dtypes=_all("f16"),
            profile="f16_f32acc_pf16", family="real", seed=500 + layer, tier="full",
            provenance=recorded.provenance(f"mla_layer{layer}"),
        )  # fmt: skip


# --- known-wrong conventions --------------------------------------------------------------------


def _masked_as(
    change: Callable[[Array, int, Arrays, int], Array],
) -> Reference:
    """The reference under another mask: `change(visible [n, n], n, inputs, r)`."""

    def wrong(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
        x = dict(inputs)
        if "visible" in inputs:
            marks = inputs["visible"].copy()
            for r in range(len(marks)):
                n = min(max(int(inputs["n_nodes"][r]), 0), marks.shape[1])
                marks[r, :n, :n] = change(marks[r, :n, :n] != 0, n, inputs, r)
            x["visible"] = marks
        return attention(x, attrs)

    return wrong


def _causal(sees: Array, n: int, inputs: Arrays, r: int) -> Array:
    return np.tril(np.ones((n, n), bool))


def _with_siblings(sees: Array, n: int, inputs: Arrays, r: int) -> Array:
    above = sees & ~np.eye(n, dtype=bool)
    same = np.all(above[:, None, :] == above[None, :, :], axis=2)
    return np.asarray(sees | same)


def _without_self(sees: Array, n: int, inputs: Arrays, r: int) -> Array:
    return np.asarray(sees & ~np.eye(n, dtype=bool))


def _transposed(sees: Array, n: int, inputs: Arrays, r: int) -> Array:
    return sees.T


def _lse_base_2(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    found = attention(inputs, attrs)
    return {**found, "lse": found["lse"] / 0.6931471805599453}


def _lse_heads_first(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    found = attention(inputs, attrs)
    lse = found["lse"]
    return {**found, "lse": lse.transpose(0, 2, 1).reshape(lse.shape)}


def _width_scale(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return attention(inputs, {**attrs, "scale": float(np.sqrt(1.0 / inputs["q"].shape[3]))})


def _rope_first(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    turn = inputs["q"].shape[3] - int(attrs["Dv"])
    x = {**inputs, "q": np.roll(inputs["q"], -turn, 3),
         "kv_pool": np.roll(inputs["kv_pool"], -turn, 1)}  # fmt: skip
    return attention(x, attrs)


def _page_id_is_slot(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    page = int(attrs["page_size"])
    table = inputs["page_table"]
    rows = np.repeat(table, page, axis=1) + np.tile(np.arange(page), table.shape[1])
    x = {**inputs, "page_table": rows,
         "kv_pool": np.nan_to_num(inputs["kv_pool"], nan=0.0)}  # fmt: skip
    return attention(x, {**attrs, "page_size": 1})


def _prefix_less_one(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return attention({**inputs, "prefix_len": np.maximum(inputs["prefix_len"] - 1, 0)}, attrs)


def _empty_plus_inf(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    found = attention(inputs, attrs)
    return {**found, "lse": np.where(found["lse"] == -INF, INF, found["lse"])}


def _empty_mean(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    found = attention(inputs, attrs)
    everyone = _masked_as(lambda sees, n, _x, _r: np.ones((n, n), bool) | sees)
    flat = everyone({**inputs, "q": inputs["q"] * 0.0}, attrs, "")
    n_nodes = inputs["n_nodes"]
    real = np.arange(inputs["q"].shape[1])[None, :] < n_nodes[:, None]
    empty = (found["lse"] == -INF) & real[:, :, None]
    return {**found, "out": np.where(empty[..., None], flat["out"], found["out"])}


def _fails_batch(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    found = attention(inputs, attrs)
    empty = {"out": 0.0, "lse": -INF, "status": 1}
    return {name: np.full_like(found[name], value) for name, value in empty.items()}


def _inactive_checked(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    status = attention(inputs, attrs)["status"]
    for r in np.flatnonzero(inputs["n_nodes"] == 0):
        status[r] = slots_of(inputs, attrs, int(r), 0) is None
    return {"status": status}


WRONG: Mapping[str, Reference] = {
    "causal_instead_of_ancestor": _masked_as(_causal),
    "sees_siblings": _masked_as(_with_siblings),
    "no_self": _masked_as(_without_self),
    "mask_transposed": _masked_as(_transposed),
    "lse_base_2": _lse_base_2,
    "lse_heads_first": _lse_heads_first,
    "scale_is_width_power_minus_half": _width_scale,
    "rope_first": _rope_first,
    "page_id_is_slot": _page_id_is_slot,
    "last_prefix_key_dropped": _prefix_less_one,
    "empty_lse_is_plus_inf": _empty_plus_inf,
    "empty_row_is_mean": _empty_mean,
    "bad_request_fails_batch": _fails_batch,
    "inactive_request_checked": _inactive_checked,
}
