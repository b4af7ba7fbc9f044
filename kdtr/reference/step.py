"""Reference of `step@1`: the references of its stages, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kdtr import numerics as nx
from kdtr.reference import argmax, kv_commit, topk_logprobs, tree_accept, tree_build, verify_attn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Attrs = Mapping[str, int | float | str | bool]

STAGES = ("topk", "build", "verify", "accept", "commit")


def reference(inputs: Mapping[str, Array], attrs: Attrs, profile: str) -> dict[str, Array]:
    """One step of every request.

    Args:
        inputs: as the contract; floats widened to f64.
        attrs: K, N, tie_order, scale, page_size, H, Dv.
        profile: unused; every output is exact.

    Returns:
        The contract's outputs, and `page_table`, `tree_slots` and `kv_pool` after the step.
    """
    return trace(inputs, attrs)[0]


def trace(inputs: Mapping[str, Array], attrs: Attrs) -> tuple[dict[str, Array], dict[str, Array]]:
    """The outputs, and what a case needs to see that no legal rounding changes them.

    The second dict holds `weights` f64 [R, N] and `depths` [R, N] of the trees, `next_weight`
    f64 [R] (the best candidate left
    out, or -inf), and `logits` f64 [R, N, V] of the target.
    """
    requests, _, vocab = inputs["logits"].shape
    slots, heads, values = int(attrs["N"]), int(attrs["H"]), int(attrs["Dv"])
    depth = inputs["logits"].shape[1]

    drafted = topk_logprobs.reference({"logits": inputs["logits"]}, {"K": attrs["K"]}, "f32")
    lse = drafted["lse"].astype(np.float32)
    ids = drafted["ids"]
    picked = np.take_along_axis(inputs["logits"], np.maximum(ids, 0).astype(np.int64), -1)
    logprobs = picked.astype(np.float32) - lse[..., None]
    logprobs[ids < 0] = -np.inf
    build_inputs = {
        "logprobs": logprobs.astype(np.float64),
        "ids": ids,
        "root_token": inputs["root_token"],
        "prefix_len": inputs["prefix_len"],
    }
    order = {"tie_order": attrs["tie_order"]}
    tree = tree_build.reference(build_inputs, {"budget": slots - 1, **order}, "exact")
    wider = tree_build.reference(build_inputs, {"budget": slots, **order}, "exact")
    left = wider["n_nodes"] > tree["n_nodes"]
    next_weight = np.where(left, wider["weights"][:, slots], -np.inf)

    x = _rows(inputs["token_rows"], tree["tokens"])
    p = _rows(inputs["position_rows"], tree["positions"])
    q = _exact(x, inputs["q_weight"]) + _exact(p, inputs["q_position"])
    rows = _exact(x, inputs["kv_weight"]) + _exact(p, inputs["kv_position"])
    pool = inputs["kv_pool"].copy()
    pool[len(pool) - requests * slots :] = rows
    attended = verify_attn.attention(
        {
            "q": q.reshape(requests, slots, heads, -1),
            "kv_pool": pool,
            "page_table": inputs["page_table"],
            "prefix_len": inputs["prefix_len"],
            "tree_slots": inputs["tree_slots"],
            "visible": tree["visible"],
            "n_nodes": tree["n_nodes"],
        },
        {**{n: attrs[n] for n in ("scale", "page_size", "Dv")}, "part": "whole"},
    )
    flat = attended["out"].reshape(requests * slots, heads * values)
    logits = _ordered(flat, inputs["head"]).reshape(requests, slots, vocab)
    target = argmax.reference({"logits": logits}, {}, "exact")["ids"]

    links = {n: tree[n] for n in ("tokens", "next_token", "next_sibling", "n_nodes")}
    accept = tree_accept.reference({**links, "target": target}, {"L": depth, "V": vocab}, "exact")
    stored = pool.astype(np.float32)
    commit = kv_commit.reference(
        {
            "rows": stored.view(np.uint8).reshape(1, len(pool), -1),
            "page_table": inputs["page_table"],
            "tree_slots": inputs["tree_slots"],
            "hidden": np.zeros((requests, slots, 0), np.uint8),
            "accept_index": accept["accept_index"],
            "accept_len": accept["accept_len"],
            "prefix_len": inputs["prefix_len"],
        },
        {"page_size": attrs["page_size"]},
        "exact",
    )
    after = np.ascontiguousarray(commit["rows"]).reshape(len(pool), -1).view(np.float32)
    statuses = (drafted, tree, attended, accept, commit)
    outputs = {
        **{n: tree[n] for n in ("n_nodes", "tokens", "parents", "positions")},
        "target": target,
        "accept_len": accept["accept_len"],
        "accepted_tokens": accept["accepted_tokens"],
        "new_len": commit["new_len"],
        "status": np.stack([stage["status"] for stage in statuses]).astype(np.int32),
        "page_table": commit["page_table"],
        "tree_slots": commit["tree_slots"],
        "kv_pool": after,
    }
    seen = {
        "weights": tree["weights"],
        "depths": tree["depths"],
        "next_weight": next_weight,
        "logits": logits,
    }
    return outputs, seen


def _rows(table: Array, ids: Array) -> Array:
    """Rows of an embedding table for [R, N] ids; an id outside it gives zeros. [R N, E]."""
    flat = ids.reshape(-1).astype(np.int64)
    inside = (flat >= 0) & (flat < len(table))
    found: Array = np.where(inside[:, None], table[np.where(inside, flat, 0)], 0.0)
    return found


def _exact(x: Array, weight: Array) -> Array:
    return nx.exact_matmul(x, weight.T, "step")


def _ordered(x: Array, weight: Array) -> Array:
    """x weight^T by sums in a fixed order. [T, K] and [V, K] -> [T, V]."""
    return nx.total(x[:, None, :] * weight[None, :, :])
