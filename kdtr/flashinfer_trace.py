"""Fixtures as a FlashInfer Trace data set, and its workloads as KDTR files.

The schema (definitions, and workloads whose tensors are in safetensors files) is that of
flashinfer-bench 0.1. What it lacks is carried so:

- It has no u8, u16, u32, u64 and f64: such a tensor goes as the signed integer of its width, bit
  for bit, and its description says so.
- It has no tensors that are read and written: `x` is an input and `x_after` an output.
- It has no expected values and no budgets. The reference of a definition calls kdtr's; who wants
  the verdict uses `kdtr certify`.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import case as case_module
from kdtr import container, contract, convert, dtypes
from kdtr.contract import Contract, Tensor
from kdtr.errors import KdtrError
from kdtr.shapes import evaluate

Array = NDArray[Any]
Json = dict[str, Any]

_THEIRS = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "bool": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "f8_e4m3fn": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
}
_OURS = {theirs: ours for ours, theirs in _THEIRS.items()}
_AS_BITS = {"u8": "i8", "u16": "i16", "u32": "i32", "u64": "i64", "f64": "i64"}
_SCALARS = {"i64": "int64", "f64": "float32", "bool": "bool"}
_NAMESPACE = uuid.UUID("8c5b7a52-7d5e-5c7e-9b0e-3f6f1c9f5f10")
"""Of the workloads' UUIDs, which are made from the fixtures' identities."""


@dataclass(frozen=True)
class Summary:
    """What an export wrote: definitions, workloads, and fixtures left out with the reason."""

    definitions: Sequence[str]
    workloads: int
    left_out: Mapping[str, str]


# --- export -------------------------------------------------------------------------------------


def export(fixtures: Iterable[Path], root: Path) -> Summary:
    """Write fixtures as a data set below `root`: definitions/, workloads/ and blob/.

    Fixtures that differ only in data and in axes of their inputs share a definition. Files of the
    same names are replaced. Raises KdtrError for a file that is no fixture.
    """
    definitions: dict[str, Json] = {}
    workloads: dict[str, list[Json]] = {}
    left_out = {}
    for path in fixtures:
        with container.open(path, verify="deep") as file:
            if file.meta.get("kdtr.profile") != "fixture/1":
                raise KdtrError(str(path), "is no fixture", "kdtr.profile fixture/1")
            rules = contract.load(str(file.meta["op"]))
            try:
                definition, axes = _definition(rules, file)
            except KdtrError as error:
                left_out[str(path)] = str(error)
                continue
            name = definition["name"]
            definitions[name] = definition
            blob = f"blob/workloads/{rules.op}/{name}/{file.meta['case']!s}.safetensors"
            workload = _workload(rules, file, axes, blob)
            trace = {"definition": name, "workload": workload, "solution": None, "evaluation": None}
            workloads.setdefault(name, []).append(trace)
            _write_blob(rules, file, root / blob)
    for name, definition in definitions.items():
        op = definition["op_type"].removeprefix("kdtr_")
        _write(root / f"definitions/{op}/{name}.json", json.dumps(definition, indent=2) + "\n")
        lines = (json.dumps(one) + "\n" for one in workloads[name])
        _write(root / f"workloads/{op}/{name}.jsonl", "".join(lines))
    return Summary(sorted(definitions), sum(map(len, workloads.values())), left_out)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _present(rules: Contract, file: container.File) -> list[tuple[Tensor, str, str]]:
    """(argument, its name as an input or output there, dtype) of what this fixture holds."""
    found = []
    for tensor in rules.tensors:
        if tensor.role != "out" and tensor.name in file.tensors:
            found.append((tensor, tensor.name, file.info(tensor.name).dtype.name))
        if tensor.role != "in":
            stored = tensor.name if tensor.role == "out" else f"{tensor.name}/after"
            if stored in file.tensors:
                dtype = str(file.info(stored).meta["actual.dtype"])
                there = tensor.name if tensor.role == "out" else f"{tensor.name}_after"
                found.append((tensor, there, dtype))
    return found


def _definition(rules: Contract, file: container.File) -> tuple[Json, dict[str, int]]:
    """The definition that a fixture is a workload of, and the values of its variable axes."""
    present = _present(rules, file)
    sizes = _sizes(rules, file)
    inputs: Json = {}
    outputs: Json = {}
    bound: set[str] = set()
    values: dict[str, int] = {}
    for tensor, name, dtype in present:
        shape = [_axis(text) for text in tensor.axes]
        for axis, text in zip(shape, tensor.axes, strict=True):
            values[axis] = int(evaluate(text, sizes, f"{file.where}/{name}"))
        is_input = name in file.tensors and file.info(name).meta["role"] in ("input", "state")
        (inputs if is_input else outputs)[name] = _spec(tensor, shape, dtype)
        bound |= set(shape) if is_input else set()
    fixed = {}
    for attr in rules.attrs:
        if attr.type in _SCALARS:
            inputs[attr.name] = {
                "shape": None,
                "dtype": _SCALARS[attr.type],
                "description": attr.doc or attr.name,
            }
        else:
            fixed[attr.name] = str(file.meta[f"attr.{attr.name}"])
    arith = str(file.meta["arith"])
    types = {name: dtype for _, name, dtype in present}
    axes = {
        axis: {"type": "var"} if axis in bound else {"type": "const", "value": value}
        for axis, value in values.items()
    }
    key = json.dumps([rules.id, arith, types, fixed, axes, list(inputs)], sort_keys=True)
    words = [*(f"{k.lower()}_{v}" for k, v in fixed.items()), arith]
    words += [f"{axis}{value}" for axis, value in values.items() if axis not in bound]
    short = hashlib.sha256(key.encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9_]+", "_", "_".join([rules.op, *words, short]))
    return {
        "name": name,
        "op_type": f"kdtr_{rules.op}",
        "description": rules.summary,
        "tags": [f"kdtr:{rules.id}", f"kdtr-contract:{rules.digest}", f"kdtr-arith:{arith}"],
        "axes": axes,
        "inputs": inputs,
        "outputs": outputs,
        "reference": _reference(rules, arith, fixed, inputs, types),
    }, {axis: value for axis, value in values.items() if axis in bound}


def _sizes(rules: Contract, file: container.File) -> dict[str, int]:
    sizes = {
        key.removeprefix("attr."): value
        for key, value in file.meta.items()
        if key.startswith("attr.") and isinstance(value, int)
    }
    for tensor in rules.tensors:
        for name in (tensor.name, f"{tensor.name}/after"):
            if name in file.tensors:
                pairs = zip(tensor.axes, file.info(name).shape, strict=True)
                sizes |= {axis: size for axis, size in pairs if axis.isidentifier()}
    return sizes


def _axis(text: str) -> str:
    """A contract's axis as an identifier: "budget+1" is budget_plus_1."""
    words = {"+": "_plus_", "-": "_minus_", "*": "_times_", "/": "_over_", "(": "_", ")": ""}
    return "".join(words.get(c, c) for c in text.replace(" ", ""))


def _there(dtype: str) -> str:
    """The type that a tensor has there. Raises KdtrError when there is none."""
    if dtype in _AS_BITS:
        return _THEIRS[_AS_BITS[dtype]]
    if dtype not in _THEIRS:
        raise KdtrError("flashinfer-trace", "type that the schema lacks", sorted(_THEIRS), dtype)
    return _THEIRS[dtype]


def _spec(tensor: Tensor, shape: list[str], dtype: str) -> Json:
    text = tensor.doc or tensor.name
    if dtype in _AS_BITS:
        text += f" (the bits of {dtype})"
    return {"shape": shape, "dtype": _there(dtype), "description": text}


def _workload(rules: Contract, file: container.File, axes: dict[str, int], blob: str) -> Json:
    inputs: Json = {}
    for _, name, _ in _present(rules, file):
        if name in file.tensors and file.info(name).meta["role"] in ("input", "state"):
            inputs[name] = {"type": "safetensors", "path": blob, "tensor_key": name}
    for attr in rules.attrs:
        if attr.type in _SCALARS:
            inputs[attr.name] = {"type": "scalar", "value": file.meta[f"attr.{attr.name}"]}
    return {
        "uuid": str(uuid.uuid5(_NAMESPACE, file.identity)),
        "axes": axes,
        "inputs": inputs,
    }


def _write_blob(rules: Contract, file: container.File, path: Path) -> None:
    tensors: dict[str, container.TensorIn] = {}
    for _, name, dtype in _present(rules, file):
        if name in file.tensors and file.info(name).meta["role"] in ("input", "state"):
            ours = _AS_BITS.get(dtype, dtype)
            tensors[name] = (ours, file[name].view(dtypes.by_name(ours).storage))
    meta = {key: file.meta[key] for key in ("op", "case", "arith", "catches")}
    meta["fixture"] = file.identity
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kdtr-") as folder:
        plain = Path(folder, "inputs.kdtr")
        container.write(plain, tensors, meta)
        convert.to_safetensors(plain, path)


def _reference(
    rules: Contract, arith: str, fixed: Mapping[str, str], inputs: Json, types: Mapping[str, str]
) -> str:
    """Python text with `run`: the schema wants one; kdtr's reference is what defines the op."""
    scalars = [a.name for a in rules.attrs if a.type in _SCALARS]
    arrays = [name for name in inputs if name not in scalars]
    attrs = ", ".join(
        [*(f"{k!r}: {v!r}" for k, v in fixed.items()), *(f"{n!r}: {n}" for n in scalars)]
    )
    given = ", ".join(f"{name!r}: {name}" for name in arrays)
    return (
        "from kdtr import flashinfer_trace\n\n\n"
        f"def run({', '.join(inputs)}):\n"
        f"    attrs = {{{attrs}}}\n"
        f"    types = {json.dumps(dict(types))}\n"
        f"    inputs = {{{given}}}\n"
        f"    return flashinfer_trace.run({rules.id!r}, {arith!r}, attrs, types, inputs)\n"
    )


def run(
    op: str,
    arith: str,
    attrs: Mapping[str, Any],
    types: Mapping[str, str],
    inputs: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Outputs of kdtr's reference, in the contract's order, for the `run` of a definition.

    Args:
        op: id, as "argmax@1".
        arith: arithmetic profile.
        attrs: attributes by name.
        types: kdtr's type of each argument.
        inputs: torch tensors or numpy arrays (bf16 as bits), in the types of the data set.
    """
    rules = contract.load(op)
    like = next(iter(inputs.values()))
    widened = {}
    for name, value in inputs.items():
        dtype = types[name]
        bits = _numpy(value).view(dtypes.by_name(dtype).storage)
        widened[name] = case_module.widen(dtypes.decode(bits, dtype, bits.shape))
    kinds = {"i64": int, "f64": float, "bool": bool, "utf-8": str}
    exact = {a.name: kinds[a.type](attrs[a.name]) for a in rules.attrs}
    result = case_module.reference(rules.op)(widened, exact, arith)
    found = []
    for tensor in rules.outputs:
        name = tensor.name if tensor.role == "out" else f"{tensor.name}_after"
        if name in types:
            found.append(_like(like, _stored(result[tensor.name], types[name]), types[name]))
    return tuple(found)


def _stored(values: Array, dtype: str) -> Array:
    floats = dtype in dtypes.FLOATS and dtype != "f64"
    return dtypes.encode(dtypes.round_to(values, dtype) if floats else values, dtype)


def _numpy(value: Any) -> Array:
    """The bits of a tensor as a numpy array."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value)
    import torch  # noqa: PLC0415 (only there)

    host = value.detach().cpu().contiguous()
    native = {torch.float32, torch.float16, torch.int8, torch.int16, torch.int32, torch.int64}
    if host.dtype not in native:
        host = host.view({1: torch.uint8, 2: torch.int16}[host.element_size()])
    array: Array = host.numpy()
    return array


def _like(like: Any, bits: Array, dtype: str) -> Any:
    """Stored bits as `like`'s kind of tensor, in the type of the data set."""
    ours = _AS_BITS.get(dtype, dtype)
    if isinstance(like, np.ndarray):
        return bits.view(dtypes.by_name(ours).storage)
    import torch  # noqa: PLC0415 (only there)

    signed = torch.from_numpy(bits.view(f"i{bits.itemsize}").copy())
    return signed.view(getattr(torch, _THEIRS[ours])).to(like.device)


# --- import -------------------------------------------------------------------------------------


def load(root: Path, target: Path) -> list[Path]:
    """Write each workload of a data set as `<target>/<definition>/<uuid>.kdtr`.

    Tensors have the role `input`; scalars are `attr.<name>`; the definition and the axes are kept
    as metadata. Inputs that the data set leaves to a random generator are left out and named in
    the metadata `random`. Raises KdtrError for what does not fit the schema.
    """
    definitions = {}
    for path in sorted((root / "definitions").rglob("*.json")):
        one = _json(path, path.read_text(encoding="utf-8"))
        definitions[_field(path, one, "name", str)] = one
    written = []
    for path in sorted((root / "workloads").rglob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                where = f"{path}:{number}"
                trace = _json(where, line)
                name = _field(where, trace, "definition", str)
                if name not in definitions:
                    raise KdtrError(where, "no such definition", sorted(definitions), name)
                workload = _field(where, trace, "workload")
                written.append(_load_one(where, definitions[name], workload, root, target))
    return written


def _load_one(where: str, definition: Json, workload: Json, root: Path, target: Path) -> Path:
    meta: dict[str, container.Scalar] = {
        "definition": json.dumps(definition, sort_keys=True),
        "axes": json.dumps(_field(where, workload, "axes"), sort_keys=True),
        "uuid": _field(where, workload, "uuid", str),
    }
    tensors: dict[str, container.TensorIn] = {}
    random = []
    for name, source in _field(where, workload, "inputs").items():
        match source:
            case {"type": "scalar", "value": bool() | int() | float() as value}:
                meta[f"attr.{name}"] = value
            case {"type": "random"}:
                random.append(name)
            case {"type": "safetensors", "path": str() as path, "tensor_key": str() as key}:
                tensors[name] = _tensor(f"{where}/{name}", root, path, key, definition, name)
            case _:
                raise KdtrError(f"{where}/{name}", "input", "scalar, random or safetensors", source)
    if random:
        meta["random"] = ",".join(random)
    stem = _safe(where, str(meta["uuid"]))
    out = target / _safe(where, definition["name"]) / f"{stem}.kdtr"
    out.parent.mkdir(parents=True, exist_ok=True)
    container.write(out, tensors, meta, {name: {"role": "input"} for name in tensors})
    return out


def _tensor(
    where: str, root: Path, path: str, key: str, definition: Json, name: str
) -> container.TensorIn:
    file = (root / path).resolve()
    if not file.is_relative_to(root.resolve()):
        raise KdtrError(where, "path leaves the data set", str(root), path)
    with tempfile.TemporaryDirectory(prefix="kdtr-") as folder:
        plain = Path(folder, "inputs.kdtr")
        convert.from_safetensors(file, plain, rename=True)
        with container.open(plain) as read:
            if key not in read.tensors:
                raise KdtrError(where, f"no tensor in {path}", sorted(read.tensors), key)
            info, bits = read.info(key), read[key].copy()
    theirs = _field(where, _field(where, definition, "inputs"), name).get("dtype")
    if _OURS.get(theirs) != info.dtype.name:
        raise KdtrError(where, "dtype", theirs, info.dtype.name)
    return info.dtype.name, bits


def _json(where: object, text: str) -> Json:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise KdtrError(str(where), "not JSON", got=error) from None
    if not isinstance(value, dict):
        raise KdtrError(str(where), "not a JSON object", got=type(value).__name__)
    return value


def _field(where: object, value: Any, key: str, kind: type = dict) -> Any:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        raise KdtrError(f"{where}/{key}", "field", kind.__name__, type(found).__name__)
    return found


def _safe(where: str, name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or name.startswith("."):
        raise KdtrError(where, "name is no file name", "letters, digits, _ . -", repr(name))
    return name
