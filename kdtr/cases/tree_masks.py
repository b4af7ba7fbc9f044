"""Cases of `tree_masks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics, recorded
from kdtr.case import Arrays, Attrs, Case
from kdtr.reference import tree_build
from kdtr.reference import tree_masks as ref

Array = NDArray[Any]


def _batch(
    trees: Sequence[Sequence[int]], prefix_len: Sequence[int], slots: int = 0
) -> dict[str, Array]:
    """Trees by their parent lists; every slot past a request's nodes holds garbage."""
    slots = max([slots, *map(len, trees)])
    shape = (len(trees), slots)
    visible = numerics.integers(3, (*shape, slots), 0, 256).astype(np.uint8)
    parents = numerics.integers(4, shape, -9, 2 * slots + 9).astype(np.int32)
    depths = numerics.integers(5, shape, -9, 99).astype(np.int32)
    for r, tree in enumerate(trees):
        nodes = len(tree)
        parents[r, :nodes] = tree
        visible[r, :nodes, :nodes] = 0
        for i, parent in enumerate(tree):
            depths[r, i] = depths[r, parent] + 1 if i else 0
            visible[r, i, :nodes] = visible[r, parent, :nodes] if i else 0
            visible[r, i, i] = 1
    return {
        "visible": visible,
        "parents": parents,
        "depths": depths,
        "n_nodes": np.array([len(t) for t in trees], np.int32),
        "prefix_len": np.array(prefix_len, np.int32),
    }


def _tree(seed: int, nodes: int) -> list[int]:
    """Parents of a random tree in pop order."""
    draws = numerics.integers(seed, (max(nodes, 1),), 0, 1 << 20).tolist()
    return [-1, *(draws[i] % i for i in range(1, nodes))][:nodes]


def _random(seed: int, nodes: Sequence[int], prefix: Sequence[int], slots: int = 0) -> Arrays:
    return _batch([_tree(seed + 31 * r, n) for r, n in enumerate(nodes)], prefix, slots)


def _edit(inputs: Arrays, **changes: tuple[tuple[int, ...], int]) -> Arrays:
    out = {name: array.copy() for name, array in inputs.items()}
    for name, (index, value) in changes.items():
        out[name][index] = value
    return out


def _spoilt(**changes: tuple[tuple[int, ...], int]) -> Arrays:
    """Three requests, of which the middle one is changed."""
    return _edit(_random(50, (6, 7, 5), (3, 9, 4)), **changes)


def _depths_from_one() -> Arrays:
    inputs = dict(_spoilt())
    depths = inputs["depths"].copy()
    depths[1] += 1
    return {**inputs, "depths": depths}


def _any_byte() -> Arrays:
    """visible holds 0 and any other byte."""
    inputs = dict(_random(52, (9, 7), (5, 0)))
    seen = inputs["visible"].copy()
    other = 1 + numerics.integers(9, seen.shape, 0, 255).astype(np.uint8)
    inputs["visible"] = np.where(seen != 0, other, 0).astype(np.uint8)
    return inputs


def _any_mask() -> Arrays:
    """Masks that are no ancestors': a bush, 32 of 48 nodes, a chain, and one depth that is bad."""
    trees = [-1, *[0] * 47], _tree(57, 32), [-1, *range(35)], _tree(58, 48)
    inputs = _edit(_batch(trees, (3, 0, 16, 0)), depths=((3, 47), 0))
    drawn = numerics.integers(58, inputs["visible"].shape, -256, 256)
    return {**inputs, "visible": np.maximum(drawn, 0).astype(np.uint8)}


def _far_faults() -> Arrays:
    """A fault in each of 14 requests, most of them integers that are more than one off."""
    least = -(2**31)
    inputs = {name: a.copy() for name, a in _random(59, (7,) * 14, (3,) * 14).items()}
    for r, value in enumerate((-7, least)):
        inputs["n_nodes"][r] = value
        inputs["prefix_len"][2 + r] = value
        inputs["parents"][4 + r, 3] = value
    inputs["n_nodes"][6] = 7 + 2**16
    inputs["parents"][7, 0] = -2
    inputs["depths"][8] -= 1
    inputs["parents"][9, 1] = 1
    inputs["parents"][10, 6] = 6
    inputs["depths"][11, 6] -= 1
    inputs["depths"][12, 6] += 2**16
    return inputs


def _two_errors() -> Arrays:
    """Requests with two faults each, among them room that is too small from request 3 on."""
    inputs = _edit(
        _random(54, (0, 4, 5, 4, 3, 2), (3, 3, 2, 5, 4, 6)),
        prefix_len=((0,), -1),
        n_nodes=((2,), 9),
        parents=((2, 3), 70),
    )
    inputs["parents"][3, 2] = 77
    inputs["n_nodes"][4] = -1
    return inputs


def _recorded(name: str, start: int, count: int, budget: int) -> Arrays:
    taken = recorded.load(name)
    rounds = slice(start, start + count)
    built = tree_build.reference(
        {
            "logprobs": taken["logprobs"][rounds].astype(np.float64),
            "ids": taken["ids"][rounds],
            "root_token": np.full(count, 1, np.int32),
            "prefix_len": np.arange(count, dtype=np.int32) * 5 + 3,
        },
        {"budget": budget, "tie_order": "ranks"},
        "exact",
    )
    return {
        **{k: built[k] for k in ("visible", "parents", "depths", "n_nodes")},
        "prefix_len": np.arange(count, dtype=np.int32) * 5 + 3,
    }


def _sizes(inputs: Arrays, spare: int = 0, spare8: int = 0) -> Attrs:
    slots = inputs["parents"].shape[1]
    values = slots * (np.maximum(inputs["prefix_len"].astype(np.int64), 0) + slots)
    return {"T": int(values.sum()) + spare, "T8": int(((values + 7) // 8).sum()) + spare8}


# Known-wrong conventions.


def _bits(width: int, order: str) -> Callable[[Arrays, Attrs, str], dict[str, Array]]:
    """Bits of words (32) or bytes (8) in reverse order."""

    def wrong(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
        out = ref.reference(inputs, attrs, profile)
        name = "packed32" if width == 32 else "packed8"
        octets = out[name].view(np.uint8).reshape(*out[name].shape, width // 8)
        if order == "bits":
            bits = np.unpackbits(octets, axis=-1, bitorder="little")[..., ::-1]
            octets = np.packbits(bits, axis=-1, bitorder="little")
        else:
            octets = octets[..., ::-1]
        out[name] = np.ascontiguousarray(octets).view(out[name].dtype).reshape(out[name].shape)
        return out

    return wrong


def _one_word(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    out = ref.reference(inputs, attrs, profile)
    out["packed32"][:, :, 1:] = 0
    return out


def _transposed(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    seen = {**inputs, "visible": np.swapaxes(inputs["visible"], 1, 2)}
    return ref.reference(seen, attrs, profile)


def _causal(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    slots = inputs["parents"].shape[1]
    seen = np.broadcast_to(np.tri(slots, dtype=np.uint8), inputs["visible"].shape)
    return ref.reference({**inputs, "visible": seen}, attrs, profile)


def _row_aligned(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    """Rows of packed8 that each start on a byte, as far as they fit."""
    out = ref.reference(inputs, attrs, profile)
    slots = inputs["parents"].shape[1]
    text, start = [], 0
    for r, prefix in enumerate(np.maximum(inputs["prefix_len"], 0).tolist()):
        width = prefix + slots
        rows = out["full"][start : start + slots * width].reshape(slots, width)
        start += slots * width
        text.append(np.packbits(rows, axis=1, bitorder="little").reshape(-1))
        out["indptr"][r + 1] = out["indptr"][r] + text[-1].size
    packed = np.concatenate([*text, np.zeros(out["packed8"].size, np.uint8)])
    out["packed8"] = packed[: out["packed8"].size]
    out["indptr"] = np.minimum(out["indptr"], out["packed8"].size).astype(np.int32)
    return out


def _blind_pads(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    """Rows of full and packed8 that belong to no node are 0."""
    out = ref.reference(inputs, attrs, profile)
    slots, start = inputs["parents"].shape[1], 0
    for r, prefix in enumerate(np.maximum(inputs["prefix_len"], 0).tolist()):
        width = prefix + slots
        rows = out["full"][start : start + slots * width].reshape(slots, width)
        rows[int(inputs["n_nodes"][r]) :] = 0
        octets = np.packbits(rows.reshape(-1), bitorder="little")
        out["packed8"][out["indptr"][r] : out["indptr"][r] + octets.size] = octets
        start += slots * width
    return out


def _local_index(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    out = ref.reference(inputs, attrs, profile)
    slots = inputs["parents"].shape[1]
    index = np.broadcast_to(np.arange(slots, dtype=np.int32), out["retrieve_index"].shape)
    out["retrieve_index"] = np.where(out["retrieve_index"] >= 0, index, -1).astype(np.int32)
    return out


def _pop_order(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    out = ref.reference(inputs, attrs, profile)
    index = np.broadcast_to(
        np.arange(out["bfs_order"].shape[1], dtype=np.int32), out["bfs_order"].shape
    )
    out["bfs_order"] = np.where(out["bfs_order"] >= 0, index, -1).astype(np.int32)
    return out


def _capacity_first(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    """What does not fit is capacity, whatever else is wrong with it."""
    slots = inputs["parents"].shape[1]
    values = slots * (np.maximum(inputs["prefix_len"].astype(np.int64), 0) + slots)
    over = np.cumsum(values) > int(attrs["T"])
    over |= np.cumsum((values + 7) // 8) > int(attrs["T8"])
    status = ref.reference(inputs, attrs, profile)["status"]
    return {"status": np.where(over, 3, status).astype(np.int32)}


WRONG: Mapping[str, Callable[[Arrays, Attrs, str], dict[str, Array]]] = {
    "words_msb_first": _bits(32, "bits"),
    "words_big_endian": _bits(32, "bytes"),
    "bytes_msb_first": _bits(8, "bits"),
    "one_word_row": _one_word,
    "transposed": _transposed,
    "causal_instead_of_ancestor": _causal,
    "rows_byte_aligned": _row_aligned,
    "padded_rows_blind": _blind_pads,
    "retrieve_index_local": _local_index,
    "bfs_order_is_pop_order": _pop_order,
    "capacity_first": _capacity_first,
}


def _case(
    name: str,
    catches: str,
    inputs: Callable[[], Arrays],
    *,
    spare: int = 0,
    spare8: int = 0,
    **rest: Any,
) -> Case:
    return Case(name, catches, inputs, _sizes(inputs(), spare, spare8), **rest)


def cases() -> Iterator[Case]:
    """Named conditions, from the plain to the hostile."""
    yield from _layouts()
    yield from _edges()
    yield from _batches()
    yield from _errors()


def _layouts() -> Iterator[Case]:
    yield _case(
        "hand_derived",
        "Any layout at all: two chains of two below the root, three columns of prefix.",
        partial(_batch, [[-1, 0, 0, 1, 2]], [3]),
        kills=("prefix_missing", "prefix_after_tree", "full_transposed", "qlen_transposed"),
        wrong=("words_msb_first", "bytes_msb_first", "transposed", "causal_instead_of_ancestor"),
    )
    yield _case(
        "chain",
        "The ancestor mask of a chain is causal, so that only the bits' order can be wrong.",
        partial(_batch, [[-1, *range(8)]], [0]),
        kills=("msb_first_words", "msb_first_bytes", "big_endian_words", "qlen_transposed"),
        wrong=("words_msb_first", "words_big_endian", "bytes_msb_first", "transposed"),
    )
    yield _case(
        "bush",
        "Siblings that see each other: every node but the root sees the root and itself.",
        partial(_batch, [[-1, *[0] * 12]], [2]),
        kills=("causal", "full_transposed"),
        wrong=("causal_instead_of_ancestor", "transposed"),
    )
    for nodes in (31, 32, 33, 63, 64, 65):
        yield _case(
            f"nodes_{nodes}",
            f"A row of {nodes} bits: beside the edge of a word.",
            partial(_random, 100 + nodes, (nodes,), (nodes % 9,)),
            family="random",
            seed=100 + nodes,
            kills=("msb_first_words", "causal") + (("one_word_row",) if nodes > 32 else ()),
            wrong=("one_word_row", "words_msb_first") if nodes == 33 else (),
        )
    for prefix in (1, 7, 8, 9, 63, 64, 65):
        yield _case(
            f"prefix_{prefix}",
            f"Rows of {prefix} + 11 bits, which start inside a byte: rows aligned to bytes, or a "
            "prefix that is not a whole number of them.",
            partial(_random, 200 + prefix, (11, 11), (prefix, prefix)),
            family="random",
            seed=200 + prefix,
            kills=("rows_byte_aligned", "msb_first_bytes")
            if (prefix + 11) % 8
            else ("msb_first_bytes",),
            wrong=("rows_byte_aligned",) if prefix == 9 else (),
        )
    yield _case(
        "levels_out_of_index_order",
        "A level sorted by node index: node 3's child comes before node 4's only by parent.",
        partial(_batch, [[-1, 0, 0, 2, 1, 4, 3, 4]], [1]),
        kills=("bfs_by_index_only", "bfs_is_pop_order", "bfs_ignores_parent_place"),
        wrong=("bfs_order_is_pop_order",),
    )
    yield _case(
        "level_order_of_a_bush",
        "Siblings listed last first, or the inverse of the order.",
        partial(_batch, [[-1, 0, 1, 0, 1, 3, 2, 0]], [1]),
        kills=("bfs_descending", "bfs_is_inverse", "bfs_is_pop_order"),
        wrong=("bfs_order_is_pop_order",),
    )
    yield _case(
        "any_byte_is_visible",
        "Bytes of visible other than 0 and 1 copied, or reduced to their lowest bit.",
        _any_byte,
        family="extreme",
        seed=52,
        kills=("byte_values_copied",),
    )

    yield _case(
        "any_mask",
        "Masks taken from the parents, or for granted: a node that sees itself, the root, nothing "
        "after it. Rows of more than 32 bytes reduced to their lowest bits, or read past n_nodes; "
        "levels, children and depths past the 32nd left out.",
        _any_mask,
        family="random",
        seed=58,
        flags=("ragged",),
        kills=(
            "visible_from_parents",
            "self_always_visible",
            "root_always_visible",
            "later_nodes_hidden",
            "low_bits_of_wide_rows",
            "columns_to_word_end",
            "wide_rows_past_nodes",
            "wide_padded_rows_blind",
            "words_past_nodes_unwritten",
            "word_before_n_nodes_lost",
            "bfs_levels_past_32",
            "bfs_children_past_32",
            "depths_past_32_unchecked",
        ),
    )


def _edges() -> Iterator[Case]:
    yield _case(
        "root_alone",
        "One node and one slot.",
        partial(_batch, [[-1]], [0]),
        kills=("msb_first_words", "msb_first_bytes"),
    )
    yield _case(
        "no_prefix",
        "Prefixes of length 0: full is qlen.",
        partial(_random, 60, (9, 9), (0, 0)),
        family="random",
        seed=60,
        kills=("indptr_unrounded", "rows_byte_aligned", "retrieve_local"),
        wrong=("rows_byte_aligned", "retrieve_index_local"),
    )
    yield _case(
        "garbage_past_n_nodes",
        "Slots past n_nodes read: visible, parents and depths hold garbage there.",
        partial(_random, 61, (3, 6), (5, 2), 9),
        family="poison",
        seed=61,
        kills=("padded_columns_read", "padded_rows_blind", "only_live_rows", "retrieve_pads"),
        wrong=("padded_rows_blind",),
    )
    yield _case(
        "inactive_requests",
        "n_nodes 0: no tree, but the place and the prefix of every row are there.",
        partial(_random, 62, (0, 5, 0), (4, 3, 2), 6),
        family="random",
        seed=62,
        flags=("ragged",),
        kills=("only_live_rows", "retrieve_compact", "padded_rows_blind"),
    )
    yield _case(
        "no_slots",
        "N = 0: full and packed8 are cleared all the same.",
        partial(_batch, [[], []], [4, 7]),
        spare=13,
        spare8=5,
        null_ok="all elements are 0",
        kills=("no_slots_not_cleared",),
    )
    yield _case(
        "no_requests",
        "R = 0: indptr still has its 0, and full and packed8 are cleared.",
        lambda: {k: a[:0] for k, a in _random(63, (5,), (2,)).items()},
        spare=13,
        spare8=5,
        null_ok="all elements are 0",
        kills=("no_requests_not_cleared",),
    )
    yield _case(
        "room_to_spare",
        "Buffers larger than the batch, whose tail is cleared to its end though the last request "
        "fails.",
        lambda: _edit(_random(64, (5, 4), (3, 6)), n_nodes=((1,), 6)),
        spare=1_077,
        spare8=1_041,
        family="random",
        seed=64,
        kills=("tail_unwritten", "tail_of_1024", "tail_cleared_if_ok"),
    )
    yield _case(
        "long_prefix",
        "A prefix of 4,000 tokens: long runs of ones between rows.",
        partial(_random, 65, (17, 9), (4_001, 1_003)),
        family="random",
        seed=65,
        flags=("ragged",),
        kills=("prefix_from_first", "rows_byte_aligned"),
    )
    yield _case(
        "nodes_257",
        "257 nodes: nine words a row.",
        partial(_random, 66, (257,), (5,)),
        family="random",
        seed=66,
        kills=("one_word_row", "causal"),
        tier="small",
    )
    yield _case(
        "prefix_70000",
        "A prefix length in 16 bits.",
        partial(_batch, [[-1]], [70_000]),
        family="extreme",
        kills=("prefix_in_16_bits",),
    )
    yield _case(
        "nodes_1025",
        "The largest tree.",
        partial(_random, 67, (1025,), (3,)),
        family="random",
        seed=67,
        kills=("one_word_row", "causal"),
        tier="full",
    )


def _batches() -> Iterator[Case]:
    yield _case(
        "ragged_batch",
        "Unequal trees behind unequal prefixes: one request's mask or place given to another.",
        partial(_random, 70, (9, 1, 13, 6, 12), (7, 30, 0, 12, 5), 14),
        family="random",
        seed=70,
        flags=("ragged",),
        kills=("full_padded_to_max", "prefix_from_first", "first_request_visible"),
        wrong=("rows_byte_aligned", "retrieve_index_local"),
    )
    yield _case(
        "same_count_two_shapes",
        "Trees of one size and two shapes, with one prefix: a mask of the wrong request fits.",
        partial(_batch, [[-1, 0, 1, 2, 3], [-1, 0, 0, 0, 0]], [6, 6]),
        kills=("first_request_visible", "last_request_skipped", "retrieve_local"),
        wrong=("causal_instead_of_ancestor",),
    )
    yield _case(
        "batch_64",
        "64 requests, whose byte offsets each depend on all before.",
        partial(_random, 71, [2 + r % 8 for r in range(64)], [r * 7 % 33 for r in range(64)]),
        family="random",
        seed=71,
        flags=("ragged",),
        kills=("indptr_unrounded", "indptr_in_bits", "indptr_per_row", "last_request_skipped"),
    )
    yield _case(
        "batch_256",
        "More requests than a block of 64 or 128 takes, each behind the bytes of all before.",
        partial(_random, 72, [1 + r % 3 for r in range(256)], [r * 5 % 7 for r in range(256)]),
        family="random",
        seed=72,
        flags=("ragged",),
        kills=("requests_past_64", "requests_past_128", "last_request_skipped"),
    )
    for name, start, count, budget in (("marginals_bf16", 3, 4, 32), ("marginals_f32", 9, 2, 64)):
        yield _case(
            f"real_{name}_{budget}",
            "Trees of a real drafter, deep and branching.",
            partial(_recorded, name, start, count, budget),
            family="real",
            kills=("causal", "bfs_is_pop_order", "first_request_visible"),
            provenance=recorded.provenance(name),
        )


def _errors() -> Iterator[Case]:
    wrong_links: tuple[tuple[str, str, dict[str, Any], tuple[str, ...]], ...] = (
        (
            "n_nodes_over_slots",
            "n_nodes past the slots clamped or trusted.",
            {"n_nodes": ((1,), 8)},
            ("nodes_clamped", "failed_width_zero"),
        ),
        (
            "n_nodes_negative",
            "A negative n_nodes taken for an inactive request.",
            {"n_nodes": ((1,), -1)},
            ("nodes_clamped",),
        ),
        (
            "prefix_negative",
            "A negative prefix length taken for none.",
            {"prefix_len": ((1,), -1)},
            ("negative_prefix_passes",),
        ),
        (
            "parent_past_nodes",
            "A parent past the tree read.",
            {"parents": ((1, 3), 70)},
            ("parents_unchecked",),
        ),
        (
            "parent_negative",
            "A second root.",
            {"parents": ((1, 3), -1)},
            ("parents_unchecked",),
        ),
        (
            "parent_is_itself",
            "A node that is its own parent: levels that never end.",
            {"parents": ((1, 4), 4)},
            ("parent_may_be_self", "parents_unchecked"),
        ),
        (
            "parent_is_later",
            "A parent after its child.",
            {"parents": ((1, 2), 5)},
            ("parents_unchecked",),
        ),
        (
            "depth_off_by_one",
            "A depth that does not follow from the parent's.",
            {"depths": ((1, 6), 5)},
            ("depths_unchecked",),
        ),
        (
            "root_has_parent",
            "A root with a parent.",
            {"parents": ((1, 0), 0)},
            ("root_unchecked",),
        ),
    )
    for name, catches, changes, kills in wrong_links:
        yield _case(
            f"bad_{name}",
            catches + " The requests beside it keep their places.",
            partial(_spoilt, **changes),
            kind="NEG",
            family="extreme",
            seed=50,
            flags=("ragged",),
            kills=(*kills, "bad_spoils_rest"),
        )
    yield _case(
        "bad_root_depth",
        "Depths that follow the parents from a root at depth 1.",
        _depths_from_one,
        kind="NEG",
        family="extreme",
        seed=50,
        flags=("ragged",),
        kills=("root_unchecked", "failed_masks_kept"),
    )
    yield _case(
        "bad_far_faults",
        "Only -1 taken for negative, the smallest integer for none; 16 bits compared; the first or "
        "the last node not checked; a depth too small.",
        _far_faults,
        kind="NEG",
        family="extreme",
        seed=59,
        kills=(
            "nodes_below_minus_1_inactive",
            "smallest_nodes_inactive",
            "prefixes_below_minus_1_pass",
            "smallest_prefix_passes",
            "parents_below_minus_1_pass",
            "smallest_parent_passes",
            "nodes_in_16_bits",
            "negative_root_parent_passes",
            "negative_root_depth_passes",
            "first_link_unchecked",
            "last_parent_unchecked",
            "small_depths_pass",
            "depths_in_16_bits",
        ),
    )
    yield _case(
        "bad_parent_of_node_129",
        "Links of nodes past the 64th or 128th left unchecked, or the room looked at first: full "
        "and packed8 have no element.",
        lambda: _edit(_random(56, (130,), (0,)), parents=((0, 129), 129)),
        spare=-(130**2),
        spare8=-((130**2 + 7) // 8),
        kind="NEG",
        family="extreme",
        seed=56,
        kills=(
            "links_past_64_unchecked",
            "links_past_128_unchecked",
            "failed_masks_kept",
            "capacity_before_links",
        ),
    )
    yield _case(
        "first_error",
        "The order of errors: bad_input before bad_links before capacity, an inactive request's "
        "prefix among what is checked.",
        _two_errors,
        spare=-101,
        spare8=-12,
        kind="NEG",
        family="extreme",
        seed=54,
        flags=("ragged",),
        wrong=("capacity_first",),
        kills=("capacity_before_links", "links_before_input", "inactive_prefix_unchecked"),
    )
    yield _case(
        "full_too_small",
        "A request written past the end of full, or cut without a word: the last of three does "
        "not fit by one element.",
        partial(_random, 51, (6, 7, 5), (3, 9, 4)),
        spare=-1,
        kind="NEG",
        family="extreme",
        seed=51,
        kills=("capacity_unchecked",),
    )
    yield _case(
        "packed8_too_small",
        "packed8 too small where full is large enough: two of three requests do not fit.",
        partial(_random, 51, (6, 7, 5), (3, 9, 4)),
        spare8=-11,
        kind="NEG",
        family="extreme",
        seed=51,
        kills=("capacity_unchecked", "capacity_of_full_only"),
    )
    yield _case(
        "prefix_overflows_offsets",
        "Offsets in 32 bits: long prefixes do not fit, though 2^32 + 4 elements wrap to 4, and "
        "what comes after them neither, an inactive request among it.",
        lambda: _random(53, (4, 5, 4, 0), (3, (2**32 + 4) // 5 - 5, 2**31 - 1, 4)),
        spare=-(2**32 + 4) - 5 * (2**31 + 4) + 45,
        spare8=-((2**32 + 11) // 8) - (5 * (2**31 + 4) + 7) // 8 + 12,
        kind="NEG",
        family="extreme",
        seed=53,
        flags=("ragged",),
        kills=("capacity_unchecked", "offsets_in_32_bits", "inactive_always_fits"),
    )
