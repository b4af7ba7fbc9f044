"""Goldens: the fixtures of all cases, and the LOCK that names their bytes.

A fixture is one case as one file, `<op>@<version>/<case>.kdtr`. The small tier is committed; the
full tier is made where it is needed. `goldens/LOCK` holds the digest of every published contract
and the root digest of every fixture of both tiers, so a large set needs no download: it is its
hash.
"""

from __future__ import annotations

import fcntl
import fnmatch
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import case as case_module
from kdtr import cluster, container, contract
from kdtr.case import Case
from kdtr.contract import Contract
from kdtr.errors import ContractError, FormatError, LockError
from kdtr.fixture import Tier, build

Array = NDArray[Any]
Progress = Callable[[int, int, str], None]

RECORDED = "KDTR_RECORDED"
"""Variable that names the folder of inputs recorded from real models."""
SMALL_LIMIT = 256 << 10
"""Bytes that a committed fixture may have."""

_PACKAGE = Path(__file__).resolve().parent
_IN_TREE = (_PACKAGE.parent / "pyproject.toml").exists()
_NAMED = os.environ.get("KDTR_GOLDENS") or "goldens"
HOME = _PACKAGE.parent / "goldens" if _IN_TREE else Path(_NAMED)
"""Where the small tier lives: the source tree's folder; for an installed kdtr that which
$KDTR_GOLDENS names, or `goldens` here."""
FULL = HOME.parent / "build" / "goldens" if _IN_TREE else HOME / "full"
"""Where the full tier is made."""
PLACE = str(FULL) if _IN_TREE else f"{HOME.absolute()} (KDTR_GOLDENS names another folder)"
"""Where missing fixtures are made, as commands say it."""
LOCK = HOME / "LOCK" if _IN_TREE else _PACKAGE / "data" / "LOCK"
"""The LOCK that generated fixtures are checked against."""


# --- LOCK ---------------------------------------------------------------------------------------


@dataclass
class Lock:
    """The content of a LOCK file.

    Attributes:
        contracts: contract id to digest, of every version ever published.
        cases: `<id>/<case>` to (tier, root in hex).
    """

    contracts: dict[str, str] = field(default_factory=dict)
    cases: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Lock:
        """Read a LOCK; a missing file is an empty one. Raises LockError for a malformed line."""
        lock = cls()
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return lock
        except (OSError, UnicodeDecodeError) as error:
            raise LockError(str(path), "cannot be read", got=error) from None
        for number, line in enumerate(text.splitlines(), 1):
            match line.split(" "):
                case ["contract", name, digest] if lock.contracts.get(name, digest) == digest:
                    lock.contracts[name] = digest
                case ["case", name, ("small" | "full") as tier, root] if lock.cases.get(
                    name, (tier, root)
                ) == (tier, root):
                    lock.cases[name] = (tier, root)
                case ["contract", name, _] | ["case", name, "small" | "full", _]:
                    raise LockError(
                        f"{path}:{number}",
                        f"{name} has another digest on a line before",
                        remedy="after a merge conflict: take one side, then run kdtr generate",
                    )
                case _:
                    raise LockError(
                        f"{path}:{number}",
                        "malformed line",
                        "contract <id> <digest>, or case <id>/<case> <tier> <root>",
                        repr(line),
                        "after a merge conflict: take one side, then run kdtr generate",
                    )
        return lock

    def text(self) -> str:
        """The file's text: sorted lines."""
        lines = [f"contract {name} {digest}" for name, digest in self.contracts.items()]
        lines += [f"case {name} {tier} {root}" for name, (tier, root) in self.cases.items()]
        return "".join(line + "\n" for line in sorted(lines))

    def write(self, path: Path) -> None:
        """Replace the file in one step."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(self.text(), encoding="utf-8")
        temporary.replace(path)


def check_contracts(lock: Lock, rules: Iterable[Contract]) -> None:
    """Refuse a contract whose meaning changed under a published id. Raises LockError."""
    for one in rules:
        published = lock.contracts.get(one.id, one.digest)
        if published != one.digest:
            raise LockError(
                one.id,
                "the contract changed under a published id",
                published[:16],
                one.digest[:16],
                f"raise its version to {one.version + 1}; if no release holds it yet: --amend",
            )


# --- many fixtures ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """What a run of `generate` did.

    Attributes:
        made: `<id>/<case>` to the root of each fixture made, in hex.
        changed: names whose root differs from the LOCK's, or that it lacks.
        removed: stale files that were removed (or, with `check`, that should be).
        new: those of `changed` that the LOCK lacks.
    """

    made: Mapping[str, str]
    changed: Sequence[str]
    removed: Sequence[Path]
    new: Sequence[str] = ()


def select(ops: Sequence[str] = (), tier: Tier = "small") -> list[tuple[str, Case]]:
    """(op name, case) of the cases of `ops` (all by default) in a tier; "full" has both tiers."""
    names = [contract.load(op).op for op in ops] or case_module.ops()
    return [
        (name, one)
        for name in dict.fromkeys(names)
        for one in case_module.cases(name)
        if tier == "full" or one.tier == "small"
    ]


def generate(
    ops: Sequence[str] = (),
    tier: Tier = "small",
    *,
    check: bool = False,
    amend: bool = False,
    jobs: int = 1,
    out: Path | None = None,
    scheduler: str = "",
    progress: Progress | None = None,
) -> Summary:
    """Make the fixtures of some ops (all by default).

    Fixtures are made in a side folder and moved into place when all are there, and the LOCK is
    replaced last: an interrupted run leaves what was there before.

    Args:
        ops: names or ids.
        tier: "small", or "full" for both tiers.
        check: make nothing; compare with LOCK and with the committed files.
        amend: accept a changed contract under an id that no release holds yet.
        jobs: processes.
        out: write both tiers here, whatever LOCK says, and touch nothing else.
        scheduler: address of a Dask scheduler, whose workers make the fixtures; "" for none.
        progress: called with (done, total, name of the last one).

    Raises:
        LockError: a published contract changed, or, with `check`, something differs; the message
            names the first tensor that does.
        ContractError: a case or a reference does not fit its contract.
    """
    todo = select(ops, tier)
    rules = {name: contract.load(name) for name, _ in todo}
    lock = Lock.read(LOCK)
    if not amend:
        check_contracts(lock, rules.values())
    if check:
        return _check(todo, rules, lock, jobs, scheduler, progress)
    if out is not None:
        both: dict[Tier, Path] = {"small": out, "full": out}
        return Summary(_make(todo, rules, both, jobs, scheduler, progress), [], [])

    made = _make(todo, rules, {"small": HOME, "full": FULL}, jobs, scheduler, progress)
    changed = [n for n, root in made.items() if lock.cases.get(n, ("", ""))[1] != root]
    new = [n for n in changed if n not in lock.cases]
    tiers = {f"{rules[name].id}/{one.name}": one.tier for name, one in todo}
    exists = {f"{r.id}/{c.name}": c.tier for n, r in rules.items() for c in case_module.cases(n)}
    ids = tuple(f"{r.id}/" for r in rules.values())
    for name in [n for n in lock.cases if n.startswith(ids) and n not in exists]:
        del lock.cases[name]
    lock.cases.update({name: (tiers[name], root) for name, root in made.items()})
    lock.contracts.update({r.id: r.digest for r in rules.values()})
    removed = list(_stale(lock, rules.values()))
    for path in removed:
        path.unlink()
    lock.write(LOCK)
    return Summary(made, changed, removed, new)


def ensure(
    ops: Sequence[str] = (),
    tier: Tier = "small",
    *,
    pattern: str = "*",
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[Path]:
    """Paths of a tier's fixtures; those missing or different from LOCK are made first.

    `pattern` is a glob over case names.
    Only the full tier's folder is written to (and `goldens` where kdtr is installed).
    Raises LockError when a fixture cannot be made with the bytes that LOCK names.
    """
    todo = [pair for pair in select(ops, tier) if fnmatch.fnmatch(pair[1].name, pattern)]
    rules = {name: contract.load(name) for name, _ in todo}
    lock = Lock.read(LOCK)
    check_contracts(lock, rules.values())
    homes: dict[Tier, Path] = {"small": HOME, "full": FULL}
    paths, missing = [], []
    for name, one in todo:
        key = f"{rules[name].id}/{one.name}"
        path = homes[one.tier] / f"{key}.kdtr"
        paths.append(path)
        if _root_of(path) != lock.cases.get(key, ("", "?"))[1]:
            missing.append((name, one))
            if _IN_TREE and one.tier == "small":
                raise LockError(str(path), "differs from LOCK", remedy="run kdtr generate --check")
    made = _make(missing, rules, homes, jobs, "", progress)
    _compare(made, lock, homes)
    return paths


def _root_of(path: Path) -> str:
    """Root digest in a file's header, or "" when there is no such file."""
    try:
        with path.open("rb") as handle:
            return handle.read(48)[16:].hex()
    except FileNotFoundError:
        return ""


def _stale(lock: Lock, rules: Iterable[Contract]) -> Iterator[Path]:
    """Fixture files in the small tier's folder that LOCK does not name, of the given ops."""
    for one in rules:
        for path in sorted(HOME.glob(f"{one.op}@*/*.kdtr")):
            name = f"{path.parent.name}/{path.stem}"
            if lock.cases.get(name, ("", ""))[0] != "small":
                yield path


def _check(
    todo: Sequence[tuple[str, Case]],
    rules: Mapping[str, Contract],
    lock: Lock,
    jobs: int,
    scheduler: str,
    progress: Progress | None,
) -> Summary:
    made = _make(todo, rules, None, jobs, scheduler, progress)
    _compare(made, lock, {"small": HOME, "full": FULL})
    exists = {f"{r.id}/{c.name}" for n, r in rules.items() for c in case_module.cases(n)}
    ids = tuple(f"{r.id}/" for r in rules.values())
    for name in lock.cases:
        if name.startswith(ids) and name not in exists:
            raise LockError(name, "LOCK names a case that no longer exists", remedy="kdtr generate")
    for name in exists - lock.cases.keys():
        raise LockError(name, "the case is not in LOCK", remedy="run kdtr generate --tier full")
    for path in _stale(lock, rules.values()):
        raise LockError(str(path), "a fixture that LOCK does not name", remedy="run kdtr generate")
    for name, one in todo:
        path = HOME / f"{rules[name].id}/{one.name}.kdtr"
        if one.tier == "small" and _root_of(path) != made[f"{rules[name].id}/{one.name}"]:
            _explain(path, name, one)
        if one.tier == "small":
            container.validate(path, deep=True)
    return Summary(made, [], [])


def _compare(made: Mapping[str, str], lock: Lock, homes: Mapping[Tier, Path]) -> None:
    """Raise LockError for the first fixture whose root is not the LOCK's."""
    for name, root in made.items():
        tier, want = lock.cases.get(name, ("", ""))
        if not want:
            raise LockError(name, "the case is not in LOCK", remedy="run kdtr generate --tier full")
        if root != want:
            op, _, case = name.partition("/")
            one = next(c for c in case_module.cases(op.partition("@")[0]) if c.name == case)
            path = homes["small" if tier == "small" else "full"] / f"{name}.kdtr"
            if _root_of(path) == want:
                _explain(path, op, one)
            raise LockError(name, "generated fixture differs from LOCK", want[:16], root[:16])


def _explain(path: Path, op: str, case: Case) -> None:
    """Raise LockError naming the first tensor in which a file differs from what is generated."""
    new = container.loads(build(op.partition("@")[0], case).dumps())
    try:
        old = container.open(path)
    except FormatError as error:
        raise LockError(str(path), str(error), remedy="run kdtr generate") from None
    for name in sorted(new.tensors.keys() | old.tensors.keys()):
        a, b = old.tensors.get(name), new.tensors.get(name)
        if a is None or b is None:
            state = "only generated" if a is None else "only in the file"
            raise LockError(f"{path}/{name}", f"tensor is {state}")
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            raise LockError(
                f"{path}/{name}",
                "stored tensor differs from the generated one",
                f"{b.dtype} {list(b.shape)}",
                f"{a.dtype} {list(a.shape)}",
            )
        if a.sha256 != b.sha256:
            at = _first_difference(old[name], new[name])
            raise LockError(
                f"{path}/{name}",
                f"stored tensor differs from the generated one at element {at}",
                new[name].reshape(-1)[at],
                old[name].reshape(-1)[at],
            )
        if a.meta != b.meta:
            raise LockError(f"{path}/{name}", "metadata differs", dict(b.meta), dict(a.meta))
    for key in sorted(new.meta.keys() | old.meta.keys()):
        if new.meta.get(key) != old.meta.get(key):
            raise LockError(
                str(path), f"metadata '{key}' differs", new.meta.get(key), old.meta.get(key)
            )
    raise LockError(str(path), "the file differs from the generated one")


def _first_difference(a: Array, b: Array) -> int:
    x, y = (v.reshape(-1).view(np.uint8).reshape(a.size, -1) for v in (a, b))
    return int(np.argmax((x != y).any(axis=1)))


def _make(
    todo: Sequence[tuple[str, Case]],
    rules: Mapping[str, Contract],
    homes: Mapping[Tier, Path] | None,
    jobs: int,
    scheduler: str,
    progress: Progress | None,
) -> dict[str, str]:
    """Make fixtures and, unless `homes` is None, move them all to their places at the end."""
    made: dict[str, str] = {}
    stages = {tier: home / f".new-{os.getpid()}" for tier, home in (homes or {}).items()}
    held: list[int] = []
    try:
        for stage in sorted({stages[one.tier] for _, one in todo if homes}):
            _remove_leftovers(stage.parent)
            held.append(_claim(stage))
        work = [(name, one.name, stages.get(one.tier)) for name, one in todo]
        for done, (name, root) in enumerate(_run(work, jobs, scheduler), 1):
            made[name] = root
            if progress is not None:
                progress(done, len(work), name)
        made = {key: made[key] for key in (f"{rules[name].id}/{one.name}" for name, one in todo)}
        for tier, stage in stages.items():
            for path in sorted(stage.rglob("*.kdtr")):
                target = (homes or {})[tier] / path.relative_to(stage)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
    finally:
        for stage in stages.values():
            shutil.rmtree(stage, ignore_errors=True)
        for handle in held:
            os.close(handle)
    return made


def _claim(stage: Path) -> int:
    """Make a stage folder, locked until the descriptor that is returned is closed."""
    new = stage.with_name(f".claim-{os.getpid()}")  # as yet nobody takes it for a leftover
    new.mkdir(parents=True, exist_ok=True)
    handle = os.open(new, os.O_RDONLY)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    new.rename(stage)
    return handle


def _remove_leftovers(home: Path) -> None:
    """Remove stage folders that no living process holds."""
    for stage in home.glob(".new-*"):
        with suppress(OSError):  # it is held, or already gone
            handle = os.open(stage, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(stage, ignore_errors=True)
            finally:
                os.close(handle)


_Work = tuple[str, str, "Path | None"]


def _run(work: Sequence[_Work], jobs: int, scheduler: str) -> Iterator[tuple[str, str]]:
    if scheduler:
        task = partial(make_on_worker, os.environ.get(RECORDED, ""))
        cases = [(op, name) for op, name, _ in work]
        for at, (name, data) in cluster.run(scheduler, task, cases):
            _store(work[at][2], name, data)
            yield name, data[16:48].hex()
        return
    if jobs <= 1 or len(work) <= 1:
        yield from map(_make_one, work)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(work)), context, initializer=_start_worker)
    others = set(multiprocessing.active_children())
    try:
        for future in as_completed([pool.submit(_make_one, one) for one in work]):
            yield future.result()
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """A worker leaves Ctrl-C to its parent, and does not outlive one that was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def make_one(op: str, case_name: str) -> tuple[str, bytes]:
    """Make one fixture: its name `<id>/<case>` and the bytes of its file.

    Raises ContractError when it does not fit its contract or its tier.
    """
    one = next(c for c in case_module.cases(op) if c.name == case_name)
    fixture = build(op, one)
    data = fixture.dumps()
    if fixture.tier == "small" and len(data) > SMALL_LIMIT:
        raise ContractError(
            fixture.name, "a small-tier file is too large", f"{SMALL_LIMIT} bytes", len(data)
        )
    return fixture.name, data


def make_on_worker(recorded: str, case: tuple[str, str]) -> tuple[str, bytes]:
    """`make_one` of (op, case name), where `recorded` is the folder of recorded inputs or ""."""
    if recorded:
        os.environ[RECORDED] = recorded
    return make_one(*case)


def _make_one(work: _Work) -> tuple[str, str]:
    """Make one fixture, and store it in a stage folder if one is given. Returns (name, root)."""
    op, case_name, stage = work
    name, data = make_one(op, case_name)
    _store(stage, name, data)
    return name, data[16:48].hex()


def _store(stage: Path | None, name: str, data: bytes) -> None:
    if stage is not None:
        path = stage / f"{name}.kdtr"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
