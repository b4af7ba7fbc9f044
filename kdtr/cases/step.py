"""Cases of `step@1`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.step import trace

Array = NDArray[Any]
Change = Callable[[dict[str, Array]], dict[str, Array]]
E, D, DV, H, M = 8, 12, 8, 2, 96
TIED = 9
SCALE = float(np.float32(0.25))
TREE_GAP = 2.0**-15  # 15 depths of one ulp of lse stay below 2^-18
TARGET_GAP = 2.0**-8  # f32 attention and head stay below 2^-14 on these sizes


def _attempt(
    seed: int, shape: tuple[int, int, int], slots: int, prefix: tuple[int, ...], page: int,
    follow: float, dtype: str, table: int | None,
) -> dict[str, Array]:  # fmt: skip
    """A step whose target is the drafter's best token in a share `follow` of the vocabulary."""
    requests, depths, vocab = shape
    per = -(-(max(prefix) + depths + 1) // page) if table is None else table
    pages = requests * per
    tree_pages = -(-requests * slots // page)
    pool_slots = (pages + tree_pages) * page
    token_rows = nx.normal(seed, (vocab, E), 3)
    head = nx.normal(seed + 1, (vocab, H * DV), 4)
    logits = nx.normal(seed + 2, (requests, depths, vocab), 10, 1.5)
    order = np.argsort(nx.raw_bits(seed + 3, pages), kind="stable").astype(np.int32)
    first = pool_slots - requests * slots
    biased = nx.integers(seed + 4, (vocab,), 0, 1000) < follow * 1000
    # The stand-in target leans to tokens that the drafter likes too.
    logits[:, :, biased] += 2.0
    logits = {"f32": nx.round_f32, "bf16": nx.round_bf16, "f16": nx.round_f16}[dtype](logits)
    if seed % 100 == TIED:  # the two best of each depth are equal
        best = np.argsort(-logits, axis=-1, kind="stable")[..., :2]
        top = np.take_along_axis(logits, best[..., :1], -1)
        np.put_along_axis(logits, best, np.repeat(top, 2, -1), -1)
    head[biased] += head[biased] * 2.0
    return {
        "logits": logits.astype(np.float32),
        "root_token": nx.integers(seed + 5, (requests,), 0, vocab).astype(np.int32),
        "prefix_len": np.array(prefix, np.int32),
        "page_table": order.reshape(requests, per),
        "tree_slots": np.arange(first, pool_slots, dtype=np.int32).reshape(requests, slots),
        "kv_pool": nx.normal(seed + 6, (pool_slots, D), 6),
        "token_rows": token_rows,
        "position_rows": nx.normal(seed + 7, (M, E), 3),
        "q_weight": nx.normal(seed + 8, (H * D, E), 3, 0.5),
        "q_position": nx.normal(seed + 9, (H * D, E), 3, 0.5),
        "kv_weight": nx.normal(seed + 10, (D, E), 3, 0.5),
        "kv_position": nx.normal(seed + 11, (D, E), 3, 0.5),
        "head": head,
    }


def _margins(inputs: Arrays, attrs: Attrs) -> tuple[float, float, int]:
    """The least gap of tree weights, of target logits, and the most accepted drafts."""
    outputs, seen = trace(inputs, attrs)
    gaps = [np.inf]
    for r, count in enumerate(outputs["n_nodes"].tolist()):
        weights = [*seen["weights"][r, 1:count].tolist(), float(seen["next_weight"][r])]
        depths = [*seen["depths"][r, 1:count].tolist(), -1]
        # An exact tie within one depth is a tie under every legal lse.
        pairs = pairwise(zip(weights, depths, strict=True))
        gaps += [a - b for (a, da), (b, db) in pairs if a != b or da != db]
    live = np.arange(seen["logits"].shape[1]) < outputs["n_nodes"][:, None]
    live &= outputs["status"][2][:, None] == 0  # zeros, exactly, where verify refuses
    top = np.sort(seen["logits"][live], axis=-1, kind="stable")[:, -2:]
    target = float(np.min(top[:, 1] - top[:, 0], initial=np.inf))
    return min(gaps), target, int(outputs["accept_len"].max())


@cache
def _qualified(
    seed: int, shape: tuple[int, int, int], slots: int, prefix: tuple[int, ...], page: int,
    order: str, follow: float, accepted: int, change: Change | None, dtype: str, table: int | None,
) -> dict[str, Array]:  # fmt: skip
    """The first seed whose trees and targets no legal rounding can change."""
    attrs = _attrs(slots, page, order)
    for offset in range(0, 100_000, 100):
        inputs = _attempt(seed + offset, shape, slots, prefix, page, follow, dtype, table)
        if change:
            inputs = change(inputs)
        wide = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in inputs.items()}
        tree, target, most = _margins(wide, attrs)
        if tree > TREE_GAP and target > TARGET_GAP and most >= accepted:
            return inputs
    raise AssertionError("no qualified seed")


def _attrs(slots: int, page: int, order: str) -> dict[str, int | float | str | bool]:
    return {
        "K": 6, "N": slots, "tie_order": order, "scale": SCALE, "page_size": page, "H": H, "Dv": DV,
    }  # fmt: skip


def _case(
    name: str, catches: str, seed: int, shape: tuple[int, int, int], slots: int,
    prefix: tuple[int, ...], page: int, order: str = "ranks", follow: float = 0.1,
    accepted: int = 1, kills: tuple[str, ...] = (), wrong: tuple[str, ...] = (),
    change: Change | None = None, dtype: str = "f32", table: int | None = None,
) -> Case:  # fmt: skip
    def inputs() -> Arrays:
        return dict(_qualified(
            seed, shape, slots, prefix, page, order, follow, accepted, change, dtype, table,
        ))  # fmt: skip

    return Case(
        name, catches, inputs, _attrs(slots, page, order), family="random", seed=seed, kills=kills,
        wrong=wrong, flags=("composite",), dtypes={"logits": dtype},
    )  # fmt: skip


def _nan_request(found: dict[str, Array]) -> dict[str, Array]:
    logits = found["logits"].copy()
    logits[1, 0, 3] = np.nan
    return {**found, "logits": logits}


def _every_status(page: int, found: dict[str, Array]) -> dict[str, Array]:
    """Ten requests, of which the first and the last are good and the others fail in a stage each.

    By topk: NaN as the last logit, +inf. By build: root, length. By verify: a page past the pool,
    a length past the table. By commit: the page of the root's row, a full table.
    """
    found = {name: array.copy() for name, array in found.items()}
    found["logits"][1, -1, -1], found["logits"][2, 0, 0] = np.nan, np.inf
    found["root_token"][3], found["prefix_len"][4] = -1, -1
    table, lengths = found["page_table"], found["prefix_len"]
    table[5, 0] = len(found["kv_pool"]) // page
    table[6, lengths[6] // page] = -1
    lengths[8] = table.shape[1] * page + 1
    return found


def _past_the_tables(found: dict[str, Array]) -> dict[str, Array]:
    """Positions from 4 on have no row; neither has the root of request 1."""
    found["root_token"][1] = len(found["token_rows"]) + 5
    return {**found, "position_rows": found["position_rows"][:4].copy()}


def _full_table(found: dict[str, Array]) -> dict[str, Array]:
    table = found["page_table"]
    keep = -(-int(found["prefix_len"].max()) // 16)
    return {**found, "page_table": table[:, :keep].copy()}


def cases() -> Iterator[Case]:
    """Small steps of every page size, ragged, with refused requests among good ones."""
    yield _case(
        "one_request", "A stage that is wired to the wrong output of the one before.",
        1, (1, 4, 32), 7, (9,), 16, kills=("accepts_from_index_order", "positions_by_index"),
        wrong=("positions_by_index", "bonus_counted", "length_without_root"),
    )  # fmt: skip
    yield _case(
        "ragged_batch", "Request 0 right by accident: lengths 0, 5 and 19, three trees.",
        2, (3, 4, 24), 6, (0, 5, 19), 16, kills=("first_request_length", "verifies_without_mask"),
        wrong=("first_request_length",),
    )  # fmt: skip
    yield _case(
        "page_one", "Rows copied where table entries are to be exchanged.",
        3, (2, 3, 24), 6, (7, 3), 1, kills=("commits_rows_only",),
        wrong=("tables_unchanged",),
    )  # fmt: skip
    yield _case(
        "page_64", "A page edge taken for a slot edge.", 4, (2, 4, 24), 5, (63, 64), 64,
        kills=("commits_at_prefix_plus_one",),
    )  # fmt: skip
    yield _case(
        "uno_order", "The tie order attribute lost on the way.",
        100 + TIED, (2, 4, 24), 8, (4, 11), 16, "uno",
        kills=("ranks_whatever_asked", "stale_prefix_len"),
        wrong=("other_tie_order", "bonus_counted"),
    )  # fmt: skip
    yield _case(
        "long_path", "A commit that stops at the first accepted draft.",
        6, (2, 4, 16), 12, (6, 13), 16, follow=0.06, accepted=2, kills=("commits_root_only",),
    )  # fmt: skip
    yield _case(
        "refused_request", "One request with NaN logits stops, or takes its neighbours down.",
        7, (3, 3, 24), 5, (4, 9, 17), 16, change=_nan_request, kills=("refused_request_dropped",),
        wrong=("refused_request_inactive",),
    )  # fmt: skip
    for page, dtype, lengths, table, more in (
        (16, "bf16", (2, 3, 1, 2, 4, 3, 0, 16, 5, 7), 1, ()),
        (1, "f16", (2, 3, 1, 2, 4, 3, 3, 6, 5, 3), 6, ("halves_read_as_bf16",)),
    ):
        yield _case(
            f"every_status_page_{page}",
            "A request refused in one stage that loses its status, goes on as it should not, or "
            "takes its neighbours down; 16-bit logits of the other type; ties by the highest id.",
            200 + TIED, (10, 2, 16), 4, lengths, page, change=partial(_every_status, page),
            dtype=dtype, table=table,
            kills=(
                *more, "narrow_ties_by_highest_id", "nan_in_first_depth_only",
                "last_logit_unchecked", "plus_inf_accepted", "refused_tree_keeps_root",
                "negative_root_accepted", "negative_prefix_accepted", "inactive_commits_root",
                "verify_status_lost", "verify_refusal_ends_request", "bad_page_is_capacity",
                "bad_page_past_pool_accepted",
            ),
            wrong=("capacity_ignored",),
        )  # fmt: skip
    yield _case(
        "past_the_tables",
        "A token or a position without a row that takes the last row; the bonus lost after a path "
        "of all depths.",
        12, (2, 1, 16), 3, (3, 4), 1, change=_past_the_tables,
        kills=("position_clamped", "token_clamped", "bonus_lost_at_full_depth"),
    )  # fmt: skip
    yield _case(
        "tied_siblings", "Equal candidates expanded in another order than the ranks say.",
        TIED, (2, 3, 24), 7, (5, 12), 16, kills=("ties_always_by_ranks_reversed",),
        wrong=("other_tie_order",),
    )  # fmt: skip
    yield _case(
        "table_full", "A commit past the last page of the table.", 8, (2, 3, 24), 6, (16, 15), 16,
        change=_full_table, kills=("commits_past_capacity",), wrong=("capacity_ignored",),
    )  # fmt: skip


# --- known-wrong conventions: the outputs that tell one; what follows is not compared -------------


def _told(change: Callable[[dict[str, Array], Arrays], dict[str, Array]]) -> Reference:
    def wrong(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
        return change(trace(inputs, attrs)[0], inputs)

    return wrong


def _positions(out: dict[str, Array], prefix: Array, steps: Array) -> dict[str, Array]:
    live = np.arange(out["positions"].shape[1]) < out["n_nodes"][:, None]
    return {"positions": np.where(live, prefix[:, None] + steps, 0).astype(np.int32)}


def _by_index(out: dict[str, Array], inputs: Arrays) -> dict[str, Array]:
    return _positions(out, inputs["prefix_len"], np.arange(out["positions"].shape[1]))


def _first_length(out: dict[str, Array], inputs: Arrays) -> dict[str, Array]:
    prefix = inputs["prefix_len"]
    first = np.broadcast_to(prefix[:1], prefix.shape)
    return _positions(out, first, out["positions"] - prefix[:, None])


def _inactive(out: dict[str, Array], inputs: Arrays) -> dict[str, Array]:
    return {"n_nodes": np.where(out["status"][0] != 0, 0, out["n_nodes"]).astype(np.int32)}


def _capacity_ignored(out: dict[str, Array], inputs: Arrays) -> dict[str, Array]:
    length = inputs["prefix_len"] + out["accept_len"] + 1
    return {"new_len": length.astype(np.int32), "status": out["status"] * np.int32(0)}


def _other_order(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    order = "ranks" if attrs["tie_order"] == "uno" else "uno"
    out = trace(inputs, {**attrs, "tie_order": order})[0]
    return {name: out[name] for name in ("tokens", "parents", "positions")}


WRONG: Mapping[str, Reference] = {
    "positions_by_index": _told(_by_index),
    "first_request_length": _told(_first_length),
    "bonus_counted": _told(lambda out, _: {"accept_len": out["accept_len"] + np.int32(1)}),
    "length_without_root": _told(lambda out, _: {"new_len": out["new_len"] - np.int32(1)}),
    "tables_unchanged": _told(lambda _, x: {n: x[n] for n in ("page_table", "tree_slots")}),
    "refused_request_inactive": _told(_inactive),
    "capacity_ignored": _told(_capacity_ignored),
    "other_tie_order": _other_order,
}
