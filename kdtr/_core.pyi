# The judge and the engines. See `kdtr.ops` and `kdtr.adapter`.

from collections.abc import Mapping
from typing import Any

class View:
    shape: tuple[int, ...]
    dtype: str
    writable: bool
    address: int
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Call:
    op: str
    arith: str
    stream: int
    def tensor(self, name: str, role: int) -> View: ...
    def attr(self, name: str) -> int | float | str: ...
    def names(self) -> dict[str, int]: ...
    def attr_names(self) -> list[str]: ...

class Prepared:
    def run(self, stream: int = 0) -> None: ...

class Engine:
    name: str
    version: str
    library: str
    build: str
    device: tuple[int, int]
    def __init__(self, spec: str) -> None: ...
    @staticmethod
    def python(adapter: Any, spec: str) -> Engine: ...
    def run(
        self,
        op: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        state: Mapping[str, Any],
        attrs: Mapping[str, int | float | str],
        arith: str,
        stream: int,
    ) -> None: ...
    def prepare(
        self,
        op: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        state: Mapping[str, Any],
        attrs: Mapping[str, int | float | str],
        arith: str,
    ) -> Prepared: ...
    def unsupported(
        self,
        op: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        state: Mapping[str, Any],
        attrs: Mapping[str, int | float | str],
        arith: str,
    ) -> str: ...
    def judge(self, path: str, repeat: int = 0) -> str: ...
    def serve(self, spec: str, repeat: int, save: str, fd: int) -> int: ...
