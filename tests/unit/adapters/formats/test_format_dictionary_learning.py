"""Checkpoints of dictionary_learning and of its crosscoder fork against their forward pass in float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from latentbench.adapters import Crosscoder, LoadOptions, SparseAutoencoder, with_prefix
from latentbench.adapters.formats import native, saelens, sparsify
from latentbench.adapters.formats.dictionary_learning import FORMAT
from latentbench.errors import AdapterError, UserError
from latentbench.lm import Site

Draw = Callable[..., Tensor]
Weights = dict[str, Tensor]
CLASSES = {
    "AutoEncoder": "relu",
    "AutoEncoderNew": "relu",
    "GatedAutoEncoder": "gated",
    "JumpReluAutoEncoder": "jumprelu",
    "AutoEncoderTopK": "topk",
    "BatchTopKSAE": "batchtopk",
    "MatryoshkaBatchTopKSAE": "matryoshka",
}
BATCH_TOPK = ("AutoEncoderTopK", "BatchTopKSAE", "MatryoshkaBatchTopKSAE")
THRESHOLD = 0.25


def state_dict(kind: str, draw: Draw, shape: tuple[int, int]) -> Weights:
    """Tensors under the names and in the orientation of each class, float64."""
    width, latents = shape
    enc, dec = draw(latents, width, seed=1) / width**0.5, draw(latents, width, seed=3)
    b_enc, b_dec = -draw(latents, seed=2).abs() * 0.3, draw(width, seed=4)
    linear = {"encoder.weight": enc, "decoder.weight": dec.T}
    plain = {"W_enc": enc.T, "b_enc": b_enc, "W_dec": dec, "b_dec": b_dec}
    k = {"k": torch.tensor(5.0), "threshold": torch.tensor(THRESHOLD)}
    found: dict[str, Weights] = {
        "AutoEncoder": {**linear, "encoder.bias": b_enc, "bias": b_dec},
        "AutoEncoderNew": {**linear, "encoder.bias": b_enc, "decoder.bias": b_dec},
        "GatedAutoEncoder": {
            **linear,
            "decoder_bias": b_dec,
            "r_mag": draw(latents, seed=5) * 0.3,
            "gate_bias": b_enc,
            "mag_bias": draw(latents, seed=6) * 0.3,
        },
        "JumpReluAutoEncoder": {**plain, "threshold": draw(latents, seed=7).abs() * 0.3},
        "AutoEncoderTopK": {**linear, "encoder.bias": b_enc, "b_dec": b_dec, **k},
        "BatchTopKSAE": {**linear, "encoder.bias": b_enc, "b_dec": b_dec, **k},
        "MatryoshkaBatchTopKSAE": {**plain, **k, "group_sizes": torch.tensor([2, 3, latents - 5])},
    }
    return {name: value.contiguous() for name, value in found[kind].items()}


def config(kind: str, shape: tuple[int, int], **changes: Any) -> dict[str, Any]:
    trainer = {"trainer_class": "X", "dict_class": kind, "activation_dim": shape[0], "dict_size": shape[1]}
    trainer |= {"layer": 3, "lm_name": "toy-lm", "submodule_name": "resid_post_layer_3"}
    trainer |= {"k": 5} if kind in BATCH_TOPK else {}
    io = changes.pop("io", "out")
    trainer |= changes
    return {
        "trainer": {name: value for name, value in trainer.items() if value != "absent"},
        "buffer": {"ctx_len": 128, "io": io},
    }


def checkpoint(
    folder: Path,
    draw: Draw,
    kind: str,
    shape: tuple[int, int] = (12, 40),
    *,
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> Weights:
    """A folder as the trainers write it; gives back its tensors, rounded as on disk, in float64."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = ("k", "group_sizes")
    stored = {
        name: value.to(torch.int32 if name in whole else dtype)
        for name, value in state_dict(kind, draw, shape).items()
    }
    torch.save(stored, folder / "ae.pt")
    (folder / "config.json").write_text(json.dumps(config(kind, shape, **changes)))
    return {name: value.double() for name, value in stored.items()}


def load(path: Path, **options: Any) -> SparseAutoencoder:
    found = FORMAT.load(path, LoadOptions(**options))
    assert isinstance(found, SparseAutoencoder)
    return found


def refused(path: Path, match: str, error: type[UserError] = AdapterError, **options: Any) -> None:
    with pytest.raises(error, match=match) as raised:
        FORMAT.load(path, LoadOptions(**options))
    assert "\n" not in str(raised.value)


def reference(kind: str, w: Weights, x: Tensor, keep_largest: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Codes and reconstruction of each class, from its own source, in float64."""
    if kind == "AutoEncoder":
        codes = ((x - w["bias"]) @ w["encoder.weight"].T + w["encoder.bias"]).clamp(min=0)
        recovered = codes @ w["decoder.weight"].T + w["bias"]
        return codes * w["decoder.weight"].norm(dim=0), recovered
    if kind == "AutoEncoderNew":
        codes = (x @ w["encoder.weight"].T + w["encoder.bias"]).clamp(min=0)
        return codes, codes @ w["decoder.weight"].T + w["decoder.bias"]
    if kind == "GatedAutoEncoder":
        enc = (x - w["decoder_bias"]) @ w["encoder.weight"].T
        gate = (enc + w["gate_bias"] > 0).double()
        codes = gate * (w["r_mag"].exp() * enc + w["mag_bias"]).clamp(min=0)
        return codes, codes @ w["decoder.weight"].T + w["decoder_bias"]
    if kind == "JumpReluAutoEncoder":
        pre = x @ w["W_enc"] + w["b_enc"]
        codes = (pre * (pre > w["threshold"])).clamp(min=0)
        return codes, codes @ w["W_dec"] + w["b_dec"]
    if kind == "MatryoshkaBatchTopKSAE":
        pre = ((x - w["b_dec"]) @ w["W_enc"] + w["b_enc"]).clamp(min=0)
        codes = pre * (pre > w["threshold"])
        return codes, codes @ w["W_dec"] + w["b_dec"]
    pre = ((x - w["b_dec"]) @ w["encoder.weight"].T + w["encoder.bias"]).clamp(min=0)
    codes = keep_largest(pre, 5) if kind == "AutoEncoderTopK" else pre * (pre > w["threshold"])
    return codes, codes @ w["decoder.weight"].T + w["b_dec"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", list(CLASSES))
def test_every_class_is_reproduced(
    tmp_path: Path,
    draw: Draw,
    agree: Callable[..., None],
    keep_largest: Callable[..., Tensor],
    shape: tuple[int, int],
    kind: str,
    dtype: torch.dtype,
) -> None:
    w = checkpoint(tmp_path, draw, kind, shape, dtype=dtype)
    bias = next((w[name] for name in ("bias", "decoder_bias", "b_dec") if name in w), torch.zeros(shape[0]))
    nothing = torch.zeros(shape[0]) if kind == "JumpReluAutoEncoder" else bias
    x = torch.cat([nothing.double()[None], draw(30, shape[0], seed=9)])
    codes, recovered = reference(kind, w, x, keep_largest)
    ours = load(tmp_path)
    loose = kind in ("AutoEncoder", "GatedAutoEncoder")  # folded, or gated, in float32
    agree(ours, x, codes, recovered, 1e-5 if loose else 1e-10)
    assert (ours.card.family, ours.card.lm) == (CLASSES[kind], "toy-lm")
    assert ours.card.reads == ours.card.writes == ("resid_post.3",)
    assert ours.card.nominal_l0 == (5 if kind in BATCH_TOPK else None)


def test_an_autoencoder_with_unit_decoders_is_taken_as_it_is(tmp_path: Path, draw: Draw) -> None:
    checkpoint(tmp_path, draw, "AutoEncoder")
    stored = torch.load(tmp_path / "ae.pt", weights_only=True)
    stored["decoder.weight"] /= stored["decoder.weight"].norm(dim=0)
    torch.save(stored, tmp_path / "ae.pt")
    assert torch.equal(load(tmp_path).weights.w_enc, stored["encoder.weight"])
    stored["decoder.weight"][:, 7] = 0
    torch.save(stored, tmp_path / "ae.pt")
    ours = load(tmp_path)
    assert torch.equal(ours.weights.w_dec[7], torch.zeros(12)), "a latent without a decoder is no NaN"
    assert not bool((ours.encode({ours.site: draw(50, 12) * 9}).latents == 7).any())


def test_a_matryoshka_keeps_its_groups(tmp_path: Path, draw: Draw) -> None:
    w = checkpoint(tmp_path, draw, "MatryoshkaBatchTopKSAE")
    ours = load(tmp_path)
    assert ours.card.options["groups"] == [2, 5, 40]
    small = with_prefix(ours, 5).to(dtype=torch.float64)
    x = draw(30, 12)
    pre = ((x - w["b_dec"]) @ w["W_enc"][:, :5] + w["b_enc"][:5]).clamp(min=0)
    torch.testing.assert_close(
        small.encode({ours.site: x}).dense(), pre * (pre > THRESHOLD), rtol=1e-10, atol=1e-10
    )
    stored = torch.load(tmp_path / "ae.pt", weights_only=True)
    torch.save(stored | {"group_sizes": torch.tensor([2, 3])}, tmp_path / "ae.pt")
    refused(tmp_path, r"ae\.pt: key group_sizes adds up to 5, and 40 latents are expected")


def test_a_code_does_not_depend_on_the_rest_of_the_batch(tmp_path: Path, draw: Draw) -> None:
    checkpoint(tmp_path, draw, "BatchTopKSAE")
    ours, x = load(tmp_path), draw(20, 12).float()
    whole = ours.encode({ours.site: x}).dense()
    alone = torch.cat([ours.encode({ours.site: x[token : token + 1]}).dense() for token in range(20)])
    torch.testing.assert_close(whole, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["BatchTopKSAE", "MatryoshkaBatchTopKSAE"])
def test_a_threshold_that_was_never_set_is_not_used(tmp_path: Path, draw: Draw, kind: str) -> None:
    checkpoint(tmp_path, draw, kind)
    stored = torch.load(tmp_path / "ae.pt", weights_only=True)
    torch.save(stored | {"threshold": torch.tensor(-1.0)}, tmp_path / "ae.pt")
    refused(
        tmp_path, r"ae\.pt: key threshold is -1, which training starts from, and one of 0 or more is expected"
    )
    ours = load(tmp_path, k=4)
    assert int(ours.encode({ours.site: draw(20, 12)}).counts().max()) == 4


@pytest.mark.parametrize(
    ("changes", "site"),
    [
        ({}, "resid_post.3"),
        ({"submodule_name": "resid_out_layer3"}, "resid_post.3"),
        ({"submodule_name": "mlp_out_layer_3"}, "mlp_out.3"),
        ({"submodule_name": "attn_out_layer3"}, "attn_out.3"),
        ({"submodule_name": "model.layers.3"}, "resid_post.3"),
        ({"submodule_name": "gpt_neox.layers.3.mlp"}, "mlp_out.3"),
        ({"submodule_name": "model.layers.3", "io": "in"}, "resid_post.2"),
        ({"submodule_name": "model.layers.0", "layer": 0, "io": "in"}, "embed"),
        ({"submodule_name": "model.layers.3.mlp", "io": "in"}, "mlp_in.3"),
    ],
    ids=str,
)
def test_the_config_names_the_site(tmp_path: Path, draw: Draw, changes: dict[str, Any], site: str) -> None:
    checkpoint(tmp_path, draw, "AutoEncoder", **changes)
    assert load(tmp_path).card.reads == (site,)
    refused(tmp_path, rf"config\.json: key site is {site}.*and mlp_out\.9 was asked for", site="mlp_out.9")


def test_a_layer_alone_is_no_site(tmp_path: Path, draw: Draw) -> None:
    checkpoint(tmp_path, draw, "AutoEncoder", submodule_name=None)
    refused(
        tmp_path, r"config\.json: key site is not told \(config\.json says layer 3 and submodule_name None\)"
    )
    assert load(tmp_path, site="resid_mid.3").card.reads == ("resid_mid.3",)
    refused(tmp_path, r"config\.json: key layer is 3, and resid_mid\.4 was asked for", site="resid_mid.4")
    checkpoint(tmp_path, draw, "AutoEncoder", submodule_name="resid_post_layer_4")
    refused(
        tmp_path, r"config\.json: key layer is 3, and that of submodule_name 'resid_post_layer_4' is expected"
    )
    checkpoint(tmp_path, draw, "AutoEncoder", submodule_name="model.layers.3.self_attn", io="in")
    refused(tmp_path, "key site is not told")


@pytest.mark.parametrize("kind", list(CLASSES))
def test_without_a_config_the_tensors_or_the_caller_tell_the_class(
    tmp_path: Path, draw: Draw, kind: str
) -> None:
    checkpoint(tmp_path, draw, kind)
    with_config = load(tmp_path)
    (tmp_path / "config.json").unlink()
    ours = load(tmp_path / "ae.pt", site="resid_post.3", architecture=CLASSES[kind])
    assert torch.equal(ours.weights.w_enc, with_config.weights.w_enc)
    assert ours.card.options == with_config.card.options
    unique = kind in ("AutoEncoder", "GatedAutoEncoder", "MatryoshkaBatchTopKSAE")
    (tmp_path / "ae.pt").rename(tmp_path / "other.pt")
    assert (FORMAT.recognise(tmp_path / "other.pt") is not None) == unique
    if unique:
        assert load(tmp_path / "other.pt", site="embed").card.family == CLASSES[kind]
    else:
        refused(
            tmp_path / "other.pt", r"other\.pt: key dict_class is missing.*give architecture", site="embed"
        )


def test_names_of_compiled_modules_are_understood(tmp_path: Path, draw: Draw) -> None:
    checkpoint(tmp_path, draw, "AutoEncoderTopK")
    plain = load(tmp_path)
    stored = torch.load(tmp_path / "ae.pt", weights_only=True)
    torch.save({f"_orig_mod.{name}": value for name, value in stored.items()}, tmp_path / "ae.pt")
    assert torch.equal(load(tmp_path).weights.w_enc, plain.weights.w_enc)


def test_checkpoints_of_a_run_use_the_config_above(tmp_path: Path, draw: Draw) -> None:
    checkpoint(tmp_path, draw, "AutoEncoderTopK")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "ae.pt").rename(tmp_path / "checkpoints" / "ae_100.pt")
    path = tmp_path / "checkpoints" / "ae_100.pt"
    assert "names dict_class AutoEncoderTopK" in (FORMAT.recognise(path) or "")
    assert load(path).card.name == "ae_100"


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"dict_class": "IdentityDict"}, {}, r"config\.json: key dict_class is 'IdentityDict', and one of"),
        ({"k": 6}, {}, r"ae\.pt: key k is 5, and 6 is expected from config\.json"),
        (
            {"dict_size": 41},
            {},
            r"ae\.pt: key encoder\.weight has shape \(40, 12\), and \(41, 12\) is expected",
        ),
        (
            {"activation_dim": 13},
            {},
            r"ae\.pt: key encoder\.weight has shape \(40, 12\), and \(40, 13\) is expected",
        ),
        (
            {"dict_class": "JumpReluAutoEncoder"},
            {},
            r"ae\.pt: key W_enc of shape any is expected, and it is missing",
        ),
        (
            {},
            {"architecture": "gated"},
            "key dict_class is AutoEncoderTopK, which is topk, and gated was asked for",
        ),
    ],
    ids=str,
)
def test_contradictions_are_refused(
    tmp_path: Path, draw: Draw, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    checkpoint(tmp_path, draw, "AutoEncoderTopK", **changes)
    refused(tmp_path, message, **options)


def test_a_topk_without_k_asks_for_it(tmp_path: Path, draw: Draw) -> None:
    checkpoint(tmp_path, draw, "AutoEncoderTopK", k="absent")
    stored = torch.load(tmp_path / "ae.pt", weights_only=True)
    del stored["k"]
    torch.save(stored, tmp_path / "ae.pt")
    refused(tmp_path, r"ae\.pt: key k is missing, and a number of latents is expected: give k")
    assert load(tmp_path, k=2).card.nominal_l0 == 2
    refused(tmp_path, r"unknown architecture 'topkk'.*'topk'", UserError, architecture="topkk")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("b_dec"), r"key b_dec of shape any is expected, and it is missing; found"),
        (
            lambda w: w.update({"decoder.weight": w["decoder.weight"].T}),
            r"decoder\.weight has shape .*transposed",
        ),
        (
            lambda w: w.update({"encoder.weight": w["encoder.weight"].T}),
            r"encoder\.weight has shape .*transposed",
        ),
        (
            lambda w: w.update({"b_dec": w["b_dec"][:-1]}),
            r"key b_dec has shape \(11,\), and \(12,\) is expected",
        ),
        (
            lambda w: w["encoder.bias"].fill_(float("nan")),
            r"key encoder\.bias holds 40 NaN or infinite numbers",
        ),
    ],
)
def test_damaged_weights_are_named(
    tmp_path: Path, draw: Draw, change: Callable[[Weights], Any], message: str
) -> None:
    checkpoint(tmp_path, draw, "AutoEncoderTopK")
    tensors = torch.load(tmp_path / "ae.pt", weights_only=True)
    change(tensors)
    torch.save(tensors, tmp_path / "ae.pt")
    refused(tmp_path, rf"ae\.pt: .*{message}")
    (tmp_path / "ae.pt").write_bytes((tmp_path / "ae.pt").read_bytes()[:500])
    assert "names dict_class" in (FORMAT.recognise(tmp_path) or "")
    refused(tmp_path, r"ae\.pt can't be read as torch .*truncated")
    (tmp_path / "config.json").write_text("{")
    assert FORMAT.recognise(tmp_path) == "ae.pt, as dictionary_learning writes it"
    refused(tmp_path, r"config\.json of .* is not JSON")


def test_only_its_own_files_are_recognised(tmp_path: Path, draw: Draw) -> None:
    checkpoint(tmp_path, draw, "AutoEncoder")
    for path in (tmp_path, tmp_path / "ae.pt", tmp_path / "config.json"):
        assert "names dict_class AutoEncoder, as dictionary_learning writes it" in (
            FORMAT.recognise(path) or ""
        )
        for other in (native.FORMAT, saelens.FORMAT, sparsify.FORMAT):
            assert other.recognise(path) is None
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    torch.save({"pre_bias": torch.ones(3), "encoder.weight": torch.ones(4, 3)}, elsewhere / "other.pt")
    save_file({"encoder.weight": torch.ones(4, 3)}, elsewhere / "model.safetensors")
    (elsewhere / "config.json").write_text('{"k": 3, "expansion_factor": 2}')
    assert FORMAT.recognise(elsewhere / "other.pt") is None
    assert FORMAT.recognise(elsewhere) is None
    assert FORMAT.recognise(tmp_path / "missing.pt") is None
    refused(elsewhere / "missing", "holds none of ae.pt")


# The fork's crosscoders.

SITES = "resid_post.1,resid_post.3"
NORMS = ["CROSSCODER", "SAE", "MIXED", "NONE"]


def crosscoder(
    folder: Path,
    draw: Draw,
    shape: tuple[int, int] = (12, 40),
    *,
    batch_topk: bool = False,
    norm: str = "CROSSCODER",
    scaled: bool = False,
    hub: bool = True,
    **changes: Any,
) -> Weights:
    """A folder as the fork writes it, on the hub or after training; two sites."""
    width, latents = shape
    ids = ["CROSSCODER", "SAE", "MIXED", "NONE", "DECOUPLED"]
    mean, std = draw(2, width, seed=5), draw(2, width, seed=6).abs() + 0.5
    off = torch.full((2, width), float("nan"), dtype=torch.float64)
    tensors = {
        "encoder.weight": draw(2, width, latents, seed=1) / width**0.5,
        "encoder.bias": -draw(latents, seed=2).abs() * 0.3,
        "decoder.weight": draw(2, latents, width, seed=3) * 0.3,
        "decoder.bias": draw(2, width, seed=4),
        "code_normalization_id": torch.tensor(float(ids.index(norm) + 1)),
        "target_rms": torch.tensor(1.0),
        "activation_mean": mean if scaled else off,
        "activation_std": std if scaled else off,
        "activation_global_scale": 1 / (std.square().sum(dim=1) + 1e-8).sqrt() if scaled else torch.ones(2),
    }
    if batch_topk:
        tensors |= {"k": torch.tensor(5.0), "threshold": torch.tensor(THRESHOLD)}
    stored = {name: value.float().contiguous() for name, value in tensors.items()}
    kind = "BatchTopKCrossCoder" if batch_topk else "CrossCoder"
    about = {"activation_dim": width, "dict_size": latents, "num_layers": 2, "dict_class": kind}
    about |= {"code_normalization": norm, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    if hub:
        save_file(stored, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(about))
    else:
        torch.save(stored, folder / "ae.pt")
        (folder / "config.json").write_text(json.dumps({"trainer": about}))
    return {name: value.double() for name, value in stored.items()}


@pytest.mark.parametrize("hub", [True, False], ids=["hub", "trainer"])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("batch_topk", [True, False])
def test_crosscoders_are_reproduced(
    tmp_path: Path,
    draw: Draw,
    agree: Callable[..., None],
    shape: tuple[int, int],
    batch_topk: bool,
    norm: str,
    scaled: bool,
    hub: bool,
) -> None:
    w = crosscoder(tmp_path, draw, shape, batch_topk=batch_topk, norm=norm, scaled=scaled, hub=hub)
    nothing = w["activation_mean"] if scaled else torch.zeros(2, shape[0])
    x = torch.cat([nothing.double()[None], draw(30, 2, shape[0], seed=9)])
    scale = w["activation_global_scale"][:, None]
    inputs = (x - w["activation_mean"]) * scale if scaled else x
    values = (torch.einsum("tsd,sdf->tf", inputs, w["encoder.weight"]) + w["encoder.bias"]).clamp(min=0)
    joint, summed = w["decoder.weight"].norm(dim=(0, 2)), w["decoder.weight"].norm(dim=2).sum(dim=0)
    by_norm = {
        "CROSSCODER": summed,
        "SAE": joint,
        "MIXED": joint + 0.1 * summed,
        "NONE": torch.ones(shape[1]),
    }
    codes = values * by_norm[norm].double()
    if batch_topk:
        values, codes = values * (codes > THRESHOLD), codes * (codes > THRESHOLD)
    recovered = torch.einsum("tf,sfd->tsd", values, w["decoder.weight"]) + w["decoder.bias"]
    if scaled:
        recovered = recovered / (scale + 1e-8) + w["activation_mean"]
    ours = FORMAT.load(tmp_path, LoadOptions(site=SITES))
    assert isinstance(ours, Crosscoder)
    agree(ours, x, codes, [recovered[:, 0], recovered[:, 1]], 2e-5)
    assert ours.card.reads == ours.card.writes == ("resid_post.1", "resid_post.3")
    assert ours.card.nominal_l0 == (5 if batch_topk else None)
    assert ours.card.options["code_normalisation"] == norm.lower()


def test_crosscoders_without_a_class_are_known_by_their_tensors(tmp_path: Path, draw: Draw) -> None:
    crosscoder(tmp_path, draw, batch_topk=True)
    about = json.loads((tmp_path / "config.json").read_text())
    del about["dict_class"]
    (tmp_path / "config.json").write_text(json.dumps(about))
    assert "tensors of dictionary_learning's BatchTopKCrossCoder" in (FORMAT.recognise(tmp_path) or "")
    assert FORMAT.load(tmp_path, LoadOptions(site=SITES)).card.nominal_l0 == 5


@pytest.mark.parametrize(
    "site", [None, "resid_post.1", "resid_post.1,resid_post.1", "embed,resid_post.1,resid_post.2"]
)
def test_a_crosscoder_needs_a_site_for_each_of_its_weights(
    tmp_path: Path, draw: Draw, site: str | None
) -> None:
    crosscoder(tmp_path, draw)
    refused(
        tmp_path,
        r"model\.safetensors: key encoder\.weight has 2 sites .*2 different ones are expected",
        site=site,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "DECOUPLED"}, "DECOUPLED, and one of CROSSCODER, SAE, MIXED or NONE is expected"),
        ({"code_normalization": "SAE"}, "key code_normalization_id says CROSSCODER, and SAE is expected"),
        ({"encoder_layers": [0]}, "key encoder_layers of its config is set"),
        ({"dict_size": 41}, r"key encoder\.weight has shape \(2, 12, 40\), and \(2, 12, 41\) is expected"),
    ],
    ids=str,
)
def test_crosscoders_that_are_not_reproduced_are_refused(
    tmp_path: Path, draw: Draw, changes: dict[str, Any], message: str
) -> None:
    crosscoder(tmp_path, draw, **changes)
    refused(tmp_path, rf"model\.safetensors: .*{message}", site=SITES)


def test_a_crosscoder_s_latents_without_a_decoder_are_never_active(tmp_path: Path, draw: Draw) -> None:
    w = crosscoder(tmp_path, draw)
    w["decoder.weight"][:, 7] = 0
    save_file({name: value.float() for name, value in w.items()}, tmp_path / "model.safetensors")
    ours = FORMAT.load(tmp_path, LoadOptions(site=SITES))
    codes = ours.encode({site: draw(50, 12, seed=index) * 9 for index, site in enumerate(ours.reads)})
    assert not bool((codes.latents == 7).any())
    assert ours.reads == (Site("resid_post", 1), Site("resid_post", 3))
