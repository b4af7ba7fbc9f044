"""Call an engine's kernels on arrays: numpy, torch, CuPy or anything that speaks DLPack.

    from kdtr import ops

    cpu = ops.Engine("cpu")
    tree = cpu.call("tree_build", logprobs=lp, ids=ids, root_token=t, prefix_len=p,
                    budget=64, tie_order="ranks")
    tree["parents"]                                  # numpy int32 [R, 65]

Inputs are not copied. On a CUDA engine pass torch or CuPy tensors and, with `out=`, tensors to
write to; work is enqueued on `stream` and the call returns at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import contract, dtypes, engine
from kdtr.errors import EngineError
from kdtr.shapes import Axes

_CPU = 1
_ROLES = {"in": "unknown arguments", "out": "unknown outputs", "inout": "unknown state"}


class Prepared:
    """A call bound by `Engine.prepare`: `run(stream)` enqueues it; `out` holds its outputs."""

    def __init__(self, core: Any, outputs: Mapping[str, Any]) -> None:
        self._core = core
        self.out = {n: v[1] if isinstance(v, tuple) else v for n, v in outputs.items()}

    def run(self, stream: int = 0) -> None:
        """Enqueue the call. Raises EngineError with the kernel's message."""
        self._core.run(stream)


class Engine:
    """An engine by name (`cpu`, `cuda`), library path, `module:object` or `cmd:PROGRAM`.

    Raises EngineError when it cannot be loaded.
    """

    def __init__(self, spec: str) -> None:
        self._core = open_engine(spec)
        self.spec = spec
        self.device: tuple[int, int] = self._core.device

    def call(
        self,
        op: str,
        *,
        out: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        arith: str = "",
        stream: int = 0,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Run one op.

        Args:
            op: name or id, as "tree_build".
            out: output arrays to write, by name; on the CPU the missing ones are made.
            state: arrays that are read and written.
            arith: arithmetic profile; by default the contract's first.
            stream: CUDA stream as an integer.
            **arguments: inputs (arrays) and attributes (numbers, text) by name. A numpy array
                of bf16 bits is ("bf16", uint16 array).

        Returns:
            Every output by name. Raises KdtrError when the call does not fit the contract.
        """
        bound = self._bind(op, out, state, arith, arguments)
        self._core.run(*bound, stream)
        return {n: v[1] if isinstance(v, tuple) else v for n, v in bound[2].items()}

    def unsupported(
        self,
        op: str,
        *,
        out: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        arith: str = "",
        **arguments: Any,
    ) -> str:
        """Why the engine does not run a call, or "" when it does; see `call`. Nothing runs."""
        bound = self._bind(op, out, state, arith, arguments)
        reason: str = self._core.unsupported(*bound)
        return reason

    def outputs(self, op: str) -> frozenset[str]:
        """Names of the outputs that the engine writes; others are left as they were."""
        rules = contract.load(op)
        written: list[str] | None = self._core.outputs(rules.id)
        return frozenset(t.name for t in rules.outputs) if written is None else frozenset(written)

    def prepare(
        self,
        op: str,
        *,
        out: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        arith: str = "",
        **arguments: Any,
    ) -> Prepared:
        """Bind a call once, to run it many times on the same memory; see `call`.

        It holds the arrays and a workspace of its own, so that it may be captured in a graph.
        """
        bound = self._bind(op, out, state, arith, arguments)
        return Prepared(self._core.prepare(*bound), bound[2])

    def _bind(
        self,
        op: str,
        out: Mapping[str, Any] | None,
        state: Mapping[str, Any] | None,
        arith: str,
        arguments: Mapping[str, Any],
    ) -> tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], str]:
        """The op's id, inputs, outputs, state, attributes and profile."""
        rules = contract.load(op)
        profile = rules.profile(arith)
        attrs = {a.name: arguments[a.name] for a in rules.attrs if a.name in arguments}
        inputs = {n: v for n, v in arguments.items() if n not in attrs}
        outputs = dict(out or {})
        for role, given in (("in", inputs), ("out", outputs), ("inout", dict(state or {}))):
            known = [t.name for t in rules.tensors if t.role == role]
            if unknown := sorted(set(given) - set(known)):
                raise EngineError(rules.id, _ROLES[role], known, unknown)
            for name, value in given.items():
                _check_array(f"{rules.id}/{name}", value)
        needed = [t for t in rules.tensors if t.role != "out" and not t.when]
        absent = [t.name for t in needed if t.name not in {**inputs, **(state or {})}]
        if absent := absent + [a.name for a in rules.attrs if a.name not in attrs]:
            raise EngineError(rules.id, "missing arguments", got=absent)
        if self.device[0] == _CPU:
            allocate(rules, inputs, attrs, state or {}, outputs)
        return rules.id, inputs, outputs, dict(state or {}), attrs, profile


def allocate(
    rules: contract.Contract,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any],
    state: Mapping[str, Any],
    outputs: dict[str, Any],
) -> None:
    """Add to `outputs` an array of host memory for each output that it lacks."""
    given = {**inputs, **state}
    axes = Axes(rules.id, {n: v for n, v in attrs.items() if isinstance(v, int)})
    for name, value in given.items():
        axes.bind(rules.tensor(name), _shape(value))
    for tensor in rules.outputs:
        if tensor.role == "out" and tensor.name not in outputs:
            dtype = tensor.dtypes[0]
            if len(tensor.dtypes) > 1:
                same = next((t for t in rules.tensors if t.dtypes == tensor.dtypes), tensor)
                dtype = _dtype(given[same.name]) if same.name in given else dtype
            array: NDArray[Any] = np.empty(axes.shape(tensor), dtypes.by_name(dtype).storage)
            native = dtypes.of_numpy(array.dtype).name == dtype
            outputs[tensor.name] = array if native else (dtype, array)


def _check_array(where: str, value: Any) -> None:
    """Raise EngineError for what is neither an array nor ("bf16", bits)."""
    match value:
        case (str(), array):
            pass
        case tuple():
            raise EngineError(where, "argument", 'an array or ("bf16", bits)', repr(value)[:80])
        case array:
            pass
    if not hasattr(array, "__dlpack__"):
        raise EngineError(where, "argument", "an object with __dlpack__", type(array).__name__)


def _shape(value: Any) -> tuple[int, ...]:
    array = value[1] if isinstance(value, tuple) else value
    return tuple(int(n) for n in array.shape)


def _dtype(value: Any) -> str:
    if isinstance(value, tuple):
        return str(value[0])
    return dtypes.of_numpy(np.asarray(value).dtype).name


def _extension() -> Any:
    try:
        from kdtr import _core  # noqa: PLC0415 (built separately: say so when it is missing)
    except ImportError as error:
        raise EngineError(
            "kdtr._core", "the extension is not built", remedy="pip install kdtr"
        ) from error
    return _core


def engine_of(adapter: Any, name: str) -> Any:
    """A `kdtr.adapter.Adapter` as the extension sees it. Raises EngineError."""
    return _extension().Engine.python(adapter, name)


def open_engine(spec: str) -> Any:
    """The engine behind `spec` as the extension sees it. Raises EngineError."""
    _core = _extension()
    if spec.startswith("cmd:"):
        from kdtr.command import Command  # noqa: PLC0415 (rarely needed)

        return _core.Engine.python(Command(spec[4:], spec), spec)
    if "/" in spec or spec.partition(":")[0] in ("cpu", "cuda", "mutants"):
        return _core.Engine(engine.resolve(spec))
    from kdtr import adapter  # noqa: PLC0415 (rarely needed)

    return _core.Engine.python(adapter.load(spec), spec)
