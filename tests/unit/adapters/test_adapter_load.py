"""Loading dictionaries: our own format, names, options, and what is said of bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from latentbench.adapters import (
    Dictionary,
    Gate,
    IdentityDictionary,
    InputTransform,
    JumpReluGate,
    ReluGate,
    RouteSae,
    SparseAutoencoder,
    ThresholdGate,
    TopKGate,
    check_fits,
    load_dictionary,
    steering_edits,
    zoo_folder,
    zoo_names,
)
from latentbench.adapters.formats.native import save_dictionary
from latentbench.errors import AdapterError, UserError
from latentbench.identity import sha256_file
from latentbench.lm import LM, Site
from latentbench.testing import random_routesae, random_sae, random_weights

Draw = Callable[..., Tensor]
SITE = Site("resid_post", 1)
ROUTED = [Site("resid_post", layer) for layer in range(1, 4)]
GATES: dict[str, Gate] = {
    "relu": ReluGate(),
    "topk": TopKGate(4, rectify=True),
    "signed": TopKGate(4, rectify=False),
    "jumprelu": JumpReluGate(torch.rand(48, generator=torch.Generator().manual_seed(0))),
    "threshold": ThresholdGate(0.3),
}


def same(ours: Dictionary, theirs: Dictionary, draw: Draw) -> None:
    """Two dictionaries give the same codes and reconstructions."""
    acts = {site: draw(20, 16, seed=index) for index, site in enumerate(ours.reads)}
    ours, theirs = ours.to(dtype=torch.float64), theirs.to(dtype=torch.float64)
    codes, other = ours.encode(acts), theirs.encode(acts)
    torch.testing.assert_close(codes.dense(), other.dense(), rtol=0, atol=1e-12)
    assert codes.nnz > 0
    written, rewritten = ours.decode(codes), theirs.decode(other)
    assert list(written) == list(rewritten)
    for site in written:
        torch.testing.assert_close(written[site].values, rewritten[site].values, rtol=0, atol=1e-12)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_dictionary(tmp_path, "toy", random_sae(site=SITE), torch.float32)


def edit_card(weights: Path, **changes: Any) -> None:
    card = weights.with_suffix(".json")
    card.write_text(json.dumps({**json.loads(card.read_text()), **changes}))


@pytest.mark.parametrize("kind", ["none", "standardise", "layer_norm", "constant_norm"])
@pytest.mark.parametrize("gate", list(GATES))
@pytest.mark.parametrize("pre_bias", [True, False])
def test_an_sae_survives_saving_and_loading(
    tmp_path: Path, draw: Draw, kind: str, gate: str, pre_bias: bool
) -> None:
    transform = InputTransform(kind, 1e-4)  # type: ignore[arg-type]
    weights = random_weights(16, 48, pre_bias=pre_bias)
    sae = random_sae(site=SITE, gate=GATES[gate], transform=transform, weights=weights)
    path = save_dictionary(tmp_path, "toy", sae, torch.float32)
    for source in (path, path.with_suffix(".json"), tmp_path):
        loaded = load_dictionary(str(source))
        assert isinstance(loaded, SparseAutoencoder)
        same(sae, loaded, draw)
        assert loaded.card.sha256 == sha256_file(path)
        assert (loaded.weights.b_pre is None) != pre_bias


@pytest.mark.parametrize("routing", ["hard", "random"])
@pytest.mark.parametrize("splice", ["paper", "code", "corrected"])
def test_a_routesae_survives_saving_and_loading(
    tmp_path: Path, draw: Draw, routing: str, splice: str
) -> None:
    dictionary = random_routesae(ROUTED, splice=splice, routing=routing, pooling="mean")  # type: ignore[arg-type]
    path = save_dictionary(tmp_path, "toy", dictionary, torch.float32)
    loaded = load_dictionary(str(path))
    assert isinstance(loaded, RouteSae)
    assert (loaded.pooling, loaded.splice, loaded.routing) == ("mean", splice, routing)
    same(dictionary, loaded, draw)
    with pytest.raises(AdapterError, match="is a identity: there are no weights"):
        save_dictionary(tmp_path, "no", IdentityDictionary(SITE, 16, torch.device("cpu"), torch.float32))
    assert not list(tmp_path.glob("no*"))
    assert not list(tmp_path.glob("*.tmp"))


def test_half_precision_on_disk_is_float32_in_memory(tmp_path: Path) -> None:
    sae = random_sae(site=SITE)
    path = save_dictionary(tmp_path, "toy", sae)
    assert load_file(path)["w_enc"].dtype == torch.float16
    loaded = load_dictionary(str(path))
    assert isinstance(loaded, SparseAutoencoder)
    assert loaded.dtype == torch.float32
    assert torch.equal(loaded.weights.w_enc, sae.weights.w_enc.half().float())
    assert load_dictionary(str(path), dtype="bfloat16").dtype == torch.bfloat16


def test_biases_that_share_memory_can_be_saved(tmp_path: Path, draw: Draw) -> None:
    weights = random_weights(16, 48)
    shared = type(weights)(weights.w_enc, weights.b_enc, weights.w_dec, weights.b_dec, weights.b_dec)
    sae = random_sae(site=SITE, weights=shared)
    same(sae, load_dictionary(str(save_dictionary(tmp_path, "toy", sae, torch.float32))), draw)


def test_options_override_what_the_file_says(tmp_path: Path, saved: Path, draw: Draw) -> None:
    acts = {SITE: draw(20, 16)}
    assert load_dictionary(str(saved), k=2).encode(acts).counts().max() == 2
    assert float(load_dictionary(str(saved), threshold=0.5).encode(acts).values.min()) > 0.5
    routed = save_dictionary(
        tmp_path / "routed", "toy", random_routesae(ROUTED, splice="paper"), torch.float32
    )
    plain, corrected = load_dictionary(str(routed)), load_dictionary(str(routed), mode="corrected")
    assert isinstance(plain, RouteSae)
    assert isinstance(corrected, RouteSae)
    assert (plain.splice, corrected.splice) == ("paper", "corrected")
    assert plain.card.identity() != corrected.card.identity(), "an override is part of the identity"
    assert load_dictionary(str(saved), k=2).card.identity() != load_dictionary(str(saved)).card.identity()
    with pytest.raises(UserError, match=r"both k = 2 and threshold = 0\.5"):
        load_dictionary(str(saved), k=2, threshold=0.5)
    with pytest.raises(UserError, match=r"unknown mode 'correct'.*'corrected'"):
        load_dictionary(str(routed), mode="correct")
    with pytest.raises(UserError, match=r"unknown dtype 'flota32'.*'float32'"):
        load_dictionary(str(saved), dtype="flota32")


def test_the_source_on_the_card_is_no_path_of_this_machine(saved: Path) -> None:
    assert load_dictionary(str(saved)).card.source == "toy.safetensors"


def test_changed_weights_do_not_pass_for_the_old_ones(saved: Path) -> None:
    tensors = load_file(saved)
    tensors["w_enc"][0, 0] += 1
    save_file(tensors, saved)
    with pytest.raises(AdapterError, match=r"has sha256 .* but its card says .* changed after the card"):
        load_dictionary(str(saved))


@pytest.mark.parametrize("name", ["w_enc", "b_enc", "w_dec", "b_dec", "b_pre"])
def test_nan_in_a_checkpoint_is_refused(saved: Path, name: str) -> None:
    tensors = load_file(saved)
    tensors[name].view(-1)[3] = float("nan")
    save_file(tensors, saved)
    edit_card(saved, sha256=sha256_file(saved))
    with pytest.raises(AdapterError, match=f"weight {name} holds 1 NaN"):
        load_dictionary(str(saved))


def test_missing_tensors_are_named(saved: Path) -> None:
    tensors = load_file(saved)
    del tensors["w_dec"]
    save_file(tensors, saved)
    edit_card(saved, sha256=sha256_file(saved))
    with pytest.raises(AdapterError, match="lacks w_dec; it holds b_dec, b_enc, b_pre, w_enc"):
        load_dictionary(str(saved))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_latents": 47}, "says 47 latents of width 16"),
        ({"n_latents": "many"}, "is no dictionary card: n_latents"),
        ({"colour": "red"}, "is no dictionary card: colour: Extra inputs"),
        ({"options": {"gate": "topkk"}}, "names gate 'topkk'"),
        ({"family": "routesae"}, "lacks router"),
        ({"normalisation": "whiten"}, "names normalisation 'whiten'"),
    ],
)
def test_bad_cards_are_refused(saved: Path, changes: dict[str, Any], message: str) -> None:
    edit_card(saved, **changes)
    with pytest.raises(AdapterError, match=message):
        load_dictionary(str(saved))


def test_soft_routing_can_be_encoded_but_not_spliced(tmp_path: Path) -> None:
    path = save_dictionary(tmp_path, "toy", random_routesae(ROUTED), torch.float32)
    edit_card(
        path, options={**json.loads(path.with_suffix(".json").read_text())["options"], "routing": "soft"}
    )
    soft = load_dictionary(str(path))
    acts = {site: torch.randn((5, soft.card.d_model)) for site in soft.reads}
    codes = soft.encode(acts)
    pair = soft.reconstructions(acts, codes)["input"]
    assert codes.n_tokens == len(pair.target) == 5
    assert soft.routed(codes) is None
    for refused in (lambda: soft.decode(codes), lambda: steering_edits(soft, torch.ones((1, 16)))):
        with pytest.raises(AdapterError, match="only hard and random routing"):
            refused()


def test_files_that_are_no_checkpoints_are_described(tmp_path: Path, saved: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(
        AdapterError, match=r"no checkpoint of a format known here \(.*native.*saelens.*\): it holds nothing"
    ):
        load_dictionary(str(empty))
    (empty / "model.bin").write_bytes(b"x")
    with pytest.raises(AdapterError, match=r"it holds model\.bin"):
        load_dictionary(str(empty))
    saved.with_suffix(".json").unlink()
    with pytest.raises(AdapterError, match="it is a file"):
        load_dictionary(str(saved))
    saved.write_bytes(b"no safetensors")
    saved.with_suffix(".json").write_text("{}")
    with pytest.raises(AdapterError):
        load_dictionary(str(saved))


def test_a_truncated_checkpoint_is_refused(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-100])
    edit_card(saved, sha256=sha256_file(saved))
    with pytest.raises(AdapterError, match=r"toy\.safetensors can't be read.*get it again"):
        load_dictionary(str(saved))


def test_an_unknown_name_is_answered_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_dictionary(tmp_path, "topk-r21", random_sae(site=SITE))
    monkeypatch.setattr("latentbench.adapters._load.zoo_folder", lambda: tmp_path)
    with pytest.raises(UserError, match=r"unknown zoo dictionary 'topk-r12'.*'topk-r21'"):
        load_dictionary("zoo:topk-r12")
    with pytest.raises(UserError, match=r"unknown dictionary 'topk-r21'.*'zoo:topk-r21'"):
        load_dictionary("topk-r21")
    assert load_dictionary("zoo:topk-r21").card.source == "zoo:topk-r21"
    with pytest.raises(UserError, match="Or give a path that exists"):
        load_dictionary("./nowhere/at.all")


def test_every_dictionary_of_the_zoo_loads() -> None:
    assert zoo_folder().name == "zoo"
    for name in zoo_names():
        card = load_dictionary(f"zoo:{name}").card
        assert card.source == f"zoo:{name}"
        assert card.training, "a shipped dictionary says how it was trained"


def test_controls_are_loaded_by_name(saved: Path, lm: LM, draw: Draw) -> None:
    control = load_dictionary(f"random-decoder:{saved}")
    assert control.card.control
    acts = {SITE: draw(9, 16)}
    assert torch.equal(control.encode(acts).dense(), load_dictionary(str(saved)).encode(acts).dense())
    identity = load_dictionary("identity:blocks.2.hook_resid_post", lm=lm, dtype="float64")
    assert identity.card.reads == ("resid_post.2",)
    assert identity.card.d_model == 16
    assert load_dictionary("identity:resid_post.2:8").card.d_model == 8
    with pytest.raises(UserError, match="needs a width"):
        load_dictionary("identity:resid_post.2")
    with pytest.raises(UserError, match="'wide' is not a width"):
        load_dictionary("identity:resid_post.2:wide")


def test_a_dictionary_of_another_model_is_refused(tmp_path: Path, lm: LM) -> None:
    wide = random_sae(site=SITE, d_model=8)
    card = wide.card.model_copy(update={"lm": "other-model"})
    path = save_dictionary(tmp_path, "toy", SparseAutoencoder(card, wide.weights, wide.gate, wide.transform))
    with pytest.raises(AdapterError, match=r"has width 8, but toy-llama has width 16.*made for other-model"):
        load_dictionary(str(path), lm=lm)
    with pytest.raises(UserError, match=r"resid_post\.9 does not exist.*nearest is resid_post\.5"):
        check_fits(random_sae(site="resid_post.9"), lm)
    check_fits(random_routesae(ROUTED), lm)


@pytest.mark.parametrize(
    ("k", "told"),
    [
        (400, "key k is 400, and at most 12 is expected"),
        ("many", r"can't be read with \(ValueError: .*many"),
        ([5], r"can't be read with \(TypeError"),
    ],
)
def test_a_k_that_can_t_be_is_one_line(tmp_path: Path, k: object, told: str) -> None:
    tensors = {
        "W_enc": torch.ones(16, 12),
        "W_dec": torch.ones(12, 16),
        "b_enc": torch.ones(12),
        "b_dec": torch.ones(16),
    }
    save_file(tensors, tmp_path / "sae_weights.safetensors")
    config = {
        "architecture": "topk",
        "k": k,
        "d_in": 16,
        "d_sae": 12,
        "metadata": {"hook_name": "blocks.1.hook_resid_post"},
    }
    (tmp_path / "cfg.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(AdapterError, match=told):
        load_dictionary(str(tmp_path))
