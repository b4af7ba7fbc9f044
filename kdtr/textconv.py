"""A KDTR file as text for `git diff`: the same content gives the same text, a change is a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kdtr import container, inspection
from kdtr.errors import FormatError

VALUES = 512
"""Tensors with at most so many elements are written out; of others, statistics and the digest."""


def lines(path: Path) -> Iterator[str]:
    """Metadata, then each tensor with its values. A damaged file gives the rules that it breaks."""
    try:
        with container.open(path, verify="deep") as file:
            yield from _lines(file)
    except FormatError as error:
        if error.code == "E_IO":
            raise
        for one in container.all_errors(path.read_bytes()):
            yield f"{one.code} at byte {one.offset}"


def _lines(file: container.File) -> Iterator[str]:
    yield from inspection.meta_lines(file)
    for name, info in file.tensors.items():
        shape = ", ".join(map(str, info.shape))
        yield ""
        yield f"{inspection.escape(name)}: {info.dtype.name}[{shape}] sha256 {info.sha256.hex()}"
        if info.numel > VALUES:
            for key, value in inspection.vars_of(inspection.stats(file, name)).items():
                if value is not None:
                    yield f"  {key} {value}"
        elif info.numel:
            rows = inspection.take(file, name).reshape(-1, info.shape[-1] if info.shape else 1)
            yield from ("  " + " ".join(row) for row in rows)  # unpadded: a change is one line
