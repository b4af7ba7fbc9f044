"""Goldens on a cluster and at a URL are the goldens: same LOCK, resumable, nothing half-written."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kdtr import container, contract, goldens, publish
from kdtr.cli import cli
from kdtr.errors import KdtrError, LockError

fsspec = importlib.import_module("fsspec")
OPS = ("argmax", "silu_mul")


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def expected() -> set[str]:
    pairs = goldens.select(OPS)
    return {f"{contract.load(op).id}/{case.name}.kdtr" for op, case in pairs} | {"LOCK"}


def test_published_files_are_the_committed_ones(tmp_path: Path) -> None:
    seen: list[str] = []
    done = publish.publish(
        f"file://{tmp_path}/out", OPS, progress=lambda i, n, name: seen.append(f"{i}/{n} {name}")
    )
    assert done.kept == []
    assert files(tmp_path / "out") == expected()
    assert seen[-1].startswith(f"{len(seen)}/{len(seen)} ")
    for name in expected() - {"LOCK"}:
        assert (tmp_path / "out" / name).read_bytes() == (goldens.HOME / name).read_bytes()
    lines = (tmp_path / "out/LOCK").read_text().splitlines()
    whole = set(goldens.LOCK.read_text().splitlines())
    assert set(lines) <= whole
    assert len(lines) == len(done.cases) + len(OPS)


def test_a_second_run_makes_only_what_is_missing_or_wrong(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/out"
    publish.publish(url, OPS)
    (tmp_path / "out/argmax@1/ties.kdtr").unlink()
    wrong = tmp_path / "out/argmax@1/infinite.kdtr"
    container.write(wrong, {})
    again = publish.publish(url, OPS)
    made = again.cases.keys() - set(again.kept)
    assert made == {"argmax@1/ties", "argmax@1/infinite"}
    assert wrong.read_bytes() == (goldens.HOME / "argmax@1/infinite.kdtr").read_bytes()
    assert len(publish.publish(url, OPS).kept) == len(again.cases)


def test_a_failing_write_leaves_no_part_and_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = fsspec.filesystem("file")
    whole = type(local).pipe_file

    def fail(self: Any, path: str, value: bytes, **more: Any) -> None:
        if "ties" in path:
            whole(self, path, value[:100], **more)
            raise OSError("disk full")
        whole(self, path, value, **more)

    monkeypatch.setattr(type(local), "pipe_file", fail)
    with pytest.raises(OSError, match="disk full"):
        publish.publish(f"file://{tmp_path}/out", ("argmax",))
    left = files(tmp_path / "out")
    assert left
    assert all(name.endswith(".kdtr") for name in left)
    assert "argmax@1/ties.kdtr" not in left
    monkeypatch.undo()
    assert publish.publish(f"file://{tmp_path}/out", ("argmax",)).kept


def test_what_differs_from_lock_is_not_stored(toy: Path, tmp_path: Path) -> None:
    goldens.generate(("toy",))
    lock = goldens.LOCK.read_text()
    name = "case toy@1/plain small "
    line = next(x for x in lock.splitlines() if x.startswith(name))
    goldens.LOCK.write_text(lock.replace(line, name + "0" * 64))
    with pytest.raises(LockError, match="differs from LOCK"):
        publish.publish(f"file://{tmp_path}/out", ("toy",))
    assert "toy@1/plain.kdtr" not in files(tmp_path / "out")


def test_any_file_system_will_do(argmax_cases: int) -> None:
    done = CliRunner().invoke(cli, ["generate", "argmax", "--out", "memory://kdtr-test"])
    assert done.exit_code == 0, done.output
    assert done.output == f"{argmax_cases} fixtures made in memory://kdtr-test, 0 were there\n"
    memory = fsspec.filesystem("memory")
    want = (goldens.HOME / "argmax@1/ties.kdtr").read_bytes()
    assert memory.cat_file("/kdtr-test/argmax@1/ties.kdtr") == want
    assert f"{argmax_cases} were there" in CliRunner().invoke(
        cli, ["generate", "argmax", "--out", "memory://kdtr-test"]
    ).output  # fmt: skip


# --- a cluster of two workers -------------------------------------------------------------------


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    distributed = importlib.import_module("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.slow
def test_a_cluster_makes_the_same_goldens(scheduler: str, tmp_path: Path) -> None:
    done = publish.publish(f"file://{tmp_path}/out", OPS, scheduler=scheduler)
    assert done.kept == []
    assert files(tmp_path / "out") == expected()
    for name in expected() - {"LOCK"}:
        assert (tmp_path / "out" / name).read_bytes() == (goldens.HOME / name).read_bytes()


@pytest.mark.slow
def test_a_cluster_can_check_lock_and_fill_a_folder(scheduler: str, tmp_path: Path) -> None:
    checked = goldens.generate(OPS, check=True, scheduler=scheduler)
    assert len(checked.made) == len(expected()) - 1
    goldens.generate(OPS, out=tmp_path / "out", scheduler=scheduler)
    assert files(tmp_path / "out") == expected() - {"LOCK"}


@pytest.mark.slow
def test_without_a_cluster_it_is_one_line() -> None:
    importlib.import_module("distributed")
    with pytest.raises(KdtrError, match="no Dask scheduler answers"):
        goldens.generate(("argmax",), check=True, scheduler="tcp://127.0.0.1:1")
