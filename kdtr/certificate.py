"""Check a certificate: whether it speaks of these goldens, these contracts and this library."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdtr import __version__, contract, goldens
from kdtr.errors import KdtrError

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what, in one or two words.
        ok: True, False, or None when it could not be looked at.
        text: what was found, in one line.
    """

    name: str
    ok: bool | None
    text: str


def verify(path: Path, library: Path | None = None, lock: Path | None = None) -> Iterator[Check]:
    """Check a certificate, one thing after the other.

    Args:
        path: certificate.json as `kdtr certify --out` writes it.
        library: the engine's file, to compare its SHA-256 with the certificate's subject.
        lock: the LOCK to hold it against; this kdtr's by default.

    Raises KdtrError when the file is no certificate of kdtr.
    """
    statement = _load(path)
    try:
        yield from list(_checks(statement, library, lock or goldens.LOCK))
    except (AttributeError, KeyError, TypeError) as error:  # a part is not what it should be
        raise KdtrError(str(path), "a certificate of kdtr", got=error) from None


def _checks(statement: Mapping[str, Any], library: Path | None, lock_path: Path) -> Iterator[Check]:
    predicate = statement["predicate"]
    details = predicate["kdtr"]
    passed, warned, failed = (
        list(predicate[key] or ()) for key in ("passedTests", "warnedTests", "failedTests")
    )
    skips = list(details.get("skips") or ())
    yield _result(predicate["result"], passed, warned, failed, skips)
    yield _lock(predicate["configuration"], lock_path)
    known = goldens.Lock.read(lock_path)
    yield _cases([*passed, *warned, *failed], [one["case"] for one in skips], known)
    judged = {name.partition("/")[0] for name in (*passed, *warned, *failed)}
    for op in sorted(judged - details["contracts"].keys()):
        yield Check(f"contract {op}", False, "the certificate does not name it")
    for op, digest in sorted(details["contracts"].items()):
        yield _contract(op, str(digest), known)
    for op, outputs in sorted((details.get("outputs_not_checked") or {}).items()):
        yield Check(f"outputs {op}", None, f"not checked: {', '.join(map(str, outputs))}")
    judge = str(details["judge"])
    want = f"kdtr-conform {__version__}"
    yield Check("judge", judge == want, judge if judge == want else f"{judge}, this is {want}")
    yield _library(statement["subject"], library)


def _load(path: Path) -> Mapping[str, Any]:
    try:
        statement = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(statement, ensure_ascii=False).encode()  # lone surrogates cannot be shown
    except OSError as error:
        raise KdtrError(str(path), "cannot be read", got=error.strerror) from None
    except ValueError as error:
        raise KdtrError(str(path), "is not JSON", got=error) from None
    kinds = [str(statement.get(key)) if isinstance(statement, dict) else "" for key in _KINDS]
    if kinds != [STATEMENT, PREDICATE]:
        raise KdtrError(str(path), "statement and predicate", [STATEMENT, PREDICATE], kinds)
    try:
        predicate = statement["predicate"]
        for key in ("result", "configuration", "passedTests", "warnedTests", "failedTests"):
            predicate[key]
        predicate["kdtr"]["contracts"], predicate["kdtr"]["judge"]
        statement["subject"][0]["name"], statement["subject"][0]["digest"]["sha256"]
    except (KeyError, IndexError, TypeError) as error:
        raise KdtrError(str(path), "a certificate of kdtr", got=f"no {error}") from None
    return dict(statement)


_KNOWN_FAILURES = ("XFAIL", "WAIVED")
_KINDS = ("_type", "predicateType")


def _result(
    result: str, passed: list[str], warned: list[str], failed: list[str], skips: list[Any]
) -> Check:
    counts = f"{len(passed)} passed, {len(warned)} warned, {len(failed)} failed"
    known = sum(isinstance(one, dict) and one.get("status") in _KNOWN_FAILURES for one in skips)
    text = f"{result}: {counts}, {len(skips) - known} not run"
    if known:
        text += f", {known} failed as known"
    consistent = {
        "PASSED": not failed and not warned and bool(passed),
        "WARNED": not failed and bool(warned),
    }
    return Check("result", consistent.get(result, False), text)


def _lock(configuration: list[Mapping[str, Any]], path: Path) -> Check:
    named = {str(one["name"]): str(one["digest"]["sha256"]) for one in configuration}
    if len(named) < len(configuration):
        return Check("goldens", False, "the certificate names one file twice")
    if "goldens/LOCK" not in named:
        return Check("goldens", False, "the certificate names no goldens/LOCK")
    want = named["goldens/LOCK"]
    if not path.is_file():
        return Check("goldens", None, f"{path} is not there")
    got = _sha256(path)
    return Check("goldens", got == want, _compared("LOCK", want, got))


def _cases(names: list[str], skipped: list[str], lock: goldens.Lock) -> Check:
    for name, count in Counter([*names, *skipped]).items():
        if count > 1:
            return Check("cases", False, f"{name} is listed {count} times")
    unknown = sorted(set(names) - lock.cases.keys())
    if unknown:
        return Check("cases", False, f"{len(unknown)} are not in LOCK, the first is {unknown[0]}")
    ops = {name.partition("/")[0] for name in names}
    there = sum(name.partition("/")[0] in ops for name in lock.cases)
    text = f"{len(names)} of {len(ops)} ops, which have {there} in LOCK"
    return Check("cases", bool(names), text)


def _contract(op: str, digest: str, lock: goldens.Lock) -> Check:
    published = lock.contracts.get(op, "")
    if digest != published:
        return Check(f"contract {op}", False, _compared("digest", digest, published or "none"))
    try:
        here = contract.load(op).digest
    except KdtrError as error:
        return Check(f"contract {op}", None, f"in LOCK; this kdtr does not have it: {error}")
    return Check(f"contract {op}", here == digest, _compared("digest", digest, here))


def _library(subjects: list[Mapping[str, Any]], library: Path | None) -> Check:
    subject = subjects[0]
    if len(subjects) > 1:
        return Check("library", False, f"the certificate has {len(subjects)} subjects")
    name, want = str(subject["name"]), str(subject["digest"]["sha256"])
    if not want:
        return Check("library", None, f"{name}: the certificate is bound to no file")
    if library is None:
        return Check("library", None, f"{name}, sha256 {want[:16]}; not compared, give --library")
    try:
        got = _sha256(library)
    except OSError as error:
        raise KdtrError(str(library), "cannot be read", got=error.strerror) from None
    return Check("library", got == want, _compared(str(library), want, got))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compared(what: str, want: str, got: str) -> str:
    if want == got:
        return f"{what} sha256 {want[:16]}"
    return f"{what}, want {want[:16]}, got {got[:16]}"
