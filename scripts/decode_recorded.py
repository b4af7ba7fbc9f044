"""Decode the recorded prompts on an engine, compare every token, and say how fast it went.

usage: decode_recorded.py [ENGINE] [MODEL] [--world N]
ENGINE: cpu (default), cuda or a library's path. --world: N processes share the model, one device
each (those of CUDA_VISIBLE_DEVICES in order, or 0, 1, ...), and each compares all tokens.
Exit code 1 when a token, an accepted length or a cached row's length differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kdtr import decode

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run all modes on all prompts in one ragged batch."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("engine", nargs="?", default="cpu")
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--group", help=argparse.SUPPRESS)
    options = parser.parse_args()
    model = options.model or ROOT / "goldens" / "model" / "tiny_deepseek_v3"
    if options.group is None and options.world > 1:
        return run_ranks(options.engine, model, options.world)
    shard = {}
    if options.group is not None:
        group = bytes.fromhex(options.group)
        shard = {"rank": options.rank, "world": options.world, "group": group}
    return run(options.engine, model, shard)


def run_ranks(engine: str, model: Path, world: int) -> int:
    """A process a rank; the worst of their exit codes."""
    group = decode.new_group(engine).hex()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = given.split(",") if given else [str(i) for i in range(world)]
    command = [sys.executable, __file__, engine, str(model), "--world", str(world)]
    ranks = [
        subprocess.Popen(
            [*command, "--group", group, "--rank", str(rank)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": devices[rank]},
        )
        for rank in range(world)
    ]
    return max(abs(rank.wait()) for rank in ranks)


def run(engine: str, model: Path, shard: dict[str, Any]) -> int:
    """Decode on one process."""
    prompts = json.loads((model / "greedy_tokens.json").read_bytes())["prompts"]
    trace = json.loads((model / "ddtree_trace.json").read_bytes())
    everyone = list(range(len(prompts)))
    wrong = 0
    name = f"{engine} rank {shard['rank']} of {shard['world']}" if shard else engine
    with decode.Decoder(model, engine, requests=len(prompts), max_context=512, **shard) as decoder:
        for budget in ("greedy", "16", "64"):
            first = [decoder.prefill(p["prompt_ids"], r) for r, p in enumerate(prompts)]
            out, accepted, steps = [[t] for t in first], [[] for _ in prompts], 0
            start = time.perf_counter()
            live = everyone
            while live:
                if budget == "greedy":
                    new = [[token] for token in decoder.greedy(live)]
                else:
                    new = decoder.tree(int(budget), live)
                steps += 1
                for r, tokens in zip(live, new, strict=True):
                    out[r] += tokens
                    accepted[r].append(len(tokens) - 1)
                live = [r for r in live if len(out[r]) < 64]
            seconds = time.perf_counter() - start
            bad = [r for r in everyone if out[r][:64] != prompts[r]["output_ids"]]
            if budget != "greedy":
                recorded = [[x["accepted_length"] for x in t["rounds"]] for t in trace[budget]]
                bad += [r for r in everyone if accepted[r] != recorded[r]]
            wrong += len(bad)
            flat = [n for lengths in accepted for n in lengths]
            print(
                f"{name} {budget}: {'all prompts as recorded' if not bad else f'DIFFERS {bad}'}; "
                f"{len(flat)} rounds in {steps} steps, mean accepted {sum(flat) / len(flat):.3f}, "
                f"{1e3 * seconds / steps:.2f} ms a step, "
                f"{sum(map(len, out)) / seconds:.0f} tokens/s",
                flush=True,
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
