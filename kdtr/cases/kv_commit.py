"""Cases of `kv_commit@1`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.kv_commit import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Array = NDArray[Any]
FAR = 2**31 - 1


@dataclass(frozen=True)
class Step:
    """One request: prefix length, accepted path, and where its tree's rows lie.

    `tree` gives, for each node, a position counted from the prefix's end (its row lies where the
    prefix would put that position), or -1 for a slot in a page of its own.
    """

    prefix: int
    path: tuple[int, ...]
    tree: tuple[int, ...]


def _permutation(seed: int, n: int) -> Array:
    return np.argsort(nx.raw_bits(seed, n), kind="stable")


def _bytes(seed: int, shape: tuple[int, ...]) -> Array:
    return nx.integers(seed, shape, 0, 256).astype(np.uint8)


def batch(
    steps: Sequence[Step],
    page_size: int,
    *,
    limit: int,
    layers: int = 2,
    row_bytes: int = 32,
    hidden_bytes: int = 12,
    seed: int = 1,
) -> dict[str, Array]:
    """A pool of scattered pages, disjoint between requests; unused entries hold garbage."""
    nodes = max(len(s.tree) for s in steps)
    ahead = max(max(s.tree) + 1 for s in steps)
    max_pages = max((s.prefix + max(limit + 1, ahead)) // page_size + 1 for s in steps)
    own = -(-nodes // page_size)
    pages = _permutation(seed, len(steps) * (max_pages + own))
    count = len(steps)
    table = pages[: count * max_pages].reshape(count, max_pages).astype(np.int32)
    spare = pages[count * max_pages :].reshape(count, own)
    tree = np.full((count, nodes), FAR, np.int32)
    accept = np.full((count, limit + 1), -1, np.int32)
    for r, step in enumerate(steps):
        apart = _permutation(seed + 100 + r, own * page_size)
        for i, offset in enumerate(step.tree):
            at = step.prefix + offset
            tree[r, i] = (
                table[r, at // page_size] * page_size + at % page_size
                if offset >= 0
                else spare[r, apart[i] // page_size] * page_size + apart[i] % page_size
            )
        accept[r, : len(step.path)] = step.path
    return {
        "rows": _bytes(seed + 1, (layers, pages.size * page_size, row_bytes)),
        "page_table": table,
        "tree_slots": tree,
        "hidden": _bytes(seed + 2, (count, nodes, hidden_bytes)),
        "accept_index": accept,
        "accept_len": np.asarray([len(s.path) - 1 for s in steps], np.int32),
        "prefix_len": np.asarray([s.prefix for s in steps], np.int32),
    }


def _in_place(n: int) -> tuple[int, ...]:
    """Tree rows right behind the prefix, in node order."""
    return tuple(range(n))


APART = (-1,) * 9


def _mixed(page_size: int) -> list[Step]:
    """Partial, empty and full accepts of unlike trees in one batch."""
    return [
        Step(13, (0, 2, 5), APART),
        Step(3, (0,), _in_place(9)),
        Step(page_size + 7, (0, 1, 4, 6, 8), _in_place(9)),
        Step(0, (0, 3), (4, 2, 0, 1, 3, 5, 6, 7, 8)),
    ]


_RELABELLED = [
    Step(5, (3, 0, 4, 1, 2), _in_place(5)),  # a cycle through all rows
    Step(14, (1, 0, 4, 3), _in_place(5)),  # two exchanges across a page edge
    Step(30, (2, 1, 0), (2, 0, 1, 3, 4)),
    Step(15, (4, 2, 3, 0), (1, 3, 0, 2, 4)),
]


def _refused(page_size: int, **shape: int) -> dict[str, Array]:
    """Each way to be refused, between requests that are not."""
    prefix = max(page_size - 2, 6)  # the path's last row is on another page
    good = Step(prefix, (0, 2, 4), _in_place(7))
    x = batch([good] * 12, page_size, limit=4, seed=40, **shape)
    x["accept_len"][1] = 5
    x["accept_len"][2] = -2
    x["prefix_len"][3] = -1
    x["prefix_len"][4] = x["page_table"].shape[1] * page_size - 2
    x["accept_index"][5, 2] = 7
    x["accept_index"][6, 0] = -1
    x["tree_slots"][7, 4] = x["rows"].shape[1]
    x["tree_slots"][8, 0] = -1
    x["page_table"][9, (prefix + 2) // page_size] = x["rows"].shape[1] // page_size
    x["page_table"][10, prefix // page_size] = -1
    if page_size == 64:
        x["prefix_len"][0] = x["page_table"].shape[1] * page_size - 3
        x["page_table"][10], x["accept_len"][11] = 2**26, -1  # a page whose slot wraps to 0
    return x


def _capacity_edge(page_size: int) -> dict[str, Array]:
    """The last row that fits, one more, and an inactive request of any length."""
    x = batch([Step(6, (0, 3, 5), APART)] * 3, page_size, limit=2, seed=50)
    end = x["page_table"].shape[1] * page_size
    x["prefix_len"][:] = end - 3, end - 2, end
    x["accept_len"][2] = -1
    return x


def _garbage(page_size: int) -> dict[str, Array]:
    """Everything that the step does not use holds numbers that would be out of range."""
    x = batch(_mixed(page_size), page_size, limit=6, seed=60)
    for r, step in enumerate(_mixed(page_size)):
        used = {(step.prefix + k) // page_size for k in range(len(step.path))}
        for page in range(x["page_table"].shape[1]):
            if page not in used:
                x["page_table"][r, page] = FAR - page if page % 2 else -5 - page
        for node in range(x["tree_slots"].shape[1]):
            if node not in step.path:
                x["tree_slots"][r, node] = -7 - node if node % 2 else FAR - node
        x["accept_index"][r, len(step.path) :] = FAR
    return x


def _inactive(page_size: int) -> dict[str, Array]:
    x = batch([Step(9, (0, 1), APART)] * 4, page_size, limit=3, seed=70)
    x["accept_len"][[0, 2]] = -1
    x["accept_index"][[0, 2]] = FAR
    x["tree_slots"][2] = -1
    return x


def _small_pool(values: list[list[int]], trees: list[list[int]], slots: int) -> dict[str, Array]:
    table, tree = np.asarray(values, np.int32), np.asarray(trees, np.int32)
    count, nodes = tree.shape
    return {
        "rows": _bytes(80, (1, slots, 3)),
        "page_table": table,
        "tree_slots": tree,
        "hidden": _bytes(81, (count, nodes, 2)),
        "accept_index": np.zeros((count, nodes), np.int32),
        "accept_len": np.zeros(count, np.int32),
        "prefix_len": np.zeros(count, np.int32),
    }


def _exchange_chain() -> dict[str, Array]:
    """Sources that are later destinations, destinations held by other nodes, s = d, and -1s."""
    x = _small_pool(
        [
            [20, 3, 4, 5, 6, -1, -1],
            [21, 22, 7, 8, 9, 10, -1],
            [23, 11, 12, 13, 14, -1, -1],
            [24, 25, 26, 15, 16, 17, -1],
        ],
        [[5, 3, 6, 4, -1], [7, 8, 9, 10, -1], [13, 14, 11, 12, -1], [30, 31, 15, 32, 16]],
        40,
    )
    x["accept_index"][:, :4] = [[0, 1, 2, 3], [0, 1, 3, -1], [3, 2, 1, 0], [2, 0, 4, -1]]
    x["accept_len"][:] = 3, 2, 3, 2
    x["prefix_len"][:] = 1, 2, 1, 3
    return x


def _short_paths() -> dict[str, Array]:
    """Three steps and five nodes. Request 0 asks for four rows, and all that follows is good."""
    x = batch([Step(6, (0, 2, 4), APART[:5])] * 3, 16, limit=2, layers=1, row_bytes=2, seed=47)
    x["accept_len"][[0, 2]], x["prefix_len"][2] = (3, -1), -5
    return x


def _exchanged_before_prefix() -> dict[str, Array]:
    """Slots and destinations also held before the prefix, or twice, or by their low 16 bits."""
    x = _small_pool(
        [[7, 3, 9, 2**16 + 7, 2**16 + 3], [6, 4, 4, 5, 6], [0, 1, 2, 10, -1], [-1] * 5],
        [[7, 11, 12, 2**16 + 7, 2**16 + 3], [6, 4, 6, 8, -1], [13, 14, 15, -1, -1], [0] * 5],
        16,
    )
    x["accept_index"] = np.asarray([[0, -1, -1], [0, 3, -1], [0, 1, 2], [0, 1, 2]], np.int32)
    x["accept_len"][:] = 0, 1, 3, -1  # of three steps
    x["prefix_len"][:] = 1, 2, 0, -5
    return x


def _first_error(page_size: int) -> dict[str, Array]:
    """Requests with two faults each, five node slots and a path of up to seven."""
    x = batch([Step(6, (0, 2, 4), APART[:5])] * 8, page_size, limit=6, seed=45)
    end, slots = x["page_table"].shape[1] * page_size, x["rows"].shape[1]
    x["accept_len"][1], x["prefix_len"][1] = 5, end  # more than there are nodes, and no room
    x["accept_len"][2], x["accept_index"][2, :6] = 5, (0, 2, 4, 1, 3, 0)  # one more than nodes
    x["prefix_len"][3], x["tree_slots"][3, 0] = end, slots
    x["prefix_len"][4], x["accept_index"][4, 1] = end - 2, -1
    x["prefix_len"][5] = 2**31 - 1
    x["prefix_len"][6], x["accept_index"][6, 0] = -1, 9
    return x


def _nothing() -> dict[str, Array]:
    """No nodes, steps, pages or slots. Request 1 asks for a row."""
    return {
        "rows": np.zeros((2, 0, 4), np.uint8),
        "page_table": np.zeros((2, 0), np.int32),
        "tree_slots": np.zeros((2, 0), np.int32),
        "hidden": np.zeros((2, 0, 4), np.uint8),
        "accept_index": np.zeros((2, 0), np.int32),
        "accept_len": np.array([-1, 0], np.int32),
        "prefix_len": np.array([5, 3], np.int32),
    }


def _long_table() -> dict[str, Array]:
    """A prefix of 100,000 rows, of whose table entries only those of the move name pages."""
    x = _small_pool([[FAR] * 1564], [[70, 3, 130, 5, 6]], 192)
    x["accept_index"][0, :3], x["accept_len"][0], x["prefix_len"][0] = (0, 3, 2), 2, 99_966
    x["page_table"][0, 1561:1563] = 0, 1  # rows 99,966 and 99,967 end a page
    return x


def _ruled(x: dict[str, Array]) -> dict[str, Array]:
    """The same with bytes that follow a rule, which pack well."""
    for name in ("rows", "hidden"):
        index = np.indices(x[name].shape)
        x[name] = ((index[0] * 91 + index[1] * 37 + index[2] * 11) % 251).astype(np.uint8)
    return x


def _long(page_size: int) -> dict[str, Array]:
    """65 rows over many pages, from nodes in falling order."""
    path = tuple(range(128, -1, -2))
    tree = tuple(int(v) for v in _permutation(90, 129))
    step = Step(27, path, tree)
    return batch([step], page_size, limit=64, layers=1, row_bytes=16, hidden_bytes=4, seed=91)


def cases() -> Iterator[Case]:
    """All cases, in order."""

    def case(
        name: str,
        catches: str,
        inputs: Callable[[], Arrays],
        page_size: int,
        family: str = "hand",
        **more: Any,
    ) -> Case:
        return Case(
            name=name,
            catches=catches,
            inputs=inputs,
            attrs={"page_size": page_size},
            family=family,
            **more,
        )

    for size in (16, 64):
        yield case(
            f"mixed_page_{size}",
            "page ids taken for slots, one page for all rows, offsets of the wrong row, the root "
            "or the last row left out, layers or requests mixed up",
            lambda p=size: batch(_mixed(p), p, limit=6, seed=10 + p),  # type: ignore[misc]
            size,
            wrong=("length_without_root", "root_not_moved") if size == 16 else (),
            kills=(
                "page_id_as_slot",
                "offset_from_path_only",
                "source_by_rank",
                "request_zero_path",
                "request_zero_table",
                "first_layer_only",
                "only_four_moved",
                "hidden_by_rank",
            ),
        )
    yield case(
        "mixed_page_1",
        "table entries copied instead of exchanged, or exchanged in the wrong request",
        lambda: batch(_mixed(1), 1, limit=6, seed=11),
        1,
        wrong=("copied_not_exchanged",),
        kills=(
            "entries_copied",
            "table_only_exchanged",
            "exchanges_of_old_table",
            "rows_moved_at_page_one",
            "request_zero_path",
        ),
    )
    yield case(
        "relabelled_page_16",
        "rows written before all are read: path nodes do not ascend, moves overlap inside a page "
        "and across pages",
        lambda: batch(_RELABELLED, 16, limit=5, hidden_bytes=16, seed=20),
        16,
        wrong=("in_place",),
        kills=(
            "writes_before_reads",
            "hidden_writes_before_reads",
            "hidden_vectors_in_place",
            "path_sorted",
            "layer_twice",
            "destination_by_node",
        ),
    )
    yield case(
        "relabelled_page_1",
        "exchanges in the wrong order, or of positions instead of values",
        lambda: batch(_RELABELLED, 1, limit=5, seed=21),
        1,
        kills=(
            "exchanges_of_old_table",
            "exchanges_of_new_slots",
            "entries_exchanged_in_place",
            "path_sorted",
        ),
    )
    yield case(
        "exchange_chain",
        "a slot lost or doubled: exchanged entries also occur at other places of both arrays",
        _exchange_chain,
        1,
        wrong=("copied_not_exchanged",),
        kills=(
            "entries_exchanged_in_place",
            "entries_copied",
            "table_only_exchanged",
        ),
    )
    yield case(
        "identity",
        "rows that lie where they belong already: they stay, and only the length changes",
        lambda: batch([Step(7, (0, 1, 2, 3), _in_place(6))] * 2, 16, limit=4, seed=30),
        16,
        kills=(
            "length_without_root",
            "page_id_as_slot",
        ),
    )
    yield case(
        "full_accept",
        "the last row of a fully accepted path left out, or the length short by one",
        lambda: batch(
            [Step(14, (0, 1, 2, 3, 4), _in_place(5)), Step(0, (0, 1, 2, 3, 4), APART[:5])],
            16,
            limit=4,
            seed=31,
        ),
        16,
        kills=(
            "last_not_moved",
            "only_four_moved",
            "length_without_root",
        ),
    )
    yield case(
        "all_rejected",
        "nothing accepted: the root's row still moves and the length grows by one",
        lambda: batch([Step(15, (0,), APART), Step(16, (0,), APART)], 16, limit=3, seed=32),
        16,
        kills=(
            "root_not_moved",
            "length_without_root",
            "offset_from_path_only",
            "padded_moves",
        ),
    )
    yield case(
        "inactive",
        "inactive requests: lengths reset, or unused fields looked at",
        lambda: _inactive(16),
        16,
        family="poison",
        wrong=("inactive_refused",),
        kills=(
            "length_reset",
            "inactive_refused",
        ),
    )
    yield case(
        "short_paths",
        "more rows than steps, taken from the next request's path; a negative prefix looked at "
        "where the request is inactive",
        _short_paths,
        16,
        kills=("more_than_steps_accepted", "prefix_before_inactive"),
    )
    yield case(
        "exchanged_before_prefix",
        "entries before the prefix, or the second of two alike, that keep a slot given away, and "
        "others that 16 bits take for one; more rows than steps, and an inactive request with a "
        "negative prefix",
        _exchanged_before_prefix,
        1,
        kills=(
            "exchanged_from_prefix",
            "exchanged_once",
            "exchanged_by_16_bits",
            "more_than_steps_accepted",
            "prefix_before_inactive",
        ),
    )
    yield case(
        "refused_page_16",
        "a bad request half moved, moved to a clamped place, or spoiling its neighbours",
        lambda: _refused(16, row_bytes=16),
        16,
        family="poison",
        wrong=("refused_length_grows", "capacity_is_bad_input"),
        kills=(
            "bad_slot_clamped",
            "bad_page_clamped",
            "first_page_checked",
            "bad_entry_skipped",
            "bad_request_half_moved",
            "bad_request_fails_batch",
            "refused_length_grows",
            "capacity_is_bad_input",
        ),
    )
    yield case(
        "refused_page_1",
        "a bad request half exchanged before its fault is met",
        lambda: _refused(1),
        1,
        family="poison",
        kills=(
            "bad_slot_clamped",
            "bad_page_clamped",
            "bad_entry_skipped",
            "bad_request_half_moved",
            "bad_request_fails_batch",
            "refused_length_grows",
        ),
    )
    yield case(
        "refused_page_64",
        "a bad request half moved, or reported ok, at the largest page; a slot in 32 bits",
        lambda: _refused(64, layers=1, row_bytes=2),
        64,
        family="poison",
        kills=(
            "bad_request_half_moved",
            "bad_request_fails_batch",
            "bad_entry_skipped",
            "capacity_off_by_one",
            "inactive_refused",
            "slot_wraps",
            "first_page_checked",
        ),
    )
    for size in (16, 1):
        yield case(
            f"capacity_page_{size}",
            "the last free row refused, or one more accepted",
            lambda p=size: _capacity_edge(p),  # type: ignore[misc]
            size,
            kills=(
                "capacity_off_by_one",
                "capacity_not_checked",
                "capacity_is_bad_input",
            ),
        )
        yield case(
            f"unused_garbage_page_{size}",
            "padded path entries moved, or unused pages, slots and entries checked",
            lambda p=size: _garbage(p),  # type: ignore[misc]
            size,
            kills=("unused_entries_checked",),
            family="poison",
        )
    for size, name, fault in (
        (7, "odd_bytes", "whole_words_only"),
        (656, "fp8_rows", "rows_as_half"),
        (1152, "bf16_rows", "rows_as_half"),
    ):
        yield case(
            name,
            "rows moved in whole words only, or as numbers: NaN patterns and tails must survive",
            lambda n=size: batch(  # type: ignore[misc]
                _RELABELLED[:2],
                16,
                limit=4,
                layers=1,
                row_bytes=n,
                hidden_bytes=n % 50 + 1,
                seed=33,
            ),
            16,
            kills=("writes_before_reads", fault),
        )
    yield case(
        "three_layers",
        "only the first layer, or the first two, moved; rows of whole words written before all are "
        "read",
        lambda: batch(_RELABELLED[:2], 16, limit=6, layers=3, row_bytes=20, seed=34),
        16,
        wrong=("first_layer_only",),
        kills=(
            "first_layer_only",
            "layer_twice",
            "words_in_place",
        ),
    )
    yield case(
        "no_hidden_rows",
        "hidden_bytes = 0",
        lambda: batch(_mixed(16)[:2], 16, limit=6, hidden_bytes=0, seed=35),
        16,
        kills=(
            "source_by_rank",
            "first_layer_only",
        ),
    )
    yield case(
        "no_layers",
        "layers = 0: the hidden rows still move",
        lambda: batch(_mixed(16)[:3], 16, limit=6, layers=0, seed=36),
        16,
        kills=(
            "hidden_not_moved",
            "hidden_by_rank",
        ),
    )
    for size in (16, 1):
        yield case(
            f"path_of_65_page_{size}",
            "paths longer than a warp, or than a buffer of 64 rows",
            lambda p=size: _long(p),  # type: ignore[misc]
            size,
            kills=(
                "path_sorted",
                "only_four_moved",
            ),
        )
    for size in (16, 1):
        yield case(
            f"batch_65_page_{size}",
            "requests past a warp, or 64, left out",
            lambda p=size: batch(  # type: ignore[misc]
                [Step(r % 3, (0, 2)[: 1 + r % 2], APART[:3]) for r in range(65)],
                p,
                limit=1,
                layers=1,
                row_bytes=1,
                hidden_bytes=1,
                seed=37,
            ),
            size,
            kills=("requests_past_64", "request_zero_table"),
        )
        yield case(
            f"first_error_page_{size}",
            "the order of errors: lengths, then capacity, then the entries used; lengths that "
            "wrap, and more rows than there are nodes",
            lambda p=size: _first_error(p),  # type: ignore[misc]
            size,
            family="poison",
            wrong=("capacity_before_lengths", "entries_before_capacity"),
            kills=(
                "capacity_before_lengths",
                "entries_before_capacity",
                "more_than_nodes_accepted",
                "capacity_wraps",
            ),
        )
    yield case(
        "layers_65",
        "layers past the 8th or the 64th left out",
        lambda: batch([Step(3, (0, 2), APART[:3])], 16, limit=1, layers=65, row_bytes=2, seed=38),
        16,
        kills=("layers_past_8", "layers_past_64", "first_layer_only"),
    )
    yield case(
        "long_rows",
        "bytes past 2,048 of a row, or past 256 or 4,096 of a hidden row, not moved; or past what "
        "32 KiB hold of a whole path",
        lambda: _ruled(
            batch(
                [Step(0, (0, 2), APART[:3])],
                16,
                limit=14,
                layers=1,
                row_bytes=2320,
                hidden_bytes=4099,
                seed=39,
            )
        ),
        16,
        kills=("row_bytes_past_2048", "hidden_past_256", "hidden_past_4096", "stage_of_32_kib"),
    )
    yield case(
        "long_table_page_1",
        "entries past 256 of a table not exchanged",
        lambda: batch([Step(1000, (0, 2, 1), APART[:4])], 1, limit=3, layers=1, row_bytes=1),
        1,
        kills=("table_past_256", "entries_copied"),
    )
    yield case(
        "long_prefix_page_64",
        "a prefix length in 16 bits, and a move across a page edge far behind it",
        _long_table,
        64,
        kills=("prefix_in_16_bits", "first_page_only", "source_by_rank"),
    )
    yield case(
        "nothing_there",
        "no nodes, no steps, no pages and no slots: lengths and statuses are still due",
        _nothing,
        16,
        kills=("nothing_without_nodes", "length_reset"),
    )
    yield case(
        "no_requests",
        "R = 0",
        lambda: {
            name: a[:0] if name != "rows" else a
            for name, a in batch([Step(3, (0,), APART)], 16, limit=2).items()
        },
        16,
        null_ok="there is nothing to write",
    )


# --- known-wrong conventions ----------------------------------------------------------------------


def _in_place_moves(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    """Each row is written before the next is read."""
    out = reference(inputs, attrs, profile)
    size = int(attrs["page_size"])
    rows, hidden = np.array(inputs["rows"]), np.array(inputs["hidden"])
    for r in np.flatnonzero(out["status"] == 0):
        for k in range(int(inputs["accept_len"][r]) + 1):
            at = int(inputs["accept_index"][r, k])
            p = int(inputs["prefix_len"][r]) + k
            page = int(inputs["page_table"][r, p // size])
            rows[:, page * size + p % size] = rows[:, inputs["tree_slots"][r, at]]
            hidden[r, k] = hidden[r, at]
    return {"rows": rows, "hidden": hidden}


def _copied(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    """Table entries take the nodes' slots; what they held before is lost."""
    out = reference(inputs, attrs, profile)
    table = np.array(inputs["page_table"])
    for r in np.flatnonzero(out["status"] == 0):
        for k in range(int(inputs["accept_len"][r]) + 1):
            at = int(inputs["accept_index"][r, k])
            table[r, int(inputs["prefix_len"][r]) + k] = inputs["tree_slots"][r, at]
    return {"page_table": table, "tree_slots": np.array(inputs["tree_slots"])}


def _length_without_root(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    out = reference(inputs, attrs, profile)
    grew = out["new_len"] > inputs["prefix_len"]
    return {"new_len": (out["new_len"] - grew).astype(np.int32)}


def _root_not_moved(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    """Pages of more than one row; no row of a path lies where the root's goes."""
    out = reference(inputs, attrs, profile)
    size = int(attrs["page_size"])
    for r in np.flatnonzero((out["status"] == 0) & (inputs["accept_len"] >= 0)):
        prefix = int(inputs["prefix_len"][r])
        slot = int(inputs["page_table"][r, prefix // size]) * size + prefix % size
        out["rows"][:, slot] = inputs["rows"][:, slot]
        out["hidden"][r, 0] = inputs["hidden"][r, 0]
    return {"rows": out["rows"], "hidden": out["hidden"]}


def _inactive_refused(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    status = reference(inputs, attrs, profile)["status"]
    return {"status": np.where(inputs["accept_len"] == -1, 1, status).astype(np.int32)}


def _refused_grows(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"new_len": (inputs["prefix_len"] + inputs["accept_len"] + 1).astype(np.int32)}


def _capacity_is_bad(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    status = reference(inputs, attrs, profile)["status"]
    return {"status": np.minimum(status, 1)}


def _capacity_before_lengths(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    status = reference(inputs, attrs, profile)["status"]
    room = inputs["page_table"].shape[1] * int(attrs["page_size"])
    active = inputs["accept_len"] >= 0
    over = inputs["prefix_len"].astype(np.int64) + inputs["accept_len"] + 1 > room
    return {"status": np.where(active & over, 3, status).astype(np.int32)}


def _entries_before_capacity(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    """What has no room is bad input if its path, or the slots of its path, are."""
    status = reference(inputs, attrs, profile)["status"]
    nodes, slots = inputs["tree_slots"].shape[1], inputs["rows"].shape[1]
    for r in np.flatnonzero(status == 3):
        path = inputs["accept_index"][r, : int(inputs["accept_len"][r]) + 1]
        known = (path >= 0) & (path < nodes)
        sources = inputs["tree_slots"][r, path[known]]
        if not known.all() or ((sources < 0) | (sources >= slots)).any():
            status[r] = 1
    return {"status": status}


def _first_layer_only(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    rows = np.array(inputs["rows"])
    rows[:1] = reference(inputs, attrs, profile)["rows"][:1]
    return {"rows": rows}


WRONG: Mapping[str, Reference] = {
    "in_place": _in_place_moves,
    "copied_not_exchanged": _copied,
    "length_without_root": _length_without_root,
    "root_not_moved": _root_not_moved,
    "inactive_refused": _inactive_refused,
    "refused_length_grows": _refused_grows,
    "capacity_is_bad_input": _capacity_is_bad,
    "capacity_before_lengths": _capacity_before_lengths,
    "entries_before_capacity": _entries_before_capacity,
    "first_layer_only": _first_layer_only,
}
