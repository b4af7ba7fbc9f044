"""Checks that need no golden: two calls of an engine whose results must be related.

A relation holds bit for bit where any legal kernel keeps it so, and else within the sum of both
calls' hard budgets, which the op's reference gives at any size. `kdtr check` runs them on
random calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdtr import case, contract, dtypes, ops
from kdtr.cases.verify_attn import Scene, scene

Array = NDArray[Any]
Values = Mapping[str, Array]


class UnsupportedError(Exception):
    """The engine does not run a call; the text says why."""


@dataclass(frozen=True)
class Outcome:
    """What one relation came to on one pair of calls.

    Attributes:
        relation: its name.
        rule: "bits" or "budget".
        worst: greatest difference over the summed budget; 0 or inf for bits. Above 1 is a fault.
        text: where the worst is, or why the relation could not be looked at.
    """

    relation: str
    rule: str
    worst: float = 0.0
    text: str = ""

    @property
    def holds(self) -> bool:
        """Whether the relation holds."""
        return self.worst <= 1


@dataclass(frozen=True)
class Call:
    """Arguments of one call: floats as f64, ints as they are.

    `types` overrides the stored type of arguments, `out` preallocates outputs of another type.
    """

    op: str
    inputs: Values
    attrs: Mapping[str, Any]
    arith: str = ""
    types: Mapping[str, str] | None = None
    out: Values | None = None

    def with_inputs(self, **inputs: Array) -> Call:
        """The same call on other inputs."""
        return replace(self, inputs={**self.inputs, **inputs})

    def reference(self) -> dict[str, Array]:
        """What the op's reference gives, budgets too."""
        profile = contract.load(self.op).profile(self.arith)
        return case.reference(self.op)(self.inputs, self.attrs, profile)

    def bounds(self) -> dict[str, Array]:
        """The hard budget of each class B output."""
        found = self.reference()
        return {k.partition("/")[0]: v for k, v in found.items() if k.endswith("/hard")}


class Runner:
    """Runs calls on an engine. One on a GPU is reached through torch."""

    def __init__(self, spec: str) -> None:
        self.engine = ops.Engine(spec)
        self.calls = 0
        kind, number = self.engine.device
        self.device = "" if kind == 1 else f"cuda:{number}"

    def __call__(self, call: Call) -> dict[str, Array]:
        """Outputs by name, floats widened to f64. Raises UnsupportedError and EngineError."""
        rules = contract.load(call.op)
        types = call.types or {}
        given: dict[str, Any] = {
            name: _stored(values, types.get(name, rules.tensor(name).dtypes[0]))
            for name, values in call.inputs.items()
        }
        made: dict[str, Any] = dict(call.out or {})
        ops.allocate(rules, given, call.attrs, {}, made)
        self.calls += 1
        for value in made.values():  # an element that is left unwritten differs from call to call
            array = value[1] if isinstance(value, tuple) else value
            array.view(np.uint8).fill(0xA5 if self.calls % 2 else 0x5A)
        kinds = {n: v if isinstance(v, tuple) else (_native(v), v) for n, v in made.items()}
        if self.device:
            given = {n: self._lend(v) for n, v in given.items()}
            made = {n: self._lend(v) for n, v in made.items()}
        arguments = {"out": made, "arith": call.arith, **given, **call.attrs}
        if why := self.engine.unsupported(call.op, **arguments):
            raise UnsupportedError(why)
        self.engine.call(call.op, **arguments)
        found = {
            name: case.widen(dtypes.decode(self._back(made[name], array), kind, array.shape))
            for name, (kind, array) in kinds.items()
        }
        for name in found.keys() - self.engine.outputs(call.op):
            found[name] = np.zeros_like(found[name])  # not the engine's, so never a difference
        return found

    def _lend(self, value: Any) -> Any:
        import torch  # noqa: PLC0415 (only for an engine on a GPU)

        if isinstance(value, tuple):  # bits of bf16
            tensor = torch.from_numpy(value[1].view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(value)
        return tensor.to(self.device)

    def _back(self, lent: Any, array: Array) -> Array:
        if not self.device:
            return array
        import torch  # noqa: PLC0415 (as above)

        host = lent.cpu()  # waits for the kernel
        found: Array = (host.view(torch.int16) if host.dtype == torch.bfloat16 else host).numpy()
        return found.view(array.dtype)


def _stored(values: Array, kind: str) -> Any:
    if values.dtype.kind == "f":
        values = dtypes.round_to(values, kind)
    array = np.ascontiguousarray(dtypes.encode(values, kind))
    return array if _native(array) == kind else (kind, array)


def _native(array: Array) -> str:
    return dtypes.of_numpy(array.dtype).name


# --- comparing ----------------------------------------------------------------------------------


def same_bits(relation: str, got: Values, want: Values, note: str = "") -> Outcome:
    """Whether outputs agree bit for bit (a NaN is a NaN)."""
    for name, b in want.items():
        a = got[name]
        if a.shape != b.shape:
            return Outcome(relation, "bits", np.inf, f"{name}: shape {a.shape}, want {b.shape}")
        x, y = (v.view(np.int64) if v.dtype == np.float64 else v for v in map(_plain, (a, b)))
        wrong = np.argwhere(x != y)
        if len(wrong):
            at = tuple(wrong[0])
            text = _place(name, at, a, b)
            return Outcome(
                relation, "bits", np.inf, f"{note}{text}; {len(wrong)} of {a.size} differ"
            )
    return Outcome(relation, "bits")


def _place(name: str, at: Sequence[Any], got: Array, want: Array) -> str:
    return f"{name}{list(map(int, at))}: {got[at].item()!r}, want {want[at].item()!r}"


def _plain(values: Array) -> Array:
    if values.dtype.kind != "f":
        return values
    return np.ascontiguousarray(np.where(np.isnan(values), np.nan, values), np.float64)


def within(relation: str, got: Values, want: Values, bound: Values, note: str = "") -> Outcome:
    """Whether outputs agree within a bound for each element; those without one, exactly."""
    worst, text = 0.0, ""
    for name, b in want.items():
        a = got[name]
        if name not in bound:
            exact = same_bits(relation, {name: a}, {name: b}, note)
            if not exact.holds:
                return Outcome(relation, "budget", np.inf, exact.text)
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            over = np.where(a == b, 0.0, np.abs(a - b) / bound[name])
        over = np.where(np.isnan(over), np.inf, over)
        if over.size and over.max() > worst:
            at = np.unravel_index(int(over.argmax()), over.shape)
            worst = float(over[at])
            text = note + _place(name, at, a, b)
    return Outcome(relation, "budget", worst, text)


def _pick(values: Values, index: Any) -> dict[str, Array]:
    """The same part of every output."""
    return {name: value[index] for name, value in values.items()}


def _sum(*bounds: Values) -> dict[str, Array]:
    return {name: sum((b[name] for b in bounds), np.zeros(())) for name in bounds[0]}


# --- verify_attn --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """Sizes of a random call: (prefix length, nodes) of each request, heads, D, Dv, page size."""

    requests: Sequence[tuple[int, int]]
    heads: int
    width: int
    values: int
    page: int
    candidates: tuple[int, int] = (6, 8)  # L, K
    budget: int = 15
    vocabulary: int = 300


SIZES: Mapping[str, Size] = {
    "small": Size(((37, 9), (0, 5), (130, 1)), 2, 24, 16, 16),
    "medium": Size(((1500, 33), (257, 64)), 4, 576, 512, 64, (15, 64), 64, 5000),
    "large": Size(((16_400, 65),), 8, 576, 512, 64, (15, 256), 1024, 160_000),
}
_ARITH = {"f32": "f32", "bf16": "bf16_f32acc_pbf16", "f16": "f16_f32acc"}


def _attention(x: Scene, size: Size, kind: str, part: str = "whole", **options: Any) -> Call:
    attrs = {
        "scale": float(np.float32(size.width**-0.5)),
        "page_size": size.page,
        "part": part,
        "Dv": size.values,
    }
    inputs = x.inputs(size.page, part, **options)
    # Arguments that a part does not take are absent there.
    return Call("verify_attn", inputs, attrs, _ARITH[kind], {"q": kind, "kv_pool": kind})


def _path(x: Scene, r: int, node: int) -> list[int]:
    path = [node]
    while path[0] > 0:
        path.insert(0, int(x.parents[r][path[0]]))
    return path


def verify_attn(run: Runner, seed: int, size: Size) -> Iterator[Outcome]:
    """Repeat, scaling, poison, pages, relabelling, ancestors, chains, requests, and splits."""
    kind = ("f32", "bf16")[seed % 2]
    n_heads, width = size.heads, size.width
    x = scene(seed * 1000, size.requests, H=n_heads, D=width, dtype=kind)
    base = _attention(x, size, kind)
    whole = run(base)
    hard = base.bounds()
    yield same_bits("repeat", run(base), whole)

    step = 1 + seed % 3
    scaled = run(
        base.with_inputs(
            q=np.ldexp(base.inputs["q"], -step), kv_pool=np.ldexp(base.inputs["kv_pool"], step)
        )
    )
    yield same_bits("value_scaling", scaled, {**whole, "out": np.ldexp(whole["out"], step)})

    other = run(_attention(x, size, kind, poison=3e38))
    yield same_bits("poison", other, whole)

    moved = replace(x, seed=x.seed + 999)
    far = _attention(moved, size, kind, spare_pages=7)
    yield within("page_permutation", run(far), whole, _sum(hard, hard))

    yield _relabelled(run, x, size, kind, whole, hard)

    rng = np.random.default_rng(seed)
    for r, (_, nodes) in enumerate(size.requests):
        for node in sorted({0, nodes - 1, int(rng.integers(nodes))}):
            path = _path(x, r, node)
            alone = Scene(
                seed, x.q[r : r + 1, path], [x.prefix[r]], [x.tree[r][path]],
                [np.arange(len(path)) - 1],
            )  # fmt: skip
            call = _attention(alone, size, kind)
            bound = _sum(_pick(call.bounds(), (0, -1)), _pick(hard, (r, node)))
            note = f"request {r}, node {node}: "
            got = _pick({k: v for k, v in run(call).items() if k != "status"}, (0, -1))
            want = _pick({k: whole[k] for k in got}, (r, node))
            yield within("ancestors_alone", want, got, bound, note)
            row = Scene(
                seed, x.q[r : r + 1, [node]], [np.concatenate([x.prefix[r], x.tree[r][path[:-1]]])],
                [x.tree[r][[node]]], [np.array([-1])],
            )  # fmt: skip
            call = _attention(row, size, kind)
            bound = _sum(_pick(call.bounds(), (0, -1)), _pick(hard, (r, node)))
            got = _pick({k: v for k, v in run(call).items() if k != "status"}, (0, -1))
            yield within("path_as_prefix", want, got, bound, note)

        one = Scene(seed, x.q[r : r + 1], [x.prefix[r]], [x.tree[r]], [x.parents[r]])
        call = _attention(one, size, kind)
        got = run(call)
        yield within("request_alone", _pick(whole, r), _pick(got, 0), _pick(_sum(hard, hard), r))

    if "lse" in run.engine.outputs("verify_attn"):
        yield _split(run, x, size, kind, whole, hard)


def _relabelled(
    run: Runner, x: Scene, size: Size, kind: str, whole: Values, hard: Values
) -> Outcome:
    """Nodes in another order see the same nodes."""
    rng = np.random.default_rng(x.seed)
    q, tree, marks, orders = x.q.copy(), [], [], []
    for r, (_, nodes) in enumerate(size.requests):
        order = rng.permutation(nodes)
        orders.append(order)
        q[r, :nodes] = x.q[r, order]
        tree.append(x.tree[r][order])
        marks.append(x.visible(r)[np.ix_(order, order)])
    y = replace(x, q=q, tree=tree)
    got = run(_attention(y, size, kind, visible=marks))
    want = {name: value.copy() for name, value in whole.items()}
    bound = {name: value.copy() for name, value in hard.items()}
    for r, order in enumerate(orders):
        for name in hard:
            want[name][r, : len(order)] = whole[name][r, order]
            bound[name][r, : len(order)] = 2 * hard[name][r, order]
    return within("node_relabelling", got, want, bound)


def _split(run: Runner, x: Scene, size: Size, kind: str, whole: Values, hard: Values) -> Outcome:
    """Prefix and tail, each alone and then merged, are the whole."""
    arith = "bf16_f32acc_pbf16_f32out" if kind == "bf16" else _ARITH[kind]
    shape = whole["out"].shape
    states, bounds = [], []
    for part in ("prefix", "tail"):
        call = _attention(x, size, kind, part)
        call = replace(call, arith=arith, out={"out": np.empty(shape, np.float32)})
        states.append(run(call))
        bounds.append(call.bounds())
    (a, b), (ea, eb) = states, bounds
    join = Call(
        "merge_state", {"o_a": a["out"], "lse_a": a["lse"], "o_b": b["out"], "lse_b": b["lse"]}, {}
    )
    try:
        merged = run(join)
    except UnsupportedError:  # then the reference merges: the split is what is looked at
        merged = case.reference("merge_state")(join.inputs, {}, "f32")
    em = join.bounds()
    # d out = p_a e_a + p_b e_b + p_a p_b (d lse)(o_a - o_b), with p_a p_b <= 1/4.
    lse = np.maximum(ea["lse"], eb["lse"])
    seen = np.isfinite(a["lse"]) & np.isfinite(b["lse"])
    apart = np.where(seen[..., None], np.abs(a["out"] - b["out"]), 0.0)
    bound = {
        "out": hard["out"] + np.maximum(ea["out"], eb["out"]) + em["o"] + lse[..., None] * apart,
        "lse": hard["lse"] + lse + em["lse"],
    }
    got = {"out": merged["o"], "lse": merged["lse"]}
    return within("split_and_merge", got, {k: whole[k] for k in got}, bound)


# --- exact ops ----------------------------------------------------------------------------------


def _candidates(rng: np.random.Generator, size: Size, requests: int = 3) -> dict[str, Array]:
    """Drafter log-probs on a coarse grid, so that sums tie, and distinct ids in each row."""
    L, K = size.candidates
    steps = rng.integers(0, 4, (requests, L, K)).astype(np.float64)
    ids = np.stack([rng.permutation(4 * K)[:K] for _ in range(requests * L)]).reshape(
        requests, L, K
    )
    return {
        "logprobs": -np.cumsum(steps, axis=2) / 16 - 1 / 16,
        "ids": ids.astype(np.int32),
        "root_token": rng.integers(0, 4 * K, requests).astype(np.int32),
        "prefix_len": rng.integers(0, 1 << 16, requests).astype(np.int32),
    }


def tree_build(run: Runner, seed: int, size: Size) -> Iterator[Outcome]:
    """Token ids are names, a smaller budget is a prefix of the tree, requests do not meet."""
    rng = np.random.default_rng(seed)
    inputs, B = _candidates(rng, size), size.budget
    base = Call("tree_build", inputs, {"budget": B, "tie_order": "ranks"})
    tree = run(base)
    yield same_bits("repeat", run(base), tree)

    names = rng.permutation(4 * size.candidates[1] + 1).astype(np.int32) + 5
    renamed = run(
        base.with_inputs(ids=names[inputs["ids"]], root_token=names[inputs["root_token"]])
    )
    used = np.arange(B + 1) < tree["n_nodes"][:, None]
    tokens = np.where(used, names[np.where(used, tree["tokens"], 0)], -1).astype(np.int32)
    yield same_bits("relabelled_ids", renamed, {**tree, "tokens": tokens})

    moved = run(base.with_inputs(prefix_len=inputs["prefix_len"] + np.int32(12_345)))
    positions = np.where(used, tree["positions"] + 12_345, 0).astype(np.int32)
    yield same_bits("shifted_prefix", moved, {**tree, "positions": positions})

    small = int(rng.integers(B))
    got = run(replace(base, attrs={**base.attrs, "budget": small}))
    # Links may name later nodes; everything else of a smaller tree is a prefix of the larger.
    want = {n: tree[n][:, : small + 1] for n in ("tokens", "depths", "parents", "positions")}
    want["weights"] = tree["weights"][:, : small + 1]
    want["visible"] = tree["visible"][:, : small + 1, : small + 1]
    yield same_bits("smaller_budget", got, want, f"budget {small} of {B}: ")

    for r in range(len(inputs["root_token"])):
        alone = run(replace(base, inputs={n: v[r : r + 1] for n, v in inputs.items()}))
        yield same_bits("request_alone", _pick(alone, 0), _pick(tree, r), f"request {r}: ")


def tree_accept(run: Runner, seed: int, size: Size) -> Iterator[Outcome]:
    """Token ids are names; requests do not meet. The trees are random, not the engine's own."""
    rng = np.random.default_rng(seed)
    R, N, V = 4, size.budget + 1, 64
    parents = np.array([[-1, *(int(rng.integers(i)) for i in range(1, N))] for _ in range(R)])
    child, sibling = np.full((R, N), -1, np.int32), np.full((R, N), -1, np.int32)
    for r in range(R):
        for node in range(N - 1, 0, -1):
            sibling[r, node], child[r, parents[r, node]] = child[r, parents[r, node]], node
    tokens = rng.integers(0, V, (R, N)).astype(np.int32)
    target = rng.integers(0, V, (R, N)).astype(np.int32)
    hit = rng.random((R, N)) < 0.8  # mostly, the target agrees with some child
    target = np.where(hit & (child >= 0), np.take_along_axis(tokens, child, 1), target)
    inputs = {
        "tokens": tokens, "next_token": child, "next_sibling": sibling,
        "n_nodes": np.full(R, N, np.int32), "target": target.astype(np.int32),
    }  # fmt: skip
    base = Call("tree_accept", inputs, {"L": 64, "V": V})
    found = run(base)
    yield same_bits("repeat", run(base), found)
    names = rng.permutation(V).astype(np.int32)
    renamed = run(base.with_inputs(tokens=names[tokens], target=names[inputs["target"]]))
    want = {
        n: np.where(v >= 0, names[np.maximum(v, 0)], v).astype(np.int32)
        if n in ("accepted_tokens", "predicts")
        else v
        for n, v in found.items()
    }
    yield same_bits("relabelled_ids", renamed, want)
    for r in range(R):
        alone = run(replace(base, inputs={n: v[r : r + 1] for n, v in inputs.items()}))
        yield same_bits("request_alone", _pick(alone, 0), _pick(found, r), f"request {r}: ")


def _logits(rng: np.random.Generator, rows: int, size: Size) -> Array:
    """Distinct logits on the grid of f32, [2, rows, V]."""
    V = size.vocabulary
    order = np.stack([rng.permutation(V) for _ in range(2 * rows)])
    values: Array = (order.reshape(2, rows, V) - V / 2) * 2.0**-12
    return values


def argmax(run: Runner, seed: int, size: Size) -> Iterator[Outcome]:
    """The place of a token in the vocabulary is a name; a power of two is no change."""
    rng = np.random.default_rng(seed)
    logits = _logits(rng, 3, size)
    base = Call("argmax", {"logits": logits}, {})
    found = run(base)
    yield same_bits("repeat", run(base), found)
    order = rng.permutation(size.vocabulary)
    got = run(base.with_inputs(logits=logits[..., order]))
    yield same_bits("relabelled_ids", {"ids": order[got["ids"]]}, {"ids": found["ids"]})
    yield same_bits("value_scaling", run(base.with_inputs(logits=logits * 0.25)), found)
    alone = run(base.with_inputs(logits=logits[1:]))
    yield same_bits("request_alone", _pick(alone, 0), _pick(found, 1))


def topk_logprobs(run: Runner, seed: int, size: Size) -> Iterator[Outcome]:
    """A smaller K is a prefix; the place of a token in the vocabulary is a name."""
    rng = np.random.default_rng(seed)
    logits, K = _logits(rng, 3, size), min(64, size.vocabulary)
    base = Call("topk_logprobs", {"logits": logits}, {"K": K})
    found = run(base)
    yield same_bits("repeat", run(base), found)
    k = int(rng.integers(1, K))
    got = run(replace(base, attrs={"K": k}))
    want = {"ids": found["ids"][..., :k], "logprobs": found["logprobs"][..., :k]}
    yield same_bits("smaller_k", got, {**want, "lse": found["lse"]}, f"K {k} of {K}: ")
    order = rng.permutation(size.vocabulary)
    got = run(base.with_inputs(logits=logits[..., order]))
    yield same_bits("relabelled_ids", {"ids": order[got["ids"]]}, {"ids": found["ids"]})
    hard = base.bounds()
    yield within("relabelled_lse", {"lse": got["lse"]}, {"lse": found["lse"]}, _sum(hard, hard))


def _or_reference(run: Runner, call: Call) -> dict[str, Array]:
    """What the engine gives, or the reference where the engine has no such op."""
    try:
        return run(call)
    except UnsupportedError:
        return call.reference()


def _parts(run: Runner, logits: Array, cuts: Sequence[int], k: int) -> tuple[Call, Array]:
    """topk_merge on what the engine's topk_logprobs makes of each shard, and the shards' budgets.

    Shards are logits[..., cut:next cut]. Budgets [R, L]: the greatest of a row's shards.
    """
    shards, budgets = [], []
    for begin, end in pairwise(cuts):
        call = Call("topk_logprobs", {"logits": logits[..., begin:end]}, {"K": k})
        out = _or_reference(run, call)
        at = np.maximum(out["ids"], 0)
        values = np.take_along_axis(call.inputs["logits"], at, -1) if end > begin else 0.0 * at
        shards.append((out["ids"], values, out["lse"], out["status"]))
        budgets.append(call.bounds()["lse"])
    names = ("part_ids", "part_values", "part_lse", "part_status")
    inputs = {
        name: np.stack(parts) for name, parts in zip(names, zip(*shards, strict=True), strict=True)
    }
    inputs["first"] = np.asarray(cuts[:-1], np.int32)
    return Call("topk_merge", inputs, {}), np.max(budgets, axis=0)


def topk_merge(run: Runner, seed: int, size: Size) -> Iterator[Outcome]:
    """Shards of any sizes, in any order, merge to what the whole vocabulary gives."""
    rng = np.random.default_rng(seed)
    V, K = size.vocabulary, int(rng.integers(1, 65))
    logits = np.round(rng.normal(size=(2, 3, V)) * 16) / 8  # a coarse grid: many tie
    logits[1, 2, rng.random(V) < 0.5] = -np.inf
    cuts = [0, *sorted(rng.integers(0, V + 1, int(rng.integers(1, 8))).tolist()), V]
    base, spent = _parts(run, logits, cuts, K)
    found = run(base)
    yield same_bits("repeat", run(base), found)

    whole = Call("topk_logprobs", {"logits": logits}, {"K": K})
    want = _or_reference(run, whole)
    want["lse"] = dtypes.round_to(want["lse"], "f32")
    exact = {"ids": want["ids"], "status": want["status"]}
    at = np.maximum(want["ids"], 0)
    values = np.take_along_axis(logits, at, -1).astype(np.float32)
    with np.errstate(invalid="ignore"):
        own = values - found["lse"].astype(np.float32)[..., None]
    exact["logprobs"] = np.where(want["ids"] >= 0, own, -np.inf).astype(np.float64)
    note = f"cut at {cuts}, K {K}: "
    yield same_bits("sharded", {n: found[n] for n in exact}, exact, note)
    bound = {"lse": whole.bounds()["lse"] + spent + base.bounds()["lse"]}
    yield within("sharded_lse", {"lse": found["lse"]}, {"lse": want["lse"]}, bound, note)

    # Parts that were not rounded to f32 leave the whole budget of topk_logprobs to the merge.
    exactly = case.reference("topk_logprobs")
    fine = [
        exactly({"logits": logits[..., a:b]}, {"K": 0}, "f32")["lse"] for a, b in pairwise(cuts)
    ]
    got = run(base.with_inputs(part_lse=np.stack(fine)))
    lse = {"lse": exactly(whole.inputs, whole.attrs, "f32")["lse"]}
    yield within("unrounded_lse", {"lse": got["lse"]}, lse, whole.bounds(), note)

    order = rng.permutation(len(cuts) - 1)
    moved = run(base.with_inputs(**{n: v[order] for n, v in base.inputs.items()}))
    names = {n: moved[n] for n in ("ids", "status")}
    yield same_bits("shard_order", names, {n: found[n] for n in names}, note)
    hard = base.bounds()
    lse = {"lse": moved["lse"]}
    yield within("shard_order_lse", lse, {"lse": found["lse"]}, _sum(hard, hard), note)

    bad = base.inputs["part_status"].copy()
    bad[int(rng.integers(len(cuts) - 1)), 1] = int(rng.integers(1, 1 << 31))
    refused = run(base.with_inputs(part_status=bad))
    gone = {"ids": -1, "logprobs": -np.inf, "lse": -np.inf, "status": 1}
    none = {n: np.full_like(_pick(found, 1)[n], value) for n, value in gone.items()}
    yield same_bits("refused_shard", _pick(refused, 1), none, note)
    yield same_bits("refused_request", _pick(refused, 0), _pick(found, 0), note)

    one, _ = _parts(run, logits, [0, V], K)
    got = run(one.with_inputs(part_lse=want["lse"][None]))
    want = {n: case.widen(want[n]) for n in (*exact, "lse")}
    yield same_bits("one_shard", got, want)


def merge_state(run: Runner, seed: int, size: Size) -> Iterator[Outcome]:
    """The two sides are alike; an empty side changes nothing."""
    rng = np.random.default_rng(seed)
    shape = (2, 5, size.heads, size.values)
    a, b = (dtypes.round_to(rng.normal(size=shape), "f32") for _ in range(2))
    la, lb = (dtypes.round_to(rng.normal(size=shape[:3]) * 4, "f32") for _ in range(2))
    base = Call("merge_state", {"o_a": a, "lse_a": la, "o_b": b, "lse_b": lb}, {})
    found = run(base)
    yield same_bits("repeat", run(base), found)
    swapped = Call("merge_state", {"o_a": b, "lse_a": lb, "o_b": a, "lse_b": la}, {})
    hard = base.bounds()
    yield within("swapped_sides", run(swapped), found, _sum(hard, hard))
    empty = np.full(shape[:3], -np.inf)
    for label, call in (
        ("empty_right", base.with_inputs(lse_b=empty, o_b=np.full(shape, np.nan))),
        ("empty_left", swapped.with_inputs(lse_a=empty, o_a=np.full(shape, np.nan))),
    ):
        yield same_bits(label, run(call), {"o": a, "lse": la})


Relation = Callable[[Runner, int, Size], Iterator[Outcome]]
RELATIONS: Mapping[str, Relation] = {
    "argmax": argmax,
    "merge_state": merge_state,
    "topk_logprobs": topk_logprobs,
    "topk_merge": topk_merge,
    "tree_accept": tree_accept,
    "tree_build": tree_build,
    "verify_attn": verify_attn,
}


@dataclass(frozen=True)
class Summary:
    """One relation over all the calls that were looked at; `worst` is the worst of them."""

    op: str
    worst: Outcome
    pairs: int
    seed: int


def check(run: Runner, op: str, seeds: Sequence[int], size: Size) -> list[Summary]:
    """Run the relations of an op on random calls, one for each seed.

    A call that the engine does not run is passed over. Raises UnsupportedError when it runs none.
    """
    found: dict[str, Summary] = {}
    why: UnsupportedError | None = None
    for seed in seeds:
        outcomes: list[Outcome] = []
        try:
            outcomes.extend(RELATIONS[op](run, seed, size))
        except UnsupportedError as error:
            why = error
        for outcome in outcomes:
            before = found.get(outcome.relation)
            if before is None:
                found[outcome.relation] = Summary(op, outcome, 1, seed)
                continue
            worse = outcome.worst > before.worst.worst
            found[outcome.relation] = Summary(
                op,
                outcome if worse else before.worst,
                before.pairs + 1,
                seed if worse else before.seed,
            )
    if not found and why is not None:
        raise why
    return list(found.values())
