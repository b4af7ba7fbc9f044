"""Time the CUDA kernels against their peers, in one run, after certifying the same call.

    python benchmarks/bench.py [GROUP...] [--only TEXT] [--out FILE] [--repeat 20] [--no-peers]

Groups and shapes are benchmarks/shapes.json. Each call is first checked (exact ops against the
CPU engine on the same inputs, attention against the reference on sampled rows); a wrong kernel is
never timed. Times are medians over `repeat` runs by CUDA events (fewer, and at least 5, of a call
that takes more than 10 ms), with the L2 cache flushed before each; `graph` replays the captured
call. A peer is checked and timed in the same process, the same way; where its check fails, the
record says so beside its time. The floor is bytes or arithmetic over rates that this run measured:
a device copy and a matrix product.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import peers
import torch
from peers import Peer

from kdtr import __version__, numerics
from kdtr.ops import Engine
from kdtr.reference import linear, mla_output, mla_project
from kdtr.reference.verify_attn import reference

HERE = Path(__file__).resolve().parent
Tensors = dict[str, torch.Tensor]
MARGINALS_SEED = 7
SLOW = 0.01  # seconds; slower calls are run 5 times


@dataclass
class Work:
    """One call to time: what it is, how to run and check it, its floor and its peers."""

    name: str
    run: Callable[[], None]
    check: Callable[[], str]
    bytes: float = 0.0
    flops: float = 0.0
    peers: dict[str, Peer] = field(default_factory=dict)


class Machine:
    """The GPU at hand: its measured rates, and timing on it."""

    def __init__(self, repeat: int) -> None:
        self.repeat = repeat
        self._flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
        a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        self.flops = 2 * 8192**3 / self.median(lambda: a @ a)
        x = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
        y = torch.empty_like(x)
        self.bandwidth = 2 * x.numel() / self.median(lambda: y.copy_(x))

    def median(self, run: Callable[[], Any], *, host: bool = False) -> float:
        """Seconds of one call: the median of `repeat`, L2 flushed before each.

        By CUDA events, or by a wall clock with `host`, for calls that wait for the GPU themselves.
        """
        run()
        quick = self._once(run, host) < SLOW
        if quick:
            run()
        count = self.repeat if quick else min(self.repeat, 5)
        return float(statistics.median(self._once(run, host) for _ in range(count)))

    def _once(self, run: Callable[[], Any], host: bool) -> float:
        self._flush.zero_()
        if host:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            run()
            torch.cuda.synchronize()
            return time.perf_counter() - begin
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3

    def graph(self, run: Callable[[], Any], calls: int = 10) -> float:
        """Seconds of one call inside a graph: replays of `calls` captured calls, over `calls`."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run()
        stream.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=stream):
            for _ in range(calls):
                run()
        return self.median(captured.replay) / calls

    def describe(self) -> dict[str, Any]:
        query = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm"
        smi = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        return {
            "device": smi,
            "fields": query,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": sys.version.split()[0],
            "kdtr": __version__,
            "bf16_tflops": self.flops / 1e12,
            "copy_tb_per_s": self.bandwidth / 1e12,
            "repeat": self.repeat,
            "packages": peers.versions(),
        }


def stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


class Both:
    """The CUDA engine to time, and the CPU engine that says what is right."""

    def __init__(self) -> None:
        self.cuda, self.cpu = Engine("cuda"), Engine("cpu")

    def prepare(
        self,
        op: str,
        out: Tensors,
        arith: str = "",
        state: Tensors | None = None,
        **arguments: Any,
    ) -> Callable[[], None]:
        """The CUDA call, bound once, on torch's current stream."""
        bound = self.cuda.prepare(op, out=out, state=state, arith=arith, **arguments)
        return lambda: bound.run(stream())

    def exact(self, op: str, out: Tensors, skip: tuple[str, ...] = (), **arguments: Any) -> str:
        """An empty text when the CUDA outputs equal the CPU engine's, else what differs."""
        host = {n: _host(v) for n, v in arguments.items()}
        want = self.cpu.call(op, **host)
        for name, value in out.items():
            if name not in skip and not np.array_equal(value.cpu().numpy(), want[name]):
                return f"{op}: {name} differs from the CPU engine"
        return ""


def _host(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.cpu()
    if value.dtype == torch.bfloat16:
        return ("bf16", value.view(torch.uint16).numpy())
    return value.numpy()


def i32(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32, device="cuda")


def f32(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cuda")


# --- the works ----------------------------------------------------------------------------------
def topk(both: Both, R: int, L: int, V: int, K: int, dtype: str) -> Work:
    kind = {"bf16": torch.bfloat16, "f32": torch.float32, "f16": torch.float16}[dtype]
    generator = torch.Generator("cuda").manual_seed(MARGINALS_SEED)
    logits = (torch.randn(R, L, V, device="cuda", generator=generator) * 3).to(kind)
    out = {"ids": i32(R, L, K), "logprobs": f32(R, L, K), "lse": f32(R, L), "status": i32(R)}

    run = both.prepare("topk_logprobs", out, logits=logits, K=K)

    def check() -> str:
        run()
        wrong = both.exact("topk_logprobs", out, ("lse", "logprobs"), logits=logits, K=K)
        lse = torch.logsumexp(logits.double(), -1)
        ulp = torch.abs(out["lse"].double() - lse) / 2.0 ** (torch.floor(torch.log2(lse)) - 23)
        return wrong or ("" if float(ulp.max()) <= 1 else f"lse is {float(ulp.max())} ulp off")

    given: Tensors = {}

    def torch_peer() -> None:
        wide = logits.float()
        given["values"], given["ids"] = torch.topk(logits, K, dim=-1)
        given["lp"] = given["values"].float() - torch.logsumexp(wide, -1, keepdim=True)

    def same_values() -> str:
        """The same K logits; torch names no order of ties."""
        ours = torch.gather(logits, -1, out["ids"].long())
        return "" if torch.equal(ours, given["values"]) else "other logits than ours"

    return Work(
        f"topk_logprobs {dtype} [{R}, {L}, {V}] K {K}",
        run,
        check,
        bytes=logits.numel() * logits.element_size(),
        peers={"torch topk + logsumexp": Peer(torch_peer, same_values)},
    )


def marginals(R: int, L: int, K: int) -> tuple[torch.Tensor, torch.Tensor]:
    """bf16-like log-probs of a sharp drafter: ties are common, trees are deep."""
    noise = numerics.normal(MARGINALS_SEED, (R, L, 4096), 20, 3.0)
    noise = np.sort(numerics.round_bf16(noise), axis=-1, kind="stable")[..., ::-1]
    lse = numerics.log(numerics.total(numerics.exp(noise)))[..., None]
    lp = (noise[..., :K] - lse).astype(np.float32)
    ids = np.argsort(numerics.raw_bits(1, R * L * 4096).reshape(R, L, 4096), -1, kind="stable")
    device = [torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in (lp, ids[..., :K])]
    return device[0], device[1].to(torch.int32)


def tree_outputs(R: int, N: int) -> Tensors:
    names = ("tokens", "depths", "parents", "positions", "next_token", "next_sibling")
    return {
        **{name: i32(R, N) for name in names},
        "n_nodes": i32(R),
        "status": i32(R),
        "visible": torch.empty(R, N, N, dtype=torch.uint8, device="cuda"),
        "weights": torch.empty(R, N, dtype=torch.float64, device="cuda"),
    }


def tree(both: Both, R: int, L: int, K: int, budget: int) -> Work:
    lp, ids = marginals(R, L, K)
    arguments = {
        "logprobs": lp,
        "ids": ids,
        "root_token": torch.arange(R, dtype=torch.int32, device="cuda"),
        "prefix_len": torch.full((R,), 1000, dtype=torch.int32, device="cuda"),
        "budget": budget,
        "tie_order": "ranks",
    }
    out = tree_outputs(R, budget + 1)

    run = both.prepare("tree_build", out, **arguments)

    def check() -> str:
        run()
        return both.exact("tree_build", out, **arguments)

    host = lp.cpu().numpy()
    found: dict[str, Any] = {}

    def heap() -> None:
        found["parents"], _, found["visible"] = peers.heap_tree(host[0], budget)

    def same_tree() -> str:
        same = found["parents"] == out["parents"][0].tolist()
        same = same and np.array_equal(found["visible"], out["visible"][0].cpu().numpy())
        return "" if same else "another tree than ours"

    return Work(
        f"tree_build [{R}, {L}, {K}] budget {budget}",
        run,
        check,
        bytes=sum(t.numel() * t.element_size() for t in out.values()),
        peers={"Python heap on the host, 1 request": Peer(heap, same_tree, host=True)},
    )


def accept(both: Both, R: int, budget: int, L: int) -> Work:
    lp, ids = marginals(R, L, 64)
    built = tree_outputs(R, budget + 1)
    zeros = torch.zeros(R, dtype=torch.int32, device="cuda")
    both.cuda.call(
        "tree_build", out=built, stream=stream(), logprobs=lp, ids=ids, root_token=zeros,
        prefix_len=zeros, budget=budget, tie_order="ranks",
    )  # fmt: skip
    first = built["next_token"].clamp(min=0).long()
    arguments = {
        **{n: built[n] for n in ("tokens", "next_token", "next_sibling", "n_nodes")},
        "target": torch.gather(built["tokens"], 1, first).clamp(min=0),
        "L": L,
        "V": 4096,
    }
    N = budget + 1
    out = {
        "accept_index": i32(R, L + 1), "accept_len": i32(R), "accepted_tokens": i32(R, L + 1),
        "predicts": i32(R, N), "status": i32(R),
    }  # fmt: skip

    run = both.prepare("tree_accept", out, **arguments)

    def check() -> str:
        run()
        return both.exact("tree_accept", out, **arguments)

    return Work(
        f"tree_accept {N} nodes, R {R}",
        run,
        check,
        peers=peers.sglang_verify_tree_greedy(arguments, out, L),
    )


def merge(both: Both, R: int, N: int, H: int, Dv: int) -> Work:
    parts = {
        "o_a": torch.randn(R, N, H, Dv, device="cuda", dtype=torch.bfloat16),
        "o_b": torch.randn(R, N, H, Dv, device="cuda", dtype=torch.bfloat16),
        "lse_a": torch.randn(R, N, H, device="cuda"),
        "lse_b": torch.randn(R, N, H, device="cuda"),
    }
    out = {"o": torch.empty_like(parts["o_a"]), "lse": f32(R, N, H), "status": i32(R)}

    run = both.prepare("merge_state", out, **parts)

    def wrong(o: torch.Tensor) -> str:
        a, b = (parts[n].double() for n in ("lse_a", "lse_b"))
        lse = torch.logaddexp(a, b)
        weight = [torch.exp(x - lse)[..., None] for x in (a, b)]
        gold = weight[0] * parts["o_a"].double() + weight[1] * parts["o_b"].double()
        size = weight[0] * parts["o_a"].double().abs() + weight[1] * parts["o_b"].double().abs()
        error = torch.abs(o.double() - gold) / (size * 2.0**-8)
        return "" if float(error.max()) <= 1 else f"o is {float(error.max())} roundings off"

    def check() -> str:
        run()
        return wrong(out["o"])

    return Work(
        f"merge_state bf16 [{R}, {N}, {H}, {Dv}]",
        run,
        check,
        bytes=3.0 * R * N * H * Dv * 2,
        peers=peers.sglang_merge_state(parts, wrong),
    )


def attention_arguments(
    both: Both, R: int, N: int, H: int, P: int, page_size: int, pages: str, D: int = 576,
    Dv: int = 512,
) -> dict[str, Any]:  # fmt: skip
    """A call of verify_attn, part "whole", over trees of a sharp drafter."""
    per = -(-P // page_size)
    slots = (R * per + -(-R * N // page_size)) * page_size
    table = torch.arange(R * per, device="cuda")
    if pages == "scattered":
        table = torch.randperm(R * per, device="cuda", generator=_generator())
    grid = 2.0**14
    pool, q = (
        (torch.round(torch.randn(*s, device="cuda", generator=_generator()).clamp(-7, 7).bfloat16()
         .float() * grid) / grid).bfloat16()
        for s in ((slots, D), (R, N, H, D))
    )  # fmt: skip
    lp, ids = marginals(R, 15, 64)
    zeros = torch.zeros(R, dtype=torch.int32, device="cuda")
    built = tree_outputs(R, N)
    both.cuda.call(
        "tree_build", out=built, stream=stream(), logprobs=lp, ids=ids, root_token=zeros,
        prefix_len=zeros, budget=N - 1, tie_order="ranks",
    )  # fmt: skip
    return {
        "q": q,
        "kv_pool": pool,
        "page_table": table.to(torch.int32).reshape(R, per),
        "prefix_len": torch.full((R,), P, dtype=torch.int32, device="cuda"),
        "tree_slots": (R * per * page_size + torch.arange(R * N, device="cuda"))
        .to(torch.int32)
        .reshape(R, N),
        "visible": built["visible"],
        "n_nodes": built["n_nodes"],
        "scale": float(np.float32(0.14467963)),
        "page_size": page_size,
        "part": "whole",
        "Dv": Dv,
    }


def attention_outputs(R: int, N: int, H: int, Dv: int = 512) -> Tensors:
    return {
        "out": torch.empty(R, N, H, Dv, device="cuda", dtype=torch.bfloat16),
        "lse": f32(R, N, H),
        "status": i32(R),
    }


def attn(both: Both, R: int, N: int, H: int, P: int, page_size: int, pages: str) -> Work:
    arguments = attention_arguments(both, R, N, H, P, page_size, pages)
    out = attention_outputs(R, N, H)
    run = both.prepare("verify_attn", out, "bf16_f32acc_pbf16", **arguments)

    def check() -> str:
        run()
        return sampled_attention(arguments, out, P)

    def portable() -> None:
        os.environ["KDTR_VERIFY_ATTN"] = "mma"
        run()
        del os.environ["KDTR_VERIFY_ATTN"]

    others = peers.attention(
        arguments, P, page_size, lambda o, prefix: sampled_attention(arguments, o, P, prefix)
    )
    return Work(
        f"verify_attn bf16 R {R} N {N} H {H} P {P} page {page_size} {pages}",
        run,
        check,
        bytes=2.0 * R * (P + N) * 576,
        flops=2.0 * R * N * H * (P + N) * (576 + 512),
        peers={
            "our kernel for other GPUs": Peer(
                portable, lambda: sampled_attention(arguments, out, P)
            ),
            **others,
        },
    )


def tail(both: Both, R: int, N: int, H: int, P: int) -> Work:
    """The tree's part and the merge, on top of a prefix kernel of somebody else's.

    Beside them: that kernel alone (FlashMLA), all three in a row, and ours over everything.
    """
    arguments = attention_arguments(both, R, N, H, P, 64, "scattered")
    whole_out, tail_out, merged = (attention_outputs(R, N, H) for _ in range(3))
    whole = both.prepare("verify_attn", whole_out, "bf16_f32acc_pbf16", **arguments)
    own = {n: v for n, v in arguments.items() if n not in ("page_table", "prefix_len")}
    own["part"] = "tail"
    over_tree = both.prepare("verify_attn", tail_out, "bf16_f32acc_pbf16", **own)
    prefix = {"o_a": torch.empty_like(tail_out["out"]), "lse_a": f32(R, N, H)}
    into = {"o": merged["out"], "lse": merged["lse"], "status": merged["status"]}
    join = both.prepare(
        "merge_state", into, "bf16", **prefix, o_b=tail_out["out"], lse_b=tail_out["lse"]
    )
    flash = peers.flash_mla(arguments, P)

    def run() -> None:
        over_tree()
        join()

    work = Work(f"tail + merge bf16 R {R} N {N} H {H} P {P}", run, lambda: "FlashMLA is not here")
    if flash is None:
        return work
    outputs, over_prefix = flash

    def all_three() -> None:
        over_prefix()
        given = outputs()
        over_tree()
        prefix["o_a"].copy_(given["out"])  # a caller would lend its own buffers
        prefix["lse_a"].copy_(given["lse"])
        join()

    def check() -> str:
        all_three()
        return sampled_attention(arguments, merged, P, arith="bf16_splits_bf16")

    def whole_check() -> str:
        return sampled_attention(arguments, whole_out, P)

    work.check = check
    work.peers = {
        "FlashMLA over the prefix": Peer(
            over_prefix, lambda: sampled_attention(arguments, outputs(), P, prefix_only=True)
        ),
        "FlashMLA + copies of its outputs + our tail + our merge": Peer(all_three, check),
        "our verify_attn, whole": Peer(whole, whole_check),
    }
    return work


def sampled_attention(
    a: dict[str, Any],
    out: Tensors,
    P: int,
    prefix_only: bool = False,
    arith: str = "bf16_f32acc_pbf16",
) -> str:
    """Sampled rows against f64 and the hard budget of the contract.

    A node sees its prefix and its ancestors: the same keys as a prefix of their own. What
    is compared with is itself compared with the reference's, once, over 512 keys.
    """
    R, N, H, _ = a["q"].shape
    page_size, Dv = a["page_size"], a["Dv"]
    t = torch.arange(P, device="cuda")
    for r, i, h in sorted({(0, 0, 0), (0, N // 2, H - 1), (R - 1, N - 1, H - 1)}):
        slots = a["page_table"][r].long()[t // page_size] * page_size + t % page_size
        if not prefix_only:
            slots = torch.cat([slots, a["tree_slots"][r].long()[a["visible"][r, i].bool()]])
        q, keys = a["q"][r, i, h].double(), a["kv_pool"][slots].double()
        want = attention_gold(q, keys, a["scale"], Dv, arith)
        if arith not in _COMPARED:
            if wrong := _unlike_reference(q, keys[:512], a, arith):
                return wrong
            _COMPARED.add(arith)
        for name in ("out", "lse"):
            gold, hard = want[name]
            worst = float((torch.abs(out[name][r, i, h].double() - gold) / hard).max())
            if not worst <= 1:
                return f"{name} of request {r} node {i} head {h}: {worst:.3g} budgets off"
    return ""


def attention_gold(
    q: torch.Tensor, keys: torch.Tensor, scale: float, Dv: int, arith: str
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """One query [D] over its keys [n, D], in f64: out and lse, each with its hard budget.

    The formula of kdtr/contracts/verify_attn.py for bf16 on tensor cores with P in bf16, its
    factors not rounded up; `arith` may be "bf16_splits_bf16".
    """
    u, e, narrow = 2.0**-24, 2.0**-22, 2.0**-8
    n, v = len(keys), keys[:, :Dv]
    s = scale * (keys @ q)
    m = s.max()
    p = torch.softmax(s, 0)
    lse = m + torch.log(torch.exp(s - m).sum())
    o, size = p @ v, p @ v.abs()
    S = min(n, 32)
    rescales = e + (-(-n // 16) + S) * (e + 2 * u)
    merge = u * (2 * m.abs() + math.log(n)) + S * (e + 2 * u)
    score = (len(q) + 2) * 2 * u * scale * (keys.abs() @ q.abs()) + 2 * u * s.abs()
    eta = p * (torch.expm1(score + 3 * u * (m - s)) + rescales + narrow)
    part = narrow if arith == "bf16_splits_bf16" else 0.0
    hard = eta @ v.abs() + eta.sum() * o.abs() + ((n + 2) * 2 * u + merge) * (size + o.abs())
    hard += part * size + (2 * u + narrow) * o.abs() + 2.0**-125
    lse_hard = (p * (score + rescales)).sum() + (n + 2) * 2 * u + 2 * e + 3 * u * lse.abs() + merge
    return {"out": (o, hard), "lse": (lse, lse_hard)}


_COMPARED: set[str] = set()


def _unlike_reference(q: torch.Tensor, keys: torch.Tensor, a: dict[str, Any], arith: str) -> str:
    """Where attention_gold and the reference differ by more than the rounding up of budgets."""
    n = len(keys)
    inputs = {
        "q": q.cpu().numpy().reshape(1, 1, 1, -1),
        "kv_pool": keys.cpu().numpy(),
        "page_table": np.arange(n, dtype=np.int32).reshape(1, -1),
        "prefix_len": np.array([n], np.int32),
        "n_nodes": np.array([1], np.int32),
    }
    attrs = {"scale": a["scale"], "page_size": 1, "part": "prefix", "Dv": a["Dv"]}
    trusted = reference(inputs, attrs, arith)
    want = attention_gold(q, keys, a["scale"], a["Dv"], arith)
    for name, (gold, hard) in want.items():
        budget = trusted[f"{name}/hard"][0, 0, 0].astype(np.float64)
        off = np.abs(gold.cpu().numpy() - trusted[name][0, 0, 0]) / budget
        ratio = hard.cpu().numpy() / budget
        if np.max(off) > 2.0**-30 or np.max(ratio) > 1 + 2.0**-20 or np.min(ratio) < 0.5:
            return f"attention_gold: {name} off by {np.max(off)}, {np.min(ratio)}..{np.max(ratio)}"
    return ""


def _generator() -> torch.Generator:
    return torch.Generator("cuda").manual_seed(MARGINALS_SEED)


def step(both: Both, R: int, L: int, V: int, K: int, budget: int) -> Work:
    """Everything of a step but attention: candidates, tree, walk, commit; a hook for the target.

    The stand-in target is each node's first child's token, so that paths are accepted.
    """
    N, P, page = budget + 1, 1000, 64
    per = -(-(P + L + 1) // page)
    slots = (R * per + -(-R * N // page)) * page
    kind = torch.bfloat16
    logits = (torch.randn(R, L, V, device="cuda", generator=_generator()) * 3).to(kind)
    drafted = {"ids": i32(R, L, K), "logprobs": f32(R, L, K), "lse": f32(R, L), "status": i32(R)}
    built = tree_outputs(R, N)
    walked = {
        "accept_index": i32(R, L + 1), "accept_len": i32(R), "accepted_tokens": i32(R, L + 1),
        "predicts": i32(R, N), "status": i32(R),
    }  # fmt: skip
    cache = {
        "rows": torch.zeros(1, slots, 1152, dtype=torch.uint8, device="cuda"),
        "page_table": torch.arange(R * per, dtype=torch.int32, device="cuda").reshape(R, per),
        "tree_slots": (R * per * page + torch.arange(R * N, device="cuda", dtype=torch.int32))
        .to(torch.int32)
        .reshape(R, N),
        "hidden": torch.zeros(R, N, 0, dtype=torch.uint8, device="cuda"),
    }
    lengths = torch.full((R,), P, dtype=torch.int32, device="cuda")
    target, committed = i32(R, N), {"new_len": i32(R), "status": i32(R)}
    links = {n: built[n] for n in ("tokens", "next_token", "next_sibling", "n_nodes")}
    stages = (
        both.prepare("topk_logprobs", drafted, logits=logits, K=K),
        both.prepare(
            "tree_build", built, logprobs=drafted["logprobs"], ids=drafted["ids"],
            root_token=torch.zeros(R, dtype=torch.int32, device="cuda"), prefix_len=lengths,
            budget=budget, tie_order="ranks",
        ),
        both.prepare("tree_accept", walked, **links, target=target, L=L, V=V),
        both.prepare(
            "kv_commit", committed, state=cache, accept_index=walked["accept_index"],
            accept_len=walked["accept_len"], prefix_len=lengths, page_size=page,
        ),
    )  # fmt: skip

    def run() -> None:
        for stage in stages:
            stage()

    def with_target() -> None:
        """The step with its stand-in for the target, which is not ours to time."""
        stages[0]()
        stages[1]()
        first = built["next_token"].clamp(min=0).long()
        target.copy_(torch.gather(built["tokens"], 1, first).clamp_(min=0))
        stages[2]()
        stages[3]()

    def check() -> str:
        """A graph captured over one batch of logits, replayed over another, equals eager."""
        with_target()
        captured = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.graph(captured, stream=side):
            with_target()
        logits.copy_((torch.randn_like(logits, dtype=torch.float32) * 2).to(kind))
        everything = {**drafted, **built, **walked, **committed, "target": target}
        with_target()
        torch.cuda.synchronize()
        eager = {n: t.clone() for n, t in everything.items()}
        for tensor in everything.values():
            tensor.zero_()
        captured.replay()
        torch.cuda.synchronize()
        for name, tensor in everything.items():
            if not torch.equal(tensor, eager[name]):
                return f"{name}: a replay of the graph differs from eager"
        return "" if int(walked["accept_len"].min()) > 0 else "nothing was accepted"

    return Work(
        f"step without attention [{R}, {L}, {V}] K {K} budget {budget}",
        run,
        check,
        bytes=logits.numel() * 2,
        peers={f"{stage} alone": Peer(one) for stage, one in zip(STEP, stages, strict=True)},
    )


STEP = ("topk_logprobs", "tree_build", "tree_accept", "kv_commit")


def build(both: Both, R: int, L: int, V: int, K: int, budget: int) -> Work:
    """From logits on the device to the tensors of verification on the device: two launches."""
    N = budget + 1
    logits = (torch.randn(R, L, V, device="cuda", generator=_generator()) * 3).bfloat16()
    drafted = {"ids": i32(R, L, K), "logprobs": f32(R, L, K), "lse": f32(R, L), "status": i32(R)}
    built = tree_outputs(R, N)
    arguments = {
        "root_token": torch.zeros(R, dtype=torch.int32, device="cuda"),
        "prefix_len": torch.full((R,), 1000, dtype=torch.int32, device="cuda"),
        "budget": budget,
    }
    first = both.prepare("topk_logprobs", drafted, logits=logits, K=K)
    candidates = {"logprobs": drafted["logprobs"], "ids": drafted["ids"]}
    second = both.prepare("tree_build", built, **arguments, **candidates, tie_order="ranks")

    def run() -> None:
        first()
        second()

    def check() -> str:
        run()
        skip = ("lse", "logprobs")
        return both.exact("topk_logprobs", drafted, skip, logits=logits, K=K) or both.exact(
            "tree_build", built, **arguments, **candidates, tie_order="ranks"
        )

    found: Tensors = {}

    def host() -> None:
        found.update(peers.host_tree(logits, K, budget))

    def complete() -> str:
        """The host's trees are whole; equal logits may come in another order from torch.topk."""
        return "" if bool((found["depths"] >= 0).all()) else "fewer nodes than the budget"

    path = "host path: torch.topk, copies, Python heap, links and masks, copies"
    others = {path: Peer(host, complete, host=True)}
    if K * N <= 2048:
        others.update(peers.sglang_uno(logits, K, budget))
    return Work(
        f"logits to verify tensors bf16 [{R}, {L}, {V}] K {K} budget {budget}",
        run,
        check,
        bytes=logits.numel() * 2,
        peers=others,
    )


@lru_cache(maxsize=1)
def expert_weights(E: int, D: int, I: int, J: int, stored: str, group: int) -> Tensors:
    """Random experts, int4 with one scale a group or bf16, and a bf16 shared expert of size J."""
    found: Tensors = {}
    for name, rows, cols in (("gate", I, D), ("up", I, D), ("down", D, I)):
        size = 1.0 / cols**0.5
        if stored == "dense":
            found[name] = torch.empty(E, rows, cols, dtype=torch.bfloat16, device="cuda")
            found[name].normal_(0, size, generator=_generator())
        else:
            found[f"{name}_packed"] = torch.randint(
                -(2**31), 2**31, (E, rows, cols // 8), dtype=torch.int32, device="cuda",
                generator=_generator(),
            )  # fmt: skip
            scale = torch.rand(E, rows, cols // group, device="cuda", generator=_generator())
            found[f"{name}_scale"] = ((scale + 0.5) * size / 4).bfloat16()
        shape = (rows, J) if name == "down" else (J, cols)
        found[f"shared_{name}"] = torch.empty(*shape, dtype=torch.bfloat16, device="cuda")
        found[f"shared_{name}"].normal_(0, 1.0 / shape[1] ** 0.5, generator=_generator())
    return found


def dequantised(w: Tensors, name: str, e: int, stored: str, group: int) -> torch.Tensor:
    """Matrix `name` of expert e as bf16, or as f64 where its weights are not rounded."""
    if stored == "dense":
        return w[name][e]
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device="cuda")
    codes = ((w[f"{name}_packed"][e][..., None] >> shifts) & 15) - 8
    scale = w[f"{name}_scale"][e].repeat_interleave(group, -1)
    if stored == "w4_exact":
        return codes.flatten(1).double() * scale.double()
    return codes.flatten(1).bfloat16() * scale


def expert_budget(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One row through one expert in f64, and the contract's hard bound of bf16_f32acc."""
    unit, (gate, up, down) = 2.0**-24, (w.double() for w in (gate, up, down))
    g, u = gate @ x, up @ x
    e_g, e_u = (unit * x.numel() * (w.abs() @ x.abs()) for w in (gate, up))
    s = torch.sigmoid(g)
    h = g * s * u
    own = h.abs() * ((2 * g.abs() + 4) * (1 - s) + 5) * unit
    e_h = own + (s * (1 + g * (1 - s)) * u).abs() * e_g + (g * s).abs() * e_u
    for edge in (h - e_h, h + e_h):
        e_h = torch.maximum(e_h, (edge.bfloat16().double() - h).abs())
    return down @ h, unit * h.numel() * (down.abs() @ h.abs()) + down.abs() @ e_h


def moe(
    both: Both, T: int, E: int, K: int, D: int, I: int, J: int, stored: str, group: int
) -> Work:  # fmt: skip
    weights = expert_weights(E, D, I, J, stored, group)
    x = torch.randn(T, D, device="cuda", generator=_generator()).bfloat16()
    order = torch.rand(T, E, device="cuda", generator=_generator()).argsort(dim=1)
    ids = order[:, :K].to(torch.int32).contiguous()
    factors = torch.rand(T, K, device="cuda", generator=_generator()) + 0.05
    out = {"out": torch.empty_like(x), "status": i32(T)}
    run = both.prepare(
        "moe_experts", out, "bf16_f32acc", x=x, ids=ids, weights=factors, format=stored,
        group=group, **weights,
    )  # fmt: skip
    host = ids.cpu().tolist()
    names = ("gate", "up", "down")

    def matrices(e: int) -> list[torch.Tensor]:
        return [dequantised(weights, n, e, stored, group) for n in names]

    shared = [weights[f"shared_{n}"] for n in names]

    def check() -> str:
        """The first and the last token against the formula in f64, every element in its bound."""
        out["out"].fill_(float("nan"))
        run()
        for t in sorted({0, T - 1}):
            terms = [(float(factors[t, k]), *expert_budget(x[t].double(), *matrices(e)))
                     for k, e in enumerate(host[t])]  # fmt: skip
            terms.append((1.0, *expert_budget(x[t].double(), *shared)))
            want = sum((f * y for f, y, _ in terms), torch.zeros(D, device="cuda").double())
            own = sum(f * (b + (K + 2) * 2.0**-24 * y.abs()) for f, y, b in terms)
            worst = float(((out["out"][t].double() - want).abs() / (own + want.abs() / 256)).max())
            if not worst <= 1:
                return f"out of token {t}: {worst:.3g} budgets off"
        return "" if not out["status"].any() else "a token's status is not 0"

    def by_expert() -> torch.Tensor:
        """cuBLAS in bf16, one expert after another; which tokens it has is known beforehand."""
        total = torch.nn.functional.silu(x @ shared[0].T) * (x @ shared[1].T) @ shared[2].T
        for e, (rows, factor) in tokens.items():
            g, u, d = (w.bfloat16() for w in matrices(e))
            mine = x[rows]
            y = (torch.nn.functional.silu(mine @ g.T) * (mine @ u.T)) @ d.T
            total.index_add_(0, rows, y * factor)
        return total

    tokens: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for e in sorted({e for row in host for e in row}):
        t, k = (ids == e).nonzero(as_tuple=True)
        tokens[e] = t, factors[t, k][:, None].bfloat16()
    per_expert = sum(w[0].numel() * w.element_size() for n, w in weights.items()
                     if not n.startswith("shared"))  # fmt: skip
    size = len(tokens) * per_expert + sum(w.numel() * w.element_size() for w in shared)
    work = Work(
        f"moe_experts {stored} group {group} T {T} E {E}: {len(tokens)} experts named",
        run,
        check,
        bytes=float(size),
        flops=6.0 * T * D * (K * I + J),
    )
    if stored == "dense" or (stored == "w4_bf16" and T <= 8):
        what = "cuBLAS bf16" if stored == "dense" else "dequantise + cuBLAS bf16"
        work.peers[f"torch {what}, expert by expert"] = Peer(by_expert)
    return work


KINDS = {"bf16": torch.bfloat16, "f32": torch.float32}
OTHERS = ("x", "latent", "positions", "inv_freq")  # inputs that are no weights


def products(both: Both, op: str, T: int, rows: str, weights: str, **sizes: Any) -> Work:
    """A product of the model, with rows and weights of the given types; floor: weights once."""
    build = {"linear": _linear, "mla_project": _mla_project, "mla_output": _mla_output}[op]
    inputs, attrs, out, sample = build(T, KINDS[rows], KINDS[weights], **sizes)
    arith = "f32" if rows == "f32" else "bf16_f32acc"
    arith += "_f32out" if rows == "bf16" and sizes.get("out") == "f32" else ""
    run = both.prepare(op, out, arith, **inputs, **attrs)
    rules = {"linear": linear, "mla_project": mla_project, "mla_output": mla_output}[op]

    def check() -> str:
        run()
        given, got = sample()
        host = {n: t.double().cpu().numpy() for n, t in given.items()}
        host |= {n: host[n].astype(np.int32) for n in ("positions",) if n in host}
        want = rules.reference(host, attrs, arith)
        for name, value in got.items():
            hard = want.get(f"{name}/hard", 1e-9)  # a status is exact
            error = np.abs(value.double().cpu().numpy() - want[name]) / hard
            if not np.all(error <= 1):
                return f"{name}: {np.max(error):.3g} budgets off"
        return ""

    shape = " ".join(f"{name} {size}" for name, size in sizes.items())
    matrices = {n: t for n, t in inputs.items() if n not in OTHERS}
    used = {
        n: t.numel() // (2 if n == "kv_b" else 1) for n, t in matrices.items()
    }  # keys or values
    work = Work(
        f"{op} {rows} rows, {weights} weights, T {T} {shape}",
        run,
        check,
        bytes=sum(used[n] * t.element_size() for n, t in matrices.items()),
        flops=2.0 * T * sum(used.values()) if rows == "bf16" else 0.0,
    )
    if rows == weights:
        work.peers["torch"] = getattr(peers, f"torch_{op}")(inputs, attrs)
    return work


def _random(*shape: int, kind: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    x = torch.empty(shape, dtype=kind, device="cuda")
    return x.normal_(0.0, scale, generator=_generator())


def _some(size: int, count: int) -> torch.Tensor:
    """The first, the last and some indices between."""
    return torch.linspace(0, size - 1, min(size, count), device="cuda").long().unique()


def _linear(
    T: int, x: torch.dtype, w: torch.dtype, K: int, N: int, out: str
) -> tuple[Tensors, dict[str, Any], Tensors, Callable[[], tuple[Tensors, Tensors]]]:
    inputs = {"x": _random(T, K, kind=x), "weight": _random(N, K, kind=w, scale=K**-0.5)}
    result = {"out": torch.empty(T, N, dtype=KINDS[out], device="cuda"), "status": i32(T)}

    def sample() -> tuple[Tensors, Tensors]:
        t, n = _some(T, 9), _some(N, 61)
        return (
            {"x": inputs["x"][t], "weight": inputs["weight"][n]},
            {"out": result["out"][t][:, n], "status": result["status"][t]},
        )

    return inputs, {}, result, sample


def _mla_project(
    T: int, x: torch.dtype, w: torch.dtype, D: int, Q: int, C: int, H: int, n: int, r: int, v: int
) -> tuple[Tensors, dict[str, Any], Tensors, Callable[[], tuple[Tensors, Tensors]]]:
    inputs = {
        "x": _random(T, D, kind=x),
        "positions": torch.arange(1000, 1000 + T, dtype=torch.int32, device="cuda"),
        "inv_freq": 10000.0 ** -(torch.arange(r // 2, device="cuda").float() * 2 / r),
        "q_a": _random(Q, D, kind=w, scale=D**-0.5),
        "q_a_norm": _random(Q, kind=w, scale=0.1) + 1,
        "q_b": _random(H * (n + r), Q, kind=w, scale=Q**-0.5),
        "kv_a": _random(C + r, D, kind=w, scale=D**-0.5),
        "kv_a_norm": _random(C, kind=w, scale=0.1) + 1,
        "kv_b": _random(H, n + v, C, kind=w, scale=C**-0.5),
    }
    attrs = {"eps": 1e-6, "rope_scale": 1.0, "store": "interleaved"}
    result = {
        "q": torch.empty(T, H, C + r, dtype=x, device="cuda"),
        "kv": torch.empty(T, C + r, dtype=x, device="cuda"),
        "status": i32(T),
    }

    def sample() -> tuple[Tensors, Tensors]:
        t, h = _some(T, 2), _some(H, 3)
        rows = (h[:, None] * (n + r) + torch.arange(n + r, device="cuda")).flatten()
        cut = {"q_b": inputs["q_b"][rows], "kv_b": inputs["kv_b"][h]}
        cut |= {"x": inputs["x"][t], "positions": inputs["positions"][t]}
        return inputs | cut, {"q": result["q"][t][:, h], "kv": result["kv"][t]}

    return inputs, attrs, result, sample


def _mla_output(
    T: int, x: torch.dtype, w: torch.dtype, D: int, C: int, H: int, n: int, v: int
) -> tuple[Tensors, dict[str, Any], Tensors, Callable[[], tuple[Tensors, Tensors]]]:
    inputs = {
        "latent": _random(T, H, C, kind=x),
        "kv_b": _random(H, n + v, C, kind=w, scale=C**-0.5),
        "o": _random(D, H * v, kind=w, scale=(H * v) ** -0.5),
    }
    result = {"out": torch.empty(T, D, dtype=x, device="cuda"), "status": i32(T)}

    def sample() -> tuple[Tensors, Tensors]:
        t, d = _some(T, 2), _some(D, 61)
        cut = {"latent": inputs["latent"][t], "o": inputs["o"][d]}
        return inputs | cut, {"out": result["out"][t][:, d], "status": result["status"][t]}

    return inputs, {}, result, sample


BUILDERS: dict[str, Callable[..., Work]] = {
    "topk": topk, "tree": tree, "build": build, "accept": accept, "merge": merge, "attn": attn,
    "tail": tail, "step": step, "moe": moe,
    "products": products,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("groups", nargs="*", default=[])
    parser.add_argument("--only", default="", help="shapes whose JSON has this text")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    shapes = json.loads((HERE / "shapes.json").read_text())
    if unknown := sorted(set(options.groups) - set(shapes)):
        parser.error(f"unknown groups {unknown}, want {sorted(shapes)}")
    machine, both = Machine(options.repeat), Both()
    record: dict[str, Any] = {"machine": machine.describe(), "works": []}
    print(json.dumps(record["machine"]))
    failed = 0
    for group in options.groups or [g for g in shapes if g in BUILDERS]:
        for shape in shapes[group]:
            if options.only not in json.dumps(shape):
                continue
            begin = time.perf_counter()
            row = measure(BUILDERS[group](both, **shape), machine, not options.no_peers)
            record["works"].append({"group": group, **shape, **row})
            failed += "wrong" in row
            print("\n".join(lines(row)))
            print(f"    ({time.perf_counter() - begin:.1f} s)", flush=True)
            torch.cuda.empty_cache()
            if options.out:
                options.out.write_text(json.dumps(record, indent=1) + "\n")
    if not record["works"]:
        print(f"no shape of {options.groups or 'any group'} has {options.only!r}", file=sys.stderr)
        return 2
    return 1 if failed else 0


def measure(work: Work, machine: Machine, with_peers: bool) -> dict[str, Any]:
    """One row of the record: refused when the call is wrong."""
    row: dict[str, Any] = {"name": work.name}
    if wrong := work.check():
        return {**row, "wrong": wrong}
    row["us"] = machine.median(work.run) * 1e6
    row["graph_us"] = machine.graph(work.run) * 1e6
    floor = max(work.bytes / machine.bandwidth, work.flops / machine.flops) * 1e6
    row["floor_us"] = floor
    row["floor_share"] = floor / row["graph_us"]
    row["peers"] = {n: beside(p, machine) for n, p in work.peers.items() if with_peers}
    return row


def beside(peer: Peer, machine: Machine) -> dict[str, Any]:
    """A peer's row: what is wrong with it, its time, and in a graph where it can be captured."""
    row: dict[str, Any] = {}
    try:
        peer.run()
        torch.cuda.synchronize()
        if peer.check is not None and (wrong := peer.check()):
            row["wrong"] = wrong
        row["checked"] = peer.check is not None
        row["us"] = machine.median(peer.run, host=peer.host) * 1e6
    except Exception as error:  # noqa: BLE001 (whatever a package raises)
        return {**row, "failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    if peer.host:
        return row
    try:
        row["graph_us"] = machine.graph(peer.run, 10 if row["us"] < SLOW * 1e6 else 1) * 1e6
    except Exception as error:  # noqa: BLE001 (as above: it allocates or waits)
        row["no_graph"] = f"{type(error).__name__}: {error}".splitlines()[0]
        torch.cuda.synchronize()
    return row


def lines(row: dict[str, Any]) -> Iterator[str]:
    if "wrong" in row:
        yield f"{row['name']}: NOT TIMED, wrong: {row['wrong']}"
        return
    yield (
        f"{row['name']}: {row['us']:.1f} us, in a graph {row['graph_us']:.1f} us, "
        f"floor {row['floor_us']:.1f} us ({100 * row['floor_share']:.0f} %)"
    )
    for peer, one in row["peers"].items():
        if "failed" in one:
            yield f"    {peer}: failed, {one['failed']}"
            continue
        text = f"    {peer}: {one['us']:.1f} us"
        if "graph_us" in one:
            text += f", in a graph {one['graph_us']:.1f} us"
        best = one.get("graph_us", one["us"])
        text += f", {best / row['graph_us']:.2f} x ours in a graph"
        if "wrong" in one:
            text += f"; WRONG: {one['wrong']}"
        elif not one["checked"]:
            text += "; not checked"
        yield text + (f"; no graph, {one['no_graph']}" if "no_graph" in one else "")


if __name__ == "__main__":
    sys.exit(main())
