"""pytest plug-in: `@pytest.mark.kdtr("argmax")` runs a test once for each case of an op.

    @pytest.mark.kdtr("argmax", case="random_*")
    def test_mine(kdtr_case):
        ids, status = my_argmax(kdtr_case.values("logits"))
        kdtr_case.judge(ids=ids, status=status)

The marker takes ops, `case` (a pattern over case names) and `tier` ("small" or "full").
"""

from __future__ import annotations

import fnmatch
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # imported where it is used: this module is loaded by every pytest run
    from numpy.typing import NDArray

    from kdtr.adapter import Adapter, Call, View


class QualityWarning(UserWarning):
    """An output lies between its gate and its hard budget: right, but worse than usual."""


class KdtrCase:
    """One golden case: what goes in, and a judge for what comes out.

    Attributes:
        op: id, as "argmax@1".
        name: of the case.
        catches: the mistake that it is there for.
        arith: arithmetic profile of its budgets.
        attrs: attributes by name.
        path: the fixture file.
    """

    def __init__(self, path: Path) -> None:
        from kdtr import container  # noqa: PLC0415 (see above)

        self.path = path
        self._file = container.open(path)
        meta = self._file.meta
        self.op, self.name = str(meta["op"]), str(meta["case"])
        self.catches, self.arith = str(meta["catches"]), str(meta["arith"])
        self.attrs: dict[str, Any] = {
            key.removeprefix("attr."): value
            for key, value in meta.items()
            if key.startswith("attr.")
        }

    @property
    def inputs(self) -> Mapping[str, NDArray[Any]]:
        """Inputs and initial states by name, as stored (bf16 as uint16 bits), read-only."""
        return {
            name: self._file[name]
            for name, info in self._file.tensors.items()
            if info.meta.get("role") in ("input", "state")
        }

    def dtype(self, name: str) -> str:
        """kdtr's name of a tensor's type, as "bf16"."""
        return self._file.info(name).dtype.name

    def values(self, name: str) -> NDArray[Any]:
        """An input in a type that numpy computes with: bf16 and f16 as f32, exactly."""
        return self._file.values(name)

    def torch(self, name: str, device: str = "cpu") -> Any:
        """An input as a torch tensor of its own type, copied to `device`."""
        import torch  # noqa: PLC0415 (only where it is used)

        array = self._file[name].copy()
        if self.dtype(name) == "bf16":
            return torch.from_numpy(array.view("i2")).view(torch.bfloat16).to(device)
        return torch.from_numpy(array).to(device)

    def judge(self, **outputs: Any) -> None:
        """Judge outputs, every one that the op has, by name: arrays or torch tensors.

        Shapes must be the op's, not merely broadcast to them. Raises AssertionError with the
        judge's text; a result between gate and hard budget is a QualityWarning.
        """
        __tracebackhide__ = True

        def write(call: Call) -> None:
            core = call.core
            for name, role in core.names().items():
                if role == _IN:
                    call.inputs[name]
                    continue
                view = (call.outputs if role == _OUT else call.state)[name]
                if name not in outputs:
                    raise KeyError(f"output {name} was not given")
                _copy(name, view, outputs[name])
            for name in core.attr_names():
                call.attrs[name]
            if unknown := sorted(outputs.keys() - core.names().keys()):
                raise KeyError(f"{call.op} has no output {', '.join(unknown)}")

        self.judge_function(write)

    def judge_function(self, kernel: Callable[[Call], None]) -> None:
        """Judge a function of a `kdtr.adapter.Call`, in this process. Raises AssertionError."""
        __tracebackhide__ = True
        from kdtr import ops  # noqa: PLC0415 (see above)

        name = getattr(kernel, "__qualname__", "function")
        core = ops.engine_of(_adapter({self.op: kernel}, name), name)
        _conclude(json.loads(core.judge(str(self.path))))

    def judge_engine(self, engine: str) -> None:
        """Judge an engine as `kdtr certify --engine` names it, in a process of its own.

        Raises AssertionError; skips when the engine does not support the call.
        """
        __tracebackhide__ = True
        from kdtr import engine as compiled  # noqa: PLC0415 (see above)
        from kdtr.errors import EngineError  # noqa: PLC0415

        where = compiled.folder()
        if where is None or compiled.missing():
            raise EngineError("kdtr-conform", compiled.missing())
        with tempfile.TemporaryDirectory(prefix="kdtr-") as folder:
            report = Path(folder, "results.jsonl")
            command: list[str | Path] = [where / "kdtr-conform", "run", "--engine", engine]
            if compiled.in_python(engine):
                command += ["--python", sys.executable]
            done = subprocess.run(
                [*command, "--json", report, self.path], capture_output=True, text=True, check=False
            )
            lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
        results = [one for one in map(json.loads, lines) if one.get("kind") == "case"]
        if not results:
            raise EngineError(engine, "cannot be judged", got=(done.stdout + done.stderr).strip())
        _conclude(results[0])


_IN, _OUT = 0, 1


def _adapter(functions: Mapping[str, Callable[[Call], None]], name: str) -> Adapter:
    from kdtr.adapter import Adapter  # noqa: PLC0415 (see above)

    return Adapter(functions, name)


def _copy(name: str, view: View, value: Any) -> None:
    shape = tuple(getattr(value, "shape", ()))
    if shape != view.shape:
        raise ValueError(f"{name}: shape, want {list(view.shape)}, got {list(shape)}")
    kind = str(getattr(value, "dtype", type(value)))
    if view.dtype.startswith(("i", "u")) and "float" in kind:
        raise TypeError(f"{name}: type, want {view.dtype}, got {kind}")
    view.write(value)


def _conclude(result: Mapping[str, Any]) -> None:
    """Turn the judge's verdict into pytest's."""
    __tracebackhide__ = True
    status, text = result["status"], str(result.get("text", "")).rstrip()
    text = text or "\n".join(result.get("findings", ()))
    if status == "PASS":
        return
    if status == "QUALITY_WARNING":
        warnings.warn(text, QualityWarning, stacklevel=3)
        return
    if status in ("NOT_SUPPORTED", "SKIP"):
        pytest.skip("; ".join(result.get("findings", ())) or status)
    raise AssertionError(text)


# --- hooks --------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", 'kdtr(*ops, case="*", tier="small"): run once for each golden case of the ops'
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run for each case, in declared order."""
    if "kdtr_case" not in metafunc.fixturenames:
        return
    chosen = []
    for marker in metafunc.definition.iter_markers("kdtr"):
        chosen += list(_select(marker))
    if not chosen:
        raise pytest.UsageError(
            f'{metafunc.definition.nodeid}: kdtr_case needs @pytest.mark.kdtr("op") with a case'
        )
    ids = [f"{op}-{case}" for op, case, _ in chosen]
    metafunc.parametrize("kdtr_case", chosen, ids=ids, indirect=True)


def _select(marker: pytest.Mark) -> Iterator[tuple[str, str, str]]:
    """(op, case, tier) of what a marker asks for."""
    from kdtr import goldens  # noqa: PLC0415 (see above)

    unknown = sorted(marker.kwargs.keys() - {"case", "tier"})
    if unknown or not marker.args:
        raise pytest.UsageError(f'kdtr marker: want kdtr("op", case=..., tier=...), got {marker}')
    tier = marker.kwargs.get("tier", "small")
    for op, case in goldens.select(marker.args, tier):
        if fnmatch.fnmatch(case.name, marker.kwargs.get("case", "*")):
            yield op, case.name, tier


@lru_cache
def _paths(op: str, tier: str) -> dict[str, Path]:
    from kdtr import goldens  # noqa: PLC0415 (see above)

    return {path.stem: path for path in goldens.ensure((op,), tier)}  # type: ignore[arg-type]


@pytest.fixture
def kdtr_case(request: pytest.FixtureRequest) -> KdtrCase:
    """The case at hand; see `KdtrCase`."""
    op, name, tier = request.param
    return KdtrCase(_paths(op, tier)[name])
