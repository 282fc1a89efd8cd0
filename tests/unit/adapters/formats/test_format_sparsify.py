"""Checkpoints of sparsify against its forward pass written out in float64."""

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
from latentbench.adapters.formats import native, saelens
from latentbench.adapters.formats.sparsify import FORMAT
from latentbench.errors import AdapterError, UserError
from latentbench.lm import Site

Draw = Callable[..., Tensor]


def checkpoint(
    folder: Path, draw: Draw, shape: tuple[int, int], *, dtype: torch.dtype = torch.float32, **changes: Any
) -> dict[str, Tensor]:
    """A folder as sparsify writes it; gives back its tensors, rounded as on disk, in float64."""
    width, latents = shape
    config = {"activation": "topk", "expansion_factor": 32, "normalize_decoder": True, "num_latents": latents}
    config |= {
        "k": 5,
        "multi_topk": False,
        "skip_connection": False,
        "transcode": False,
        "d_in": width,
        **changes,
    }
    tensors = {
        "encoder.weight": draw(latents, width, seed=1) / width**0.5,
        "encoder.bias": -draw(latents, seed=2).abs() * 0.3,
        "W_dec": draw(latents, width, seed=3),
        "b_dec": draw(width, seed=4),
    }
    if config["skip_connection"]:
        tensors["W_skip"] = draw(width, width, seed=5)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: value.to(dtype) for name, value in tensors.items()}
    save_file(stored, folder / "sae.safetensors")
    kept = {name: value for name, value in config.items() if value != "absent"}
    (folder / "cfg.json").write_text(json.dumps(kept))
    return {name: value.double() for name, value in stored.items()}


def load(path: Path, **options: Any) -> SparseAutoencoder:
    found = FORMAT.load(path, LoadOptions(**options))
    assert isinstance(found, SparseAutoencoder)
    return found


def refused(folder: Path, match: str, error: type[UserError] = AdapterError, **options: Any) -> None:
    with pytest.raises(error, match=match) as raised:
        load(folder, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normalised", [True, False])
def test_an_autoencoder_subtracts_its_decoder_bias_whatever_normalize_decoder_says(
    tmp_path: Path,
    draw: Draw,
    agree: Callable[..., None],
    keep_largest: Callable[..., Tensor],
    shape: tuple[int, int],
    dtype: torch.dtype,
    normalised: bool,
) -> None:
    folder = tmp_path / "layers.3"
    w = checkpoint(folder, draw, shape, dtype=dtype, normalize_decoder=normalised)
    x = torch.cat([w["b_dec"][None], draw(30, shape[0], seed=9)])
    pre = ((x - w["b_dec"]) @ w["encoder.weight"].T + w["encoder.bias"]).clamp(min=0)
    codes = keep_largest(pre, 5)
    ours = load(folder)
    agree(ours, x, codes, codes @ w["W_dec"] + w["b_dec"])
    assert (ours.card.family, ours.card.nominal_l0) == ("topk", 5)
    assert ours.card.reads == ours.card.writes == ("resid_post.3",)


def test_signed_checkpoints_rank_by_size(
    tmp_path: Path, draw: Draw, keep_largest: Callable[..., Tensor], shape: tuple[int, int]
) -> None:
    folder = tmp_path / "layers.3"
    w = checkpoint(folder, draw, shape, signed=True)
    x = draw(30, shape[0], seed=9)
    pre = (x - w["b_dec"]) @ w["encoder.weight"].T + w["encoder.bias"]
    codes = keep_largest(pre, 5, pre.abs())
    assert bool((codes < 0).any())
    ours = load(folder).to(dtype=torch.float64)
    found = ours.encode({ours.site: x})
    torch.testing.assert_close(found.dense(), codes, rtol=1e-10, atol=1e-10)
    assert ours.card.family == "abstopk"


@pytest.mark.parametrize("skip", [True, False])
def test_a_transcoder_does_not_subtract_and_adds_its_skip(
    tmp_path: Path,
    draw: Draw,
    agree: Callable[..., None],
    keep_largest: Callable[..., Tensor],
    shape: tuple[int, int],
    skip: bool,
) -> None:
    folder = tmp_path / "layers.3.mlp"
    w = checkpoint(folder, draw, shape, transcode=True, skip_connection=skip)
    x = torch.cat([torch.zeros(1, shape[0], dtype=torch.float64), draw(30, shape[0], seed=9)])
    codes = keep_largest((x @ w["encoder.weight"].T + w["encoder.bias"]).clamp(min=0), 5)
    recovered = codes @ w["W_dec"] + w["b_dec"] + (x @ w["W_skip"].T if skip else 0)
    ours = load(folder)
    agree(ours, x, codes, recovered)
    assert (ours.card.reads, ours.card.writes) == (("mlp_in.3",), ("mlp_out.3",))
    assert ours.card.family == "transcoder"


@pytest.mark.parametrize(
    ("hook", "transcode", "reads", "writes"),
    [
        ("layers.3", False, "resid_post.3", "resid_post.3"),
        ("model.layers.3", False, "resid_post.3", "resid_post.3"),
        ("h.3", False, "resid_post.3", "resid_post.3"),
        ("layers.3.mlp", False, "mlp_out.3", "mlp_out.3"),
        ("h.11.mlp", False, "mlp_out.11", "mlp_out.11"),
        ("layers.3.attention", False, "attn_out.3", "attn_out.3"),
        ("layers.3.self_attn", False, "attn_out.3", "attn_out.3"),
        ("embed_tokens", False, "embed", "embed"),
        ("layers.0", True, "embed", "resid_post.0"),
        ("layers.3", True, "resid_post.2", "resid_post.3"),
        ("layers.3.mlp/seed1", True, "mlp_in.3", "mlp_out.3"),
    ],
)
def test_the_folder_names_the_site(
    tmp_path: Path, draw: Draw, hook: str, transcode: bool, reads: str, writes: str
) -> None:
    checkpoint(tmp_path / hook, draw, (12, 40), transcode=transcode)
    card = load(tmp_path / hook).card
    assert (card.reads, card.writes) == ((reads,), (writes,))


def test_a_site_is_asked_for_where_the_folder_names_none(tmp_path: Path, draw: Draw) -> None:
    checkpoint(tmp_path / "mine", draw, (12, 40))
    refused(
        tmp_path / "mine", r"sae\.safetensors: key site is not told \(folder 'mine'\).*site=resid_post\.3"
    )
    assert load(tmp_path / "mine", site="resid_mid.4").card.reads == ("resid_mid.4",)
    checkpoint(tmp_path / "layers.3.self_attn", draw, (12, 40), transcode=True)
    refused(tmp_path / "layers.3.self_attn", r"key site is not told .*site=mlp_in\.3->mlp_out\.3")
    checkpoint(tmp_path / "tc", draw, (12, 40), transcode=True)
    refused(tmp_path / "tc", "a transcoder reads one and writes another: write both", site="resid_post.3")
    assert load(tmp_path / "tc", site="mlp_out.2").card.reads == ("mlp_in.2",)
    assert load(tmp_path / "tc", site="resid_mid.2->resid_post.2").card.writes == ("resid_post.2",)


def test_a_site_that_contradicts_the_folder_is_refused(tmp_path: Path, draw: Draw) -> None:
    checkpoint(tmp_path / "layers.3", draw, (12, 40))
    assert load(tmp_path / "layers.3", site="blocks.3.hook_resid_post").card.reads == ("resid_post.3",)
    refused(
        tmp_path / "layers.3",
        r"key site is resid_post\.3 \(folder 'layers\.3'\), and resid_post\.4 was asked for",
        site="resid_post.4",
    )
    refused(
        tmp_path / "layers.3", "one site is expected: it is no transcoder", site="resid_mid.3->resid_post.3"
    )


def test_sizes_come_from_the_config(tmp_path: Path, draw: Draw) -> None:
    folder = tmp_path / "layers.3"
    checkpoint(folder, draw, (12, 48), num_latents=0, expansion_factor=4)
    assert load(folder).card.n_latents == 48
    checkpoint(folder, draw, (12, 48), num_latents="absent", expansion_factor=4)
    assert load(folder).card.n_latents == 48
    checkpoint(folder, draw, (12, 48), num_latents=47)
    refused(folder, r"sae\.safetensors: key encoder\.weight has shape \(48, 12\), and \(47, 12\) is expected")
    checkpoint(folder, draw, (12, 48), d_in="absent")
    refused(folder, r"cfg\.json: key d_in is None, and a whole number of 1 or more is expected")


def test_k_comes_from_the_config_or_as_asked(tmp_path: Path, draw: Draw) -> None:
    folder = tmp_path / "layers.3"
    checkpoint(folder, draw, (12, 40), k="absent")
    refused(folder, r"cfg\.json: key k is None, and a whole number")
    assert load(folder, k=3).card.nominal_l0 == 3
    checkpoint(folder, draw, (12, 40), k=0)
    refused(folder, r"cfg\.json: key k is 0, and a whole number of 1 or more")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "groupmax"}, r"cfg\.json: key activation is 'groupmax', and 'topk' is expected"),
        ({"skip_connection": True}, r"cfg\.json: key skip_connection is true and transcode false"),
    ],
)
def test_what_is_not_reproduced_is_refused(
    tmp_path: Path, draw: Draw, changes: dict[str, Any], message: str
) -> None:
    checkpoint(tmp_path / "layers.3", draw, (12, 40), **changes)
    refused(tmp_path / "layers.3", message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("W_dec"), r"key W_dec of shape \(40, 12\) is expected, and it is missing; found"),
        (
            lambda w: w.update({"W_dec": w["W_dec"].T.contiguous()}),
            r"key W_dec has shape \(12, 40\).*transposed",
        ),
        (lambda w: w.update({"encoder.weight": w["encoder.weight"].T.contiguous()}), "transposed"),
        (lambda w: w.update({"b_dec": w["b_dec"][:-1].clone()}), r"key b_dec has shape \(11,\), and \(12,\)"),
        (
            lambda w: w["encoder.bias"].fill_(float("nan")),
            r"key encoder\.bias holds 40 NaN or infinite numbers",
        ),
        (lambda w: w.update({"W_skip": torch.ones(12, 12)}), "key W_skip is found, and .* none is expected"),
    ],
)
def test_damaged_weights_are_named(
    tmp_path: Path, draw: Draw, change: Callable[[dict[str, Tensor]], Any], message: str
) -> None:
    folder = tmp_path / "layers.3"
    tensors = {name: value.float() for name, value in checkpoint(folder, draw, (12, 40)).items()}
    change(tensors)
    save_file(tensors, folder / "sae.safetensors")
    refused(folder, rf"sae\.safetensors: {message}" if message != "transposed" else message)
    (folder / "sae.safetensors").write_bytes((folder / "sae.safetensors").read_bytes()[:99])
    refused(folder, r"sae\.safetensors can't be read as safetensors .*truncated")
    (folder / "cfg.json").write_text("{")
    refused(folder, r"cfg\.json of 'layers\.3' is not JSON")


def test_only_its_own_folders_are_recognised(tmp_path: Path, draw: Draw) -> None:
    folder = tmp_path / "layers.3"
    checkpoint(folder, draw, (12, 40))
    (tmp_path / "config.json").write_text('{"model": "toy-lm"}')
    for path in (folder, folder / "sae.safetensors", folder / "cfg.json"):
        assert "as sparsify writes it" in (FORMAT.recognise(path) or "")
        assert load(path).site == Site("resid_post", 3)
        assert load(path).card.lm == "toy-lm"
        assert saelens.FORMAT.recognise(path) is None
        assert native.FORMAT.recognise(path) is None
    assert FORMAT.recognise(tmp_path) is None
    (folder / "sae.safetensors").rename(folder / "sae_weights.safetensors")
    assert FORMAT.recognise(folder) is None
