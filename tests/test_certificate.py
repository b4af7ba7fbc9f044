"""`kdtr verify`: what a certificate is bound to, one line each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kdtr import __version__, contract, goldens
from kdtr.cli import cli

LIBRARY = b"\x7fELF not really"


def verify(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["verify", *map(str, arguments)], catch_exceptions=False)


def statement() -> dict[str, Any]:
    """What docs/results.md says a certificate is, written by hand."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": "libmine.so", "digest": {"sha256": hashlib.sha256(LIBRARY).hexdigest()}}
        ],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {
            "result": "PASSED",
            "configuration": [
                {
                    "name": "goldens/LOCK",
                    "digest": {"sha256": hashlib.sha256(goldens.LOCK.read_bytes()).hexdigest()},
                }
            ],
            "passedTests": ["argmax@1/ties", "argmax@1/one_token"],
            "warnedTests": [],
            "failedTests": [],
            "kdtr": {
                "judge": f"kdtr-conform {__version__}",
                "contracts": {"argmax@1": contract.load("argmax@1").digest},
                "skips": [{"case": "argmax@1/infinite", "status": "NOT_SUPPORTED", "why": ""}],
            },
        },
    }


def _set(*keys: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def change(whole: dict[str, Any]) -> None:
        at: Any = whole
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = to

    return change


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libmine.so"
    path.write_bytes(LIBRARY)
    return path


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(statement()))
    return path


def test_a_true_certificate_holds(certificate: Path, library: Path) -> None:
    result = verify(certificate, "--library", library)
    assert result.exit_code == 0, result.output
    marks = [line.split()[0] for line in result.stdout.splitlines()]
    assert marks == ["ok"] * 6
    assert "PASSED: 2 passed, 0 warned, 0 failed, 1 not run" in result.stdout


def test_what_passed_by_leave_is_told(certificate: Path) -> None:
    said = statement()
    details = said["predicate"]["kdtr"]
    details["skips"].append({"case": "argmax@1/nan", "status": "WAIVED", "why": ""})
    details["outputs_not_checked"] = {"argmax@1": ["ids"]}
    certificate.write_text(json.dumps(said))
    result = verify(certificate)
    assert result.exit_code == 0, result.output
    assert "0 failed, 1 not run, 1 failed as known" in result.stdout
    assert "--  outputs argmax@1: not checked: ids" in result.stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("predicate", "configuration", to=5), "a certificate of kdtr"),
        (_set("predicate", "configuration", 0, to={}), "a certificate of kdtr"),
        (_set("predicate", "failedTests", to=[[1]]), "a certificate of kdtr"),
        (_set("predicate", "kdtr", "contracts", to=[]), "a certificate of kdtr"),
        (_set("predicate", "kdtr", "judge", to="\ud800"), "is not JSON"),
    ],
)
def test_a_part_of_another_kind_is_one_line(
    certificate: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    said_so = statement()
    change(said_so)
    certificate.write_text(json.dumps(said_so))
    result = verify(certificate)
    assert result.exit_code == 2, result.output
    assert said in result.output


def test_a_contract_that_is_left_out_is_missed(certificate: Path) -> None:
    said = statement()
    said["predicate"]["kdtr"]["contracts"] = {}
    certificate.write_text(json.dumps(said))
    result = verify(certificate)
    assert result.exit_code == 1, result.output
    assert "no  contract argmax@1: the certificate does not name it" in result.stdout


def test_a_library_that_is_not_given_is_not_compared(certificate: Path) -> None:
    result = verify(certificate)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith("--  library: libmine.so, sha256 ")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (_set("predicate", "result", to="FAILED"), "no  result: FAILED"),
        (
            _set("predicate", "failedTests", to=["argmax@1/infinite_bf16"]),
            "no  result: PASSED: 2 passed",
        ),
        (
            _set("predicate", "warnedTests", to=["argmax@1/infinite_bf16"]),
            "no  result: PASSED: 2 passed",
        ),
        (
            _set("predicate", "configuration", 0, "digest", "sha256", to="00" * 32),
            "no  goldens: LOCK, want 0000000000000000, got ",
        ),
        (_set("predicate", "configuration", to=[]), "no  goldens: the certificate names no"),
        (
            _set("predicate", "configuration", to=statement()["predicate"]["configuration"] * 2),
            "no  goldens: the certificate names one file twice",
        ),
        (_set("subject", to=statement()["subject"] * 2), "no  library: the certificate has 2"),
        (
            _set("predicate", "passedTests", to=["argmax@1/ties", "argmax@1/ties"]),
            "no  cases: argmax@1/ties is listed 2 times",
        ),
        (
            _set("predicate", "passedTests", to=["argmax@1/ties", "argmax@1/infinite"]),
            "no  cases: argmax@1/infinite is listed 2 times",
        ),
        (
            _set("predicate", "passedTests", to=["argmax@1/ties", "argmax@1/made_up"]),
            "no  cases: 1 are not in LOCK, the first is argmax@1/made_up",
        ),
        (
            _set("predicate", "kdtr", "contracts", "argmax@1", to="ab" * 32),
            "no  contract argmax@1: digest, want abababababababab, got ",
        ),
        (_set("predicate", "kdtr", "judge", to="kdtr-conform 9.9"), "no  judge: kdtr-conform 9.9"),
        (_set("subject", 0, "digest", "sha256", to="cd" * 32), "no  library: "),
    ],
)
def test_each_thing_that_does_not_hold_is_one_line(
    certificate: Path, library: Path, change: Callable[[dict[str, Any]], None], line: str
) -> None:
    whole = statement()
    change(whole)
    certificate.write_text(json.dumps(whole))
    result = verify(certificate, "--library", library)
    assert result.exit_code == 1
    refused = [one for one in result.stdout.splitlines() if one.startswith("no")]
    assert len(refused) == 1
    assert refused[0].startswith(line)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"_type": "https://in-toto.io/Statement/v1"}'])
def test_what_is_no_certificate_is_one_line_and_2(certificate: Path, text: str) -> None:
    certificate.write_text(text)
    result = verify(certificate)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert verify(certificate.with_name("none")).exit_code == 2


def test_a_certificate_without_its_fields_is_refused(certificate: Path) -> None:
    whole = statement()
    del whole["predicate"]["kdtr"]["contracts"]
    certificate.write_text(json.dumps(whole))
    assert "no 'contracts'" in verify(certificate).stderr
