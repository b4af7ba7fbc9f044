"""Fixtures at any URL that fsspec knows, made in this process or on a Dask cluster.

For more cases, or larger ones, than one machine makes in good time. The bytes are the same as
everywhere; what is in LOCK is held to it.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kdtr import cluster, contract, goldens
from kdtr.errors import LockError
from kdtr.fixture import Tier


@dataclass(frozen=True)
class Published:
    """What `publish` did: `<id>/<case>` to root of all, and which of them were there before."""

    cases: Mapping[str, str]
    kept: Sequence[str]


def publish(
    url: str,
    ops: Sequence[str] = (),
    tier: Tier = "small",
    *,
    scheduler: str = "",
    progress: goldens.Progress | None = None,
) -> Published:
    """Make the fixtures of some ops (all by default) at `<url>/<id>/<case>.kdtr`.

    A file appears under its name when it is whole. One that is there already and has the root
    that LOCK names is kept, so that an interrupted run can be taken up; `<url>/LOCK` is written
    last, when everything is there.

    Args:
        url: folder, as in "s3://bucket/goldens"; what fsspec takes.
        ops: names or ids.
        tier: "small", or "full" for both tiers.
        scheduler: address of a Dask scheduler, whose workers write to `url`; "" for this process.
        progress: called with (done, total, name of the last one).

    Raises:
        LockError: a fixture differs from the LOCK's.
        KdtrError: fsspec, Dask or the cluster is missing.
    """
    todo = goldens.select(ops, tier)
    rules = {name: contract.load(name) for name, _ in todo}
    lock = goldens.Lock.read(goldens.LOCK)
    goldens.check_contracts(lock, rules.values())
    names = [f"{rules[op].id}/{one.name}" for op, one in todo]
    tiers = {name: one.tier for name, (_, one) in zip(names, todo, strict=True)}
    cases, kept, missing = {}, [], []
    for name, (op, one) in zip(names, todo, strict=True):
        root = lock.cases.get(name, ("", ""))[1]
        if root and root == _root_at(url, name):
            cases[name] = root
            kept.append(name)
        else:
            missing.append((op, one.name, root))
    for done, (name, root) in enumerate(_publish(url, missing, scheduler), len(kept) + 1):
        cases[name] = root
        if progress is not None:
            progress(done, len(todo), name)
    here = goldens.Lock(
        {one.id: one.digest for one in rules.values()},
        {name: (tiers[name], cases[name]) for name in names},
    )
    _store(url, "LOCK", here.text().encode())
    return Published({name: cases[name] for name in names}, kept)


_Case = tuple[str, str, str]
"""Op, case name, and the root that it must have or ""."""


def _publish(url: str, cases: Sequence[_Case], scheduler: str) -> Iterator[tuple[str, str]]:
    task = partial(_make_at, os.environ.get(goldens.RECORDED, ""), url)
    if not scheduler:
        yield from map(task, cases)
    elif cases:
        for _, made in cluster.run(scheduler, task, cases):
            yield made


def _make_at(recorded: str, url: str, case: _Case) -> tuple[str, str]:
    """Make one case and store it: (name, root). Raises LockError, and stores nothing, if wrong."""
    name, data = goldens.make_on_worker(recorded, case[:2])
    want, root = case[2], data[16:48].hex()
    if want not in ("", root):
        raise LockError(name, "generated fixture differs from LOCK", want[:16], root[:16])
    _store(url, f"{name}.kdtr", data)
    return name, root


# --- storage ------------------------------------------------------------------------------------


def _store(url: str, name: str, data: bytes) -> None:
    """Write a file whole, or not at all: under another name first, then renamed."""
    fs, base = cluster.need("fsspec.core").url_to_fs(url)
    path = f"{base.rstrip('/')}/{name}"
    part = f"{path}.{uuid.uuid4().hex}.part"
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    try:
        fs.pipe_file(part, data)
        fs.mv(part, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            fs.rm_file(part)
        raise


def _root_at(url: str, name: str) -> str:
    """The root of a stored fixture, or "" when there is none."""
    fs, base = cluster.need("fsspec.core").url_to_fs(url)
    try:
        head = fs.cat_file(f"{base.rstrip('/')}/{name}.kdtr", start=0, end=48)
    except FileNotFoundError:
        return ""
    return bytes(head[16:48]).hex()
