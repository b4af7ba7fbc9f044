"""Checks without goldens: they hold for the engine, and each of them can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdtr import engine, relations
from kdtr.relations import Size, same_bits, within

ROOT = Path(__file__).resolve().parent.parent

sizes = st.builds(
    Size,
    requests=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20)), min_size=1, max_size=3),
    heads=st.integers(1, 3),
    width=st.integers(9, 40),
    values=st.integers(1, 9),
    page=st.sampled_from([1, 16, 64]),
    candidates=st.tuples(st.integers(1, 6), st.integers(1, 9)),
    budget=st.integers(1, 40),
    vocabulary=st.integers(2, 400),
)


@pytest.mark.engine
@given(seed=st.integers(0, 1 << 16), size=sizes)
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@pytest.mark.parametrize("name", sorted(relations.RELATIONS))
def test_the_engine_keeps_every_relation(name: str, seed: int, size: Size) -> None:
    run = relations.Runner("cpu")
    for outcome in relations.RELATIONS[name](run, seed, size):
        assert outcome.holds, outcome


@pytest.mark.engine
@pytest.mark.parametrize(
    ("mutant", "broken"),
    [
        ("verify_attn@1:one_past_prefix", "poison"),
        ("verify_attn@1:page_table_ignored", "page_permutation"),
        ("verify_attn@1:causal_mask", "node_relabelling"),
        ("verify_attn@1:sibling_leak", "ancestors_alone"),
        ("verify_attn@1:last_prefix_key_dropped", "path_as_prefix"),
        ("verify_attn@1:prefix_len_of_request_0", "request_alone"),
        ("verify_attn@1:lse_base_2", "split_and_merge"),
        ("verify_attn@1:out_rows_packed", "value_scaling"),
    ],
)
def test_a_planted_fault_breaks_a_relation(mutant: str, broken: str) -> None:
    spec = engine.resolve(f"mutants:{mutant}")
    found = relations.check(relations.Runner(spec), "verify_attn", [3], relations.SIZES["small"])
    assert broken in [one.worst.relation for one in found if not one.worst.holds]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("mutant", "broken"),
    [
        ("ids_within_shard", "sharded"),
        ("logprob_against_part", "sharded"),
        ("last_shard_dropped", "sharded_lse"),
        ("lse_is_max", "unrounded_lse"),
        ("ties_by_shard", "shard_order"),
        ("lse_fast_exp", "one_shard"),
        ("status_ignored", "refused_shard"),
        ("status_of_shard_0", "refused_shard"),
        ("status_never_set", "refused_shard"),
    ],
)
def test_a_fault_of_the_merge_breaks_a_relation(mutant: str, broken: str) -> None:
    spec = engine.resolve(f"mutants:topk_merge@1:{mutant}")
    found = relations.check(
        relations.Runner(spec), "topk_merge", range(8), relations.SIZES["small"]
    )
    assert broken in [one.worst.relation for one in found if not one.worst.holds]


ENGINE = """
import numpy as np

def tree_accept(call):
    raise ValueError("not today")

def argmax(call):
    x = call.inputs["logits"].numpy()
    {body}
    call.outputs["status"].write(0)
"""


def check(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kdtr", "check", "--engine", "mine", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.engine
@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("call.outputs['ids'].write(x.argmax(-1))", 0, "ok  argmax relabelled_ids"),
        ("call.outputs['ids'].write(x[..., :9].argmax(-1))", 1, "no  argmax relabelled_ids"),
        ("import ctypes; ctypes.string_at(8)", 1, "no  argmax: killed by signal 11"),
    ],
)
def test_the_command_tells(tmp_path: Path, body: str, code: int, said: str) -> None:
    (tmp_path / "mine.py").write_text(ENGINE.format(body=body))
    got, text = check(tmp_path, "argmax", "--count", "1")
    assert (got, said in text) == (code, True), text


@pytest.mark.engine
def test_an_op_that_is_not_there_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ENGINE.format(body="pass"))
    assert check(tmp_path, "merge_state")[0] == 2
    code, text = check(tmp_path, "rope")
    assert (code, len(text.splitlines())) == (2, 1)
    code, text = check(tmp_path, "tree_accept")
    assert (code, "no  tree_accept: run failed: " in text, "not today" in text) == (1, True, True)


@pytest.mark.engine
def test_an_output_that_an_engine_does_not_write_is_not_looked_at(tmp_path: Path) -> None:
    body = "call.outputs['ids'].write(x.argmax(-1))"
    text = ENGINE.format(body=body).replace('    call.outputs["status"].write(0)\n', "")
    (tmp_path / "mine.py").write_text(text)
    assert "no  argmax repeat" in check(tmp_path, "argmax")[1]
    (tmp_path / "mine.py").write_text(text + "\noutputs = {'argmax': ['ids']}\n")
    assert check(tmp_path, "argmax")[0] == 0


def test_a_difference_is_told_in_plain_numbers() -> None:
    ids = np.array([4, 44], np.int32)
    assert same_bits("r", {"ids": ids}, {"ids": ids - ids // 44}).text.startswith(
        "ids[1]: 44, want 43;"
    )
    lse = np.array([0.5])
    assert within("r", {"lse": lse}, {"lse": lse * 2}, {"lse": lse / 8}).text == (
        "lse[0]: 0.5, want 1.0"
    )


def test_nothing_but_equal_bits_is_equal() -> None:
    one, nan = np.array([0.0, 1.0]), np.array([0.0, np.nan])
    assert same_bits("r", {"x": one}, {"x": one.copy()}).holds
    assert same_bits("r", {"x": nan}, {"x": nan.copy()}).holds
    assert not same_bits("r", {"x": one}, {"x": np.array([-0.0, 1.0])}).holds
    assert not same_bits("r", {"x": one}, {"x": nan}).holds
    assert not same_bits("r", {"x": one}, {"x": one[:1]}).holds


def test_a_budget_is_for_each_element() -> None:
    want, bound = {"x": np.array([1.0, -np.inf])}, {"x": np.array([0.5, 0.0])}
    assert within("r", {"x": np.array([1.25, -np.inf])}, want, bound).worst == 0.5
    assert within("r", {"x": np.array([1.75, -np.inf])}, want, bound).worst == 1.5
    for bad in ([np.nan, -np.inf], [1.0, np.inf], [1.0, np.nan]):
        assert not within("r", {"x": np.array(bad)}, want, bound).holds
    assert not within("r", {"n": np.array([1])}, {"n": np.array([2])}, bound).holds
