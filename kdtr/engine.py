"""Compiled parts: where the judge, the engines and the extension are, and how they are called."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from kdtr.errors import EngineError

_PACKAGE = Path(__file__).resolve().parent
_BUILDS = ("release", "cuda", "dev")


def folder() -> Path | None:
    """The folder that holds kdtr-conform and the engines, or None when nothing was built.

    $KDTR_BIN if it is set; else the newest build of the source tree; else the installed one.
    """
    if named := os.environ.get("KDTR_BIN"):
        return Path(named)
    built = [
        path
        for name in _BUILDS
        if (path := _PACKAGE.parent / "build" / name / "kdtr-conform").exists()
    ]
    installed = _PACKAGE / "bin"
    if built:
        return max(built, key=lambda path: path.stat().st_mtime).parent
    return installed if installed.exists() else None


def include_dir() -> Path:
    """The folder that holds `kdtr/plugin.h` and the other headers."""
    tree = _PACKAGE.parent / "engine" / "include"
    return tree if tree.exists() else _PACKAGE / "include"


def plugin_source() -> Path:
    """The C++ file with the plug-in table, compiled into every plug-in that uses registry.h."""
    tree = _PACKAGE.parent / "engine" / "src" / "engine.cpp"
    return tree if tree.exists() else _PACKAGE / "cmake" / "engine.cpp"


def cmake_dir() -> Path:
    """The folder of kdtrConfig.cmake, for CMAKE_PREFIX_PATH or kdtr_DIR."""
    tree = _PACKAGE.parent / "cmake" / "package"
    return tree if tree.exists() else _PACKAGE / "cmake"


def missing() -> str:
    """Why the compiled parts cannot be used, or "" when they can."""
    where = folder()
    if where is None:
        return "nothing was built: run make build"
    if not (where / "kdtr-conform").exists():
        return f"{where}/kdtr-conform is missing: run make build"
    return ""


def has_gpu() -> bool:
    """Whether the NVIDIA driver is here and shows a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return False
    return count.value > 0


def usable() -> tuple[list[str], str]:
    """The project's own engines that can run here, and why "cuda" is not among them, or ""."""
    where = folder()
    if where is None or not (where / "libkdtr_cuda.so").exists():
        return ["cpu"], "no CUDA engine was built"
    return (["cpu", "cuda"], "") if has_gpu() else (["cpu"], "no NVIDIA GPU here")


def resolve(spec: str) -> str:
    """`cpu`, `cuda` or `mutants`, with `:configuration` or without, as the path of its library.

    Raises EngineError where the build has no CUDA engine.
    """
    name, colon, config = spec.partition(":")
    where = folder()
    if "/" in spec or where is None or name not in ("cpu", "cuda", "mutants"):
        return spec
    if name == "cuda" and not (where / "libkdtr_cuda.so").exists():
        why = "this build has none: build again with nvcc on PATH, without KDTR_CUDA=OFF"
        raise EngineError("engine cuda", why)
    return f"{where}/libkdtr_{name}.so{colon}{config}"


def in_python(spec: str) -> bool:
    """Whether an engine is Python's (`MODULE[:OBJECT]`) or a program (`cmd:PROGRAM`).

    Libraries are `cpu`, `cuda`, `mutants` or a path, which holds a slash.
    """
    if spec.startswith("cmd:"):
        return True
    return "/" not in spec and spec.partition(":")[0] not in ("cpu", "cuda", "mutants")


def conform(arguments: Sequence[str | os.PathLike[str]]) -> int:
    """Run kdtr-conform and return its exit code, 128 + N where it was told to end by signal N.

    Raises EngineError when it was not built, or crashed.
    """
    if why := missing():
        raise EngineError("kdtr-conform", why)
    where = folder()
    assert where is not None
    with subprocess.Popen([where / "kdtr-conform", *arguments]) as process:
        try:
            code = process.wait()
        except BaseException:
            process.terminate()  # not SIGKILL: it ends its worker, and what that started
            raise
    if code < 0 and -code not in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM):
        raise EngineError("kdtr-conform", f"killed by {signal.Signals(-code).name}")
    return code if code >= 0 else 128 - code


if os.environ.get("PYTHONSAFEPATH") == "kdtr":  # of `safe_path`: for this process, not for its own
    del os.environ["PYTHONSAFEPATH"]


def safe_path() -> dict[str, str]:
    """The environment of a Python child that imports this kdtr, not one of the working directory.

    Python 3.10 does not know the variable.
    """
    return {"PYTHONSAFEPATH": "kdtr", **os.environ}


def run_alone(arguments: Sequence[str], timeout: float) -> int:
    """Run a program with a process group of its own, and return its exit code.

    After `timeout` seconds (subprocess.TimeoutExpired is raised) or an interrupt it is killed, with
    all that it started.
    """
    with subprocess.Popen(arguments, start_new_session=True, env=safe_path()) as process:
        try:
            return process.wait(timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def exec_conform() -> NoReturn:
    """The installed command `kdtr-conform`: becomes the program."""
    if why := missing():
        sys.exit(f"kdtr-conform: {why}")
    where = folder()
    assert where is not None
    program, arguments = str(where / "kdtr-conform"), sys.argv[1:]
    if in_python(_option(arguments, "--engine") or "cpu") and "--python" not in arguments:
        arguments += ["--python", sys.executable]
    os.execv(program, [program, *arguments])


def _option(arguments: Sequence[str], name: str) -> str:
    at = arguments.index(name) + 1 if name in arguments else len(arguments)
    return arguments[at] if at < len(arguments) else ""
