"""Certify the kernels of others, all at a time, and say in short what came out.

    python thirdparty/run.py OUT [NAME...]

NAMES are those of RUNS, all by default. OUT gets each run's text and JSON lines; what is printed
is the counts of each run and the first lines of each failure. The exit code is 0 when every run
could be made, whatever it said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Run(NamedTuple):
    """An engine, the ops to judge, environment variables, and a pattern of cases."""

    engine: str
    ops: tuple[str, ...]
    env: dict[str, str] = {}  # noqa: RUF012 (never written)
    cases: str = "*"


IEEE = {"TRITON_F32_DEFAULT": "ieee"}
RUNS = {
    "flashmla": Run("flashmla:zeros", ("verify_attn",)),
    "flashmla_nan": Run("flashmla:nan", ("verify_attn",)),
    "flashinfer_raw": Run("flashinfer_mla:raw", ("verify_attn",)),
    "flashinfer_fa3": Run("flashinfer_mla:fa3_zeros", ("verify_attn",)),
    "flashinfer_fa3_nan": Run("flashinfer_mla:fa3", ("verify_attn",)),
    "flashinfer_fa2": Run("flashinfer_mla:fa2_zeros", ("verify_attn",)),
    "flashinfer_fa2_nan": Run("flashinfer_mla:fa2", ("verify_attn",)),
    "sglang_kernel": Run("sglang_kernel", ("tree_accept", "merge_state")),
    "sglang_triton": Run("sglang_triton", ("verify_attn", "tree_build")),
    # f32 products in f32, where Triton's default is tf32; two runs, for compiling takes minutes.
    "sglang_triton_ieee_1": Run("sglang_triton", ("verify_attn",), IEEE, "[a-m]*"),
    "sglang_triton_ieee_2": Run("sglang_triton", ("verify_attn",), IEEE, "[n-z]*"),
    "torch_ops": Run("torch_ops", ("argmax", "topk_logprobs", "merge_state", "verify_attn")),
    "torch_sdpa": Run("torch_sdpa", ("verify_attn",)),
    "ddtree_published": Run("ddtree:published", ("tree_build",)),
    "ddtree_counter": Run("ddtree:counter", ("tree_build",)),
}


def start(name: str, out: Path) -> subprocess.Popen[bytes]:
    """One run of `kdtr certify`, in the background."""
    run = RUNS[name]
    command = [sys.executable, "-m", "kdtr", "certify", "--engine", run.engine]
    command += ["--timeout", "120", "--case", run.cases]
    for op in run.ops:
        command += ["--ops", op]
    path = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [*command, "--json", str(out / f"{name}.jsonl")],
        cwd=HERE,
        env={**os.environ, **run.env, "PYTHONPATH": path},
        stdout=(out / f"{name}.txt").open("w"),
        stderr=subprocess.STDOUT,
    )


def report(name: str, out: Path) -> bool:
    """Print a run's counts and failures; False when it made no results."""
    file = out / f"{name}.jsonl"
    lines = [json.loads(x) for x in file.read_text().splitlines()] if file.exists() else []
    cases = [x for x in lines if x["kind"] == "case"]
    if not cases:
        text = (out / f"{name}.txt").read_text().strip().splitlines()
        print(f"{name}: no results: {text[-1] if text else 'no output'}")
        return False
    engine = next(x for x in lines if x["kind"] == "engine")
    for op in sorted({x["op"] for x in cases}):
        count = Counter(x["status"] for x in cases if x["op"] == op)
        shown = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
        print(f"{name} {engine['version']} {op}, {engine['device']}: {shown}")
    for case in cases:
        if case["status"] not in ("PASS", "NOT_SUPPORTED"):
            said = [*case["findings"][:2], *(f"diagnosis: {d}" for d in case["diagnosis"][:3])]
            print(f"  {case['status']} {case['case']}", *said, sep="\n      ")
    return True


def main() -> int:
    """All runs at a time."""
    out, names = Path(sys.argv[1]).resolve(), sys.argv[2:] or list(RUNS)
    out.mkdir(parents=True, exist_ok=True)
    running = {name: start(name, out) for name in names}
    for process in running.values():
        process.wait()
    made = [report(name, out) for name in names]
    return 0 if all(made) else 1


if __name__ == "__main__":
    sys.exit(main())
