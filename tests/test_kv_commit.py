"""kv_commit: hand-worked steps, and that no slot is ever lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdtr.reference.kv_commit import reference

Array = NDArray[Any]


def step(
    page_size: int,
    table: list[int],
    tree: list[int],
    path: list[int],
    prefix: int,
    slots: int = 32,
    steps: int = 4,
) -> dict[str, Array]:
    rows = np.arange(slots, dtype=np.uint8).reshape(1, slots, 1)
    inputs = {
        "rows": np.concatenate([rows, rows + 100]),
        "page_table": np.asarray([table], np.int32),
        "tree_slots": np.asarray([tree], np.int32),
        "hidden": np.arange(len(tree), dtype=np.uint8).reshape(1, -1, 1),
        "accept_index": np.asarray([path + [-1] * (steps - len(path))], np.int32),
        "accept_len": np.asarray([len(path) - 1], np.int32),
        "prefix_len": np.asarray([prefix], np.int32),
    }
    return reference(inputs, {"page_size": page_size}, "exact")


def test_rows_move_to_the_positions_behind_the_prefix_in_every_layer() -> None:
    # Pages of 4: positions 3, 4, 5 are slots 2*4+3, 5*4+0, 5*4+1.
    out = step(4, [2, 5], [1, 30, 6, 7], [0, 3, 1], 3)
    want = np.arange(32)
    want[[11, 20, 21]] = 1, 7, 30
    assert out["rows"][0, :, 0].tolist() == want.tolist()
    assert out["rows"][1, :, 0].tolist() == (want + 100).tolist()
    assert out["hidden"][0, :, 0].tolist() == [0, 3, 1, 3]
    assert out["new_len"].tolist() == [6]
    assert out["status"].tolist() == [0]


def test_a_cycle_of_rows_is_read_before_it_is_written() -> None:
    # Node i's row lies at position 1 + i; the path 2, 0, 1 moves three rows in a circle.
    out = step(16, [1], [17, 18, 19], [2, 0, 1], 1)
    assert out["rows"][0, 17:20, 0].tolist() == [19, 17, 18]
    assert out["hidden"][0, :, 0].tolist() == [2, 0, 1]


def test_entries_are_exchanged_wherever_they_occur() -> None:
    # k = 0: s = 5 (node 1), d = 3, which is node 0's slot too.
    # k = 1: s = 3, where node 0's row still lies, d = 4.
    out = step(1, [9, 3, 4, 8], [3, 5, 6], [1, 0], 1)
    assert out["page_table"].tolist() == [[9, 5, 3, 8]]
    assert out["tree_slots"].tolist() == [[5, 4, 6]]
    assert out["rows"][0, :, 0].tolist() == list(range(32))


@pytest.mark.parametrize(
    ("path", "prefix", "table", "tree", "status"),
    [
        ([0, 1], 7, [0, 1], [8, 9], 3),
        ([0, 2], 1, [0, 1], [8, 9], 1),
        ([0, -1], 1, [0, 1], [8, 9], 1),
        ([0, 1], 1, [0, 1], [8, 32], 1),
        ([0, 1], 3, [0, 8], [8, 9], 1),
        ([0, 1], -1, [0, 1], [8, 9], 1),
        ([0, 1, 0], 1, [0, 1], [8, 9], 1),
        ([], 99, [-1, -1], [-1, -1], 0),
        ([0, 1], 2, [0, -1], [8, 9], 0),
    ],
)
def test_refused_requests_change_nothing(
    path: list[int], prefix: int, table: list[int], tree: list[int], status: int
) -> None:
    out = step(4, table, tree, path, prefix)
    assert out["status"].tolist() == [status]
    moved = len(path) if status == 0 else 0
    assert out["new_len"].tolist() == [prefix + moved]
    if moved == 0:
        assert out["rows"][0, :, 0].tolist() == list(range(32))
        assert out["hidden"][0, :, 0].tolist() == [0, 1]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_page_one_keeps_every_slot_once_and_puts_the_path_behind_the_prefix(data: Any) -> None:
    slots = data.draw(st.permutations(range(14)))
    nodes = data.draw(st.integers(1, 5))
    prefix = data.draw(st.integers(0, 4))
    table, apart = list(slots[:9]), list(slots[9 : 9 + nodes])
    # Some nodes lie where the prefix would grow.
    for i in range(nodes):
        if data.draw(st.booleans()):
            apart[i] = table[prefix + i]
    path = data.draw(st.permutations(range(nodes)))[: data.draw(st.integers(1, min(nodes, 4)))]
    out = step(1, table, apart, list(path), prefix)
    assert out["status"].tolist() == [0]
    after = out["page_table"][0].tolist()
    assert sorted(set(after)) == sorted(after), "a slot occurs twice"
    assert set(after) | set(out["tree_slots"][0].tolist()) == set(table) | set(apart)
    assert after[:prefix] == table[:prefix]
    assert after[prefix : prefix + len(path)] == [apart[node] for node in path]
