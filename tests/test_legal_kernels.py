"""Every legal f32 way to compute a transformer op stays within the gate of every small case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kdtr import calibration, contract
from kdtr import case as case_module
from kdtr import numerics as nx
from kdtr.calibration import Kernel
from kdtr.reference.moe_experts import unpack

F32 = NDArray[np.float32]
Arrays = dict[str, Any]
KERNELS = (
    Kernel("sequential"),
    Kernel("reversed_short_exp", "reversed", exp="short"),
    Kernel("pairwise_base_2", "pairwise", exp="base_2"),
    Kernel("fma", fma=True),
)


def f32(x: Any) -> F32:
    return np.asarray(x, np.float32)


def product(x: Any, w: Any, kernel: Kernel) -> F32:
    return calibration._dot(f32(x), np.ascontiguousarray(f32(w).T), kernel)


def normalised(x: Any, weight: Any, eps: float, kernel: Kernel) -> F32:
    x, n = f32(x), np.float32(max(np.shape(x)[-1], 1))
    ss = np.concatenate([product(row[None], row[None], kernel) for row in x])
    factor = np.float32(1) / np.sqrt(ss / n + np.float32(eps))
    return np.asarray(f32(weight) * (x * factor))


def rotated(x: Any, positions: Any, inv_freq: Any, scale: float, store: str, up: bool) -> F32:
    """Sine and cosine two ulp off, up or down."""
    x, angle = f32(x), f32(positions)[:, None] * f32(inv_freq)
    sin, cos = (f32(v) for v in nx.sincos(angle))
    for _ in range(2):
        sin, cos = (np.nextafter(v, np.float32(2 if up else -2)) for v in (sin, cos))
    c, s = (np.float32(scale) * cos)[:, None], (np.float32(scale) * sin)[:, None]
    a, b = x[..., 0::2], x[..., 1::2]
    first, second = a * c - b * s, b * c + a * s
    if store == "halves":
        return np.concatenate([first, second], axis=-1)
    return np.stack([first, second], axis=-1).reshape(x.shape)


def sigmoid(x: F32, kernel: Kernel) -> F32:
    if kernel.exp == "base_2":
        e = calibration._exp2(-x * calibration.LOG2_E)
    else:
        e = calibration._exp(-x, kernel)
    with np.errstate(over="ignore"):
        return np.float32(1) / (np.float32(1) + e)


def activated(gate: Any, up: Any, kernel: Kernel) -> F32:
    gate = f32(gate)
    return np.asarray(gate * sigmoid(gate, kernel) * f32(up))


def rmsnorm(i: Arrays, a: Arrays, kernel: Kernel) -> Arrays:
    return {"out": normalised(i["x"], i["weight"], a["eps"], kernel)}


def rope(i: Arrays, a: Arrays, kernel: Kernel) -> Arrays:
    out, start = f32(i["x"]).copy(), a["start"]
    part = np.s_[..., start : start + 2 * len(i["inv_freq"])]
    up = kernel.order == "sequential"
    out[part] = rotated(out[part], i["positions"], i["inv_freq"], a["scale"], a["store"], up)
    return {"out": out}


def silu_mul(i: Arrays, a: Arrays, kernel: Kernel) -> Arrays:
    return {"out": activated(i["gate"], i["up"], kernel)}


def linear(i: Arrays, a: Arrays, kernel: Kernel) -> Arrays:
    out = product(i["x"], i["weight"], kernel)
    return {"out": out + f32(i["residual"]) if "residual" in i else out}


def moe_route(i: Arrays, a: Arrays, kernel: Kernel) -> Arrays:
    ids = case_module.reference("moe_route")(i, a, "f32")["ids"]
    score = sigmoid(f32(i["logits"]), kernel)
    s = np.where(ids >= 0, np.take_along_axis(score, np.maximum(ids, 0), 1), np.float32(0))
    if a["renormalize"]:
        total = np.concatenate([product(row[None], np.ones((1, len(row))), kernel) for row in s])
        s = s / (total + np.float32(1e-20))
    return {"weights": s * np.float32(a["scale"])}


def moe_experts(i: Arrays, a: Arrays, kernel: Kernel, round_hidden: bool = False) -> Arrays:
    names = ("gate", "up", "down")

    def mlp(x: F32, gate: Any, up: Any, down: Any) -> F32:
        hidden = activated(product(x, gate, kernel), product(x, up, kernel), kernel)
        return product(nx.round_bf16(hidden) if round_hidden else hidden, down, kernel)

    def weight(name: str, e: int) -> Any:
        if a["format"] == "dense":
            return i[name][e]
        rounded = a["format"] == "w4_bf16"
        return unpack(i[f"{name}_packed"][e], i[f"{name}_scale"][e], a["group"], rounded)

    x, out = f32(i["x"]), np.zeros(i["x"].shape, np.float32)
    for t, ids in enumerate(i["ids"]):
        for k, e in enumerate(ids):
            if e >= 0:
                routed = mlp(x[t : t + 1], *(weight(n, e) for n in names))[0]
                out[t] += np.float32(i["weights"][t, k]) * routed
    if "shared_gate" in i:
        out += mlp(x, *(i[f"shared_{n}"] for n in names))
    return {"out": out + f32(i["residual"]) if "residual" in i else out}


def mla_project(i: Arrays, a: Arrays, kernel: Kernel) -> Arrays:
    h, _, c = i["kv_b"].shape
    r = 2 * len(i["inv_freq"])
    n = len(i["q_b"]) // h - r
    up = kernel.order == "sequential"

    def turn(x: F32) -> F32:
        return rotated(x, i["positions"], i["inv_freq"], a["rope_scale"], a["store"], up)

    q = normalised(product(i["x"], i["q_a"], kernel), i["q_a_norm"], a["eps"], kernel)
    q = product(q, i["q_b"], kernel).reshape(-1, h, n + r)
    latent = np.stack([product(q[:, j, :n], i["kv_b"][j, :n].T, kernel) for j in range(h)], 1)
    z = product(i["x"], i["kv_a"], kernel)
    row = normalised(z[:, :c], i["kv_a_norm"], a["eps"], kernel)
    return {
        "q": np.concatenate([latent, turn(q[..., n:])], -1),
        "kv": np.concatenate([row, turn(z[:, None, c:])[:, 0]], -1),
    }


def mla_output(i: Arrays, a: Arrays, kernel: Kernel) -> Arrays:
    h, m, _ = i["kv_b"].shape
    v = i["o"].shape[1] // h
    values = [product(i["latent"][:, j], i["kv_b"][j, m - v :], kernel) for j in range(h)]
    out = product(np.concatenate(values, axis=1), i["o"], kernel)
    return {"out": out + f32(i["residual"]) if "residual" in i else out}


LEGAL = {
    f.__name__: f
    for f in (
        rmsnorm, rope, silu_mul, linear, moe_route, moe_experts, mla_project, mla_output,
    )
}  # fmt: skip
CASES = [
    (op, case)
    for op in LEGAL
    for case in case_module.cases(op)
    if case.profile == "f32" and case.tier == "small"
    and case.name not in ("refused", "nan_row", "no_tokens")
    and not case.name.startswith(("bias_nan", "bias_plus_inf"))
]  # fmt: skip


def accepted(op: str, case: case_module.Case) -> tuple[Arrays, Arrays]:
    """A case's inputs without the rows that are refused, and the gold of the others."""
    inputs = {name: case_module.widen(np.asarray(x)) for name, x in case.inputs().items()}
    reference = case_module.reference(op)
    taken = reference(inputs, case.attrs, case.profile)["status"] == 0
    assert taken.any()
    axes = {tensor.name: tensor.axes for tensor in contract.load(op).tensors}
    inputs = {n: x[taken] if axes[n][:1] == axes["status"] else x for n, x in inputs.items()}
    return inputs, reference(inputs, case.attrs, case.profile)


@pytest.mark.parametrize(("which", "case"), CASES, ids=[f"{o}-{c.name}" for o, c in CASES])
def test_legal_kernels_stay_within_the_gate(which: str, case: case_module.Case) -> None:
    inputs, gold = accepted(which, case)
    for kernel in KERNELS:
        with np.errstate(under="ignore"):
            got = LEGAL[which](inputs, dict(case.attrs), kernel)
        wide = {name: x.astype(np.float64) for name, x in got.items()}
        assert calibration.ratio(gold, wide, "gate") < 1, kernel.name


BF16_CASES = [
    case
    for case in case_module.cases("moe_experts")
    if case.profile == "bf16_f32acc" and case.tier == "small"
]


@pytest.mark.parametrize("round_hidden", [False, True])
@pytest.mark.parametrize("case", BF16_CASES, ids=lambda case: case.name)
def test_experts_of_bf16_rows_may_round_their_hidden_elements_or_keep_them(
    case: case_module.Case, round_hidden: bool
) -> None:
    inputs, gold = accepted("moe_experts", case)
    for kernel in KERNELS:
        got = moe_experts(inputs, dict(case.attrs), kernel, round_hidden)["out"]
        stored = {"out": nx.round_bf16(got)}
        assert calibration.ratio(gold, stored, "gate") < 1, kernel.name


def half(x: Any) -> F32:
    return f32(nx.round_bf16(x))


def halves_mla_project(i: Arrays, a: Arrays, kernel: Kernel) -> Arrays:
    """Every intermediate that the contract names, rounded."""
    h, _, c = i["kv_b"].shape
    r = 2 * len(i["inv_freq"])
    n = len(i["q_b"]) // h - r

    def turn(x: F32) -> F32:
        return rotated(x, i["positions"], i["inv_freq"], a["rope_scale"], a["store"], True)

    q = half(product(i["x"], i["q_a"], kernel))
    q = half(normalised(q, i["q_a_norm"], a["eps"], kernel))
    q = half(product(q, i["q_b"], kernel)).reshape(-1, h, n + r)
    latent = np.stack([product(q[:, j, :n], i["kv_b"][j, :n].T, kernel) for j in range(h)], 1)
    z = half(product(i["x"], i["kv_a"], kernel))
    row = normalised(z[:, :c], i["kv_a_norm"], a["eps"], kernel)
    return {
        "q": np.concatenate([latent, turn(q[..., n:])], -1),
        "kv": np.concatenate([row, turn(z[:, None, c:])[:, 0]], -1),
    }


def halves_mla_output(i: Arrays, a: Arrays, kernel: Kernel) -> Arrays:
    h, m, _ = i["kv_b"].shape
    v = i["o"].shape[1] // h
    values = [product(i["latent"][:, j], i["kv_b"][j, m - v :], kernel) for j in range(h)]
    out = product(half(np.concatenate(values, axis=1)), i["o"], kernel)
    return {"out": out + f32(i["residual"]) if "residual" in i else out}


HALVES = {"linear": linear, "mla_project": halves_mla_project, "mla_output": halves_mla_output}
HALF_CASES = [
    (op, case)
    for op in HALVES
    for case in case_module.cases(op)
    if case.profile.startswith("bf16") and case.tier == "small" and case.name != "bf16_tokens_67"
]


def halves(which: str, case: case_module.Case, kernel: Kernel) -> tuple[Arrays, Arrays]:
    """The reference's result, and a kernel's that rounds wherever it may."""
    inputs, gold = accepted(which, case)
    got = HALVES[which](inputs, dict(case.attrs), kernel)
    store = half if nx.stored(case.profile) == "bf16" else f32
    return gold, {name: store(x).astype(np.float64) for name, x in got.items()}


@pytest.mark.parametrize(
    ("which", "case"), HALF_CASES, ids=[f"{o}-{c.name}" for o, c in HALF_CASES]
)
def test_kernels_that_round_wherever_they_may_stay_within_the_gate(
    which: str, case: case_module.Case
) -> None:
    for kernel in (*KERNELS, Kernel("tensor", "tensor")):
        gold, got = halves(which, case, kernel)
        assert calibration.ratio(gold, got, "gate") <= 1, kernel.name


@pytest.mark.parametrize("which", HALVES)
def test_the_gate_in_bf16_is_not_far_above_what_legal_kernels_need(which: str) -> None:
    cases = [case for op, case in HALF_CASES if op == which]
    ratios = [calibration.ratio(*halves(which, c, KERNELS[0]), "gate") for c in cases]
    assert max(ratios) > 0.4


@pytest.mark.parametrize("which", LEGAL)
def test_the_gate_is_not_far_above_what_legal_kernels_need(which: str) -> None:
    """A bound that nothing comes near would accept faults: some case uses a twentieth of it."""

    def ratios() -> Iterator[float]:
        for op, case in CASES:
            if op == which:
                inputs, gold = accepted(which, case)
                for kernel in KERNELS:
                    with np.errstate(under="ignore"):
                        got = LEGAL[which](inputs, dict(case.attrs), kernel)
                    wide = {name: x.astype(np.float64) for name, x in got.items()}
                    yield calibration.ratio(gold, wide, "gate")

    assert any(ratio > 0.05 for ratio in ratios())
