"""transformers as the second reference, where it is installed (the group `transformers`)."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdtr import decode
from kdtr.reference import decode as reference

MODEL = Path(__file__).resolve().parent.parent / "goldens" / "model" / "tiny_deepseek_v3"
PROMPTS: list[dict[str, Any]] = json.loads((MODEL / "greedy_tokens.json").read_bytes())["prompts"]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def library() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("transformers")


def hidden_and_choice(torch: Any, theirs: Any, ids: list[int]) -> tuple[Any, list[int]]:
    """Rows after the final norm, and the token after each."""
    with torch.no_grad():
        rows = theirs.model(torch.tensor([ids])).last_hidden_state[0]
        choice: list[int] = theirs.lm_head(rows).argmax(-1).tolist()
    return rows.double().numpy(), choice


def test_transformers_chooses_the_recorded_tokens_now(torch: Any, library: Any) -> None:
    theirs = library.DeepseekV3ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    for p in PROMPTS:
        prompt, output = p["prompt_ids"], [*p["output_ids"], *p["lookahead_ids"]]
        _, choice = hidden_and_choice(torch, theirs, [*prompt, *output[:-1]])
        assert choice[len(prompt) - 1 :] == output


YARN = {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 8.0, "beta_fast": 32, "beta_slow": 1}
YARN |= {"original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "first_k_dense_replace": 0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.707}},
        {"rope_parameters": YARN},
        {"n_shared_experts": 2, "num_key_value_heads": 3, "num_attention_heads": 3},
    ],
)
def test_other_models_are_those_of_transformers(
    torch: Any, library: Any, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Configurations that the recorded checkpoint does not have, with random weights."""
    config = json.loads((MODEL / "config.json").read_bytes())
    config |= {"num_hidden_layers": 2, "rms_norm_eps": 1e-3} | change  # an eps that shows
    torch.manual_seed(3)
    theirs = library.DeepseekV3ForCausalLM(library.DeepseekV3Config(**config)).float().eval()
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            if "norm" not in name:
                weight.normal_(0.0, 0.1)
    theirs.save_pretrained(tmp_path)
    ours = decode.load_reference(tmp_path)
    prompt = PROMPTS[0]["prompt_ids"]
    rows, _ = hidden_and_choice(torch, theirs, prompt)
    published, _ = reference.prefill(ours, prompt)
    known = {
        label: choices
        for label, choices in reference.WRONG.items()
        if np.any(reference.prefill(ours.but(choices), prompt)[0] != published)
    }
    assert {"rope_half_pairs", "rope_sign", "no_shared", "lora_eps=rms_norm_eps"} <= known.keys()
    label, distance, runner_up = reference.name_of(ours, prompt, rows, known)
    assert label == "published"
    assert runner_up > 10 * distance
