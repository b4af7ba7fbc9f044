"""Decode the recorded prompts on an engine, compare every token, and say how fast it went.

usage: decode_recorded.py [ENGINE] [MODEL]     ENGINE: cpu (default), cuda or a library's path
Exit code 1 when a token, an accepted length or a cached row's length differs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kdtr import decode

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run both modes on all prompts in one ragged batch."""
    engine = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    default = ROOT / "goldens" / "model" / "tiny_deepseek_v3"
    model = Path(sys.argv[2]) if len(sys.argv) > 2 else default
    prompts = json.loads((model / "greedy_tokens.json").read_bytes())["prompts"]
    trace = json.loads((model / "ddtree_trace.json").read_bytes())
    everyone = list(range(len(prompts)))
    wrong = 0
    with decode.Decoder(model, engine, requests=len(prompts), max_context=512) as decoder:
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
                f"{engine} {budget}: {'all prompts as recorded' if not bad else f'DIFFERS {bad}'}; "
                f"{len(flat)} rounds in {steps} steps, mean accepted {sum(flat) / len(flat):.3f}, "
                f"{1e3 * seconds / steps:.2f} ms a step, "
                f"{sum(map(len, out)) / seconds:.0f} tokens/s"
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
