"""The same bytes from other numpy releases, CPU features, BLAS kernels and thread counts.

One case of every reference, its largest, against the roots in LOCK.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import pytest

from kdtr import goldens

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "numpy"

BUILD = """
import json, sys
import numpy
from kdtr import case, fixture
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
roots = {}
for name in sys.argv[1:]:
    op, _, wanted = name.partition("/")
    op = op.partition("@")[0]
    one = next(c for c in case.cases(op) if c.name == wanted)
    roots[name] = fixture.build(op, one).dumps()[16:48].hex()
print(json.dumps({
    "numpy": numpy.__version__,
    "on": [f for f in __cpu_dispatch__ if __cpu_features__[f]],
    "roots": roots,
}))
"""


def largest_cases() -> dict[str, str]:
    """For each op the small-tier case with the largest file, and its root by LOCK."""
    lock = goldens.Lock.read(goldens.LOCK)
    best: dict[str, tuple[int, str]] = {}
    for name, (tier, _) in lock.cases.items():
        if tier == "small":
            size = (goldens.HOME / f"{name}.kdtr").stat().st_size
            op = name.partition("@")[0]
            best[op] = max(best.get(op, (0, "")), (size, name))
    return {name: lock.cases[name][1] for _, name in best.values()}


def numpy_folder(wanted: str) -> Path:
    """A folder with numpy alone: "oldest" 2.x with a wheel for this Python, or "newest"."""
    folder = CACHE / f"{wanted}-{sys.version_info[0]}.{sys.version_info[1]}"
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    versions = ["numpy>=2"] if wanted == "newest" else [f"numpy==2.{n}.0" for n in range(8)]
    said = ""
    for version in versions:
        stage = Path(tempfile.mkdtemp(dir=CACHE))
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(stage)]
        done = subprocess.run(
            [*pip, "--only-binary", ":all:", version], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            try:
                stage.rename(folder)
            except OSError:  # another process was first
                shutil.rmtree(stage)
            return folder
        shutil.rmtree(stage)
        said = done.stderr
    raise AssertionError(f"no wheel of numpy 2 for this Python: {said}")


def run(numpy: Path, names: list[str], **settings: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", BUILD, *names],
        env={**os.environ, "PYTHONPATH": f"{numpy}{os.pathsep}{ROOT}", **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


# Half of the sixteen, in which any three settings occur in all combinations.
THREE = list(product(("oldest", "newest"), ("on", "off"), ("default", "Haswell")))
HALF = [
    (numpy, features, core, "12"[(numpy == "newest") ^ (features == "off") ^ (core == "Haswell")])
    for numpy, features, core in THREE
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numpy", "features", "core", "threads"),
    HALF,
)
def test_bytes_do_not_depend_on_the_machine(
    numpy: str, features: str, core: str, threads: str
) -> None:
    folder, wanted = numpy_folder(numpy), largest_cases()
    assert wanted
    settings = {"OPENBLAS_NUM_THREADS": threads}
    if core != "default":  # else what the machine sets, if anything
        settings["OPENBLAS_CORETYPE"] = core
    plain = run(folder, [], **settings)
    assert isinstance(plain["on"], list)
    if features == "off":
        assert plain["on"], "this CPU offers numpy no feature to turn off"
        settings["NPY_DISABLE_CPU_FEATURES"] = " ".join(plain["on"])
    found = run(folder, list(wanted), **settings)
    assert found["on"] == ([] if features == "off" else plain["on"])
    assert found["roots"] == wanted


@pytest.mark.slow
def test_oldest_and_newest_numpy_differ() -> None:
    versions = {str(run(numpy_folder(which), [])["numpy"]) for which in ("oldest", "newest")}
    assert len(versions) == 2
    assert all(version.startswith("2.") for version in versions)
