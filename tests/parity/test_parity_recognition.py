"""Every checkpoint is taken by exactly one format, and other files by none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import format_writers as writers
import pytest
import torch
from format_writers import Shape, Stored, save_json
from safetensors.torch import save_file
from test_parity_formats import CASES, loaded, recognised

from latentbench.adapters.formats.native import save_dictionary

SHAPE = Shape(12, 40)


@pytest.mark.parametrize("case", CASES)
def test_exactly_one_format_takes_a_checkpoint(tmp_path: Path, case: str) -> None:
    name, write = CASES[case]
    checkpoint = write(tmp_path, Shape(12, 40))
    for path in {checkpoint.path, checkpoint.weights, checkpoint.weights.parent}:
        found = recognised(path)
        nested = checkpoint.weights.parent.name == "checkpoints" and path == checkpoint.weights.parent
        assert list(found) == ([] if nested else [name])


def native(folder: Path) -> Path:
    ours = loaded("goodfire", writers.goodfire(folder, SHAPE))
    return save_dictionary(folder / "ours", "mine", ours)


def saelens(folder: Path) -> Path:
    stored = Stored(SHAPE)
    stored.encoder("W_enc", rows=False), stored.decoder("W_dec", rows=True)
    stored.bias("b_enc", 40), stored.bias("b_dec", 12)
    save_json(
        folder / "cfg.json",
        {"architecture": "standard", "metadata": {"hook_name": "blocks.3.hook_resid_post"}},
    )
    stored.save(folder / "sae_weights.safetensors")
    return folder


def sparsify(folder: Path) -> Path:
    stored = Stored(SHAPE)
    stored.encoder("encoder.weight", rows=True), stored.decoder("W_dec", rows=True)
    stored.bias("encoder.bias", 40), stored.bias("b_dec", 12)
    save_json(folder / "cfg.json", {"k": 3, "d_in": 12, "num_latents": 40})
    stored.save(folder / "sae.safetensors")
    return folder


def dictionary_learning(folder: Path, name: str, config: bool, *keys: str) -> Path:
    stored = Stored(SHAPE)
    stored.encoder("encoder.weight", rows=True), stored.decoder("decoder.weight", rows=False)
    for key in keys:
        stored.bias(key, 12 if key in ("bias", "b_dec", "decoder_bias") else 40)
    if config:
        save_json(folder / "config.json", {"trainer": {"dict_class": name}})
    stored.save(folder / "ae.pt")
    return folder


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("native", native),
        ("saelens", saelens),
        ("sparsify", sparsify),
        (
            "dictionary_learning",
            partial(dictionary_learning, name="AutoEncoderTopK", config=True),
        ),
        (
            "dictionary_learning",
            lambda folder: dictionary_learning(folder, "", False, "encoder.bias", "bias"),
        ),
        (
            "dictionary_learning",
            lambda folder: dictionary_learning(
                folder, "", False, "decoder_bias", "r_mag", "gate_bias", "mag_bias"
            ),
        ),
    ],
)
def test_exactly_one_format_takes_the_others_checkpoints(
    tmp_path: Path, name: str, write: Callable[[Path], Path]
) -> None:
    assert list(recognised(write(tmp_path / "one"))) == [name]


def test_nothing_takes_a_folder_of_other_things(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("none", encoding="utf-8")
    torch.save({"w": torch.ones(2)}, tmp_path / "other.pt")
    save_json(tmp_path / "config.json", {"model_type": "llama"})
    save_file({"model.embed_tokens.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    assert recognised(tmp_path) == {}
    for file in tmp_path.iterdir():
        assert recognised(file) == {}
