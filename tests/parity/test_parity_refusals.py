"""Foreign checkpoints that can't be loaded as they are: one line that names file, key, found and expected."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import format_writers as writers
import format_writers_openmoss as openmoss
import format_writers_routesae as routesae
import numpy as np
import pytest
import torch
from format_writers import Checkpoint, Shape, Stored, save_json
from safetensors.torch import load_file, save_file
from test_parity_formats import CASES, every_format, loaded, recognised
from torch import Tensor

from latentbench.adapters import LoadOptions, RouteSae, SparseAutoencoder, load_dictionary
from latentbench.errors import AdapterError, UserError

SHAPE = Shape(12, 40)


def refused(match: str | None, call: Callable[[], object]) -> str:
    with pytest.raises(UserError, match=match) as raised:
        call()
    text = str(raised.value)
    assert "\n" not in text, "one line"
    return text


def reconfigured(checkpoint: Checkpoint, **changes: Any) -> Checkpoint:
    """The same with other entries in its config; None takes one out."""
    for folder in (checkpoint.weights.parent, checkpoint.weights.parent.parent):
        for name in ("config.json", "hyperparams.json"):
            file = folder / name
            if file.is_file():
                config = {**json.loads(file.read_text(encoding="utf-8")), **changes}
                save_json(file, {key: value for key, value in config.items() if value is not None})
                return checkpoint
    raise AssertionError("no config")


def rewritten(checkpoint: Checkpoint, change: Callable[[dict[str, Tensor]], None]) -> Checkpoint:
    """The same with other tensors; `change` edits them in place."""
    file = checkpoint.weights
    if file.suffix == ".npz":
        stored = Stored(SHAPE)
        with np.load(file) as held:
            stored.held = {key: torch.from_numpy(held[key]) for key in held.files}
        change(stored.held)
        stored.save(file)
    elif file.suffix == ".safetensors":
        tensors = load_file(file)
        change(tensors)
        save_file({key: value.contiguous() for key, value in tensors.items()}, file)
    else:
        found = torch.load(file, weights_only=True)
        change(found.get("sae", found))
        torch.save(found, file)
    return checkpoint


def main_key(tensors: dict[str, Tensor]) -> str:
    """The encoder's matrix, whatever it is called."""
    names = ("w_enc", "W_enc", "W_E", "encoder.weight", "encoder_linear.weight", "encoder.0.weight")
    return next(key for key in tensors if key.removeprefix("sae.").removeprefix("autoencoder.") in names)


def turn(tensors: dict[str, Tensor]) -> None:
    key = main_key(tensors)
    tensors[key] = tensors[key].transpose(-1, -2)


def spoil(tensors: dict[str, Tensor]) -> None:
    key = main_key(tensors)
    tensors[key] = tensors[key].clone()
    tensors[key].view(-1)[3] = torch.nan


FIRST = {
    name: next(case for case, (found, _) in CASES.items() if found == name) for name, _ in CASES.values()
}


@pytest.mark.parametrize("case", CASES)
def test_a_transposed_encoder_is_called_that(tmp_path: Path, case: str) -> None:
    name, write = CASES[case]
    checkpoint = rewritten(write(tmp_path, SHAPE), turn)
    match = r"\(2, 12, 40\) is expected" if case == "llamascopium-crosscoder" else "is transposed"
    text = refused(match, lambda: loaded(name, checkpoint))
    assert checkpoint.weights.name in text


@pytest.mark.parametrize("case", CASES)
def test_nan_is_named_with_its_key(tmp_path: Path, case: str) -> None:
    name, write = CASES[case]
    checkpoint = rewritten(write(tmp_path, SHAPE), spoil)
    text = refused("1 NaN or infinite", lambda: loaded(name, checkpoint))
    assert checkpoint.weights.name in text


@pytest.mark.parametrize("name", FIRST)
def test_a_truncated_file_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    checkpoint = CASES[FIRST[name]][1](tmp_path, SHAPE)
    held = checkpoint.weights.read_bytes()
    checkpoint.weights.write_bytes(held[: len(held) // 2])
    for path in (checkpoint.path, checkpoint.weights):
        found = recognised(path)
        assert len(found) == 1
        one = every_format()[next(iter(found))]
        refused(
            f"{checkpoint.weights.name} can't be read",
            partial(one.load, path, LoadOptions()),
        )


@pytest.mark.parametrize("name", FIRST)
def test_a_missing_key_is_named(tmp_path: Path, name: str) -> None:
    checkpoint = CASES[FIRST[name]][1](tmp_path, SHAPE)
    gone: list[str] = []

    def drop(tensors: dict[str, Tensor]) -> None:
        gone.append(main_key(tensors))
        del tensors[gone[0]]

    rewritten(checkpoint, drop)
    # RouteSAE's files are told from others by their keys alone.
    assert list(recognised(checkpoint.path)) == ([] if name == "routesae_pt" else [name])
    text = refused(None, lambda: loaded(name, checkpoint))
    assert gone[0].removeprefix("sae.").removeprefix("autoencoder.") in text or "keys are" in text


@pytest.mark.parametrize(
    ("case", "changes", "match"),
    [
        (
            "gemma_scope2",
            {"width": 41},
            r"params.safetensors: key b_enc has shape \(40,\), and \(41,\) is expec",
        ),
        ("gemma_scope2", {"architecture": "topk"}, "key architecture is 'topk', and 'jump_relu' is expected"),
        ("gemma_scope2", {"type": "crosscoder"}, "key type is 'crosscoder'"),
        ("gemma_scope2", {"affine_connection": True}, "key affine_skip_connection .* is missing"),
        ("gemma_scope2-affine", {"affine_connection": False}, "affine_connection false, so none is expected"),
        ("gemma_scope2", {"hf_hook_point_in": "model.layers.3.mlp.act"}, "key site is not told"),
        ("llama_scope", {"d_sae": 41}, "key encoder.weight has shape"),
        ("llama_scope", {"d_model": None}, "key d_model is None, .*: the key is missing"),
        ("llama_scope", {"act_fn": "prolu"}, "key act_fn is 'prolu'"),
        ("llama_scope", {"norm_activation": "batch-wise"}, "depends on what else is in the batch"),
        ("llama_scope", {"dataset_average_activation_norm": None}, "the scale of the input is unknown"),
        ("llama_scope", {"use_glu_encoder": True}, "key use_glu_encoder is true"),
        ("llama_scope", {"jump_relu_threshold": "high"}, "key jump_relu_threshold is 'high'"),
        ("llamascopium", {"sae_type": "clt"}, "key sae_type is 'clt'"),
        ("llamascopium", {"act_fn": "layertopk"}, "key act_fn is 'layertopk'"),
        ("llamascopium", {"expansion_factor": 2}, "key W_E has shape"),
        ("llamascopium", {"expansion_factor": None}, "key expansion_factor is None"),
        ("llamascopium", {"hook_point_in": "blocks.3.ln2.hook_normalized"}, "key site is not told"),
        (
            "llamascopium-crosscoder",
            {"act_fn": "jumprelu"},
            "key act_fn is 'jumprelu', and 'relu' is expected",
        ),
        ("llamascopium-crosscoder", {"hook_points": ["x"]}, "key hook_points is"),
        ("mlsae", {"n_latents": 41}, "key encoder.weight has shape"),
        ("mlsae", {"tuned_lens": True}, "key tuned_lens is true"),
        ("mlsae", {"layers": [0, 1]}, "resid_post.3, and resid_post.0, resid_post.1 is expected"),
        ("bartbussmann-topk", {"dict_size": 41}, "key W_enc has shape"),
        ("bartbussmann-topk", {"sae_type": "matching"}, "key sae_type is 'matching'"),
        ("bartbussmann-topk", {"use_encoder_bias": False}, "key use_encoder_bias is found"),
        ("bartbussmann-topk", {"top_k": "many"}, "key top_k is 'many'"),
    ],
)
def test_a_config_that_contradicts_the_tensors_or_is_unknown(
    tmp_path: Path, case: str, changes: dict[str, Any], match: str
) -> None:
    name, write = CASES[case]
    refused(match, lambda: loaded(name, reconfigured(write(tmp_path, SHAPE), **changes)))


@pytest.mark.parametrize(
    ("case", "options", "match"),
    [
        (
            "gemma_scope",
            {"site": "resid_post.4"},
            "key site is resid_post.3 .* and resid_post.4 was asked for",
        ),
        ("llama_scope", {"site": "resid_post.4"}, "and resid_post.4 was asked for"),
        ("openai-topk", {"site": "mlp_out.3"}, "key site is resid_post.3"),
        ("qwen_scope", {"k": None}, "key k is not told"),
        ("mlsae", {"site": None}, "one SAE serves several layers"),
        ("mlsae", {"site": "mlp_out.3"}, "mlp_out.3, and a site after a block is expected"),
        ("bartbussmann-batchtopk", {"k": None}, "BatchTopK without a threshold: key top_k is 3"),
        ("llamascopium-batchtopk", {"k": None}, "BatchTopK without a threshold: key top_k is 3"),
        ("routesae-topk", {"architecture": "relu"}, "its name is that of topk, and relu was asked for"),
        ("routesae-topk", {"n_layers": 4}, "L4 in its name is hidden state 4, and one of 1 to 3 is expected"),
        ("routesae-topk", {"site": "resid_post.4"}, "and resid_post.4 was asked for"),
        ("routesae-mlsae", {"site": None}, "give site, resid_post.2, "),
        ("routesae-mlsae", {"site": "resid_post.11"}, "resid_post.11, and resid_post.2, "),
        ("routesae-random", {"site": None, "n_layers": 12}, "the model has 12 layers"),
        ("routesae-sum-hard", {"n_layers": 16}, "has 4 sites, and 9 are expected for a model of 16 layers"),
        ("routesae-sum-hard", {"pooling": "mean"}, "its name says pooling sum, and mean was asked for"),
        ("routesae-renamed", {"pooling": None}, "pooling is not told"),
        ("routesae-renamed", {"architecture": None}, "one of routesae, routesae-soft"),
        ("routesae-renamed", {"k": None}, "key k is not told"),
        (
            "routesae-renamed",
            {"architecture": "gated"},
            "asked for as gated, and its keys are those of routesae",
        ),
        ("routesae-renamed", {"architecture": "gate"}, "unknown architecture 'gate'"),
        ("routesae-crosscoder", {"n_layers": 16}, "has 4 sites, and 9 are expected"),
    ],
)
def test_options_that_are_missing_or_contradict_the_file(
    tmp_path: Path, case: str, options: dict[str, Any], match: str
) -> None:
    name, write = CASES[case]
    checkpoint = write(tmp_path, SHAPE)
    refused(match, lambda: loaded(name, checkpoint, **options))


def test_the_number_of_layers_is_derived_where_only_one_fits(tmp_path: Path) -> None:
    checkpoint = routesae.routesae(tmp_path, SHAPE)
    assert loaded("routesae_pt", checkpoint, n_layers=None).card.reads == checkpoint.reads

    def nine(tensors: dict[str, Tensor]) -> None:
        tensors["router.weight"] = torch.ones(9, 12)

    rewritten(checkpoint, nine)
    text = "has 9 sites, which fit models of 15, 16, 17 layers"
    refused(text, lambda: loaded("routesae_pt", checkpoint, n_layers=None))
    routed = loaded("routesae_pt", checkpoint, n_layers=16)
    assert routed.card.reads == tuple(f"resid_post.{layer}" for layer in range(3, 12))


def test_a_name_that_contradicts_the_tensors(tmp_path: Path) -> None:
    checkpoint = routesae.plain(tmp_path, SHAPE)
    other = checkpoint.path.rename(checkpoint.path.with_name("L4_GL0.1_toy_100M_40.pt"))
    checkpoint.path = other
    refused("named gated, and its keys are those of topk or relu", lambda: loaded("routesae_pt", checkpoint))
    checkpoint.path = other.rename(other.with_name("L4_K3_toy_100M_16384.pt"))
    refused(
        "has 40 latents, and 16384 are expected from the file's", lambda: loaded("routesae_pt", checkpoint)
    )
    checkpoint.path = checkpoint.path.rename(other.with_name("other.pt"))
    refused(
        "fit several architectures .* topk, relu, mlsae, random", lambda: loaded("routesae_pt", checkpoint)
    )
    asked = {"architecture": "relu", "site": "resid_post.2"}
    ours = loaded("routesae_pt", checkpoint, **asked)
    assert (ours.card.family, ours.card.reads) == ("relu", ("resid_post.2",))


@pytest.mark.parametrize(
    ("folder", "latents"), [("width_16k", 16384), ("width_65k", 65536), ("width_1m", 1048576)]
)
def test_gemma_scopes_folder_names_the_width(tmp_path: Path, folder: str, latents: int) -> None:
    checkpoint = writers.gemma_scope(tmp_path / folder, SHAPE)
    text = f"has 40 latents, and {latents} are expected from the folder's name {folder}"
    refused(text, lambda: loaded("gemma_scope", checkpoint))


def test_gemma_scope_without_its_repositorys_name_needs_the_site(tmp_path: Path) -> None:
    checkpoint = writers.gemma_scope(tmp_path, SHAPE)
    moved = tmp_path / "mine" / "layer_3" / "average_l0_71"
    moved.parent.mkdir(parents=True)
    checkpoint.path = checkpoint.path.rename(moved)
    refused("params.npz: key site is not told", lambda: loaded("gemma_scope", checkpoint))
    refused("and layer 3 is expected", lambda: loaded("gemma_scope", checkpoint, site="resid_post.4"))
    ours = loaded("gemma_scope", checkpoint, site="mlp_out.3")
    assert (ours.card.reads, ours.card.nominal_l0) == (("mlp_out.3",), 71.0)


def test_gemma_scope_transcoders_read_what_is_no_site(tmp_path: Path) -> None:
    checkpoint = writers.gemma_scope(tmp_path, SHAPE)
    moved = tmp_path / "gemma-scope-2b-pt-transcoders" / "layer_3" / "average_l0_71"
    moved.parent.mkdir(parents=True)
    checkpoint.path = checkpoint.path.rename(moved)
    refused("before the norm's weights, which is no site here", lambda: loaded("gemma_scope", checkpoint))


def test_negative_thresholds_of_routesaes_jumprelu_are_refused(tmp_path: Path) -> None:
    """Its code gives negative codes there."""
    checkpoint = routesae.plain(tmp_path, SHAPE, prefix="L4_JL0.1", kind="jumprelu")

    def below(tensors: dict[str, Tensor]) -> None:
        tensors["threshold"][2] = -0.1

    refused(
        "key threshold is negative for 1 of 40", lambda: loaded("routesae_pt", rewritten(checkpoint, below))
    )


def test_openais_unknown_activations(tmp_path: Path) -> None:
    checkpoint = writers.openai(tmp_path, SHAPE, activation="GELU")
    refused("key activation is 'GELU'", lambda: loaded("openai_pt", checkpoint))
    checkpoint = writers.openai(tmp_path, SHAPE, after="Sigmoid")
    refused("postact_fn is 'Sigmoid'", lambda: loaded("openai_pt", checkpoint))


class Code:
    """Something that torch's restricted unpickler does not make."""


def test_what_needs_unpickling_is_refused_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "transcoder.pt"
    torch.save({"cfg": Code(), "state_dict": {"W_enc": torch.ones(2, 3)}}, file)
    for path in (file, tmp_path):
        assert list(recognised(path)) == ["refused"]
        text = refused("needs unpickling", partial(every_format()["refused"].load, path, LoadOptions()))
        assert "Code" in text
    other = tmp_path / "other.pkl"
    other.write_bytes(pickle.dumps({"a": 1}))
    assert list(recognised(other)) == ["refused"]


def test_temporal_saes_and_cross_layer_transcoders_are_refused_with_the_reason(tmp_path: Path) -> None:
    temporal, layers = tmp_path / "temporal", tmp_path / "clt"
    for folder in (temporal, layers):
        folder.mkdir()
    (temporal / "conf.yaml").write_text("sae: temporal\n", encoding="utf-8")
    save_file({"D": torch.ones(3, 2), "b": torch.ones(2)}, temporal / "latest_ckpt.safetensors")
    save_file({"W_enc_0": torch.ones(3, 2), "b_enc_0": torch.ones(3)}, layers / "W_enc_0.safetensors")
    save_file({"W_dec_0": torch.ones(3, 4, 2)}, layers / "W_dec_0.safetensors")
    for folder, match in ((temporal, "depend on the tokens before"), (layers, "cross-layer transcoder")):
        assert list(recognised(folder)) == ["refused"]
        refused(match, partial(every_format()["refused"].load, folder, LoadOptions()))


def test_cards_say_what_the_files_say(tmp_path: Path) -> None:
    gemma = loaded("gemma_scope", writers.gemma_scope(tmp_path, SHAPE)).card
    assert (gemma.name, gemma.lm) == ("gemma-scope-2b-pt-res/layer_3/average_l0_71", "google/gemma-2-2b")
    assert (gemma.family, gemma.nominal_l0, len(gemma.sha256)) == ("jumprelu", 71.0, 64)
    routed = loaded("routesae_pt", routesae.routesae(tmp_path, SHAPE))
    assert isinstance(routed, RouteSae)
    assert (routed.card.lm, routed.card.nominal_l0, routed.card.normalisation) == ("toy", 3.0, "standardise")
    assert routed.card.options == {
        "gate": "topk", "k": 3, "rectify": False, "eps": 1e-6, "pooling": "sum", "routing": "hard", "splice": "paper",
    }  # fmt: skip
    affine = loaded("gemma_scope2", writers.gemma_scope2(tmp_path, SHAPE, kind="transcoder", affine=True))
    assert isinstance(affine, SparseAutoencoder)
    assert (affine.card.family, affine.card.writes, affine.card.nominal_l0) == (
        "skip-transcoder",
        ("mlp_out.3",),
        20.0,
    )
    openai = loaded("openai_pt", writers.openai(tmp_path, SHAPE)).card
    assert (openai.lm, openai.reads, openai.options["eps"]) == ("gpt2", (writers.SITE,), 1e-5)
    qwen = writers.qwen_scope(tmp_path, SHAPE)
    folder = tmp_path / "SAE-Res-Qwen3-1.7B-Base-W32K-L0_50"
    qwen.path = qwen.path.parent.rename(folder) / qwen.path.name
    text = f"has 40 latents, and 32768 are expected from the folder's name {folder.name}"
    refused(text, lambda: loaded("qwen_scope", qwen))
    with pytest.raises(AdapterError):
        loaded("goodfire", writers.goodfire(tmp_path, SHAPE), site="resid_post.4")


@pytest.mark.parametrize("name", ["goodfire", "mlsae", "gemma_scope2", "bartbussmann", "llamascopium"])
def test_weights_in_whole_numbers_are_refused(tmp_path: Path, name: str) -> None:
    """Quantised weights without their scale would load as garbage of the right shape."""
    writer = {"llamascopium": openmoss.llamascopium}.get(name) or getattr(writers, name)
    checkpoint = writer(tmp_path, Shape(12, 40))
    path = checkpoint.weights
    tensors = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    whole = {key: value.to(torch.int8) if value.dim() == 2 else value for key, value in tensors.items()}
    if path.suffix == ".safetensors":
        save_file(whole, path)
    else:
        torch.save(whole, path)
    with pytest.raises(AdapterError, match="is of type int8, and a floating-point type is expected"):
        load_dictionary(str(checkpoint.path), options=LoadOptions(**(checkpoint.options or {})))
