"""Recorded inputs: what the files hold, and that they are what the conversion makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdtr import container, recorded
from kdtr.errors import KdtrError

MARGINALS = [n for n in recorded.RECORDINGS if "marginals" in n]
LAYERS = [n for n in recorded.RECORDINGS if n.startswith("mla")]


@pytest.mark.parametrize("name", MARGINALS)
def test_marginals_are_descending_log_probabilities_with_distinct_ids(name: str) -> None:
    rounds = recorded.load(name)
    lp, ids = rounds["logprobs"], rounds["ids"]
    assert lp.dtype == np.float32
    assert ids.dtype == np.int32
    assert lp.shape == ids.shape == (48, 15, 64)
    assert rounds["continuation"].shape == (48, 15)
    assert (lp[..., 1:] <= lp[..., :-1]).all()
    assert (lp <= 0).all()
    assert np.exp(lp.astype(np.float64)).sum(-1).max() <= 1 + 2**-18
    assert all(len(set(row.tolist())) == 64 for row in ids.reshape(-1, 64))
    assert ids.min() >= 0
    assert ids.max() < 49152


def test_bf16_rows_have_exact_ties_and_f32_rows_hardly_any() -> None:
    def tied_rows(name: str) -> float:
        lp = recorded.load(name)["logprobs"]
        return float((lp[..., 1:] == lp[..., :-1]).any(-1).mean())

    assert tied_rows("marginals_bf16") == 1
    assert tied_rows("marginals_f32") < 0.5


@pytest.mark.parametrize("name", LAYERS)
def test_activations_are_half_precision_values(name: str) -> None:
    layer = recorded.load(name)
    assert layer["q"].shape == (16, 9, 576)
    assert layer["kv"].shape == (512, 576)
    for array in layer.values():
        assert array.dtype == np.float32
        assert (array.astype(np.float16).astype(np.float32) == array).all()
        assert np.isfinite(array).all()
        assert array.any(axis=-1).all()


@pytest.mark.parametrize("name", recorded.RECORDINGS)
def test_files_name_model_licence_file_and_rows(name: str) -> None:
    directory = Path(recorded.__file__).resolve().parent.parent / "goldens" / "real"
    container.validate(directory / f"{name}.kdtr", deep=True)
    with container.open(directory / f"{name}.kdtr") as file:
        assert file.meta["licence"] == "Apache-2.0"
        assert "SmolLM2-135M-Instruct" in str(file.meta["model"])
        assert str(file.meta["source"]).endswith(".npz")
        assert all(file.info(tensor).meta["rows"] for tensor in file)


def test_recordings_load_alike_from_the_original_files_and_from_kdtr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.PCG64(7)
    ids = (rng.random_raw(240 * 15 * 64) % 49152).astype(np.int32).reshape(240, 15, 64)
    source = tmp_path / "npz"
    source.mkdir()
    for name in MARGINALS:
        np.savez(
            source / recorded.RECORDINGS[name].file,
            lp=-ids.astype(np.float32),
            tok=ids,
            cont=ids[:, :, 0],
        )
    layer = (ids.reshape(-1) % 100).astype(np.float16)
    acts: dict[str, Any] = {}
    for number in (0, 14, 29):
        acts[f"s{number}_q"] = np.resize(layer, (64, 9, 576))
        acts[f"s{number}_kv"] = np.resize(layer, (2048, 576))
    np.savez(source / "smollm2_mla_acts_fp16.npz", **acts)
    target = tmp_path / "kdtr"
    assert len(recorded.convert(source, target)) == len(recorded.RECORDINGS)
    for name in recorded.RECORDINGS:
        monkeypatch.setenv("KDTR_RECORDED", str(source))
        from_npz = recorded.load(name)
        monkeypatch.setenv("KDTR_RECORDED", str(target))
        from_kdtr = recorded.load(name)
        assert from_npz.keys() == from_kdtr.keys()
        for key, array in from_npz.items():
            assert array.dtype == from_kdtr[key].dtype
            assert (array == from_kdtr[key]).all()
    assert (recorded.load("marginals_f32")["ids"] == ids[0:240:5]).all()
    assert (recorded.load("strong_marginals_bf16")["ids"] == ids[0:192:4]).all()


def test_a_missing_recording_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(KdtrError, match=r"recorded/mla_layer0: no recording, want mla_layer0"):
        recorded.load("mla_layer0", tmp_path)
    with pytest.raises(KdtrError, match="recorded: unknown name"):
        recorded.load("mla_layer1")
