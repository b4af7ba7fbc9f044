"""Time the decoder on a random model, beside the bytes that it must read and a plain torch model.

    python benchmarks/decode.py [--layers 12] [--precision f32 bf16] [--format dense int4]

Sizes are options. By default they are small, and what counts is how long a kernel takes that reads
nearly nothing; layers as wide as DeepSeek-V3's, of which a few fill a GPU's memory bandwidth, are

    --layers 4 --hidden 7168 --heads 128 --q-latent 1536 --dense 18432 --experts 32 --expert 2048

The model (DeepSeek-V3's architecture, normal weights in bf16, f32 or int4 where the checkpoint
format has them so) is made on the device and written to a folder, which the engine opens. Before
anything is timed, the engine's tokens in f32 are compared with torch's, and its tree tokens with
its own greedy ones (in bf16 in passes of up to 64 rows); a run whose tokens differ is reported
and not timed.

Times are medians of single steps on the host's clock, from the call until the tokens are there.
The floor of a step is the bytes of weights that it must read at least once (of the experts, those
that its tokens choose, as torch's router has them) and the cache rows of its context, over the
bandwidth of a device copy in the same run.

The torch model is the plain one: `eager` runs the chosen experts one by one, `graph` is captured
whole and gathers them. Its trees are only the verifying pass over the engine's own tree: no
drafting, no building, no commit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from kdtr import __version__, decode
from kdtr.errors import EngineError
from kdtr.reference.decode import rope_of

Weights = dict[str, torch.Tensor]
GROUP = 32  # of int4 weights
DEPTH = 7


def configuration(o: argparse.Namespace) -> dict[str, Any]:
    """config.json of the model."""
    return {
        "model_type": "deepseek_v3", "hidden_act": "silu", "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "attention_bias": False, "rope_interleave": True,
        "vocab_size": o.vocab, "hidden_size": o.hidden, "num_hidden_layers": o.layers,
        "num_attention_heads": o.heads, "kv_lora_rank": o.latent,
        "q_lora_rank": o.q_latent or o.hidden // 2,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "intermediate_size": o.dense or 4 * o.hidden, "moe_intermediate_size": o.expert,
        "n_routed_experts": o.experts, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": o.top_k, "first_k_dense_replace": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192, "rope_theta": 10000.0, "bos_token_id": 0,
        "eos_token_id": None,
    }  # fmt: skip


def random_weights(c: dict[str, Any], form: str, device: str) -> Weights:
    """Weights by their Hugging Face names; experts of a layer are slices of one tensor."""
    generator = torch.Generator(device).manual_seed(5)

    def normal(*shape: int, scale: float | None = None) -> torch.Tensor:
        x = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(generator=generator)
        return x.mul_(shape[-1] ** -0.5 if scale is None else scale)

    d, heads, rope = c["hidden_size"], c["num_attention_heads"], c["qk_rope_head_dim"]
    nope, value, lora = c["qk_nope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    ones = torch.ones
    w: Weights = {
        "model.embed_tokens.weight": normal(c["vocab_size"], d, scale=1.0),
        "model.norm.weight": ones(d, dtype=torch.bfloat16, device=device),
        "lm_head.weight": normal(c["vocab_size"], d),
    }

    def mlp(prefix: str, columns: int) -> None:
        w[f"{prefix}gate_proj.weight"] = normal(columns, d)
        w[f"{prefix}up_proj.weight"] = normal(columns, d)
        w[f"{prefix}down_proj.weight"] = normal(d, columns)

    def packed(prefix: str, rows: int, columns: int) -> None:
        words = torch.randint(
            -(2**31), 2**31, (rows, columns // 8), dtype=torch.int32, device=device,
            generator=generator,
        )  # fmt: skip
        w[f"{prefix}.weight_packed"] = words
        scale = normal(rows, columns // GROUP, scale=0.1).add_(1).mul_(columns**-0.5 / 4.6)
        w[f"{prefix}.weight_scale"] = scale

    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[f"{p}{name}.weight"] = ones(d, dtype=torch.bfloat16, device=device)
        a, m = p + "self_attn.", p + "mlp."
        w[a + "q_a_proj.weight"] = normal(c["q_lora_rank"], d)
        w[a + "q_a_layernorm.weight"] = ones(c["q_lora_rank"], dtype=torch.bfloat16, device=device)
        w[a + "q_b_proj.weight"] = normal(heads * (nope + rope), c["q_lora_rank"])
        w[a + "kv_a_proj_with_mqa.weight"] = normal(lora + rope, d)
        w[a + "kv_a_layernorm.weight"] = ones(lora, dtype=torch.bfloat16, device=device)
        w[a + "kv_b_proj.weight"] = normal(heads * (nope + value), lora)
        w[a + "o_proj.weight"] = normal(d, heads * value)
        if layer < c["first_k_dense_replace"]:
            mlp(m, c["intermediate_size"])
            continue
        w[m + "gate.weight"] = normal(c["n_routed_experts"], d)
        w[m + "gate.e_score_correction_bias"] = torch.zeros(c["n_routed_experts"], device=device)
        mlp(m + "shared_experts.", c["moe_intermediate_size"])
        for e in range(c["n_routed_experts"]):
            if form == "dense":
                mlp(f"{m}experts.{e}.", c["moe_intermediate_size"])
                continue
            packed(f"{m}experts.{e}.gate_proj", c["moe_intermediate_size"], d)
            packed(f"{m}experts.{e}.up_proj", c["moe_intermediate_size"], d)
            packed(f"{m}experts.{e}.down_proj", d, c["moe_intermediate_size"])
    for k in range(DEPTH):
        w[f"draft_heads.{k}.weight"] = normal(d, 2 * d)
    return w


def save(weights: Weights, path: Path) -> None:
    """A safetensors file."""
    names = {torch.bfloat16: "BF16", torch.float32: "F32", torch.int32: "I32"}
    header, at = {}, 0
    for name, w in weights.items():
        size = w.numel() * w.element_size()
        header[name] = {
            "dtype": names[w.dtype],
            "shape": list(w.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb", buffering=0) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for w in weights.values():
            view = memoryview(w.cpu().view(torch.uint8).reshape(-1).numpy())
            while view:
                view = view[file.write(view) :]


def write_model(c: dict[str, Any], weights: Weights, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(c))
    drafts = {n: w for n, w in weights.items() if n.startswith("draft_heads.")}
    save({n: w for n, w in weights.items() if n not in drafts}, folder / "model.safetensors")
    save(drafts, folder / "draft_heads.safetensors")


def dequantised(weights: Weights) -> Weights:
    """int4 weights as f32 values; all others as they are."""
    out = {}
    for name, w in weights.items():
        if name.endswith(".weight_packed"):
            codes = (w[..., None] >> torch.arange(0, 32, 4, device=w.device)) & 15
            scale = weights[name.removesuffix("packed") + "scale"].float()
            values = (codes.reshape(*scale.shape, GROUP) - 8).float() * scale[..., None]
            out[name.removesuffix("_packed")] = values.reshape(w.shape[0], -1)
        elif not name.endswith(".weight_scale"):
            out[name] = w
    return out


class Torch:
    """The plain model: one request, absorbed attention over latent rows, a mask."""

    def __init__(self, c: dict[str, Any], weights: Weights, dtype: torch.dtype, rows: int) -> None:
        self.c, self.dtype = c, dtype
        kept = ("gate.weight", "e_score_correction_bias")
        w = {n: x.float() if n.endswith(kept) else x.to(dtype) for n, x in weights.items()}
        for layer in range(c["first_k_dense_replace"], c["num_hidden_layers"]):
            m = f"model.layers.{layer}.mlp."
            for part in ("gate_proj", "up_proj", "down_proj"):
                names = [f"{m}experts.{e}.{part}.weight" for e in range(c["n_routed_experts"])]
                w[f"{m}experts.{part}"] = torch.stack([w.pop(n) for n in names])
        self.w = w
        rope = rope_of(c)
        device = w["lm_head.weight"].device
        self.inv_freq = torch.tensor(rope.inv_freq, dtype=torch.float32, device=device)
        self.scale = rope.softmax_scale
        width = c["kv_lora_rank"] + c["qk_rope_head_dim"]
        self.rows = torch.zeros(c["num_hidden_layers"], rows, width, dtype=dtype, device=device)
        self.chosen: list[torch.Tensor] = []  # experts of each layer in the last eager pass

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        wide = x.float()
        factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.w[f"{name}.weight"] * (wide * factor).to(self.dtype)

    def turn(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angle = positions.float()[:, None] * self.inv_freq
        angle = angle.reshape(len(positions), *[1] * (x.ndim - 2), -1)
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., 0::2].float(), x[..., 1::2].float()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(self.dtype)

    def attention(
        self, x: torch.Tensor, layer: int, positions: torch.Tensor, at: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        c, p = self.c, f"model.layers.{layer}.self_attn."
        heads, nope, lora = c["num_attention_heads"], c["qk_nope_head_dim"], c["kv_lora_rank"]
        q = self.norm(F.linear(x, self.w[p + "q_a_proj.weight"]), p + "q_a_layernorm")
        q = F.linear(q, self.w[p + "q_b_proj.weight"]).reshape(len(x), heads, -1)
        kv = F.linear(x, self.w[p + "kv_a_proj_with_mqa.weight"])
        latent = self.norm(kv[:, :lora], p + "kv_a_layernorm")
        fresh = torch.cat([latent, self.turn(kv[:, lora:], positions)], -1)
        self.rows[layer].index_copy_(0, at, fresh)
        rows = self.rows[layer, : mask.shape[1]]
        kv_b = self.w[p + "kv_b_proj.weight"].reshape(heads, -1, lora)
        absorbed = torch.einsum("thn,hnc->thc", q[..., :nope], kv_b[:, :nope])
        whole = torch.cat([absorbed, self.turn(q[..., nope:], positions)], -1)
        scores = torch.einsum("thw,kw->htk", whole, rows).float() * self.scale
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).to(self.dtype)
        seen = torch.einsum("htk,kc->htc", weights, rows[:, :lora])
        out = torch.einsum("htc,hvc->thv", seen, kv_b[:, nope:])
        return F.linear(out.reshape(len(x), -1), self.w[p + "o_proj.weight"])

    def expert(self, x: torch.Tensor, gate: Any, up: Any, down: Any) -> torch.Tensor:
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    def mlp(self, x: torch.Tensor, layer: int, gather: bool) -> torch.Tensor:
        c, p, w = self.c, f"model.layers.{layer}.mlp.", self.w
        parts = ("gate_proj", "up_proj", "down_proj")
        if layer < c["first_k_dense_replace"]:
            return self.expert(x, *(w[f"{p}{n}.weight"] for n in parts))
        scores = F.linear(x.float(), w[p + "gate.weight"]).sigmoid()
        biased = scores + w[p + "gate.e_score_correction_bias"]
        ids = biased.topk(c["num_experts_per_tok"]).indices
        factors = scores.gather(1, ids)
        factors = factors / (factors.sum(-1, keepdim=True) + 1e-20) * c["routed_scaling_factor"]
        out = self.expert(x, *(w[f"{p}shared_experts.{n}.weight"] for n in parts))
        if gather:
            gate, up, down = (w[f"{p}experts.{n}"][ids[0]] for n in parts)
            hidden = F.silu(torch.matmul(gate, x[0])) * torch.matmul(up, x[0])
            y = torch.matmul(down, hidden[..., None])[..., 0]
            return out + (y * factors[0, :, None].to(self.dtype)).sum(0, keepdim=True)
        self.chosen.append(ids)
        for e in ids.unique().tolist():
            t, k = torch.nonzero(ids == e, as_tuple=True)
            y = self.expert(x[t], *(w[f"{p}experts.{n}"][e] for n in parts))
            out.index_add_(0, t, y * factors[t, k, None].to(self.dtype))
        return out

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, at: torch.Tensor, mask: torch.Tensor,
        gather: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """Logits f32 [T, vocab] of tokens whose rows go to places `at` and see `mask` [T, rows]."""
        self.chosen = []
        x = self.w["model.embed_tokens.weight"][ids]
        for layer in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            h = self.norm(x, p + "input_layernorm")
            x = x + self.attention(h, layer, positions, at, mask)
            x = x + self.mlp(self.norm(x, p + "post_attention_layernorm"), layer, gather)
        return F.linear(self.norm(x, "model.norm"), self.w["lm_head.weight"]).float()

    def prefill(self, prompt: list[int]) -> int:
        device = self.rows.device
        at = torch.arange(len(prompt), device=device)
        ids = torch.tensor(prompt, device=device)
        mask = at[:, None] >= at
        return int(self.forward(ids, at, at, mask)[-1].argmax())

    def step(self, token: int, position: int) -> int:
        device = self.rows.device
        at = torch.tensor([position], device=device)
        mask = torch.ones(1, position + 1, dtype=torch.bool, device=device)
        return int(self.forward(torch.tensor([token], device=device), at, at, mask).argmax())

    def captured(self) -> Callable[[int, int], int]:
        """`step` as one graph over all rows of the cache."""
        device, rows = self.rows.device, self.rows.shape[1]
        ids, at = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        token = torch.zeros(1, dtype=torch.int64, device=device)
        every = torch.arange(rows, device=device)

        def run() -> None:
            mask = every[None] <= at[:, None]
            token.copy_(self.forward(ids, at, at, mask, gather=True).argmax(-1))

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            run()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            run()

        def step(last: int, position: int) -> int:
            ids.fill_(last)
            at.fill_(position)
            graph.replay()
            return int(token)

        return step


def step_bytes(c: dict[str, Any], weights: Weights, chosen: list[int], rows: int, wide: int) -> int:
    """Bytes that a step reads at least.

    All weights but embeddings and drafts, of the experts `chosen` in each expert layer, and `rows`
    cache rows of `wide` bytes an element.
    """
    size = {n: w.numel() * w.element_size() for n, w in weights.items()}
    total = sum(
        s
        for n, s in size.items()
        if ".experts." not in n and "embed_tokens" not in n and "draft" not in n
    )
    for count, layer in zip(chosen, range(c["first_k_dense_replace"], 10**9), strict=False):
        one = sum(s for n, s in size.items() if f"layers.{layer}.mlp.experts.0." in n)
        total += count * one
    width = c["kv_lora_rank"] + c["qk_rope_head_dim"]
    return total + c["num_hidden_layers"] * rows * width * wide


def draft_bytes(weights: Weights) -> int:
    """What drafting reads besides: the heads, and lm_head once more."""
    return sum(
        w.numel() * w.element_size()
        for n, w in weights.items()
        if n.startswith(("draft_heads", "lm_head"))
    )


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(steps: int, run: Callable[[], Any], device: str) -> float:
    """Milliseconds: the median of `steps` runs after three."""
    times = []
    for i in range(steps + 3):
        wait(device)
        start = time.perf_counter()
        run()
        wait(device)
        if i >= 3:
            times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def bandwidth(device: str) -> float:
    """Bytes per second that a device copy moves, read and written."""
    x = torch.empty(1 << (31 if device == "cuda" else 27), dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    return 2e3 * x.numel() / timed(5, lambda: y.copy_(x), device)


class Chain:
    """A torch model decoding on from a prompt."""

    def __init__(self, step: Callable[[int, int], int], token: int, position: int) -> None:
        self.step, self.token, self.position = step, token, position

    def __call__(self) -> int:
        self.token = self.step(self.token, self.position)
        self.position += 1
        return self.token


@dataclass
class Both:
    """The engine's decoder and torch's model, of the same weights."""

    o: argparse.Namespace
    c: dict[str, Any]
    weights: Weights  # as stored
    ours: decode.Decoder
    theirs: Torch
    prompt: list[int]
    rate: float

    def check(self) -> dict[str, Any]:
        """How many tokens are torch's; "wrong" if one differs in f32, or a tree's from greedy."""
        ours, theirs, count = self.ours, self.theirs, self.o.check
        mine = [ours.prefill(self.prompt)] + [ours.greedy()[0] for _ in range(count)]
        go = Chain(theirs.step, theirs.prefill(self.prompt), len(self.prompt))
        same = [go.token] + [go() for _ in range(count)]
        trees = {}
        for budget in self.o.budgets:
            trees[budget] = [ours.prefill(self.prompt)]
            while len(trees[budget]) <= count:
                trees[budget] += ours.tree(budget)[0]
        equal = np.cumprod([a == b for a, b in zip(mine, same, strict=True)])
        row = {"tokens_checked": len(mine), "tokens_equal_torch": int(equal.sum())}
        wide = theirs.dtype == torch.float32
        faithful = {b: t[: len(mine)] == mine for b, t in trees.items()}
        # In bf16, products of more than 64 rows may go to cuBLAS, which promises no equal bits.
        must = [b for b in trees if wide or b < 64]
        row["trees_equal_greedy"] = faithful
        if not all(faithful[b] for b in must) or (wide and mine != same):
            row["wrong"] = f"tokens differ: {mine}; torch {same}; trees {trees}"
        return row

    def floor(self, *, drafts: bool) -> dict[str, Any]:
        """Bytes of a step whose tokens torch has just seen, and the time they take."""
        chosen = [int(ids.unique().numel()) for ids in self.theirs.chosen]
        wide = self.theirs.dtype.itemsize
        least = step_bytes(self.c, self.weights, chosen, len(self.prompt), wide)
        least += draft_bytes(self.weights) if drafts else 0
        return {"experts": chosen, "bytes": least, "floor_ms": 1e3 * least / self.rate}

    def greedy(self) -> dict[str, Any]:
        """Times of steps of one token."""
        o, ours, theirs = self.o, self.ours, self.theirs
        ours.prefill(self.prompt)
        go = Chain(theirs.step, theirs.prefill(self.prompt), len(self.prompt))
        row = {"ms": timed(o.steps, ours.greedy, "cpu"), "torch_ms": timed(o.steps, go, o.device)}
        row.update(self.floor(drafts=False))
        if o.device == "cuda":
            go = Chain(theirs.captured(), go.token, go.position)
            row["torch_graph_ms"] = timed(o.steps, go, o.device)
        return row

    def tree(self, budget: int) -> dict[str, Any]:
        """Times of one round, and of torch's pass over the same tree."""
        o, ours, theirs = self.o, self.ours, self.theirs
        n, context = budget + 1, len(self.prompt)
        ours.prefill(self.prompt)
        ours.tree(budget)
        nodes = torch.tensor(ours.read("tree.tokens"), device=o.device).long()
        position = torch.tensor(ours.read("tree.positions"), device=o.device).long()
        seen = ours.read("tree.visible", np.uint8).reshape(n, n).astype(bool)
        past = torch.ones(n, context, dtype=torch.bool, device=o.device)
        mask = torch.cat([past, torch.tensor(seen, device=o.device)], 1)
        at = context + torch.arange(n, device=o.device)

        def verify() -> None:
            theirs.forward(nodes, position, at, mask).argmax(-1).cpu()

        row = {"torch_ms": timed(o.steps, verify, o.device)}
        row.update(self.floor(drafts=True))
        row["ms"] = timed(o.steps, lambda: ours.tree(budget), "cpu")
        return row


def measure(
    o: argparse.Namespace, form: str, precision: str, folder: Path, weights: Weights, rate: float
) -> dict[str, Any]:
    """A row of the record."""
    c = configuration(o)
    prompt = np.random.default_rng(3).integers(0, c["vocab_size"], o.context).tolist()
    room = o.context + (o.steps + 8) * (DEPTH + 1) + 2 * o.check
    extra = {} if precision == "f32" else {"precision": precision}
    start = time.perf_counter()
    ours = decode.Decoder(
        folder, o.engine, max_context=room, page_size=64, max_budget=max(o.budgets), **extra
    )
    print(f"{form} {precision}: opened in {time.perf_counter() - start:.1f} s", flush=True)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[precision]
    theirs = Torch(c, dequantised(weights), dtype, room + max(o.budgets) + 1)
    row: dict[str, Any] = {"format": form, "precision": precision}
    with ours, torch.inference_mode():
        both = Both(o, c, weights, ours, theirs, prompt, rate)
        row.update(both.check())
        if "wrong" not in row:
            row["greedy"] = both.greedy()
            for budget in o.budgets:
                row[f"tree {budget}"] = both.tree(budget)
    return row


def lines(row: dict[str, Any]) -> Iterator[str]:
    """A row as text."""
    name = f"{row['format']} experts, {row['precision']}"
    if "wrong" in row:
        yield f"{name}: NOT TIMED: {row['wrong']}"
        return
    same = ", ".join(f"{b} {'yes' if ok else 'no'}" for b, ok in row["trees_equal_greedy"].items())
    yield (
        f"{name}: {row['tokens_equal_torch']} of {row['tokens_checked']} tokens as torch's; trees "
        f"give the greedy tokens: {same}"
    )
    for kind, t in row.items():
        if isinstance(t, dict) and "ms" in t:
            graph = f", in a graph {t['torch_graph_ms']:.3f} ms" if "torch_graph_ms" in t else ""
            yield (
                f"  {kind}: {t['ms']:.3f} ms, floor {t['floor_ms']:.3f} ms "
                f"({100 * t['floor_ms'] / t['ms']:.0f} %); torch {t['torch_ms']:.3f} ms{graph}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (  # q-latent 0: half of hidden; dense 0: four times hidden
        ("layers", 12), ("hidden", 2048), ("heads", 16), ("latent", 512), ("q-latent", 0),
        ("dense", 0), ("experts", 64), ("expert", 1024), ("top-k", 8), ("vocab", 32768),
        ("context", 256), ("steps", 20), ("check", 16),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--budgets", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--precision", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"])
    parser.add_argument("--format", nargs="+", choices=["dense", "int4"], default=["dense", "int4"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="torch's")
    parser.add_argument("--engine", help="of kdtr; by default that of the device")
    parser.add_argument("--folder", type=Path, help="where the model is written, and removed")
    parser.add_argument("--out", type=Path, help="write the record here, as JSON")
    o = parser.parse_args()
    o.engine = o.engine or o.device
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    rate = bandwidth(o.device)
    record: dict[str, Any] = {
        "kdtr": __version__, "torch": torch.__version__, "copy_tb_per_s": rate / 1e12,
        "device": device_name(o.device), "rows": [],
        "model": {n: v for n, v in vars(o).items() if isinstance(v, int)},
    }  # fmt: skip
    print(f"{record['device']}, copy {rate / 1e12:.2f} TB/s", flush=True)
    failed = 0
    for form in o.format:
        folder = Path(tempfile.mkdtemp(dir=o.folder))
        try:
            start = time.perf_counter()
            weights = random_weights(configuration(o), form, o.device)
            write_model(configuration(o), weights, folder)
            size = sum(f.stat().st_size for f in folder.iterdir())
            seconds = time.perf_counter() - start
            print(f"{form}: {size / 1e9:.2f} GB written in {seconds:.1f} s", flush=True)
            for precision in o.precision:
                try:
                    row = measure(o, form, precision, folder, weights, rate)
                except EngineError as error:
                    row = {"format": form, "precision": precision, "wrong": str(error)}
                record["rows"].append(row)
                if o.out:
                    o.out.write_text(json.dumps(record, indent=1) + "\n")
                failed += "wrong" in row
                print("\n".join(lines(row)), flush=True)
                torch.cuda.empty_cache()
            del weights
        finally:
            shutil.rmtree(folder)
    return 1 if failed else 0


def device_name(device: str) -> str:
    if device == "cpu":
        return "cpu"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
