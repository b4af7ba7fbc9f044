"""Reference model: DeepSeek-V3's forward in f64, greedy and draft-tree decoding.

Plain and slow on purpose: one request, absorbed attention over latent rows, a free mask.
`Choices` names what engines do differently; each default is what the published model does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.reference import topk_logprobs, tree_accept, tree_build
from kdtr.reference.moe_route import Convention, route

F64 = NDArray[np.float64]
PUBLISHED_ROUTING = Convention()
Ids = Sequence[int]


@dataclass(frozen=True)
class Choices:
    """Where engines part from the published model. The defaults are the published model."""

    latent_eps: float | None = 1e-6  # None: rms_norm_eps
    eps: float | None = None  # None: rms_norm_eps
    yarn: bool = True
    mscale_power: int = 2  # of mscale in the softmax scale
    head_dim: bool = False  # softmax scale from config's head_dim, the rope width
    rope_factor: bool = False  # 0.1 ln(factor) + 1 on cos and sin
    half_pairs: bool = False
    rope_sign: float = 1.0
    routing: Convention = PUBLISHED_ROUTING
    routed_scaling: bool = True
    shared: bool = True


PUBLISHED = Choices()
WRONG: Mapping[str, Choices] = {
    "lora_eps=rms_norm_eps": Choices(latent_eps=None),
    "all_eps=1e-6": Choices(eps=1e-6),
    "no_yarn_freq": Choices(yarn=False),
    "no_mscale": Choices(mscale_power=0),
    "mscale_once": Choices(mscale_power=1),
    "scale=head_dim^-0.5": Choices(head_dim=True),
    "att_factor=0.1ln+1": Choices(rope_factor=True),
    "rope_half_pairs": Choices(half_pairs=True),
    "rope_sign": Choices(rope_sign=-1.0),
    "no_bias": Choices(routing=Convention(biased=False)),
    "weights_from_biased": Choices(routing=Convention(weights="choices")),
    "group_score=max": Choices(routing=Convention(group_score="max")),
    "group_score_unbiased": Choices(routing=Convention(group_score="unbiased")),
    "no_groups": Choices(routing=Convention(grouped=False)),
    "group_mask=0.0": Choices(routing=Convention(mask=0.0)),
    "no_norm_topk": Choices(routing=Convention(renormalize=False)),
    "no_routed_scaling": Choices(routed_scaling=False),
    "no_shared": Choices(shared=False),
}


@dataclass(frozen=True)
class Rope:
    """Frequencies [rope/2], the factor on cos and sin, and the softmax scale."""

    inv_freq: F64
    factor: float
    softmax_scale: float


def rope_of(config: Mapping[str, Any], choices: Choices = PUBLISHED) -> Rope:
    """YaRN as DeepSeek has it, from either spelling of the configuration.

    Frequencies are computed in f32 step by step, as transformers does: their last bits decide
    angles at far positions.
    """
    r = config.get("rope_parameters") or {
        **(config.get("rope_scaling") or {}),
        "rope_theta": config.get("rope_theta", 10000.0),
    }
    dim, theta = int(config["qk_rope_head_dim"]), float(r["rope_theta"])
    one = np.float32(1)
    power = np.array(
        [np.float32(theta ** float(np.float32(i) / np.float32(dim))) for i in range(0, dim, 2)],
        np.float32,
    )
    plain = one / power
    width = config["qk_nope_head_dim"] + dim
    if choices.head_dim:
        width = config.get("head_dim", dim)
    if r.get("rope_type", r.get("type", "default")) != "yarn":
        return Rope(plain.astype(np.float64), 1.0, float(width) ** -0.5)
    factor, original = float(r["factor"]), float(r["original_max_position_embeddings"])

    def correction(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    def mscale(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    low = np.float32(max(math.floor(correction(r.get("beta_fast", 32))), 0))
    high = np.float32(min(math.ceil(correction(r.get("beta_slow", 1))), dim - 1))
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    keep = (one - ramp).astype(np.float32)
    mixed = one / (np.float32(factor) * power) * (one - keep) + plain * keep
    every = mscale(r.get("mscale_all_dim") or 0.0)
    return Rope(
        (mixed if choices.yarn else plain).astype(np.float64),
        mscale(1.0) if choices.rope_factor else mscale(r.get("mscale", 1.0)) / every,
        float(np.float32(float(width) ** -0.5 * every**choices.mscale_power)),
    )


class Model:
    """Weights by their Hugging Face names, widened to f64.

    Args:
        config: config.json, in either spelling.
        weights: tensors of model.safetensors and draft_heads.safetensors.
        choices: what to do differently.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: Mapping[str, NDArray[Any]],
        choices: Choices = PUBLISHED,
    ) -> None:
        self.config, self.choices = config, choices
        self.weights = {name: np.asarray(w, np.float64) for name, w in weights.items()}
        self.rope = rope_of(config, choices)
        self.eps = float(config["rms_norm_eps"]) if choices.eps is None else choices.eps
        self.latent_eps = self.eps if choices.latent_eps is None else choices.latent_eps
        self.depth = sum(name.startswith("draft_heads.") for name in weights)

    def but(self, choices: Choices) -> Model:
        """The same weights under other choices."""
        return Model(self.config, self.weights, choices)

    def _linear(self, x: F64, name: str) -> F64:
        return np.asarray(x @ self.weights[f"{name}.weight"].T)

    def _norm(self, x: F64, name: str, eps: float) -> F64:
        factor = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
        return np.asarray(self.weights[f"{name}.weight"] * (x / factor))

    def _turn(self, x: F64, positions: NDArray[Any]) -> F64:
        """Rope part x [n, ..., rope], stored in halves."""
        angle = nx.round_f32(positions.astype(np.float64)[:, None] * self.rope.inv_freq)
        sin, cos = nx.sincos(angle)
        shape = (len(positions), *[1] * (x.ndim - 2), angle.shape[1])
        c = (cos * self.rope.factor).reshape(shape)
        s = (sin * self.rope.factor * self.choices.rope_sign).reshape(shape)
        half = angle.shape[1]
        a, b = (
            (x[..., :half], x[..., half:])
            if self.choices.half_pairs
            else (x[..., 0::2], x[..., 1::2])
        )
        return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)

    def _attention(
        self, h: F64, layer: int, positions: NDArray[Any], mask: NDArray[np.bool_], past: F64
    ) -> tuple[F64, F64]:
        """(output [n, hidden], all rows [past + n, kv_lora + rope])."""
        c, p = self.config, f"model.layers.{layer}.self_attn."
        heads, nope, value = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
        lora = c["kv_lora_rank"]
        q = self._norm(self._linear(h, p + "q_a_proj"), p + "q_a_layernorm", self.latent_eps)
        q = self._linear(q, p + "q_b_proj").reshape(len(h), heads, -1)
        kv = self._linear(h, p + "kv_a_proj_with_mqa")
        latent = self._norm(kv[:, :lora], p + "kv_a_layernorm", self.latent_eps)
        rows = np.concatenate([latent, self._turn(kv[:, lora:], positions)], axis=-1)
        rows = np.concatenate([past, rows])
        kv_b = self.weights[p + "kv_b_proj.weight"].reshape(heads, nope + value, lora)
        absorbed = np.matmul(q[..., :nope].transpose(1, 0, 2), kv_b[:, :nope])
        turned = self._turn(q[..., nope:], positions).transpose(1, 0, 2)
        scores = np.concatenate([absorbed, turned], axis=-1) @ rows.T * self.rope.softmax_scale
        scores = np.where(mask, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        seen = np.matmul(weights @ rows[:, :lora], kv_b[:, nope:].transpose(0, 2, 1))
        return self._linear(seen.transpose(1, 0, 2).reshape(len(h), -1), p + "o_proj"), rows

    def _expert(self, x: F64, prefix: str) -> F64:
        gate = self._linear(x, prefix + "gate_proj")
        up = self._linear(x, prefix + "up_proj")
        return self._linear(gate / (1.0 + np.exp(-gate)) * up, prefix + "down_proj")

    def _mlp(self, h: F64, layer: int) -> F64:
        c, p = self.config, f"model.layers.{layer}.mlp."
        if layer < c["first_k_dense_replace"]:
            return self._expert(h, p)
        attrs = {
            "n_group": c["n_group"],
            "topk_group": c["topk_group"],
            "top_k": c["num_experts_per_tok"],
            "renormalize": c["norm_topk_prob"],
            "scale": c["routed_scaling_factor"] if self.choices.routed_scaling else 1.0,
        }
        bias = self.weights[p + "gate.e_score_correction_bias"]
        ids, weights, _ = route(self._linear(h, p + "gate"), bias, attrs, self.choices.routing)
        out = np.zeros_like(h)
        for e in range(c["n_routed_experts"]):
            t, k = np.nonzero(ids == e)
            if t.size:
                out[t] += self._expert(h[t], f"{p}experts.{e}.") * weights[t, k, None]
        if c["n_shared_experts"] and self.choices.shared:
            out += self._expert(h, p + "shared_experts.")
        return out

    def forward(
        self,
        ids: Ids,
        positions: Ids,
        mask: NDArray[np.bool_],
        cache: Sequence[F64] | None = None,
        taps: dict[str, F64] | None = None,
    ) -> tuple[F64, list[F64]]:
        """One pass.

        Args:
            ids: of the n new tokens.
            positions: theirs.
            mask: [n, past + n], what each may see.
            cache: rows [past, kv_lora + rope] of each layer.
            taps: filled with `lN.post_attn` and `lN.post_mlp`, the residual stream.

        Returns:
            (hidden rows after the final norm [n, hidden], rows of each layer [past + n, ...]).
        """
        c, at = self.config, np.asarray(positions)
        empty = np.zeros((0, c["kv_lora_rank"] + c["qk_rope_head_dim"]))
        x, rows = self.weights["model.embed_tokens.weight"][np.asarray(ids)], []
        for layer in range(c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            h = self._norm(x, p + "input_layernorm", self.eps)
            past = empty if cache is None else cache[layer]
            out, all_rows = self._attention(h, layer, at, mask, past)
            rows.append(all_rows)
            x = x + out
            if taps is not None:
                taps[f"l{layer}.post_attn"] = x
            x = x + self._mlp(self._norm(x, p + "post_attention_layernorm", self.eps), layer)
            if taps is not None:
                taps[f"l{layer}.post_mlp"] = x
        return self._norm(x, "model.norm", self.eps), rows

    def logits(self, hidden: F64) -> F64:
        """hidden [..., hidden] to logits [..., vocab]."""
        return self._linear(hidden, "lm_head")

    def marginals(self, hidden: F64, root: int) -> F64:
        """Draft logits [depth, vocab] from the hidden row before the root, and the root."""
        x = np.concatenate([hidden, self.weights["model.embed_tokens.weight"][root]])
        heads = [self.weights[f"draft_heads.{k}.weight"] for k in range(self.depth)]
        return self.logits(np.stack(heads) @ x)


def causal(n: int, past: int = 0) -> NDArray[np.bool_]:
    """[n, past + n]: each token sees all earlier ones and itself."""
    return np.tril(np.ones((n, past + n), bool), past)


def prefill(model: Model, prompt: Ids, taps: dict[str, F64] | None = None) -> tuple[F64, list[F64]]:
    """(hidden rows [n, hidden], cache) of a prompt."""
    n = len(prompt)
    return model.forward(prompt, range(n), causal(n), None, taps)


def teacher_forced(model: Model, prompt: Ids, output: Ids) -> list[int]:
    """The model's choice after the prompt and after each token of `output` but the last."""
    hidden, _ = prefill(model, [*prompt, *output[:-1]])
    choice: list[int] = model.logits(hidden[len(prompt) - 1 :]).argmax(-1).tolist()
    return choice


def greedy(model: Model, prompt: Ids) -> Iterator[int]:
    """Greedy tokens, without end; ties to the lowest id."""
    hidden, cache = prefill(model, prompt)
    while True:
        token = int(model.logits(hidden[-1]).argmax())
        yield token
        past = len(cache[0])
        hidden, cache = model.forward([token], [past], causal(1, past), cache)


@dataclass(frozen=True)
class Round:
    """One speculative round.

    `position` rows were cached before `root`; `tokens` and `parents` are the tree's nodes in pop
    order, node 0 = root; `path` the accepted nodes; `accepted` their tokens, `bonus` the next.
    `order_gap` is the smallest step between weights of nodes popped in turn.
    """

    root: int
    position: int
    tokens: list[int]
    parents: list[int]
    path: list[int]
    accepted: list[int]
    bonus: int
    order_gap: float


def draft(marginals: F64, root: int, position: int, budget: int) -> dict[str, NDArray[Any]]:
    """The tree of one request, by the sibling references of topk_logprobs and tree_build."""
    logits = nx.round_f32(marginals)[None]
    k = min(budget, logits.shape[-1])
    top = topk_logprobs.reference({"logits": logits}, {"K": k}, "f32")
    logprobs = np.take_along_axis(logits, top["ids"].astype(np.int64), -1)
    logprobs = nx.round_f32(logprobs - nx.round_f32(top["lse"])[..., None])
    inputs = {
        "logprobs": logprobs,
        "ids": top["ids"],
        "root_token": np.array([root], np.int32),
        "prefix_len": np.array([position], np.int32),
    }
    return tree_build.reference(inputs, {"budget": budget, "tie_order": "ranks"}, "exact")


def speculate(
    model: Model,
    prompt: Ids,
    budget: int,
    after: Callable[[Model, Round, list[F64]], None] | None = None,
) -> Iterator[Round | int]:
    """The first token, then one `Round` after another, without end.

    `after` sees the cache as each round leaves it.
    """
    hidden, cache = prefill(model, prompt)
    before, root = hidden[-1], int(model.logits(hidden[-1]).argmax())
    yield root
    while True:
        past = len(cache[0])
        tree = draft(model.marginals(before, root), root, past, budget)
        n = int(tree["n_nodes"][0])
        tokens, parents = tree["tokens"][0, :n].tolist(), tree["parents"][0, :n].tolist()
        mask = np.concatenate([np.ones((n, past), bool), tree["visible"][0, :n, :n] != 0], axis=1)
        hidden, rows = model.forward(tokens, tree["positions"][0, :n].tolist(), mask, cache)
        target = model.logits(hidden).argmax(-1).astype(np.int32)[None]
        links = {key: tree[key][:, :n] for key in ("tokens", "next_token", "next_sibling")}
        walk = tree_accept.reference(
            {**links, "n_nodes": tree["n_nodes"], "target": target},
            {"L": model.depth, "V": model.config["vocab_size"]},
            "exact",
        )
        length = int(walk["accept_len"][0])
        path = walk["accept_index"][0, : length + 1].tolist()
        emitted = walk["accepted_tokens"][0, : length + 1].tolist()
        kept = [*range(past), *(past + i for i in path)]
        cache = [r[kept] for r in rows]
        weights = tree["weights"][0, 1:n]
        done = Round(
            root=root,
            position=past,
            tokens=tokens,
            parents=parents,
            path=path[1:],
            accepted=emitted[:-1],
            bonus=emitted[-1],
            order_gap=float(np.min(weights[:-1] - weights[1:])) if n > 2 else math.inf,
        )
        if after is not None:
            after(model, done, cache)
        before, root = hidden[path[-1]], done.bonus
        yield done


def name_of(
    model: Model, prompt: Ids, observed: F64, known: Mapping[str, Choices] = WRONG
) -> tuple[str, float, float]:
    """Which choices an engine follows, from its hidden rows [n, hidden] of a prompt.

    Returns (the label whose rows are nearest, "published" for none of the known-wrong, its
    greatest difference, and that of the runner-up).
    """
    distances = []
    for label, choices in {"published": PUBLISHED, **known}.items():
        hidden, _ = prefill(model.but(choices), prompt)
        distances.append((float(np.max(np.abs(hidden - observed))), label))
    (best, label), (second, _), *_ = sorted(distances)
    return label, best, second
