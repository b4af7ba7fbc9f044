"""What the judge writes fits the schema that it publishes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = json.loads((ROOT / "docs/assets/results.schema.json").read_text(encoding="utf-8"))
TYPES: Mapping[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


def faults(value: Any, rules: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Where a value breaks the schema: the keywords that this schema uses, and no others."""
    known = {"$schema", "$defs", "title", "description", "type", "required", "properties", "items"}
    assert rules.keys() <= known | {"$ref", "anyOf", "enum", "minimum"}
    if "$ref" in rules:
        yield from faults(value, SCHEMA["$defs"][rules["$ref"].rpartition("/")[2]], at)
    if "anyOf" in rules and all(any(faults(value, one, at)) for one in rules["anyOf"]):
        yield f"{at}: fits none of them"
    if "enum" in rules and value not in rules["enum"]:
        yield f"{at}: {value!r} is not one of {rules['enum']}"
    if kind := rules.get("type"):
        number = not isinstance(value, bool) or kind == "boolean"
        if not (isinstance(value, TYPES[kind]) and number):
            yield f"{at}: {value!r} is no {kind}"
            return
    if "minimum" in rules and value < rules["minimum"]:
        yield f"{at}: {value!r} is too small"
    if isinstance(value, dict):
        properties = rules.get("properties", {})
        yield from (
            f"{at}/{name} is missing" for name in rules.get("required", ()) if name not in value
        )
        for name, one in value.items():
            if rules.get("properties") and name not in properties:
                yield f"{at}/{name} is not described"
            yield from faults(one, properties.get(name, {}), f"{at}/{name}")
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from faults(one, rules.get("items", {}), f"{at}/{number}")


ENGINE = """
import ctypes, time
import numpy as np

outputs = {"rope": ["status"]}

def merge_state(call):
    o, lse = call.inputs["o_a"].numpy(), call.inputs["lse_a"].numpy()
    call.inputs["o_b"], call.inputs["lse_b"]
    call.outputs["o"].write(np.full(o.shape, np.nan, np.float32))
    call.outputs["lse"].write(lse + np.float32(1e-6))
    call.outputs["status"].write(0)

def argmax(call):
    ctypes.string_at(8)

def silu_mul(call):
    time.sleep(9)
"""


def results(folder: Path, engine: str, *arguments: str) -> list[dict[str, Any]]:
    subprocess.run(
        [
            *(sys.executable, "-m", "kdtr", "certify", "--engine", engine),
            *("--json", "r.jsonl", "--save", "kept", "--timeout", "2.5", *arguments),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    return [json.loads(line) for line in (folder / "r.jsonl").read_text().splitlines()]


@pytest.mark.engine
def test_every_line_fits_the_schema(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ENGINE)
    ops = [f"--ops={op}" for op in ("merge_state", "argmax", "silu_mul", "rope")]
    lines = results(tmp_path, "cpu", "--ops", "merge_state", "--ops", "tree_accept")
    lines += results(tmp_path, "mine", *ops, "--case", "r*")
    lines += results(tmp_path, "mine", *ops, "--case", "o*")
    seen = {line["status"] for line in lines if line["kind"] == "case"}
    assert {"PASS", "FAIL", "CRASH", "TIMEOUT", "NOT_SUPPORTED"} <= seen
    for line in lines:
        (rules,) = [one for name, one in SCHEMA["$defs"].items() if name == line["kind"]]
        assert list(faults(line, SCHEMA)) == list(faults(line, rules)) == []


@pytest.mark.parametrize(
    "change",
    [{"status": "FINE"}, {"worst_gate": "huge"}, {"findings": "one"}, {"engine_lost": 1}],
)
def test_the_schema_can_refuse(change: dict[str, Any]) -> None:
    text = dict.fromkeys(SCHEMA["$defs"]["case"]["required"], "")
    line = {
        **text,
        "kind": "case",
        "status": "PASS",
        "worst_gate": 0.5,
        "worst_hard": "inf",
        "findings": [],
        "diagnosis": [],
        "seconds": 0.1,
        "engine_lost": False,
    }
    assert list(faults(line, SCHEMA)) == []
    assert list(faults({**line, **change}, SCHEMA))
    assert list(faults({k: v for k, v in line.items() if k != "root"}, SCHEMA))
