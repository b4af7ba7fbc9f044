"""Fixtures leave as a FlashInfer Trace data set, and its workloads come back, bit for bit.

The rules checked here are those of flashinfer-bench 0.1: fields, types, axes, one `run`.
"""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from kdtr import container, convert, dtypes, flashinfer_trace, goldens
from kdtr.cli import cli
from kdtr.errors import KdtrError

DTYPES = {
    *("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1"),
    *("int64", "int32", "int16", "int8", "bool"),
}
CASES = ["argmax@1/ties", "tree_build@1/wide", "tree_masks@1/*", "kv_commit@1/*", "rmsnorm@1/*"]


def fixtures() -> list[Path]:
    found = [path for pattern in CASES for path in sorted(goldens.HOME.glob(f"{pattern}.kdtr"))]
    assert len(found) > 20
    return found


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dataset")
    summary = flashinfer_trace.export(fixtures(), root)
    assert summary.left_out == {}
    assert summary.workloads == len(fixtures())
    return root


def definitions(root: Path) -> dict[str, Any]:
    found = [json.loads(p.read_text()) for p in sorted(root.rglob("definitions/*/*.json"))]
    return {one["name"]: one for one in found}


def workloads(root: Path) -> list[dict[str, Any]]:
    files = sorted(root.rglob("workloads/*/*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_definitions_follow_the_schema(dataset: Path) -> None:
    for one in definitions(dataset).values():
        assert one["axes"]
        for tensor in (*one["inputs"].values(), *one["outputs"].values()):
            assert tensor["dtype"] in DTYPES
            assert tensor["shape"] is None or set(tensor["shape"]) <= one["axes"].keys()
        for axis in one["axes"].values():
            assert axis == {"type": "var"} or axis["value"] >= 0
        (function,) = (
            n for n in ast.parse(one["reference"]).body if isinstance(n, ast.FunctionDef)
        )
        assert function.name == "run"
        assert [a.arg for a in function.args.args] == list(one["inputs"])


def test_workloads_bind_every_variable_axis_and_input(dataset: Path) -> None:
    known, seen = definitions(dataset), set()
    for trace in workloads(dataset):
        assert trace["solution"] is None
        assert trace["evaluation"] is None
        rules, one = known[trace["definition"]], trace["workload"]
        assert one["axes"].keys() == {k for k, v in rules["axes"].items() if v["type"] == "var"}
        assert one["inputs"].keys() == rules["inputs"].keys()
        for name, source in one["inputs"].items():
            if source["type"] == "safetensors":
                assert (dataset / source["path"]).is_file()
                assert source["tensor_key"] == name
        seen.add(one["uuid"])
    assert len(seen) == len(fixtures())


def test_files_are_what_the_safetensors_library_reads(dataset: Path) -> None:
    numpy = importlib.import_module("safetensors.numpy")
    known = definitions(dataset)
    for trace in workloads(dataset)[::7]:
        rules, one = known[trace["definition"]], trace["workload"]
        sizes = {k: v.get("value") for k, v in rules["axes"].items()} | one["axes"]
        for name, source in one["inputs"].items():
            spec = rules["inputs"][name]
            if source["type"] != "safetensors" or spec["dtype"] == "bfloat16":
                continue
            array = numpy.load_file(dataset / source["path"])[name]
            assert array.dtype.name == spec["dtype"]
            assert list(array.shape) == [sizes[axis] for axis in spec["shape"]]


def test_workloads_come_back_bit_for_bit(dataset: Path, tmp_path: Path) -> None:
    written = flashinfer_trace.load(dataset, tmp_path)
    assert len(written) == len(fixtures())
    by_name: dict[str, list[dict[str, bytes]]] = {}
    for path in written:
        with container.open(path, verify="deep") as file:
            op = json.loads(str(file.meta["definition"]))["tags"][0].removeprefix("kdtr:")
            by_name.setdefault(op, []).append({n: file[n].tobytes() for n in file})
    for path in fixtures():
        with container.open(path) as file:
            roles = {n: i.meta.get("role") for n, i in file.tensors.items()}
            inputs = {n: file[n].tobytes() for n, r in roles.items() if r in ("input", "state")}
        assert inputs in by_name[path.parent.name]


@pytest.mark.parametrize("case", ["argmax@1/ties", "tree_build@1/wide", "rmsnorm@1/*"])
def test_the_reference_in_a_definition_gives_the_expected_values(case: str, tmp_path: Path) -> None:
    fixture = min(goldens.HOME.glob(f"{case}.kdtr"))
    flashinfer_trace.export([fixture], tmp_path)
    ((_, definition),) = definitions(tmp_path).items()
    (trace,) = workloads(tmp_path)
    space: dict[str, Any] = {}
    exec(definition["reference"], space)  # noqa: S102 (it is ours, and made to be run)
    values = []
    for source in trace["workload"]["inputs"].values():
        if source["type"] == "scalar":
            values.append(source["value"])
        else:
            plain = tmp_path / "x.kdtr"
            assert CliRunner().invoke(
                cli, ["convert", str(tmp_path / source["path"]), str(plain)]
            ).exit_code == 0  # fmt: skip
            values.append(container.open(plain)[source["tensor_key"]])
    outputs = dict(zip(definition["outputs"], space["run"](*values), strict=True))
    with container.open(fixture) as file:
        for name, got in outputs.items():
            info = file.info(name)
            dtype, want = str(info.meta["actual.dtype"]), file.values(name)
            if info.meta["class"] == "B":
                want = dtypes.encode(dtypes.round_to(want, dtype), dtype)
            else:
                want = file[name]
            assert got.tobytes() == want.tobytes(), name


def test_the_export_is_reproduced(dataset: Path, tmp_path: Path) -> None:
    flashinfer_trace.export(reversed(fixtures()), tmp_path)
    names = sorted(p.relative_to(dataset) for p in dataset.rglob("*") if p.suffix != ".jsonl")
    for name in names:
        if (dataset / name).is_file():
            assert (tmp_path / name).read_bytes() == (dataset / name).read_bytes()


def foreign(root: Path, workload: dict[str, Any]) -> None:
    definition = {
        "name": "rmsnorm_h8",
        "op_type": "rmsnorm",
        "axes": {"n": {"type": "var"}, "h": {"type": "const", "value": 8}},
        "inputs": {
            "x": {"shape": ["n", "h"], "dtype": "bfloat16"},
            "eps": {"shape": None, "dtype": "float32"},
        },
        "outputs": {"y": {"shape": ["n", "h"], "dtype": "bfloat16"}},
        "reference": "def run(x, eps): ...",
    }
    for name in ("definitions/rmsnorm", "workloads/rmsnorm", "blob"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "definitions/rmsnorm/rmsnorm_h8.json").write_text(json.dumps(definition))
    line = json.dumps({"definition": "rmsnorm_h8", "workload": workload})
    (root / "workloads/rmsnorm/rmsnorm_h8.jsonl").write_text(line + "\n\n")
    container.write(root / "x.kdtr", {"q": ("bf16", np.arange(16, dtype=np.uint16).reshape(2, 8))})
    convert.to_safetensors(root / "x.kdtr", root / "blob/x.safetensors")


X = {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "q"}
EPS = {"type": "scalar", "value": 1e-6}


def test_a_foreign_workload_is_read(tmp_path: Path) -> None:
    foreign(tmp_path, {"uuid": "a-1", "axes": {"n": 2}, "inputs": {"x": X, "eps": EPS}})
    (path,) = flashinfer_trace.load(tmp_path, tmp_path / "out")
    assert path == tmp_path / "out/rmsnorm_h8/a-1.kdtr"
    with container.open(path) as file:
        assert file.info("x").dtype.name == "bf16"
        assert file["x"].tolist() == np.arange(16).reshape(2, 8).tolist()
        assert file.meta["attr.eps"] == 1e-6
        assert json.loads(str(file.meta["axes"])) == {"n": 2}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"uuid": "../a"}, "no file name"),
        ({"inputs": {"x": {**X, "path": "../x.safetensors"}}}, "leaves the data set"),
        ({"inputs": {"x": {**X, "tensor_key": "k"}}}, "no tensor in blob"),
        ({"inputs": {"x": {"type": "pickle"}}}, "scalar, random or safetensors"),
        ({"inputs": None}, "inputs"),
    ],
)
def test_a_hostile_data_set_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    foreign(tmp_path, {"uuid": "a", "axes": {"n": 2}, "inputs": {"x": X}, **changes})
    with pytest.raises(KdtrError, match=said):
        flashinfer_trace.load(tmp_path, tmp_path / "out")


def test_the_command_line_goes_both_ways(tmp_path: Path) -> None:
    data, back = str(tmp_path / "data"), str(tmp_path / "back")
    one = str(goldens.HOME / "argmax@1/ties.kdtr")
    done = CliRunner().invoke(cli, ["convert", "--to", "flashinfer-trace", one, data])
    assert done.output == "1 definitions, 1 workloads\n"
    done = CliRunner().invoke(cli, ["convert", "--from", "flashinfer-trace", data, back])
    assert done.exit_code == 0
    assert Path(done.output.strip()).exists()
