"""SAELens checkpoints of every version and architecture against their forward pass in float64, without sae_lens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from latentbench.adapters import LoadOptions, SparseAutoencoder
from latentbench.adapters.formats import native, sparsify
from latentbench.adapters.formats.saelens import FORMAT
from latentbench.errors import AdapterError, UserError

Draw = Callable[..., Tensor]
Weights = dict[str, Tensor]
HOOK, HOOK_OUT = "blocks.3.mlp.hook_in", "blocks.3.hook_mlp_out"
SAES = ["standard", "gated", "topk", "abstopk", "jumprelu"]
TRANSCODERS = ["transcoder", "skip_transcoder", "jumprelu_transcoder", "jumprelu_skip_transcoder"]
FAMILIES = {name: "relu" if name == "standard" else name for name in SAES} | dict.fromkeys(
    TRANSCODERS, "transcoder"
)
OUT = 14
"""Width of what transcoders write: another than any that is read."""


def tensors_of(architecture: str, draw: Draw, shape: tuple[int, int]) -> Weights:
    width, latents = shape
    out = OUT if "transcoder" in architecture else width
    found = {
        "W_enc": draw(width, latents, seed=1) / width**0.5,
        "W_dec": draw(latents, out, seed=3) * (draw(latents, 1, seed=8).abs() + 0.5),
        "b_dec": draw(out, seed=4),
    }
    if architecture == "gated":
        found |= {"b_gate": -draw(latents, seed=2).abs() * 0.3, "b_mag": draw(latents, seed=6) * 0.3}
        found["r_mag"] = draw(latents, seed=5) * 0.3
    else:
        found["b_enc"] = -draw(latents, seed=2).abs() * 0.3
    if "jumprelu" in architecture:
        found["threshold"] = draw(latents, seed=7).abs() * 0.3
    if "skip" in architecture:
        found["W_skip"] = draw(out, width, seed=9) / width**0.5
    return found


def config_of(architecture: str, shape: tuple[int, int], **changes: Any) -> dict[str, Any]:
    """A config of version 6."""
    transcoder = "transcoder" in architecture
    hooks = (
        {"hook_name": HOOK, "hook_name_out": HOOK_OUT}
        if transcoder
        else {"hook_name": "blocks.3.hook_resid_post"}
    )
    config: dict[str, Any] = {
        "architecture": architecture,
        "d_in": shape[0],
        "d_sae": shape[1],
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": not transcoder,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {
            "sae_lens_version": "6.54.12",
            "model_name": "toy",
            **hooks,
            **changes.pop("metadata", {}),
        },
    }
    config |= {"d_out": OUT} if transcoder else {}
    config |= {"k": 5, "rescale_acts_by_decoder_norm": False} if "topk" in architecture else {}
    return {name: value for name, value in {**config, **changes}.items() if value != "absent"}


def flat_of(shape: tuple[int, int], **changes: Any) -> dict[str, Any]:
    """A config as it was before version 6: one object, without an architecture in the oldest."""
    config = {"d_in": shape[0], "d_sae": shape[1], "dtype": "float32", "model_name": "toy"}
    config |= {"hook_name": "blocks.3.hook_resid_post", "hook_head_index": None, "activation_fn_str": "relu"}
    config |= {
        "apply_b_dec_to_input": True,
        "finetuning_scaling_factor": False,
        "normalize_activations": "none",
    }
    return {name: value for name, value in {**config, **changes}.items() if value != "absent"}


def write(
    folder: Path, config: dict[str, Any], tensors: Weights, dtype: torch.dtype = torch.float32
) -> Weights:
    """Writes a checkpoint; gives back its tensors, rounded as on disk, in float64."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: value.to(dtype).contiguous() for name, value in tensors.items()}
    save_file(stored, folder / "sae_weights.safetensors")
    (folder / "cfg.json").write_text(json.dumps(config))
    return {name: value.double() for name, value in stored.items()}


def checkpoint(
    folder: Path, draw: Draw, architecture: str, shape: tuple[int, int] = (12, 40), **changes: Any
) -> Weights:
    dtype = changes.pop("dtype_on_disk", torch.float32)
    return write(
        folder, config_of(architecture, shape, **changes), tensors_of(architecture, draw, shape), dtype
    )


def load(path: Path, **options: Any) -> SparseAutoencoder:
    found = FORMAT.load(path, LoadOptions(**options))
    assert isinstance(found, SparseAutoencoder)
    return found


def refused(path: Path, match: str, error: type[UserError] = AdapterError, **options: Any) -> None:
    with pytest.raises(error, match=match) as raised:
        load(path, **options)
    assert "\n" not in str(raised.value)


def reference(
    architecture: str,
    w: Weights,
    x: Tensor,
    keep_largest: Callable[..., Tensor],
    *,
    bias: bool,
    rescaled: bool = False,
) -> tuple[Tensor, Tensor]:
    """Codes as the gate ranks them, and the reconstruction, in float64."""
    inputs = x - w["b_dec"] if bias else x
    if architecture == "gated":
        active = (inputs @ w["W_enc"] + w["b_gate"] > 0).double()
        codes = active * (inputs @ (w["W_enc"] * w["r_mag"].exp()) + w["b_mag"]).clamp(min=0)
        return codes, codes @ w["W_dec"] + w["b_dec"]
    pre = inputs @ w["W_enc"] + w["b_enc"]
    norms = w["W_dec"].norm(dim=1) if rescaled else torch.ones(len(w["W_dec"]), dtype=torch.float64)
    pre = pre * norms
    if architecture == "topk":
        codes = keep_largest(pre, 5).clamp(min=0)
    elif architecture == "abstopk":
        codes = keep_largest(pre, 5, pre.abs())
    elif "jumprelu" in architecture:
        codes = pre.clamp(min=0) * (pre > w["threshold"])
    else:
        codes = pre.clamp(min=0)
    recovered = (codes / norms) @ w["W_dec"] + w["b_dec"]
    return codes, recovered + x @ w["W_skip"].T if "W_skip" in w else recovered


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["b_dec-in", "no-b_dec-in"])
@pytest.mark.parametrize("architecture", [name for name in SAES if name != "abstopk"])
def test_saes_are_reproduced(
    tmp_path: Path,
    draw: Draw,
    agree: Callable[..., None],
    keep_largest: Callable[..., Tensor],
    shape: tuple[int, int],
    architecture: str,
    bias: bool,
    dtype: torch.dtype,
) -> None:
    w = checkpoint(tmp_path, draw, architecture, shape, apply_b_dec_to_input=bias, dtype_on_disk=dtype)
    nothing = w["b_dec"] if bias else torch.zeros_like(w["b_dec"])
    x = torch.cat([nothing[None], draw(30, shape[0], seed=11)])
    codes, recovered = reference(architecture, w, x, keep_largest, bias=bias)
    ours = load(tmp_path)
    agree(ours, x, codes, recovered, 1e-5 if architecture == "gated" else 1e-10)
    assert (ours.card.family, ours.card.lm) == (FAMILIES[architecture], "toy")
    assert ours.card.reads == ours.card.writes == ("resid_post.3",)
    assert ours.card.nominal_l0 == (5 if architecture == "topk" else None)


@pytest.mark.parametrize("rescaled", [True, False])
@pytest.mark.parametrize("architecture", ["topk", "abstopk"])
def test_ranking_by_decoder_norm_is_folded_in(
    tmp_path: Path,
    draw: Draw,
    keep_largest: Callable[..., Tensor],
    shape: tuple[int, int],
    architecture: str,
    rescaled: bool,
) -> None:
    w = checkpoint(tmp_path, draw, architecture, shape, rescale_acts_by_decoder_norm=rescaled)
    x = draw(30, shape[0], seed=11)
    codes, recovered = reference(architecture, w, x, keep_largest, bias=True, rescaled=rescaled)
    assert bool((codes < 0).any()) == (architecture == "abstopk")
    ours = load(tmp_path).to(dtype=torch.float64)
    found = ours.encode({ours.site: x})
    torch.testing.assert_close(found.dense(), codes, rtol=1e-5, atol=1e-5)  # norms are taken in float32
    torch.testing.assert_close(ours.decode(found)[ours.site].values, recovered, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", TRANSCODERS)
def test_transcoders_are_reproduced(
    tmp_path: Path,
    draw: Draw,
    agree: Callable[..., None],
    keep_largest: Callable[..., Tensor],
    shape: tuple[int, int],
    architecture: str,
) -> None:
    w = checkpoint(tmp_path, draw, architecture, shape)
    x = torch.cat([torch.zeros(1, shape[0], dtype=torch.float64), draw(30, shape[0], seed=11)])
    codes, recovered = reference(architecture, w, x, keep_largest, bias=False)
    ours = load(tmp_path)
    agree(ours, x, codes, recovered)
    assert (ours.card.family, ours.is_transcoder) == ("transcoder", True)
    assert (ours.card.reads, ours.card.writes) == (("mlp_in.3",), ("mlp_out.3",))
    assert (ours.weights.skip is not None) == ("skip" in architecture)


def test_a_transcoder_s_sites_must_be_known(tmp_path: Path, draw: Draw) -> None:
    checkpoint(tmp_path, draw, "transcoder", metadata={"hook_name_out": None})
    refused(tmp_path, r"cfg\.json: key site is not told .*no hook_name_out.*site=mlp_in\.3->mlp_out\.3")
    assert load(tmp_path, site="mlp_out.3").card.reads == ("mlp_in.3",)
    checkpoint(tmp_path, draw, "transcoder", metadata={"hook_name": "blocks.3.ln2.hook_normalized"})
    refused(tmp_path, r"unknown site 'blocks\.3\.ln2\.hook_normalized'", UserError)
    assert load(tmp_path, site="mlp_in.3->mlp_out.3").card.writes == ("mlp_out.3",)
    checkpoint(tmp_path, draw, "transcoder", apply_b_dec_to_input=True)
    refused(tmp_path, r"cfg\.json: key apply_b_dec_to_input is true, and false is expected")
    checkpoint(tmp_path, draw, "transcoder", normalize_activations="layer_norm")
    refused(tmp_path, "is a transcoder with the input transform 'layer_norm'")


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_fn_kwargs": {"k": 5}, "activation_fn_str": "topk"},
        {"activation_fn_kwargs": {"k": 5}, "activation_fn_str": "topk", "architecture": "standard"},
        {"activation_fn_kwargs": {"k": 5}, "activation_fn_str": "absent", "activation_fn": "topk"},
    ],
    ids=str,
)
def test_a_topk_that_calls_itself_standard_is_no_relu(
    tmp_path: Path,
    draw: Draw,
    agree: Callable[..., None],
    keep_largest: Callable[..., Tensor],
    shape: tuple[int, int],
    changes: dict[str, Any],
) -> None:
    w = write(tmp_path, flat_of(shape, **changes), tensors_of("topk", draw, shape))
    x = torch.cat([w["b_dec"][None], draw(30, shape[0], seed=11)])
    ours = load(tmp_path)
    agree(ours, x, *reference("topk", w, x, keep_largest, bias=True))
    assert (ours.card.family, ours.card.nominal_l0) == ("topk", 5)


@pytest.mark.parametrize("architecture", ["standard", "gated", "jumprelu"])
def test_flat_configs_of_other_architectures(
    tmp_path: Path,
    draw: Draw,
    agree: Callable[..., None],
    keep_largest: Callable[..., Tensor],
    architecture: str,
) -> None:
    shape = (12, 40)
    w = write(tmp_path, flat_of(shape, architecture=architecture), tensors_of(architecture, draw, shape))
    x = torch.cat([w["b_dec"][None], draw(30, 12, seed=11)])
    agree(load(tmp_path), x, *reference(architecture, w, x, keep_largest, bias=True), tolerance=1e-5)


def test_finetuned_scales_apply_to_the_reconstruction_only(tmp_path: Path, draw: Draw) -> None:
    shape, scale = (12, 40), draw(40, seed=20).abs() + 0.5
    tensors = tensors_of("standard", draw, shape)
    w = write(tmp_path, flat_of(shape, finetuning_scaling_factor=True), tensors | {"scaling_factor": scale})
    x = draw(30, 12)
    codes = ((x - w["b_dec"]) @ w["W_enc"] + w["b_enc"]).clamp(min=0)
    ours = load(tmp_path).to(dtype=torch.float64)
    found = ours.encode({ours.site: x})
    torch.testing.assert_close(found.dense(), codes, rtol=1e-10, atol=1e-10)
    recovered = (codes * w["scaling_factor"]) @ w["W_dec"] + w["b_dec"]
    torch.testing.assert_close(ours.decode(found)[ours.site].values, recovered, rtol=1e-5, atol=1e-5)
    write(tmp_path, flat_of(shape), tensors | {"scaling_factor": scale})
    refused(tmp_path, "key scaling_factor, but the config does not say that it was used")
    write(tmp_path, flat_of(shape, finetuning_scaling_factor=True), tensors | {"scaling_factor": scale[:39]})
    refused(tmp_path, r"key scaling_factor has shape \(39,\), and \(40,\) is expected")


@pytest.mark.parametrize("flat", [True, False])
def test_head_outputs_are_read_flat(tmp_path: Path, draw: Draw, flat: bool) -> None:
    shape, hook = (12, 40), {"hook_name": "blocks.3.attn.hook_z"}
    config = (
        flat_of(shape, **hook)
        if flat
        else config_of("standard", shape, reshape_activations="hook_z", metadata=hook)
    )
    write(tmp_path, config, tensors_of("standard", draw, shape))
    assert load(tmp_path).card.reads == ("attn_z.3",)


def test_matryoshka_saes_are_exported_as_jumprelu(
    tmp_path: Path, draw: Draw, agree: Callable[..., None], keep_largest: Callable[..., Tensor]
) -> None:
    tensors = tensors_of("jumprelu", draw, (12, 40)) | {"threshold": torch.full((40,), 0.25)}
    w = write(tmp_path, config_of("jumprelu", (12, 40)), tensors)
    x = torch.cat([w["b_dec"][None], draw(30, 12, seed=11)])
    agree(load(tmp_path), x, *reference("jumprelu", w, x, keep_largest, bias=True))


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("temporal", "codes that depend on the tokens before"),
        ("matching_pursuit", "by an iterative search"),
        ("batchtopk", "of a training checkpoint: save it for use"),
        ("matryoshka_batchtopk", "of a training checkpoint: save it for use"),
        ("crossformer", "and one of standard, gated, topk, .* is expected"),
    ],
)
def test_other_architectures_are_refused(tmp_path: Path, draw: Draw, architecture: str, message: str) -> None:
    write(tmp_path, config_of(architecture, (12, 40)), tensors_of("standard", draw, (12, 40)))
    refused(tmp_path, rf"cfg\.json: key architecture is '{architecture}', .*{message}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"activation_fn_str": "tanh-relu"},
            "key activation_fn_str is 'tanh-relu', and 'relu' or 'topk' is expected",
        ),
        ({"activation_fn_str": "topk"}, "names no k"),
        (
            {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 5, "signed": True}},
            "key activation_fn_kwargs has signed true, and false is expected",
        ),
        (
            {"rescale_acts_by_decoder_norm": True},
            "key rescale_acts_by_decoder_norm with architecture 'standard'",
        ),
        ({"hook_head_index": 4}, "key hook_head_index is 4, and none is expected"),
        (
            {"reshape_activations": "flat"},
            "key reshape_activations is 'flat', and 'none' or 'hook_z' is expected",
        ),
        ({"hook_name": "absent"}, "the config names no hook_name"),
        ({"d_sae": 41}, r"key W_enc has shape \(12, 40\), and \(12, 41\) is expected"),
        ({"architecture": "jumprelu"}, r"key threshold of shape \(40,\) is expected, and it is missing"),
        (
            {"architecture": "skip_transcoder", "apply_b_dec_to_input": False},
            r"key W_skip of shape .* is missing",
        ),
    ],
    ids=str,
)
def test_configs_that_can_not_be_reproduced_are_refused(
    tmp_path: Path, draw: Draw, changes: dict[str, Any], message: str
) -> None:
    write(tmp_path, flat_of((12, 40), **changes), tensors_of("standard", draw, (12, 40)))
    refused(tmp_path, message)


def test_options_fill_in_and_do_not_contradict(tmp_path: Path, draw: Draw) -> None:
    checkpoint(tmp_path, draw, "topk", k="absent")
    refused(tmp_path, "names no k")
    assert load(tmp_path, k=3, architecture="topk").card.nominal_l0 == 3
    refused(
        tmp_path,
        r"cfg\.json: key architecture is 'topk', and 'gated' was asked for",
        k=3,
        architecture="gated",
    )
    assert load(tmp_path, k=3, site="resid_post.3").card.reads == ("resid_post.3",)
    refused(
        tmp_path,
        r"cfg\.json: key site is resid_post\.3 \(.*hook_resid_post'\), and mlp_out\.3 was asked for",
        k=3,
        site="mlp_out.3",
    )
    checkpoint(tmp_path, draw, "standard", metadata={"hook_name": None})
    refused(tmp_path, r"cfg\.json: key site is not told \(the config names no hook_name\)")
    assert load(tmp_path, site="resid_mid.2").card.reads == ("resid_mid.2",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w.pop("W_dec"),
            r"key W_dec of shape \(40, 12\) is expected, and it is missing; found W_enc, b_dec",
        ),
        (
            lambda w: w.update({"W_enc": w["W_enc"].T.contiguous()}),
            r"key W_enc has shape \(40, 12\).*transposed",
        ),
        (
            lambda w: w.update({"W_dec": w["W_dec"].T.contiguous()}),
            r"key W_dec has shape \(12, 40\).*transposed",
        ),
        (lambda w: w.update({"b_enc": w["b_enc"][:-1].clone()}), r"key b_enc has shape \(39,\), and \(40,\)"),
        (lambda w: w["W_enc"].fill_(float("nan")), r"key W_enc holds 480 NaN or infinite numbers among 480"),
    ],
)
def test_damaged_weights_are_named(
    tmp_path: Path, draw: Draw, change: Callable[[Weights], Any], message: str
) -> None:
    tensors = tensors_of("standard", draw, (12, 40))
    change(tensors)
    write(tmp_path, config_of("standard", (12, 40)), tensors)
    refused(tmp_path, rf"sae_weights\.safetensors: {message}")
    path = tmp_path / "sae_weights.safetensors"
    path.write_bytes(path.read_bytes()[:99])
    refused(tmp_path, r"sae_weights\.safetensors can't be read as safetensors .*truncated")


def test_only_its_own_folders_are_recognised(tmp_path: Path, draw: Draw) -> None:
    checkpoint(tmp_path, draw, "gated")
    for path in (tmp_path, tmp_path / "cfg.json", tmp_path / "sae_weights.safetensors"):
        assert "as SAELens writes it" in (FORMAT.recognise(path) or "")
        assert sparsify.FORMAT.recognise(path) is None
        assert native.FORMAT.recognise(path) is None
    (tmp_path / "sae_weights.safetensors").rename(tmp_path / "sae.safetensors")
    assert FORMAT.recognise(tmp_path) is None
