"""Making fixtures: what is stored, what is refused, and what LOCK holds still."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdtr import case as case_module
from kdtr import container, contract, fixture, goldens
from kdtr.errors import ContractError, KdtrError, LockError

ROOT = Path(__file__).resolve().parent.parent


def add_case(name: str, **changes: Any) -> None:
    """Give the toy op one more case."""
    toy_cases = importlib.import_module("kdtr.cases.toy")
    toy_cases.CASES[name] = toy_cases.case(name, **changes)


def build(**changes: Any) -> fixture.Fixture:
    toy_cases = importlib.import_module("kdtr.cases.toy")
    return fixture.build("toy", toy_cases.case(**changes))


def reference_returning(monkeypatch: pytest.MonkeyPatch, **outputs: Any) -> None:
    """Replace outputs of the toy op's reference; None removes one."""
    module = importlib.import_module("kdtr.reference.toy")
    right = module.reference

    def reference(inputs: Any, attrs: Any, profile: str) -> dict[str, Any]:
        result = right(inputs, attrs, profile) | {
            k.replace("__", "/"): v for k, v in outputs.items()
        }
        return {k: v for k, v in result.items() if v is not None}

    monkeypatch.setattr(module, "reference", reference)


def inputs_with(**changes: Any) -> Callable[[], dict[str, Any]]:
    toy_cases = importlib.import_module("kdtr.cases.toy")
    given = toy_cases.inputs() | changes
    return lambda: {k: v for k, v in given.items() if v is not None}


def test_fixture_holds_every_part_in_its_role(toy: Path) -> None:
    goldens.generate(["toy"])
    with container.open(toy / "toy@1" / "half.kdtr") as file:
        roles = {name: (info.dtype.name, info.meta["role"]) for name, info in file.tensors.items()}
        assert roles == {
            "x": ("bf16", "input"),
            "ids": ("i32", "input"),
            "count": ("i32", "state"),
            "count/after": ("i32", "expected"),
            "y": ("f64", "expected"),
            "y/gate": ("f32", "budget_gate"),
            "y/hard": ("f32", "budget_hard"),
            "best": ("i32", "expected"),
            "best/allowed": ("bool", "allowed"),
            "status": ("i32", "expected"),
            "wrong/negated/y": ("f64", "known_wrong"),
        }
        assert dict(file.info("y").meta) == {
            "role": "expected",
            "class": "B",
            "for": "y",
            "actual.dtype": "bf16",
            "nan": "forbid",
        }
        assert file.info("count/after").meta["for"] == "count"
        assert file["x"].tolist() == [[0x3FC0, 0xC000, 0x3FC0], [0x3E80, 0x4040, 0x3F00]]
        assert file["y"].tolist() == [[3.0, -4.0, 3.0], [0.5, 6.0, 1.0]]
        assert file["y/hard"].tolist() == [
            [v * 2.0**-23 for v in row] for row in ([3, 4, 3], [0.5, 6, 1])
        ]
        assert file["count/after"].tolist() == [5 + 0 + 1 + 2 + 3, 6 + 4 + 5 + 6 + 7]
        assert file["best/allowed"].tolist() == [[True, False, True], [False, True, False]]
        assert file["wrong/negated/y"].tolist() == [[-3.0, 4.0, -3.0], [-0.5, -6.0, -1.0]]


def test_metadata_names_contract_case_and_attributes(toy: Path) -> None:
    goldens.generate(["toy"])
    with container.open(toy / "toy@1" / "plain.kdtr") as file:
        rules = contract.load("toy")
        assert file.meta["contract"] == rules.canonical()
        assert file.meta["contract.digest"] == rules.digest
        assert (file.meta["op"], file.meta["case"], file.meta["tier"]) == (
            "toy@1",
            "plain",
            "small",
        )
        assert (file.meta["attr.k"], file.meta["attr.mode"]) == (2.0, "up")
        assert (file.meta["kills"], file.meta["gen.seed"]) == ("no_factor", 7)
        assert file.meta["oracle"] == "kdtr.reference.toy@1"
        assert file.meta["convention.sign"] == "kept"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attrs": {"k": 2.0}}, "attributes differ"),
        ({"attrs": {"k": 2, "mode": "up"}}, "want f64, got int"),
        ({"attrs": {"k": 2.0, "mode": "left"}}, "want ['up', 'down'], got left"),
        ({"profile": "f16"}, "want ['f32'], got f16"),
        ({"dtypes": {"x": "f16"}}, "x: dtype, want ['f32', 'bf16'], got f16"),
        ({"wrong": ("same",)}, "gives the right answer"),
        ({"wrong": ("nobody",)}, "no such known-wrong"),
    ],
)
def test_case_that_does_not_fit_its_contract_is_refused(
    toy: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ContractError, match="toy@1/plain") as caught:
        build(**changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": None}, "toy@1/plain/ids: input is missing"),
        ({"extra": np.zeros(1)}, "inputs that the contract lacks, got ['extra']"),
        ({"ids": np.zeros((2, 3), np.int32)}, "ids: axis 1 (N+1), want 4, got 3"),
        ({"ids": np.zeros((3, 4), np.int32)}, "ids: axis 0 (R), want 2, got 3"),
        ({"ids": np.zeros(2, np.int32)}, "ids: rank"),
        ({"ids": np.full((2, 4), 2**31)}, "element [0, 0] is not exact"),
        ({"x": np.full((2, 3), 0.1)}, "element [0, 0] is not exact"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    toy: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ContractError) as caught:
        build(inputs=inputs_with(**changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"status": None}, "status: the reference gave no such output"),
        ({"other": np.zeros(2)}, "got ['other']"),
        ({"y": np.zeros((2, 4))}, "y: axis 1 (N), want 3, got 4"),
        ({"y": np.full((2, 3), np.nan)}, "expected value [0, 0] is NaN"),
        ({"y__gate": None}, "gave no y/gate"),
        ({"y__hard": np.zeros(3)}, "shape of y/hard"),
        ({"y__hard": np.full((2, 3), np.inf)}, "y/hard [0, 0], want finite"),
        ({"y__gate": np.full((2, 3), -1.0)}, "y/gate [0, 0], want finite and not negative"),
        ({"y__gate": np.ones((2, 3))}, "gate is above hard"),
        ({"best": np.array([1, 1], np.int32)}, "not in its own allowed set"),
        ({"best__allowed": np.ones((2, 3))}, "want bool"),
        ({"status": np.full(2, 0.5)}, "status: encode to i32"),
    ],
)
def test_reference_that_does_not_fit_its_contract_is_refused(
    toy: Path, monkeypatch: pytest.MonkeyPatch, outputs: dict[str, Any], message: str
) -> None:
    reference_returning(monkeypatch, **outputs)
    with pytest.raises(ContractError) as caught:
        build(wrong=())
    assert message in str(caught.value)


def test_sets_that_overlap_hold_an_id_once_where_the_contract_says_so(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = contract.load("toy")
    marked = [replace(t, distinct=True) if t.name == "best" else t for t in rules.tensors]
    distinct = replace(rules, tensors=tuple(marked))
    assert distinct.digest != rules.digest
    reference_returning(
        monkeypatch, best=np.array([1, 1], np.int32), best__allowed=np.ones((2, 3), bool)
    )
    assert "distinct" not in build(wrong=()).tensor_meta["best"]
    monkeypatch.setattr(importlib.import_module("kdtr.contracts.toy"), "CONTRACT", distinct)
    with pytest.raises(ContractError, match="toy@1/plain/best: distinct, want"):
        build(wrong=())
    some = np.array([[True, True, False], [False, False, False]])  # and a pad
    reference_returning(monkeypatch, best=np.array([1, -1], np.int32), best__allowed=some)
    assert build(wrong=()).tensor_meta["best"]["distinct"] == "true"


@pytest.mark.parametrize(
    ("value", "label"), [(0, "all zeros"), (1, "all ones"), (None, "untouched state")]
)
def test_case_that_a_constant_answer_passes_is_refused_unless_it_says_why(
    toy: Path, monkeypatch: pytest.MonkeyPatch, value: int | None, label: str
) -> None:
    count = [5, 6] if value is None else [value] * 2
    reference_returning(
        monkeypatch,
        y=np.full((2, 3), float(value or 0)),
        best=np.full(2, value or 0, np.int32),
        best__allowed=np.ones((2, 3), bool),
        count=np.array(count, np.int32),
        status=np.full(2, value or 0, np.int32),
    )
    with pytest.raises(ContractError, match=label):
        build(wrong=())
    assert build(wrong=(), null_ok="shown here").meta["null_ok"] == "shown here"


def test_reference_sees_floats_widened_and_cannot_change_inputs(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    module = importlib.import_module("kdtr.reference.toy")
    right = module.reference

    def reference(inputs: Any, attrs: Any, profile: str) -> Any:
        seen.update(inputs)
        return right(inputs, attrs, profile)

    monkeypatch.setattr(module, "reference", reference)
    build(dtypes={"x": "bf16"})
    assert {k: v.dtype.name for k, v in seen.items()} == {
        "x": "float64",
        "ids": "int32",
        "count": "int32",
    }
    with pytest.raises(ValueError, match="read-only"):
        seen["x"][0, 0] = 1


def test_second_generation_changes_nothing(toy: Path) -> None:
    first = goldens.generate(["toy"], "full")
    files = {p: p.read_bytes() for p in toy.rglob("*") if p.is_file()}
    second = goldens.generate(["toy"], "full")
    assert sorted(first.changed) == ["toy@1/half", "toy@1/large", "toy@1/plain"]
    assert second.changed == []
    assert second.made == first.made
    assert {p: p.read_bytes() for p in toy.rglob("*") if p.is_file()} == files


def test_lock_names_contracts_and_roots_of_both_tiers(toy: Path) -> None:
    made = goldens.generate(["toy"], "full").made
    lines = (toy / "LOCK").read_text().splitlines()
    assert lines == sorted(
        [
            f"contract toy@1 {contract.load('toy').digest}",
            f"case toy@1/plain small {made['toy@1/plain']}",
            f"case toy@1/half small {made['toy@1/half']}",
            f"case toy@1/large full {made['toy@1/large']}",
        ]
    )
    assert container.open(toy / "toy@1/plain.kdtr").identity == f"kdtr1:{made['toy@1/plain']}"


def test_check_passes_on_what_was_generated_and_writes_nothing(toy: Path) -> None:
    goldens.generate(["toy"], "full")
    shutil.rmtree(toy.parent / "full")
    goldens.generate(["toy"], "full", check=True)
    assert not (toy.parent / "full").exists()


def test_check_names_the_first_tensor_that_differs(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goldens.generate(["toy"], "full")
    y = np.array([[3.0, -4.0, 3.0], [0.5, 6.25, 1.0]])
    reference_returning(monkeypatch, y=y)
    with pytest.raises(LockError) as caught:
        goldens.generate(["toy"], check=True)
    assert caught.value.exit_code == 1
    assert str(caught.value).endswith(
        "plain.kdtr/y: stored tensor differs from the generated one at element 4, "
        "want 6.25, got 6.0"
    )


def test_check_finds_a_damaged_missing_stale_or_unlocked_file(toy: Path) -> None:
    goldens.generate(["toy"], "full")
    path = toy / "toy@1" / "plain.kdtr"
    good = path.read_bytes()

    path.write_bytes(good[:-256] + bytes([good[-256] ^ 1]) + good[-255:])
    with pytest.raises(KdtrError, match="E_TENSOR_CRC"):
        goldens.generate(["toy"], check=True)
    path.unlink()
    with pytest.raises(LockError, match=r"plain\.kdtr"):
        goldens.generate(["toy"], check=True)
    path.write_bytes(good)
    stale = path.with_name("old.kdtr")
    stale.write_bytes(good)
    with pytest.raises(LockError, match="LOCK does not name"):
        goldens.generate(["toy"], check=True)
    assert goldens.generate(["toy"]).removed == [stale]
    assert not stale.exists()
    add_case("later", tier="full")
    with pytest.raises(LockError, match="toy@1/later: the case is not in LOCK"):
        goldens.generate(["toy"], check=True)


def test_removed_case_leaves_lock_and_folder(toy: Path) -> None:
    add_case("brief")
    goldens.generate(["toy"], "full")
    importlib.import_module("kdtr.cases.toy").CASES.clear()
    with pytest.raises(LockError, match="toy@1/brief"):
        goldens.generate(["toy"], check=True)
    goldens.generate(["toy"])
    assert "brief" not in (toy / "LOCK").read_text()
    assert not (toy / "toy@1" / "brief.kdtr").exists()
    assert "toy@1/large full" in (toy / "LOCK").read_text()


def test_published_contract_cannot_change_its_meaning_but_its_wording(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    goldens.generate(["toy"], "full")
    module = importlib.import_module("kdtr.contracts.toy")
    rules = module.CONTRACT
    monkeypatch.setattr(module, "CONTRACT", replace(rules, summary="in other words", why="because"))
    assert goldens.generate(["toy"]).changed == []
    monkeypatch.setattr(module, "CONTRACT", replace(rules, formula="y = k x + 1"))
    before = (toy / "LOCK").read_text()
    for check in (False, True):
        with pytest.raises(LockError, match="raise its version to 2"):
            goldens.generate(["toy"], check=check)
    assert (toy / "LOCK").read_text() == before
    monkeypatch.setattr(module, "CONTRACT", replace(rules, formula="y = k x + 1", version=2))
    goldens.generate(["toy"], "full")
    lock = goldens.Lock.read(toy / "LOCK")
    assert set(lock.contracts) == {"toy@1", "toy@2"}
    assert "toy@2/plain" in lock.cases


def test_failed_generation_leaves_everything_as_it_was(toy: Path) -> None:
    goldens.generate(["toy"], "full")
    before = {p: p.read_bytes() for p in toy.parent.rglob("*.kdtr")}
    lock = (toy / "LOCK").read_bytes()
    add_case("broken", attrs={})
    add_case("fine", seed=8)
    with pytest.raises(ContractError, match="toy@1/broken"):
        goldens.generate(["toy"], "full")
    assert {p: p.read_bytes() for p in toy.parent.rglob("*.kdtr")} == before
    assert (toy / "LOCK").read_bytes() == lock
    assert not list(toy.glob(".new-*"))


def test_side_folders_of_killed_runs_go_and_those_of_running_ones_stay(toy: Path) -> None:
    left, busy = toy / ".new-0", toy / ".new-1"
    (left / "toy@1").mkdir(parents=True)
    busy.mkdir()
    running = os.open(busy, os.O_RDONLY)
    fcntl.flock(running, fcntl.LOCK_EX)
    own: set[Path] = set()

    def look(*_: object) -> None:
        own.update(set(toy.glob(".new-*")) - {busy})
        for folder in own:
            handle = os.open(folder, os.O_RDONLY)
            with pytest.raises(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(handle)

    goldens.generate(["toy"], progress=look)
    assert own == {toy / f".new-{os.getpid()}"}
    assert list(toy.glob(".*")) == [busy]
    os.close(running)
    goldens.generate(["toy"])
    assert not list(toy.glob(".*"))


def test_small_tier_refuses_a_large_file(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goldens, "SMALL_LIMIT", 1000)
    with pytest.raises(ContractError, match="small-tier file is too large, want 1000 bytes"):
        goldens.generate(["toy"])


def test_out_writes_both_tiers_elsewhere_only(toy: Path, tmp_path: Path) -> None:
    made = goldens.generate(["toy"], "full", out=tmp_path / "out").made
    assert sorted(p.stem for p in (tmp_path / "out").rglob("*.kdtr")) == ["half", "large", "plain"]
    assert len(made) == 3
    assert not list(toy.rglob("*"))
    assert not (toy.parent / "full").exists()


def test_ensure_makes_only_what_is_missing(toy: Path) -> None:
    goldens.generate(["toy"], "full")
    large = toy.parent / "full" / "toy@1" / "large.kdtr"
    wanted = large.read_bytes()
    large.unlink()
    made: list[str] = []
    paths = goldens.ensure(["toy"], "full", progress=lambda *step: made.append(step[2]))
    assert made == ["toy@1/large"]
    assert large.read_bytes() == wanted
    assert [p.stem for p in paths] == ["plain", "half", "large"]


def test_malformed_lock_is_named_by_line(toy: Path) -> None:
    (toy / "LOCK").write_text("contract toy@1 00\n<<<<<<< HEAD\n")
    with pytest.raises(LockError, match=r"LOCK:2: malformed line"):
        goldens.generate(["toy"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"contract toy@1 00\ncontract toy@1 01\n", r"LOCK:2: toy@1 has another digest"),
        (b"case toy@1/a small 00\ncase toy@1/a full 00\n", r"LOCK:2: toy@1/a has another"),
        (b"\xff\xfe", r"LOCK: cannot be read"),
    ],
)
def test_a_lock_that_contradicts_itself_or_is_binary_is_refused(
    toy: Path, content: bytes, said: str
) -> None:
    (toy / "LOCK").write_bytes(content)
    with pytest.raises(LockError, match=said):
        goldens.generate(["toy"])


def test_repeated_case_name_is_refused(toy: Path) -> None:
    add_case("plain")
    with pytest.raises(ContractError, match="toy/plain: repeated case name"):
        list(case_module.cases("toy"))


def test_processes_give_what_one_process_gives(tmp_path: Path) -> None:
    op = goldens.select()[0][0]
    alone = goldens.generate([op], out=tmp_path / "a", jobs=1)
    shared = goldens.generate([op], out=tmp_path / "b", jobs=2)
    assert shared.made == alone.made


def test_interrupt_leaves_no_trace(tmp_path: Path) -> None:
    """Ctrl-C in a real run, at the first fixture that is done."""
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from kdtr import goldens\n"
        "stop = lambda done, total, name: os.kill(os.getpid(), signal.SIGINT)\n"
        "goldens.generate(out=Path(sys.argv[1]), progress=stop)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "out")],
        check=False,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == -signal.SIGINT
    assert not [p for p in (tmp_path / "out").rglob("*") if p.is_file()]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_process(tmp_path: Path, stop: signal.Signals) -> None:
    """In the middle of a run of several processes; SIGTERM leaves no file either."""
    out = tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, "-m", "kdtr", "generate", "-j2", "--out", str(out), "verify_attn"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as run:
        until = time.monotonic() + 60
        while not list(out.glob(".new-*/*/*.kdtr")) and time.monotonic() < until:
            assert run.poll() is None, run.communicate()
            time.sleep(0.01)
        run.send_signal(stop)
        _, said = run.communicate(timeout=60)
    if stop == signal.SIGTERM:
        assert run.returncode == 128 + signal.SIGTERM, said
        assert b"Traceback" not in said
        assert [p for p in out.rglob("*") if p.is_file() or p.name.startswith(".new")] == []
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.killpg(run.pid, 0)  # whether anything is left of its session
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    pytest.fail("a process outlives the run")
