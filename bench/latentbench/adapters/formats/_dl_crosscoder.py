"""Crosscoders of the dictionary_learning fork of GitHub's science-of-finetuning (arXiv 2504.02922).

Keys: `encoder.weight` [site, d, latent], `encoder.bias` [latent], `decoder.weight` [site, latent, d], `decoder.bias`
[site, d]; there is no pre-bias. A BatchTopK crosscoder also has `k` and `threshold`. Codes here are the fork's
`get_activations`: values times the latent's decoder norm under its `code_normalization`, which is also what the
threshold is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._crosscoder import Crosscoder, CrosscoderWeights
from latentbench.adapters._format import LoadOptions
from latentbench.adapters._gates import Gate, ReluGate, ThresholdGate, TopKGate
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._sites import settle_several
from latentbench.adapters.formats._tensors import require
from latentbench.errors import AdapterError

__all__ = ["CROSSCODERS", "Checkpoint", "build_crosscoder", "threshold_gate"]

CROSSCODERS = ("CrossCoder", "BatchTopKCrossCoder")
"""The fork's classes that are read here."""
_NORMALISATIONS = ("CROSSCODER", "SAE", "MIXED", "NONE", "DECOUPLED")
"""In the order of their ids, which count from 1."""


class Checkpoint(NamedTuple):
    """What was read from disk."""

    file: str
    """Name of the weights, for messages."""
    name: str
    """Name for the card."""
    tensors: Mapping[str, Tensor]
    """Float32 tensors by key."""
    trainer: Mapping[str, Any]
    """What the config says of the dictionary; empty where there is none."""
    buffer: Mapping[str, Any]
    """What it says of the activations."""
    sha256: str
    """Checksum of the weights."""


def build_crosscoder(checkpoint: Checkpoint, kind: str, options: LoadOptions) -> Crosscoder:
    """A crosscoder from its tensors.

    Args:
        checkpoint: what was read.
        kind: one of `CROSSCODERS`.
        options: `site` names all its sites, separated by commas, since the checkpoint names none.

    Raises:
        AdapterError: the tensors are not those of the class, or it is of a kind that can't be reproduced exactly.
    """
    weights, normalisation = _weights(checkpoint)
    sites = tuple(map(str, settle_several(options.site, len(weights.w_enc), file=checkpoint.file)))
    batch_topk = kind == "BatchTopKCrossCoder"
    gate: Gate = threshold_gate(checkpoint, options) if batch_topk else ReluGate()
    k = checkpoint.tensors.get("k") if batch_topk else None
    card = DictionaryCard(
        name=checkpoint.name,
        family="crosscoder",
        reads=sites,
        writes=sites,
        d_model=weights.w_enc.shape[2],
        n_latents=weights.w_enc.shape[1],
        nominal_l0=None if k is None else float(k),
        options={**gate.describe(), "code_normalisation": normalisation.lower()},
        lm=str(checkpoint.trainer.get("lm_name") or ""),
        source=checkpoint.name,
        sha256=checkpoint.sha256,
    )
    return Crosscoder(card, weights, gate, InputTransform("none"))


def threshold_gate(checkpoint: Checkpoint, options: LoadOptions) -> ThresholdGate | TopKGate:
    """The gate of a BatchTopK dictionary when it is used: one threshold, whatever else is in the batch.

    Raises:
        AdapterError: the threshold was never set in training, and no `k` is given instead.
    """
    require(checkpoint.tensors, {"threshold": ()}, file=checkpoint.file)
    threshold = float(checkpoint.tensors["threshold"])
    if threshold >= 0:
        return ThresholdGate(threshold)
    if options.k is None:
        raise AdapterError(
            f"{checkpoint.file}: key threshold is {threshold:g}, which training starts from, and one of 0 or more is "
            "expected: it was saved before the threshold was first set; give k to keep the k largest latents of each "
            "token"
        )
    return TopKGate(options.k, rectify=True)


def _weights(checkpoint: Checkpoint) -> tuple[CrosscoderWeights, str]:
    tensors, file = checkpoint.tensors, checkpoint.file
    keys = ("encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias")
    require(tensors, dict.fromkeys(keys), file=file)
    if checkpoint.trainer.get("encoder_layers") is not None:
        raise AdapterError(
            f"{file}: key encoder_layers of its config is set, and none is expected: not all sites read"
        )
    bias = tuple(tensors["decoder.bias"].shape)
    latents = int(checkpoint.trainer.get("dict_size") or len(tensors["encoder.bias"]))
    sites, width = bias if len(bias) == 2 else (None, None)
    width = checkpoint.trainer.get("activation_dim") or width
    require(
        tensors,
        {
            "decoder.bias": (sites, width),
            "encoder.weight": (sites, width, latents),
            "encoder.bias": (latents,),
            "decoder.weight": (sites, latents, width),
        },
        file=file,
    )
    w_enc, w_dec = tensors["encoder.weight"].transpose(1, 2).contiguous(), tensors["decoder.weight"]
    norms, normalisation = _norms(checkpoint, w_dec)
    # A latent without a decoder has norm 0 and is never active.
    divisor = torch.where(norms > 0, norms, torch.ones(()))
    w_enc, b_enc, w_dec = (
        w_enc * norms[:, None],
        tensors["encoder.bias"] * norms,
        w_dec / divisor[:, None],
    )
    b_dec, b_pre = tensors["decoder.bias"], None
    scaling = _scaling(checkpoint, tuple(b_dec.shape))
    if scaling is not None:
        mean, scale = scaling
        w_enc, b_pre = w_enc * scale[:, None, None], mean
        undone = scale + 1e-8  # as the fork undoes it
        w_dec, b_dec = w_dec / undone[:, None, None], b_dec / undone[:, None] + mean
    return CrosscoderWeights(w_enc, b_enc, w_dec, b_dec, b_pre), normalisation


def _norms(checkpoint: Checkpoint, w_dec: Tensor) -> tuple[Tensor, str]:
    """What the codes of each latent are multiplied with, `Float[Tensor, "latent"]`, and its name."""
    said = checkpoint.trainer.get("code_normalization")
    held = checkpoint.tensors.get("code_normalization_id")
    name = _NORMALISATIONS[int(held) - 1] if held is not None and 1 <= int(held) <= 5 else None
    if held is not None and name is None:
        raise AdapterError(
            f"{checkpoint.file}: key code_normalization_id is {int(held)}, and 1 to 5 is expected"
        )
    if said is not None and name is not None and str(said).upper() != name:
        raise AdapterError(
            f"{checkpoint.file}: key code_normalization_id says {name}, and {said} is expected from its config"
        )
    name = name or str(said or "CROSSCODER").upper()  # the fork's own choice where nothing is said
    concatenated = w_dec.square().sum(dim=(0, 2)).sqrt()
    summed = w_dec.norm(dim=2).sum(dim=0)
    if name == "NONE":
        return torch.ones_like(summed), name
    if name == "SAE":
        return concatenated, name
    if name == "CROSSCODER":
        return summed, name
    if name == "MIXED":
        own = float(checkpoint.trainer.get("code_normalization_alpha_sae", 1.0))
        across = float(checkpoint.trainer.get("code_normalization_alpha_cc", 0.1))
        return concatenated * own + summed * across, name
    raise AdapterError(
        f"{checkpoint.file}: key code_normalization is {name}, and one of CROSSCODER, SAE, MIXED or NONE is expected: "
        "DECOUPLED has another code for each site, which is not one dictionary"
    )


def _scaling(checkpoint: Checkpoint, shape: tuple[int, ...]) -> tuple[Tensor, Tensor] | None:
    """Mean `Float[Tensor, "site d"]` and scale `Float[Tensor, "site"]` of the inputs; None where NaN, which is off."""
    keys = ("activation_mean", "activation_std", "activation_global_scale")
    held = [checkpoint.tensors.get(key) for key in keys]
    if held[0] is None or held[1] is None or bool(held[0].isnan().any()) or bool(held[1].isnan().any()):
        return None
    require(
        checkpoint.tensors,
        {"activation_mean": shape, "activation_std": shape, "activation_global_scale": shape[:1]},
        file=checkpoint.file,
    )
    return checkpoint.tensors["activation_mean"], checkpoint.tensors["activation_global_scale"]
