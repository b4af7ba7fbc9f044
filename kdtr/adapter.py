"""A Python callable as an engine: numpy, torch, CuPy, JAX or Triton, through DLPack.

An engine is any object with functions named after ops, such as a module:

    import numpy as np

    def argmax(call):
        logits = call.inputs["logits"].numpy()
        call.outputs["ids"].write(np.argmax(logits, axis=-1))
        call.outputs["status"].write(0)

    device = "cpu"      # or "cuda", "cuda:1"; default "cpu"

`kdtr certify --engine package.module` runs it; `package.module:object` names an object in it.
Asking for an argument is what the judge records, so ask for each one that the op declares.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import dtypes
from kdtr.errors import EngineError, KdtrError

_ROLES = {"inputs": 0, "outputs": 1, "state": 2}
_DEVICES = {"cpu": 1, "cuda": 2}
_LIBRARIES = (
    "<",
    f"{Path(__file__).parent}{os.sep}",
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")),
)
"""How the files of frames begin that an engine's author did not write."""


class View:
    """One tensor of a call, valid until the kernel returns. No copy is made.

    Attributes:
        shape: sizes, outermost first.
        dtype: KDTR name, as "bf16".

    It is a DLPack producer: `torch.from_dlpack(view)`, `cupy.from_dlpack(view)`.
    """

    def __init__(self, core: Any) -> None:
        self._core = core
        self.shape: tuple[int, ...] = core.shape
        self.dtype: str = core.dtype

    def __dlpack__(self, **options: Any) -> Any:
        return self._core.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._core.__dlpack_device__()
        return device

    def numpy(self) -> NDArray[Any]:
        """The tensor as a numpy array; bf16 as uint16 bits. Host memory only."""
        if self.__dlpack_device__()[0] != _DEVICES["cpu"]:
            raise EngineError("View.numpy", "device", "cpu", self.__dlpack_device__())
        storage = dtypes.by_name(self.dtype).storage
        count = int(np.prod(self.shape, dtype=np.int64))
        if count == 0:
            return np.empty(self.shape, storage)
        raw = (ctypes.c_uint8 * (count * storage.itemsize)).from_address(self._core.address)
        array: NDArray[Any] = np.ctypeslib.as_array(raw).view(storage).reshape(self.shape)
        array.flags.writeable = self._core.writable
        return array

    def torch(self) -> Any:
        """The tensor as a torch tensor on its device."""
        import torch  # noqa: PLC0415 (only where the engine uses it)

        return torch.from_dlpack(self)

    def write(self, values: Any) -> None:
        """Copy `values` (an array of this shape, or one that broadcasts to it) into the tensor.

        bf16 outputs take bits (uint16), f32 numbers to round, or a torch tensor; integers take
        whole numbers.
        """
        if not self._core.writable:
            raise EngineError("View.write", "argument is an input")
        if type(values).__module__.partition(".")[0] == "torch":
            self.torch().copy_(values)
            return
        if self.__dlpack_device__()[0] != _DEVICES["cpu"]:
            import cupy  # noqa: PLC0415 (as above)

            cupy.from_dlpack(self)[...] = values
            return
        array = np.asarray(values)
        if self.dtype in ("bf16", "f16") and array.dtype.kind == "f" and array.dtype.itemsize > 2:
            array = dtypes.encode(dtypes.round_to(array, self.dtype), self.dtype)
        into = self.numpy()
        if into.dtype.kind in "iu" and array.dtype.kind == "f":
            wide, limits = array.astype(np.float64), np.iinfo(into.dtype)
            if np.any(wide != np.rint(wide)):
                raise EngineError(
                    "View.write", "values", f"whole numbers, for {self.dtype}", "fractions"
                )
            if np.any((wide < limits.min) | (wide > limits.max)):
                raise EngineError("View.write", "values", f"those of {self.dtype}", "larger ones")
        np.copyto(into, array, casting="unsafe")


class _Named(Mapping[str, Any]):
    """Arguments by name. Asking for one is recorded; names, their number and membership are not."""

    def __init__(self, get: Callable[[str], Any], names: Callable[[], list[str]]) -> None:
        self._get, self._names = get, names

    def __getitem__(self, name: str) -> Any:
        return self._get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())


class Call:
    """One call of one op.

    Attributes:
        op: id, as "tree_build@1".
        arith: arithmetic profile of the budgets.
        stream: the CUDA stream to enqueue on, as an integer; 0 on the CPU. While a kernel runs,
            it is the current stream of torch and CuPy where those are loaded.
        inputs, outputs, state: arguments by role; `state` is read and written.
        attrs: attributes by name.
    """

    def __init__(self, core: Any) -> None:
        self.core = core
        self.op: str = core.op
        self.arith: str = core.arith
        self.stream: int = core.stream
        self.inputs: Mapping[str, View] = self._tensors("inputs")
        self.outputs: Mapping[str, View] = self._tensors("outputs")
        self.state: Mapping[str, View] = self._tensors("state")
        self.attrs: Mapping[str, Any] = _Named(core.attr, core.attr_names)

    def _tensors(self, kind: str) -> Mapping[str, View]:
        role = _ROLES[kind]
        return _Named(
            lambda name: View(self.core.tensor(name, role)),
            lambda: [name for name, own in self.core.names().items() if own == role],
        )


class Adapter:
    """What `kdtr._core` asks of a Python engine: description, support, run.

    `source` is the file that a certificate is about: its SHA-256 is written there.
    """

    def __init__(self, engine: Any, spec: str, source: str = "") -> None:
        self.engine, self.spec = engine, spec
        device = str(getattr(engine, "device", "cpu"))
        kind, _, number = device.partition(":")
        if kind not in _DEVICES or not (number or "0").isdecimal():
            raise EngineError(spec, "device", " or ".join(_DEVICES), device)
        self.device = (_DEVICES[kind], int(number or 0))
        self.source = source

    def describe(self) -> dict[str, Any]:
        """Name, version and device, for the report."""
        version = str(getattr(self.engine, "__version__", ""))
        kind, number = self.device
        return {
            "name": self.spec,
            "version": version,
            "device_type": kind,
            "device_id": number,
        }

    def kernel(self, op: str) -> Callable[[Call], None] | None:
        """The engine's function for an op id, by id or by plain name; None when it has none."""
        for name in (op, op.partition("@")[0]):
            found = self.engine.get(name) if isinstance(self.engine, Mapping) else None
            found = found or getattr(self.engine, name, None)
            if callable(found):
                return found  # type: ignore[no-any-return]
        return None

    def unsupported(self, core: Any) -> str:
        """An empty text when the engine runs the op, else why not.

        An engine may refuse calls by a function `unsupported(call)` of its own; tensors have
        shapes and no data there.
        """
        if self.kernel(core.op) is None:
            return f"{self.spec} has no function {core.op.partition('@')[0]}"
        ask = getattr(self.engine, "unsupported", None)
        return str(ask(Call(core)) or "") if callable(ask) else ""

    def outputs(self, op: str) -> str | None:
        """Names of the outputs that the engine writes for an op, by commas; None for all.

        An engine says so by a mapping `outputs` from ops to lists of names, or to such a text. An
        output that it does not write is not checked, and the report lists it.
        """
        partial = getattr(self.engine, "outputs", None)
        if not isinstance(partial, Mapping):
            return None
        names = partial.get(op, partial.get(op.partition("@")[0]))
        return names if names is None or isinstance(names, str) else ",".join(names)

    def run(self, core: Any) -> None:
        """Run one call on the judge's stream."""
        kernel = self.kernel(core.op)
        assert kernel is not None
        with _current_stream(core.stream, self.device):
            kernel(Call(core))


@contextmanager
def _current_stream(stream: int, device: tuple[int, int]) -> Iterator[None]:
    if device[0] != _DEVICES["cuda"]:
        yield
        return
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    mine = (
        torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device[1]))
        if torch
        else nullcontext()
    )
    theirs = cupy.cuda.ExternalStream(stream, device[1]) if cupy else nullcontext()
    with mine, theirs:
        yield


def one_line(error: BaseException) -> str:
    """An exception as one line: type, message, and where in the engine it was raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    own = [f for f in frames if not f.filename.startswith(_LIBRARIES)]
    own = own or ([] if isinstance(error, KdtrError) else frames)  # that says where by itself
    file, line = (own[-1].filename, own[-1].lineno) if own else ("", 0)
    what = str(error)
    if isinstance(error, SyntaxError) and error.filename:  # the file was not run
        file, line, what = error.filename, error.lineno, error.msg
    place = f" at {Path(file).name}:{line}" if file and not file.startswith("<") else ""
    text = f"{type(error).__name__}: {what}{place}".replace("\n", " ")
    return text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates reach no report


def load(spec: str) -> Adapter:
    """The engine named `package.module` or `package.module:object`.

    Modules are looked for in the working directory too. Raises EngineError.
    """
    module, _, name = spec.partition(":")
    if Path(module).suffix in (".py", ".so"):
        want = module.removesuffix(".py") if module.endswith(".py") else f"./{spec}"
        raise EngineError(spec, "a file, not the name of a module", want, module)
    if "" not in sys.path and "." not in sys.path:
        sys.path.insert(0, "")
    try:
        engine: Any = importlib.import_module(module)
        source = getattr(engine, "__file__", None) or ""
    except Exception as error:  # whatever the module raises while it is imported
        raise EngineError(spec, f"cannot import {module}", got=one_line(error)) from error
    for part in filter(None, name.split(".")):
        if not hasattr(engine, part):
            raise EngineError(spec, f"{module} has no {part}")
        engine = getattr(engine, part)
    return Adapter(engine, spec, source)
