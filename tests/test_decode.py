"""Whole models: the reference against transformers' records, the engine against the reference."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from kdtr import case, contract, convert, decode, dtypes, ops, sweep
from kdtr import numerics as nx
from kdtr.cases.moe_experts import words
from kdtr.cases.moe_route import WRONG as WRONG_ROUTES
from kdtr.cli import cli
from kdtr.errors import EngineError, KdtrError
from kdtr.reference import decode as reference
from kdtr.reference import moe_route

MODEL = Path(__file__).resolve().parent.parent / "goldens" / "model" / "tiny_deepseek_v3"
PROMPTS: list[dict[str, Any]] = json.loads((MODEL / "greedy_tokens.json").read_bytes())["prompts"]
TRACE: dict[str, Any] = json.loads((MODEL / "ddtree_trace.json").read_bytes())
BACKENDS = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
CLEAR = 1e-4  # gaps between weights above this decide the order of nodes whatever the rounding
ALL = range(len(PROMPTS))
EMBED = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def model() -> reference.Model:
    return decode.load_reference(MODEL)


@pytest.fixture(scope="module")
def taps() -> dict[str, Any]:
    with np.load(MODEL / "taps.npz") as file:
        return dict(file)


def greedy_tokens(prompt: int) -> list[int]:
    p = PROMPTS[prompt]
    return [*p["output_ids"], *p["lookahead_ids"]]


def require_round(got: dict[str, Any], want: dict[str, Any]) -> None:
    """A round against the recorded one; node lists only where no near-tie orders them."""
    tokens = [*want["accepted_tokens"], want["bonus"]]
    assert got["tokens"] == tokens
    assert want["robust"]
    if want["order_gap"] > CLEAR and want["boundary_gap"] > CLEAR:
        assert got["nodes"] == want["node_tokens"]
        assert got["parents"] == want["node_parents"]


# --- the reference model -------------------------------------------------------------------------


def test_frequencies_and_scale_are_transformers_own_bits(
    model: reference.Model, taps: dict[str, Any]
) -> None:
    assert model.rope.inv_freq.astype(np.float32).tobytes() == taps["inv_freq"].tobytes()
    assert model.rope.softmax_scale == float(np.float32(taps["attn_scaling"]))
    assert model.rope.factor == 1.0


def test_both_spellings_of_the_configuration_mean_the_same(model: reference.Model) -> None:
    other = json.loads((MODEL / "config.deepseek.json").read_bytes())
    assert "rope_parameters" not in other
    one, two = model.rope, reference.rope_of(other)
    assert np.array_equal(one.inv_freq, two.inv_freq)
    assert (one.factor, one.softmax_scale) == (two.factor, two.softmax_scale)


def test_without_mscale_all_dim_the_factor_is_on_cos_and_sin_and_the_scale_stays() -> None:
    """As transformers and DeepSeek have it, where V3's own configurations name both."""
    config = json.loads((MODEL / "config.deepseek.json").read_bytes())
    for absent in ({}, {"mscale_all_dim": 0}):
        scaling = {k: v for k, v in config["rope_scaling"].items() if "mscale" not in k} | absent
        rope = reference.rope_of(config | {"rope_scaling": scaling})
        assert rope.factor == 0.1 * np.log(4.0) + 1.0
        assert rope.softmax_scale == float(np.float32(48**-0.5))


@pytest.mark.engine
@pytest.mark.parametrize("absent", [{}, {"mscale_all_dim": 0}])
def test_engine_and_reference_agree_without_mscale_all_dim(
    tmp_path: Path, model: reference.Model, absent: dict[str, int]
) -> None:
    config = json.loads((MODEL / "config.json").read_bytes())
    scaling = {k: v for k, v in config["rope_parameters"].items() if "mscale" not in k} | absent
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_parameters": scaling}))
    (tmp_path / "model.safetensors").symlink_to(MODEL / "model.safetensors")
    prompt = PROMPTS[0]["prompt_ids"]
    seen: list[decode.Stage] = []
    with decode.Decoder(tmp_path, max_context=256) as decoder:
        decoder.tap(seen.append)
        decoder.prefill(prompt)
    got = next(s for s in seen if s.name == "final_norm").tensors["out"]
    want, _ = reference.prefill(decode.load_reference(tmp_path), prompt)
    with_it, _ = reference.prefill(model, prompt)
    assert np.max(np.abs(got - with_it)) > 1000 * np.max(np.abs(got - want))


@pytest.mark.parametrize("prompt", ALL)
def test_reference_chooses_the_recorded_greedy_tokens(model: reference.Model, prompt: int) -> None:
    want = greedy_tokens(prompt)
    assert reference.teacher_forced(model, PROMPTS[prompt]["prompt_ids"], want) == want


def test_incremental_decoding_is_the_teacher_forced_one(model: reference.Model) -> None:
    tokens = reference.greedy(model, PROMPTS[0]["prompt_ids"])
    assert [next(tokens) for _ in range(24)] == greedy_tokens(0)[:24]


@pytest.mark.parametrize("budget", ["16", "64"])
def test_reference_trees_are_the_recorded_rounds(model: reference.Model, budget: str) -> None:
    accepted = []
    for prompt in ALL:
        rounds = reference.speculate(model, PROMPTS[prompt]["prompt_ids"], int(budget))
        recorded = TRACE[budget][prompt]
        assert next(rounds) == recorded["first_token"]
        for want in recorded["rounds"]:
            got = next(rounds)
            assert isinstance(got, reference.Round)
            assert (got.root, got.position) == (want["root"], want["pos"])
            require_round(
                {
                    "tokens": [*got.accepted, got.bonus],
                    "nodes": got.tokens[1:],
                    "parents": got.parents[1:],
                },
                want,
            )
            accepted.append(len(got.accepted))
    summary = TRACE["about"]["summary"][budget]
    assert len(accepted) == summary["rounds"]
    assert np.bincount(accepted, minlength=8).tolist() == summary["histogram"]
    assert round(sum(accepted) / len(accepted), 2) == {"16": 1.19, "64": 1.56}[budget]


def test_after_each_round_the_cache_is_that_of_a_fresh_pass(model: reference.Model) -> None:
    prompt = PROMPTS[2]["prompt_ids"]
    emitted: list[int] = []

    def check(_model: reference.Model, done: reference.Round, cache: list[Any]) -> None:
        emitted.extend([done.root, *done.accepted])
        _, fresh = reference.prefill(model, [*prompt, *emitted])
        for rows, again in zip(cache, fresh, strict=True):
            assert rows.shape == again.shape
            assert float(np.max(np.abs(rows - again))) < 2.0**-40

    rounds = reference.speculate(model, prompt, 16, check)
    for _ in range(6):
        next(rounds)


def test_recorded_activations_follow_the_published_model(
    model: reference.Model, taps: dict[str, Any]
) -> None:
    label, distance, runner_up = reference.name_of(
        model, taps["prompt_ids"].tolist(), taps["final_norm"]
    )
    assert label == "published"
    assert runner_up > 100 * distance


@pytest.mark.parametrize("wrong", reference.WRONG)
def test_each_wrong_choice_is_caught_and_named(
    model: reference.Model, taps: dict[str, Any], wrong: str
) -> None:
    prompt = taps["prompt_ids"].tolist()
    hidden, _ = reference.prefill(model.but(reference.WRONG[wrong]), prompt)
    label, distance, runner_up = reference.name_of(model, prompt, hidden)
    assert label == wrong
    assert distance == 0 < runner_up
    # Rounding alone is far below the difference to the recorded activations.
    right, _ = reference.prefill(model, prompt)
    rounding = np.max(np.abs(right - taps["final_norm"]))
    assert np.max(np.abs(hidden - taps["final_norm"])) > 100 * rounding


@pytest.mark.parametrize("wrong", [w for w in reference.WRONG if w != "all_eps=1e-6"])
def test_each_wrong_choice_but_one_flips_a_token(model: reference.Model, wrong: str) -> None:
    other = model.but(reference.WRONG[wrong])
    assert any(
        reference.teacher_forced(other, PROMPTS[p]["prompt_ids"], greedy_tokens(p))
        != greedy_tokens(p)
        for p in ALL
    )


# --- the engine ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def batch() -> Iterator[decode.Decoder]:
    with decode.Decoder(MODEL, requests=16, max_context=512) as decoder:
        yield decoder


@pytest.mark.engine
@pytest.mark.parametrize("given", [(1 << 32) + 5, 1 << 31, -1, -(1 << 32) + 5])
def test_an_id_beyond_32_bits_is_no_other_token(batch: decode.Decoder, given: int) -> None:
    with pytest.raises(EngineError, match="prefill: id 1, want 0 to"):
        batch.prefill([5, given])


@pytest.mark.engine
def test_engine_decodes_all_prompts_greedily(batch: decode.Decoder) -> None:
    tokens = [[batch.prefill(PROMPTS[p]["prompt_ids"], p)] for p in ALL]
    while len(tokens[0]) < len(greedy_tokens(0)):
        for out, token in zip(tokens, batch.greedy(ALL), strict=True):
            out.append(token)
    assert tokens == [greedy_tokens(p) for p in ALL]


@pytest.mark.engine
@pytest.mark.parametrize("budget", [16, 64])
def test_engine_decodes_all_prompts_by_trees(batch: decode.Decoder, budget: int) -> None:
    """Ragged: prompts of 24 to 200 tokens in one batch, which shrinks as they end."""
    recorded = TRACE[str(budget)]
    for p in ALL:
        assert batch.prefill(PROMPTS[p]["prompt_ids"], p) == recorded[p]["first_token"]
    live, done, accepted = list(ALL), [0] * len(PROMPTS), []
    while live:
        rounds = batch.tree(budget, live)
        nodes = batch.read("tree.tokens").reshape(len(live), -1)
        parents = batch.read("tree.parents").reshape(len(live), -1)
        for i, p in enumerate(live):
            got = {
                "tokens": rounds[i],
                "nodes": nodes[i, 1:].tolist(),
                "parents": parents[i, 1:].tolist(),
            }
            require_round(got, recorded[p]["rounds"][done[p]])
            accepted.append(len(rounds[i]) - 1)
            done[p] += 1
        live = [p for p in live if done[p] < len(recorded[p]["rounds"])]
    summary = TRACE["about"]["summary"][str(budget)]
    assert np.bincount(accepted, minlength=8).tolist() == summary["histogram"]


@pytest.mark.engine
@pytest.mark.parametrize("budget", [0, 16])
def test_generate_gives_the_recorded_tokens_and_counts_rounds(budget: int) -> None:
    statistics = decode.Statistics()
    with decode.Decoder(MODEL, max_context=512) as decoder:
        prompt = PROMPTS[5]["prompt_ids"]
        got = list(decode.generate(decoder, prompt, 64, budget, statistics))
    assert got == PROMPTS[5]["output_ids"]
    lengths = [r["accepted_length"] for r in TRACE["16"][5]["rounds"]]
    assert statistics.accepted == (lengths if budget else [])
    assert statistics.tokens == 64


@pytest.mark.engine
@pytest.mark.parametrize(("page_size", "precision"), [(16, "f32"), (64, "f32"), (16, "bf16")])
def test_after_each_round_lengths_and_rows_are_those_of_a_fresh_prefill(
    page_size: int, precision: str
) -> None:
    prompt = PROMPTS[1]["prompt_ids"]
    with decode.Decoder(
        MODEL,
        requests=3,
        max_context=256,
        page_size=page_size,
        max_budget=16,
        precision=precision,
    ) as decoder:
        history = [*prompt, decoder.prefill(prompt, 1)]
        decoder.prefill(PROMPTS[0]["prompt_ids"], 2)  # a neighbour between the pages
        for _ in range(8):
            (new,) = decoder.tree(16, [1])
            history += new
            cached = history[:-1]  # the bonus has no row yet
            decoder.prefill(cached, 0)
            for layer in range(decoder.layers):
                got, want = decoder.rows(layer, 1), decoder.rows(layer, 0)
                assert got.shape == (len(cached), decoder.row)
                assert got.tobytes() == want.tobytes()


@pytest.mark.engine
def test_a_request_has_the_same_bits_alone_and_in_a_batch() -> None:
    with decode.Decoder(MODEL, requests=4, max_context=256, max_budget=16) as decoder:
        for request, p in enumerate((3, 0, 7, 3)):
            decoder.prefill(PROMPTS[p]["prompt_ids"], request)
        decoder.tree(16, [0, 1, 2])
        together = decoder.read("tree.logits", np.float32).reshape(3, -1)[0]
        decoder.tree(16, [3])
        alone = decoder.read("tree.logits", np.float32)
    assert alone.tobytes() == together.tobytes()


@pytest.mark.engine
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_of_every_kind_in_any_order_give_the_greedy_tokens(backend: str) -> None:
    """Kinds run anew, from a record and past a tap, on buffers that grow in between."""
    seen: list[str] = []
    with decode.Decoder(MODEL, backend, requests=3, max_context=512, max_budget=64) as decoder:
        out = {r: [decoder.prefill(PROMPTS[r]["prompt_ids"], r)] for r in range(3)}
        kinds = [(0, [0, 1]), (4, [1]), (0, [1, 0]), (4, [2]), (64, [2, 0]), (0, [0, 1]), (4, [1])]
        for turn, (budget, live) in enumerate(kinds * 3):
            decoder.tap((lambda stage: seen.append(stage.name)) if turn in (5, 9) else None)
            new = decoder.tree(budget, live) if budget else [[t] for t in decoder.greedy(live)]
            if budget:
                assert decoder.read("tree.tokens").size == len(live) * (budget + 1)
            for r, tokens in zip(live, new, strict=True):
                out[r] += tokens
    assert seen.count("kv_commit") == 2
    for r, tokens in out.items():
        assert tokens == greedy_tokens(r)[: len(tokens)]


@pytest.mark.engine
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_that_fails_moves_no_request(tmp_path: Path, backend: str) -> None:
    """The first token of prompt 0 embeds as NaN, so its next step fails; prompt 1 goes on."""
    bad = greedy_tokens(0)[0]
    assert bad not in [*PROMPTS[0]["prompt_ids"], *PROMPTS[1]["prompt_ids"], *greedy_tokens(1)]
    data = bytearray((MODEL / "model.safetensors").read_bytes())
    length = int.from_bytes(data[:8], "little")
    begin = json.loads(data[8 : 8 + length])[EMBED]["data_offsets"][0] + 8 + length
    data[begin + 256 * bad : begin + 256 * bad + 2] = b"\xc0\x7f"
    (tmp_path / "model.safetensors").write_bytes(data)
    for name in ("config.json", "draft_heads.safetensors"):
        (tmp_path / name).symlink_to(MODEL / name)
    with decode.Decoder(tmp_path, backend, requests=2, max_context=256, max_budget=8) as decoder:
        assert decoder.prefill(PROMPTS[0]["prompt_ids"], 0) == bad
        tokens = [decoder.prefill(PROMPTS[1]["prompt_ids"], 1)]
        with pytest.raises(EngineError, match=r"l0.input_norm: status of row 0, want 0, got 1"):
            decoder.greedy([0, 1])
        tokens += decoder.greedy([1])
        with pytest.raises(EngineError, match=r"draft.heads: status of row 1, want 0, got 1"):
            decoder.tree(8, [1, 0])
        for _ in range(4):
            tokens += decoder.tree(8, [1])[0]
        rows = decoder.rows(2, 1)
        decoder.prefill([*PROMPTS[1]["prompt_ids"], *tokens[:-1]], 0)
        if backend == "cpu":  # CUDA adds a path's keys where they lie in the tree
            assert rows.tobytes() == decoder.rows(2, 0).tobytes()
    assert tokens == greedy_tokens(1)[: len(tokens)]


@pytest.mark.engine
@pytest.mark.parametrize("file", ["config.json", "config.deepseek.json"])
def test_engine_reads_both_spellings(tmp_path: Path, file: str) -> None:
    shutil.copy(MODEL / file, tmp_path / "config.json")
    (tmp_path / "model.safetensors").symlink_to(MODEL / "model.safetensors")
    with decode.Decoder(tmp_path, max_context=256) as decoder:
        prompt = PROMPTS[0]["prompt_ids"]
        assert list(decode.generate(decoder, prompt, 8)) == greedy_tokens(0)[:8]
        with pytest.raises(EngineError, match="tree: the model has no draft heads"):
            decoder.tree(4)


def as_kdtr(folder: Path) -> Path:
    """The checkpoint with its tensors in KDTR files."""
    shutil.copy(MODEL / "config.json", folder)
    for stem in ("model", "draft_heads"):
        convert.from_safetensors(MODEL / f"{stem}.safetensors", folder / f"{stem}.kdtr")
    return folder


@pytest.mark.engine
def test_weights_from_kdtr_give_the_recorded_tokens(tmp_path: Path, model: reference.Model) -> None:
    folder = as_kdtr(tmp_path)
    with decode.Decoder(folder, max_context=256, max_budget=16) as decoder:
        assert decoder.depth == 7
        got = list(decode.generate(decoder, PROMPTS[0]["prompt_ids"], 64, 16))
    assert got == PROMPTS[0]["output_ids"]
    weights = decode.load_reference(folder).weights
    assert weights.keys() == model.weights.keys()
    assert all(np.array_equal(w, model.weights[name]) for name, w in weights.items())
    (row,) = sweep.engine_rows(folder, "cpu", [24], 16, 1, PROMPTS[0]["prompt_ids"])
    assert row.rounds == [r["accepted_length"] for r in TRACE["16"][0]["rounds"][:3]]


@pytest.mark.engine
def test_damaged_weights_in_kdtr_are_refused(tmp_path: Path) -> None:
    path = as_kdtr(tmp_path) / "model.kdtr"
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    for damaged_file, message in ((data, "E_TENSOR_CRC at byte"), (data[:1000], "E_")):
        path.write_bytes(damaged_file)
        with pytest.raises(EngineError, match=rf"model\.kdtr.*{message}"):
            decode.Decoder(tmp_path)
    shutil.copy(MODEL.parent.parent / "rope@1" / "one_pair.kdtr", path)
    with pytest.raises(EngineError, match=r"model\.kdtr.*(missing|dtype)"):
        decode.Decoder(tmp_path)


def quantised(folder: Path) -> dict[str, Any]:
    """The checkpoint with int4 routed experts, written to `folder`; the weights they stand for."""
    weights = convert.read_safetensors(MODEL / "model.safetensors")
    stored: dict[str, tuple[str, Any]] = {}
    for name, w in weights.items():
        if ".mlp.experts." not in name:
            stored[name] = ("BF16" if "bias" not in name else "F32", w)
            continue
        groups = w.reshape(w.shape[0], -1, 32)
        scale = nx.round_bf16(np.abs(groups).max(axis=-1) / 7.0)
        codes = np.clip(np.rint(groups / scale[..., None]), -8, 7) + 8
        weights[name] = ((codes - 8) * scale[..., None]).reshape(w.shape)
        stored[f"{name}_packed"] = ("I32", words(codes.reshape(w.shape).astype(np.int64)))
        stored[f"{name}_scale"] = ("BF16", scale)
    header, parts, at = {}, [], 0
    for name, (dtype, w) in stored.items():
        ours = {"BF16": "bf16", "F32": "f32", "I32": "i32"}[dtype]
        data = dtypes.encode(w, ours).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(w.shape),
            "data_offsets": [at, at + len(data)],
        }
        at += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    whole = len(text).to_bytes(8, "little") + text + b"".join(parts)
    (folder / "model.safetensors").write_bytes(whole)
    shutil.copy(MODEL / "config.json", folder)
    return weights


@pytest.mark.engine
def test_int4_experts_are_the_model_of_their_dequantised_weights(
    tmp_path: Path, model: reference.Model
) -> None:
    weights = quantised(tmp_path)
    prompt = PROMPTS[0]["prompt_ids"]
    rows: list[decode.Stage] = []
    with decode.Decoder(tmp_path, max_context=64) as decoder:
        decoder.tap(rows.append)
        decoder.prefill(prompt)
    got = next(s for s in rows if s.name == "final_norm").tensors["out"]
    assert next(s for s in rows if s.name == "l1.moe_experts").attrs["format"] == "w4_exact"
    want, _ = reference.prefill(reference.Model(model.config, weights), prompt)
    unquantised, _ = reference.prefill(model, prompt)
    assert np.max(np.abs(got - unquantised)) > 1000 * np.max(np.abs(got - want))


# --- bf16 ----------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("backend", BACKENDS)
def test_in_bf16_trees_give_the_greedy_tokens_of_bf16(backend: str) -> None:
    """Exactly, for all prompts: a row's bits do not depend on the pass that made it.

    51 rows a pass: beyond 64 the CUDA engine may leave products to cuBLAS, which promises less.
    """
    with decode.Decoder(
        MODEL, backend, requests=3, max_context=512, max_budget=16, precision="bf16"
    ) as decoder:
        for first in range(0, 16, 3):
            prompts = [p["prompt_ids"] for p in PROMPTS[first : first + 3]]
            live = range(len(prompts))
            one = [[decoder.prefill(p, r)] for r, p in enumerate(prompts)]
            while len(one[0]) < 64:
                for out, token in zip(one, decoder.greedy(live), strict=True):
                    out.append(token)
            many = [[decoder.prefill(p, r)] for r, p in enumerate(prompts)]
            while min(map(len, many)) < 64:
                for out, new in zip(many, decoder.tree(16, live), strict=True):
                    out.extend(new)
            assert [out[:64] for out in many] == one


def distances_in_sigmas(
    model: reference.Model,
    decoder: decode.Decoder,
    prompt: list[int],
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:
    """An engine's bf16 logits beside the reference's for the same tokens, position by position.

    sigma: a row passes 14 roundings to bf16 a layer (two norms, five of mla_project, latents,
    values, the stream twice, gate, up and their product) and two more. Each is a relative error
    evenly spread over 2^-9, so independent ones move the final row by sqrt(roundings / 3) 2^-9 of
    its length, in a direction that has no preference for w_a - w_b.
    A choice is no rounding: the reference takes the engine's experts where it would choose others,
    for a token's keys and values reach every later one.
    `gap`: of the reference's two best logits; `error`: the engine's error in it; both in sigmas.
    `routed`: whether the token's experts are those that the reference would choose.
    """
    layers, width = model.config["num_hidden_layers"], model.config["hidden_size"]
    chosen: list[Any] = []

    def see(stage: decode.Stage) -> None:
        if stage.op.startswith("moe_route"):
            chosen.append(np.sort(stage.tensors["ids"], -1))

    decoder.tap(see)
    tokens, rows = [decoder.prefill(prompt)], [decoder.read("logits", np.float32)]
    while len(tokens) < count:
        tokens += decoder.greedy()
        rows.append(decoder.read("logits", np.float32))
    decoder.tap(None)
    expert_layers = layers - model.config["first_k_dense_replace"]
    theirs = [np.concatenate(chosen[k::expert_layers]) for k in range(expert_layers)]
    same: list[Any] = []

    def route(logits: Any, bias: Any, *rest: Any) -> Any:
        ids, weights, error = moe_route.route(logits, bias, *rest)
        want = theirs[len(same)]
        same.append((np.sort(ids, -1) == want).all(-1))
        for t in np.flatnonzero(~same[-1]):
            favour = bias + 100.0 * np.isin(np.arange(len(bias)), want[t])
            one = moe_route.route(logits[t : t + 1], favour, *rest)
            ids[t], weights[t] = one[0][0], one[1][0]
        assert (np.sort(ids, -1) == want).all()
        return ids, weights, error

    monkeypatch.setattr(reference, "route", route)
    hidden, _ = reference.prefill(model, [*prompt, *tokens[:-1]])
    monkeypatch.undo()
    routed = np.all(same, axis=0)[-count:]
    hidden, at = hidden[-count:], np.arange(count)
    want, got = model.logits(hidden), np.array(rows, np.float64)
    best, second = np.argsort(-want, axis=-1)[:, :2].T
    head = model.weights["lm_head.weight"]
    length = np.linalg.norm(hidden, axis=-1)
    length *= np.linalg.norm(head[best] - head[second], axis=-1) / np.sqrt(width)
    sigma = np.sqrt((14 * layers + 2) / 3) * 2.0**-9 * length
    gap = want[at, best] - want[at, second]
    error = got[at, best] - got[at, second] - gap
    return {
        "gap": gap / sigma,
        "error": error / sigma,
        "routed": routed,
        "equal": np.array(tokens) == best,
    }


SIGMAS = 6  # chance alone passes this once in 500 million


@pytest.mark.engine
@pytest.mark.parametrize("backend", BACKENDS)
def test_in_bf16_tokens_are_the_reference_models_wherever_rounding_cannot_decide(
    model: reference.Model, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    with decode.Decoder(MODEL, backend, max_context=256, precision="bf16") as decoder:
        found = [
            distances_in_sigmas(model, decoder, PROMPTS[p]["prompt_ids"], 32, monkeypatch)
            for p in range(0, 16, 2)
        ]
    seen = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    assert np.mean(seen["routed"]) > 0.9
    assert np.abs(seen["error"]).max() < SIGMAS
    assert np.sqrt(np.mean(np.square(seen["error"]))) > 0.25  # it is no wide bound
    clear = seen["gap"] > SIGMAS
    assert np.mean(clear) > 0.75
    assert seen["equal"][clear].all()


@pytest.mark.engine
@pytest.mark.parametrize(
    "change",
    [
        {"rms_norm_eps": 1e-3},
        {"routed_scaling_factor": 2.4},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}},
    ],
)
def test_in_bf16_an_engine_that_computes_something_else_is_beyond_rounding(
    tmp_path: Path, model: reference.Model, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((MODEL / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    (tmp_path / "model.safetensors").symlink_to(MODEL / "model.safetensors")
    with decode.Decoder(tmp_path, max_context=256, precision="bf16") as decoder:
        seen = distances_in_sigmas(model, decoder, PROMPTS[0]["prompt_ids"], 32, monkeypatch)
    beyond = np.abs(seen["error"]) > SIGMAS
    assert beyond.any() or np.mean(seen["routed"]) < 0.9


@pytest.mark.engine
def test_bf16_wants_weights_that_are_bf16(tmp_path: Path) -> None:
    def to_f32(header: dict[str, Any]) -> None:
        entry = header["model.norm.weight"]
        entry.update(dtype="F32", shape=[64])

    with pytest.raises(
        EngineError, match=r"model\.norm\.weight: dtype for precision bf16, want bf16"
    ):
        decode.Decoder(damaged(tmp_path, to_f32), precision="bf16")
    with pytest.raises(EngineError, match="precision, want f32 or bf16, got f16"):
        decode.Decoder(MODEL, precision="f16")


# --- finding the stage ---------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_stage_of_a_prompt_and_a_tree_is_within_its_own_budget(
    backend: str, precision: str
) -> None:
    """The cache too: its rows are within mla_project's budget, and commits move them exactly."""
    with decode.Decoder(
        MODEL, backend, max_context=256, max_budget=16, precision=precision
    ) as decoder:
        verdicts = decode.localize(decoder, PROMPTS[0]["prompt_ids"], 16)
    assert [v.stage for v in verdicts if not v.worst <= 1] == []
    names = [v.stage for v in verdicts]
    assert names[:4] == ["embed", "l0.input_norm", "l0.mla_project", "l0.verify_attn"]
    assert names[34:44] == [
        *("final_norm", "logits", "next", "kv_commit"),
        *("draft.embed", "draft.heads", "draft.logits", "draft.topk", "tree_build", "embed"),
    ]
    assert names[-4:] == ["tree.logits", "tree.target", "tree_accept", "kv_commit"]
    assert len(names) == 82
    # Judged by bf16's own roundings: f32's budgets would not do.
    assert (sum(v.worst > 0.25 for v in verdicts) > 40) == (precision == "bf16")


def run_again(stage: decode.Stage, engine: str, **other: Any) -> dict[str, Any]:
    """What another kernel, or other arguments, make of a stage's inputs.

    `engine`: one of ours, mutants, or wrong:NAME, a known-wrong result of moe_route.
    """
    roles = {t.name: t.role for t in contract.load(stage.op).tensors}
    inputs = {k: x for k, x in stage.tensors.items() if roles[k] == "in"}
    state = {k: np.array(x) for k, x in stage.tensors.items() if roles[k] == "inout"}
    out = {k: np.empty_like(x) for k, x in stage.tensors.items() if roles[k] == "out"}
    if engine.startswith("wrong:"):
        wide = {k: case.widen(x) for k, x in inputs.items()}
        wrong = WRONG_ROUTES[engine.removeprefix("wrong:")](wide, stage.attrs, "f32")
        return {k: x.astype(out[k].dtype) for k, x in wrong.items()}
    arguments: dict[str, Any] = {**inputs, **stage.attrs, **other}
    ops.Engine(engine).call(stage.op, out=out, state=state, **arguments)
    return {**state, **out}


def plant(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[decode.Stage], dict[str, Any] | None]
) -> None:
    """Puts what `fault` gives in the place of a stage's results, in the running decoder."""
    honest = decode._stage

    def stage_of(name: str, call: Any, fetch: Any) -> decode.Stage:
        stage = honest(name, call, fetch)
        results = fault(stage)
        if results is None:
            return stage
        for t in contract.load(stage.op).tensors:
            if t.name in results:
                place = call.contents.tensor(call, t.name.encode(), decode._ROLES[t.role])
                at = place.contents.data + place.contents.byte_offset
                value = np.ascontiguousarray(results[t.name])
                ctypes.memmove(at, value.ctypes.data, value.nbytes)
        return honest(name, call, fetch)

    monkeypatch.setattr(decode, "_stage", stage_of)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("embed", "embed@1:off_by_one"),
        ("l0.input_norm", "rmsnorm@1:no_eps"),
        ("l1.mla_project", "mla_project@1:other_eps"),
        ("l2.mla_project", "mla_project@1:half_pairs"),
        ("l2.verify_attn", "verify_attn@1:causal_mask"),
        ("l3.mla_output", "mla_output@1:heads_inner"),
        ("l3.post_norm", "rmsnorm@1:subtracts_mean"),
        ("l0.gate", "linear@1:bf16_rows"),
        ("l0.silu_mul", "silu_mul@1:gelu"),
        ("l0.down", "linear@1:no_residual"),
        ("l1.router", "linear@1:bf16_rows"),
        ("l3.moe_route", "moe_route@1:mask_zero"),
        ("l2.moe_experts", "moe_experts@1:shared_scaled"),
        ("final_norm", "rmsnorm@1:subtracts_mean"),
        ("logits", "linear@1:last_column"),
        ("next", "argmax of the negated"),
        ("draft.embed", "embed@1:off_by_one"),
        ("draft.heads", "linear@1:bf16_rows"),
        ("draft.topk", "topk_logprobs@1:lse_base_2"),
        ("tree_build", "tree_build@1:visible_causal"),
        ("tree.target", "argmax of the negated"),
        ("tree_accept", "tree_accept@1:bonus_is_draft_token"),
        ("kv_commit", "kv_commit@1:page_id_as_slot"),
    ],
)
def test_a_mutated_kernel_anywhere_names_its_stage(
    monkeypatch: pytest.MonkeyPatch, name: str, mutant: str
) -> None:
    """All later stages get what it gives."""

    def fault(stage: decode.Stage) -> dict[str, Any] | None:
        if stage.name != name:
            return None
        if "@" in mutant:
            return run_again(stage, f"mutants:{mutant}")
        return run_again(stage, "cpu", logits=-stage.tensors["logits"])

    plant(monkeypatch, fault)
    with decode.Decoder(MODEL, max_context=64, max_budget=16) as decoder:
        verdicts = decode.localize(decoder, PROMPTS[0]["prompt_ids"], 16)
    assert next(v.stage for v in verdicts if not v.worst <= 1) == name


@pytest.mark.engine
def test_a_stage_whose_results_the_next_one_refuses_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fault(stage: decode.Stage) -> dict[str, Any] | None:
        if stage.name != "l1.mla_output":
            return None
        return {**stage.tensors, "out": np.full_like(stage.tensors["out"], np.nan)}

    plant(monkeypatch, fault)
    with decode.Decoder(MODEL, max_context=64) as decoder:
        verdicts = decode.localize(decoder, PROMPTS[0]["prompt_ids"])
        assert next(v.stage for v in verdicts if not v.worst <= 1) == "l1.mla_output"
        with pytest.raises(EngineError, match="id 0, want"):  # no stage's fault
            decode.localize(decoder, [4096])


# How each known-wrong choice is made in the engine: a mutated kernel, or arguments of one op.
IN_THE_ENGINE: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "lora_eps=rms_norm_eps": ("mla_project", "cpu", ("eps",)),
    "all_eps=1e-6": ("rmsnorm", "cpu", ("eps",)),
    "no_yarn_freq": ("mla_project", "cpu", ("inv_freq",)),
    "no_mscale": ("verify_attn", "cpu", ("scale",)),
    "mscale_once": ("verify_attn", "cpu", ("scale",)),
    "scale=head_dim^-0.5": ("verify_attn", "cpu", ("scale",)),
    "att_factor=0.1ln+1": ("mla_project", "cpu", ("rope_scale",)),
    "rope_half_pairs": ("mla_project", "mutants:mla_project@1:half_pairs", ()),
    "rope_sign": ("mla_project", "mutants:mla_project@1:sign", ()),
    "no_bias": ("moe_route", "mutants:moe_route@1:no_bias", ()),
    "weights_from_biased": ("moe_route", "wrong:bias_in_weight", ()),
    "group_score=max": ("moe_route", "mutants:moe_route@1:group_max", ()),
    "group_score_unbiased": ("moe_route", "mutants:moe_route@1:group_unbiased", ()),
    "no_groups": ("moe_route", "mutants:moe_route@1:no_groups", ()),
    "group_mask=0.0": ("moe_route", "mutants:moe_route@1:mask_zero", ()),
    "no_norm_topk": ("moe_route", "mutants:moe_route@1:renorm_never", ()),
    "no_routed_scaling": ("moe_route", "mutants:moe_route@1:no_scale", ()),
    "no_shared": ("moe_experts", "mutants:moe_experts@1:no_shared", ()),
}


@pytest.mark.engine
@pytest.mark.parametrize("label", reference.WRONG)
def test_an_engine_that_makes_a_wrong_choice_is_named(
    monkeypatch: pytest.MonkeyPatch, model: reference.Model, label: str
) -> None:
    op, engine, names = IN_THE_ENGINE[label]
    other = model.but(reference.WRONG[label])
    given = {
        "eps": other.latent_eps if op == "mla_project" else other.eps,
        "inv_freq": other.rope.inv_freq.astype(np.float32),
        "scale": other.rope.softmax_scale,
        "rope_scale": other.rope.factor,
    }
    change = {name: given[name] for name in names}
    plant(monkeypatch, lambda s: run_again(s, engine, **change) if s.op == op else None)
    with decode.Decoder(MODEL, max_context=256) as decoder:
        got, distance, runner_up = decode.diagnose(MODEL, decoder, PROMPTS[0]["prompt_ids"])
    assert got == label
    assert runner_up > 10 * distance


@pytest.mark.engine
def test_what_a_tap_raises_is_raised_by_the_call() -> None:
    def see(stage: decode.Stage) -> None:
        raise RuntimeError(stage.name)

    with decode.Decoder(MODEL, max_context=64) as decoder:
        decoder.tap(see)
        with pytest.raises(RuntimeError, match=r"^embed$"):
            decoder.prefill([5, 6])
        decoder.tap(None)
        assert decoder.prefill(PROMPTS[0]["prompt_ids"]) == greedy_tokens(0)[0]


@pytest.mark.engine
def test_the_engine_is_named_as_following_the_published_model() -> None:
    with decode.Decoder(MODEL, max_context=256) as decoder:
        label, distance, runner_up = decode.diagnose(MODEL, decoder, PROMPTS[0]["prompt_ids"])
    assert label == "published"
    assert runner_up > 100 * distance


@pytest.mark.engine
@pytest.mark.parametrize(
    ("label", "change"),
    [
        ("no_norm_topk", {"norm_topk_prob": False}),
        ("no_routed_scaling", {"routed_scaling_factor": 1.0}),
        ("all_eps=1e-6", {"rms_norm_eps": 1e-6}),
    ],
)
def test_an_engine_that_reads_the_configuration_wrongly_is_named(
    tmp_path: Path, label: str, change: dict[str, Any]
) -> None:
    config = json.loads((MODEL / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    (tmp_path / "model.safetensors").symlink_to(MODEL / "model.safetensors")
    with decode.Decoder(tmp_path, max_context=256) as decoder:
        got, distance, runner_up = decode.diagnose(MODEL, decoder, PROMPTS[0]["prompt_ids"])
    assert got == label
    assert runner_up > 10 * distance


# --- the command line ----------------------------------------------------------------------------


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--model", str(MODEL)])


@pytest.mark.engine
@pytest.mark.parametrize("budget", ["0", "64"])
def test_decode_prints_the_recorded_tokens_and_its_statistics(budget: str) -> None:
    prompt = ",".join(map(str, PROMPTS[3]["prompt_ids"]))
    done = run("decode", "--prompt-ids", prompt, "--tree-budget", budget)
    assert done.exit_code == 0
    assert [int(t) for t in done.stdout.split()] == PROMPTS[3]["output_ids"]
    assert done.stderr.startswith("64 tokens in ")
    lengths = [r["accepted_length"] for r in TRACE["64"][3]["rounds"]]
    mean = f"{len(lengths)} rounds, {sum(lengths) / len(lengths):.2f} drafts accepted a round"
    assert (mean in done.stderr) == (budget == "64")


@pytest.mark.engine
def test_what_stops_a_decode_is_a_line_of_its_own() -> None:
    done = run("decode", "--prompt-ids", "1 2 3", "--max-context", "8", "-n", str(10**30))
    assert done.exit_code == 2
    assert (len(done.stdout.split()), done.stdout[-1]) == (6, "\n")
    assert done.stderr.startswith("error: ")


@pytest.mark.engine
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_localize_says_that_every_stage_is_within(precision: str) -> None:
    done = run("localize", "--prompt-ids", "52 90 78 718", "--all", "--precision", precision)
    assert done.exit_code == 0
    assert "l3.moe_experts" in done.stdout
    assert "38 stages within budget" in done.stdout


@pytest.mark.engine
def test_ids_that_are_no_numbers_are_one_line_of_error() -> None:
    done = run("decode", "--prompt-ids", "one two")
    assert done.exit_code == 2
    assert done.stderr == "error: --prompt-ids: not token ids, want integers, got one two\n"


@pytest.mark.engine
def test_a_context_past_32_bits_is_refused() -> None:
    done = run("decode", "--prompt-ids", "1 2 3", "--max-context", str(2**32 + 1000))
    assert done.exit_code == 2
    assert "--max-context" in done.stderr


# --- what is refused -----------------------------------------------------------------------------


def damaged(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the checkpoint whose safetensors header was changed."""
    data = (MODEL / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    whole = len(text).to_bytes(8, "little") + text + data[8 + length :]
    (tmp_path / "model.safetensors").write_bytes(whole)
    shutil.copy(MODEL / "config.json", tmp_path)
    return tmp_path


@pytest.mark.engine
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.pop("lm_head.weight"), "data without gaps or overlaps"),
        (lambda h: h[EMBED].update(shape=[4096, 129]), "size in bytes"),
        (lambda h: h[EMBED].update(shape=[2**40, 2**40]), "shape, want at most"),
        (lambda h: h[EMBED].update(shape=[2**62, 2**62]), "an integer from 0"),
        (lambda h: h[EMBED].update(shape=[-1, 128]), "an integer from 0"),
        (lambda h: h[EMBED].update(shape=[4096.5, 128]), "an integer from 0"),
        (lambda h: h[EMBED].update(data_offsets=[0, 2**60]), "an integer from 0|within"),
        (lambda h: h[EMBED].update(data_offsets=[8, 4]), "within|data_offsets"),
        (lambda h: h[EMBED].update(dtype="F7"), "dtype, want F32"),
        (lambda h: h.update(x=[]), "entry, want dtype"),
        (lambda h: h.update({EMBED + "2": h.pop(EMBED)}), "tensor is missing"),
    ],
)
def test_a_lying_safetensors_header_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        decode.Decoder(damaged(tmp_path, change))


@pytest.mark.engine
@pytest.mark.parametrize("size", [0, 7, 8, 100, 30000])
def test_a_truncated_safetensors_file_is_refused(tmp_path: Path, size: int) -> None:
    shutil.copy(MODEL / "config.json", tmp_path)
    data = (MODEL / "model.safetensors").read_bytes()[:size]
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(
        EngineError, match=r"file size|header length|not valid JSON|want (at most|within)"
    ):
        decode.Decoder(tmp_path)
    with pytest.raises(KdtrError):
        decode.load_reference(tmp_path)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "not an object"),
        ("[" * 100000, "nested more than 32"),
        ('{"a": 1, "a": 2}', "repeated key 'a'"),
        ('{"model_type": "llama"}', "want deepseek_v3, got llama"),
        ("{}", "missing key vocab_size"),
        ('{"vocab_size": 1e400}', "out of range"),
        ('{"vocab_size": -4}', "an integer of at least 1"),
        ('{"vocab_size": 01}', "leading zero"),
        ('{"vocab_size": "\\ud800"}', "surrogate"),
        ('{"vocab_size": 1} x', "text after the value"),
    ],
)
def test_a_bad_configuration_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(EngineError, match=message):
        decode.Decoder(tmp_path)


@pytest.mark.engine
def test_requests_are_checked() -> None:
    with decode.Decoder(MODEL, requests=2, max_context=32, max_budget=8) as decoder:
        for call, message in (
            (lambda: decoder.prefill([]), "at least one id"),
            (lambda: decoder.prefill([4096]), r"id 0, want 0\.\.4095, got 4096"),
            (lambda: decoder.prefill([1] * 33), "context rows, want at most 32, got 33"),
            (lambda: decoder.prefill([1], 2), r"request: id, want 0\.\.1, got 2"),
            (lambda: decoder.greedy([1]), "prefilled"),
            (lambda: decoder.tree(9), "budget"),
            (lambda: decoder.read("nothing"), "no such buffer"),
        ):
            with pytest.raises(EngineError, match=message):
                call()
        decoder.prefill([1] * 30)
        with pytest.raises(EngineError, match="request: times in a step, want once, got 0"):
            decoder.greedy([0, 0])
        decoder.greedy()
        decoder.greedy()
        with pytest.raises(EngineError, match="context rows"):
            decoder.greedy()


@pytest.mark.engine
def test_ranks_need_a_group_and_an_engine_that_has_them() -> None:
    with pytest.raises(EngineError, match="CPU engine has no communicator"):
        decode.new_group("cpu")
    with pytest.raises(EngineError, match="CPU engine has no communicator"):
        decode.Decoder(MODEL, world=2, rank=1, group=bytes(128))
    with pytest.raises(EngineError, match="want a group of kdtr_decoder_group, got none"):
        decode.Decoder(MODEL, world=2)
    with pytest.raises(EngineError, match="bytes of the group, want 128, got 3"):
        decode.Decoder(MODEL, world=2, group=b"abc")


@pytest.mark.engine
def test_an_unknown_folder_is_an_error() -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        decode.Decoder("/nonexistent")
