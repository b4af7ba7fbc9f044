"""What of kdtr is here and works, and why the rest does not: `kdtr doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kdtr import __version__, contract, engine, goldens
from kdtr.errors import KdtrError

OPTIONAL = ("ml_dtypes", "torch", "cupy", "jax", "triton", "safetensors", "dask", "fsspec")
"""Packages that some features use when they are there."""


@dataclass(frozen=True)
class Check:
    """One line of the report. `ok` is None for what may be absent."""

    name: str
    ok: bool | None
    text: str

    @property
    def mark(self) -> str:
        return {True: "ok", False: "NO", None: "--"}[self.ok]


def checks() -> Iterator[Check]:
    """Everything, in the order in which a fault in one explains those below it."""
    yield Check("kdtr", True, f"{__version__}, {len(contract.ops())} ops, KDTR format 1")
    python = f"{platform.python_version()}, numpy {np.__version__}, {platform.platform()}"
    yield Check("python", True, python)
    yield _extension()
    yield _judge()
    yield _engine("cpu", needed=True)
    yield _cuda()
    yield _goldens()
    headers = engine.include_dir()
    yield Check("headers", (headers / "kdtr" / "plugin.h").exists(), str(headers))
    found = {name: _version(name) for name in OPTIONAL}
    here = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    absent = ", ".join(name for name, version in found.items() if not version)
    yield Check("optional", None, f"{here or 'none'}; absent: {absent or 'none'}")
    variables = {k: v for k, v in sorted(os.environ.items()) if k.startswith("KDTR_")}
    if variables:
        yield Check("environment", None, " ".join(f"{k}={v}" for k, v in variables.items()))


def _extension() -> Check:
    try:
        from kdtr import _core  # noqa: PLC0415 (built separately)
    except ImportError as error:
        return Check("extension", False, f"kdtr._core cannot be imported: {error}")
    return Check("extension", True, str(_core.__file__))


def _judge() -> Check:
    if why := engine.missing():
        return Check("judge", False, why)
    path = f"{engine.folder()}/kdtr-conform"
    try:
        done = subprocess.run([path, "list"], capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("judge", False, f"{path}: {error}")
    ok = done.returncode == 2  # nothing to list is an error, and says that it runs
    return Check("judge", ok, path if ok else f"{path}: exit status {done.returncode}")


def _engine(name: str, *, needed: bool) -> Check:
    """Load an engine in a process of its own: a broken library must not take this one down."""
    program = (
        "import sys; from kdtr.ops import open_engine as o; e = o(sys.argv[1]); "
        "print(e.name, e.version, '(' + e.build + ')')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, name],
        capture_output=True,
        text=True,
        check=False,
        env={**engine.safe_path(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if done.returncode == 0:
        return Check(name, True, done.stdout.strip())
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return Check(name, False if needed else None, lines[-1])


def _cuda() -> Check:
    where, nvcc = engine.folder(), shutil.which("nvcc")
    if where is None or not (where / "libkdtr_cuda.so").exists():
        why = "nvcc is here: build again" if nvcc else "no nvcc on PATH when it was built"
        return Check("cuda", None, f"off: no CUDA engine was built ({why})")
    if not engine.has_gpu():
        return Check("cuda", None, "off: the driver (libcuda.so.1) is missing or shows no GPU")
    return _engine("cuda", needed=False)


def _goldens() -> Check:
    try:
        lock = goldens.Lock.read(goldens.LOCK)
        goldens.check_contracts(lock, map(contract.load, contract.ops()))
    except KdtrError as error:
        return Check("goldens", False, str(error))
    if not lock.cases:
        return Check("goldens", False, f"no cases in {goldens.LOCK}")
    homes = {"small": goldens.HOME, "full": goldens.FULL}
    counts = []
    for tier, home in homes.items():
        names = [name for name, (own, _) in lock.cases.items() if own == tier]
        here = sum((home / f"{name}.kdtr").exists() for name in names)
        counts.append(f"{here} of {len(names)} {tier}")
    return Check("goldens", True, f"{', '.join(counts)} are here; the others are made when needed")


def _version(package: str) -> str:
    names = (package, f"{package}-cuda12x", f"{package}-cuda13x")
    found = [d for name in names for d in importlib.metadata.distributions(name=name)]
    return found[0].version if found else ""
