"""A program as an engine: it reads a call from one KDTR file and writes its outputs to another.

    prog CALL.kdtr RESULT.kdtr      runs one call; exit 0, or non-zero with a line on stderr
    prog --ops                      prints the ids it runs, one a line, as "tree_accept@1"

CALL.kdtr holds each argument with the tensor metadata `role` = input, state or output (outputs
hold no meaning, only dtype and shape), file metadata `op`, `arith` and `attr.<name>`. RESULT.kdtr
holds each output and state tensor under its own name.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from kdtr import container
from kdtr.adapter import Adapter, Call
from kdtr.errors import EngineError

_ROLES = ("input", "output", "state")
TIMEOUT = 600.0
"""Seconds after which one call of a program is given up."""


class Command(Adapter):
    """The engine `cmd:PROGRAM`. Raises EngineError when the program cannot be run."""

    def __init__(self, program: str, spec: str) -> None:
        super().__init__({}, spec, shutil.which(program) or "")
        self.program = str(Path(program).resolve()) if "/" in program else program
        self.ops = frozenset(self._call("--ops").split())

    def _call(self, *arguments: str) -> str:
        try:
            done = subprocess.run(
                [self.program, *arguments],
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(self.spec, "cannot run the program", got=error) from error
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["nothing on stderr"]
            raise EngineError(self.spec, "exit status", 0, f"{done.returncode}: {lines[-1]}")
        return done.stdout

    def unsupported(self, core: Any) -> str:
        """An empty text when the program listed the op."""
        return "" if core.op in self.ops else f"{self.program} --ops does not list {core.op}"

    def run(self, core: Any) -> None:
        """Write the call, run the program, and copy its outputs back."""
        call = Call(core)
        roles = {name: _ROLES[role] for name, role in core.names().items()}
        views = {name: getattr(call, _mapping(role))[name] for name, role in roles.items()}
        meta = {"op": call.op, "arith": call.arith}
        meta |= {f"attr.{name}": call.attrs[name] for name in core.attr_names()}
        with tempfile.TemporaryDirectory(prefix="kdtr-") as folder:
            sent, came = Path(folder, "call.kdtr"), Path(folder, "result.kdtr")
            container.write(
                sent,
                {name: (view.dtype, view.numpy()) for name, view in views.items()},
                meta,
                {name: {"role": role} for name, role in roles.items()},
            )
            self._call(str(sent), str(came))
            if not came.exists():
                raise EngineError(self.spec, "the program wrote no result", "a file", "none")
            with container.open(came) as result:
                for name, role in roles.items():
                    if role == "input":
                        continue
                    info, view = result.info(name), views[name]
                    got = (info.dtype.name, info.shape)
                    if got != (view.dtype, view.shape):
                        raise EngineError(
                            f"{self.spec}: {name}", "result", (view.dtype, view.shape), got
                        )
                    view.numpy()[...] = result[name]


def _mapping(role: str) -> str:
    return role if role == "state" else role + "s"
