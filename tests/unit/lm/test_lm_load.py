"""Loading a model from a folder; names, devices and dtypes that can't be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from latentbench.errors import UserError
from latentbench.identity import sha256_file, sha256_json
from latentbench.lm import LM, load_lm
from latentbench.testing import toy_lm, toy_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lm = toy_lm("llama", tokenizer=toy_tokenizer())
    lm.model.save_pretrained(tmp_path)
    lm.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def logits_of(lm: LM) -> torch.Tensor:
    logits = lm.forward(lm.batch([[5, 6, 7]])).logits
    assert logits is not None
    return logits


def test_a_folder_loads_as_the_model_that_was_saved(folder: Path) -> None:
    loaded, original = load_lm(str(folder)), toy_lm("llama")
    torch.testing.assert_close(logits_of(loaded), logits_of(original))
    assert loaded.tokenize(["Cab"], 9) == [[5, 3, 4]]
    assert (loaded.n_layers, loaded.d_model, loaded.vocab_size) == (4, 16, 48)
    assert loaded.eos_ids == frozenset({1})
    assert loaded.pad_id == 0
    weights = folder / "model.safetensors"
    assert loaded.revision == sha256_json({weights.name: sha256_file(weights)})


def test_dtype_and_attention_are_taken_and_reported(folder: Path) -> None:
    loaded = load_lm(str(folder), dtype="bfloat16", attention="eager")
    assert loaded.dtype == torch.bfloat16
    assert loaded.identity()["dtype"] == "bfloat16"
    assert loaded.identity()["attention"] == "eager"
    assert logits_of(loaded).dtype == torch.bfloat16
    assert load_lm(str(folder)).identity() != loaded.identity()


def test_other_weights_are_another_revision(folder: Path) -> None:
    before = load_lm(str(folder)).revision
    toy_lm("llama", seed=1).model.save_pretrained(folder)
    assert load_lm(str(folder)).revision != before


def test_names_that_can_not_be_used_are_explained(folder: Path) -> None:
    with pytest.raises(UserError, match=r"unknown dtype 'float23': did you mean 'float32'"):
        load_lm(str(folder), dtype="float23")
    with pytest.raises(UserError, match="unknown device 'gpu'"):
        load_lm(str(folder), device="gpu")
    with pytest.raises(UserError, match=r"unknown language model 'smollm2-153m'.*smollm2-135m"):
        load_lm("smollm2-153m")
    with pytest.raises(UserError, match="unknown language model"):
        load_lm("./no/such/folder")


def test_a_device_that_is_not_there_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="sees no CUDA device here: use 'cpu'"):
        load_lm(str(folder), device="cuda")


def test_folders_without_weights_and_broken_models_are_refused(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match=r"holds no \*\.safetensors and no \*\.gguf"):
        load_lm(str(empty))
    (empty / "a.gguf").write_bytes(b"")
    (empty / "b.gguf").write_bytes(b"")
    with pytest.raises(UserError, match="holds 2 GGUF files"):
        load_lm(str(empty))
    (folder / "config.json").write_text(json.dumps({"model_type": "no-such-architecture"}))
    with pytest.raises(UserError, match="can't be loaded"):
        load_lm(str(folder))


def test_truncated_weights_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    with pytest.raises(UserError, match="can't be loaded"):
        load_lm(str(folder))


def test_missing_weights_are_not_made_up(folder: Path) -> None:
    """Transformers draws what a checkpoint lacks at random and says so in a warning."""
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks 1 weights.*model\.layers\.1\.mlp\.up_proj\.weight"):
        load_lm(str(folder))


def test_a_hub_model_that_can_not_be_fetched_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # The library has read its environment at import.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"no-such-model' can't be loaded.*HF_HUB_OFFLINE is set"):
        load_lm("no-such-owner/no-such-model")
