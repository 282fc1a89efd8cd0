"""What both layouts of OpenMOSS' Language-Model-SAEs share: norms, gates and sites by the config."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latentbench.adapters._format import LoadOptions
from latentbench.adapters._gates import Gate, JumpReluGate, ReluGate, TopKGate
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._names import Facts, card_of, folded, whole
from latentbench.adapters.formats._sites import Place, parse_site, settle
from latentbench.errors import AdapterError

__all__ = ["Source", "batch_topk", "build", "dataset_scale", "normalised"]


class Source(NamedTuple):
    """What is known of a checkpoint beside its weights."""

    config: dict[str, Any]
    """Its config."""
    config_file: str
    """Name of the file of the config, for messages."""
    weights_file: Path
    """File of the weights."""
    name: str
    """Display name."""
    norms: tuple[float | None, float | None]
    """Average norm of the dataset at the input and at the output, where the checkpoint holds them."""
    lm: str
    """The language model, if known."""


def build(
    source: Source, weights: SaeWeights, thresholds: Tensor | None, options: LoadOptions
) -> SparseAutoencoder:
    """An SAE or transcoder.

    Args:
        source: see there.
        weights: as stored, for normalised activations.
        thresholds: of JumpReLU, `Float[Tensor, "latent"]`, as stored.
        options: what the checkpoint does not say.

    Raises:
        AdapterError: the config asks for something that is not reproduced exactly.
    """
    config, file = source.config, source.config_file
    if config.get("use_glu_encoder"):
        raise AdapterError(
            f"{file}: key use_glu_encoder is true, and false is expected: an encoder with a second, multiplying one is "
            "not known here"
        )
    read = str(config.get("hook_point_in"))
    written = str(config.get("hook_point_out") or read)
    sites = (parse_site(read), parse_site(written))
    place = settle(
        Place(sites[0], sites[1]) if sites[0] and sites[1] else None,
        options.site,
        transcoder=read != written,
        file=file,
        said=f"hook_point_in is {read!r}, hook_point_out {written!r}",
    )
    gate, weights, facts = _gate(source, weights, thresholds, options)
    weights, transform = normalised(source, weights)
    card = card_of(
        source.weights_file,
        Facts(
            name=source.name,
            family="transcoder" if read != written else str(facts.pop("family")),
            place=place,
            lm=source.lm,
            options={key: value for key, value in facts.items() if key != "family"},
        ),
        weights.w_enc.shape,
        gate,
        transform,
    )
    return SparseAutoencoder(card, weights, gate, transform)


def normalised(source: Source, weights: SaeWeights) -> tuple[SaeWeights, InputTransform]:
    """Weights and transform under which raw activations can be given.

    Raises:
        AdapterError: the norm is not known, or not that of one token.
    """
    kind, file = source.config.get("norm_activation", "dataset-wise"), source.config_file
    if kind == "inference":
        return weights, InputTransform("none")
    if kind == "token-wise":
        return weights, InputTransform("constant_norm", 0.0)
    if kind == "dataset-wise":
        width, out = weights.w_enc.shape[1], weights.w_dec.shape[1]
        read = dataset_scale(source.norms[0], width, "in", file=file)
        written = dataset_scale(source.norms[1], out, "out", file=file)
        return folded(weights, read, written), InputTransform("none")
    expected = "'inference', 'token-wise' or 'dataset-wise'"
    why = ": it depends on what else is in the batch" if kind == "batch-wise" else ""
    raise AdapterError(f"{file}: key norm_activation is {kind!r}, and {expected} is expected{why}")


def dataset_scale(norm: float | None, width: int, where: str, *, file: str) -> float:
    """What activations are multiplied by so that their average norm is sqrt(d).

    Raises:
        AdapterError: the average norm is not known or no positive number.
    """
    if norm is None or not math.isfinite(norm) or norm <= 0:
        raise AdapterError(
            f"{file}: key dataset_average_activation_norm ({where}) is {norm}, and a positive number is expected for "
            "norm_activation 'dataset-wise': without it the scale of the input is unknown"
        )
    return math.sqrt(width) / norm


def batch_topk(config: dict[str, Any], key: str, options: LoadOptions, *, file: str) -> TopKGate:
    """BatchTopK without a stored threshold: per-token TopK, if that is asked for.

    Raises:
        AdapterError: no k was given.
    """
    if options.k is None:
        raise AdapterError(
            f"{file}: BatchTopK without a threshold: key {key} is {config.get(key)!r} for each token of a batch "
            "together, and a cut that does not depend on the batch is expected: give k to keep the k largest latents "
            "of each token, and calibrate a threshold from there"
        )
    return TopKGate(options.k, rectify=True)


def _gate(
    source: Source, weights: SaeWeights, thresholds: Tensor | None, options: LoadOptions
) -> tuple[Gate, SaeWeights, dict[str, Any]]:
    """The gate, the weights it needs, and facts for the card."""
    config, file = source.config, source.config_file
    activation = str(config.get("act_fn", "relu")).lower()
    by_norm = bool(config.get("sparsity_include_decoder_norm", True))
    norms = weights.w_dec.norm(dim=1)
    facts: dict[str, Any] = {"family": activation, "decoder_norm_in_gate": by_norm}
    if activation == "relu":
        return ReluGate(), weights, facts
    if activation == "jumprelu" and thresholds is not None:
        # pre * norm > threshold; a latent without a decoder has pre * 0, which exceeds no threshold from 0 up.
        cut = torch.where(norms > 0, thresholds / norms, torch.inf) if by_norm else thresholds
        return JumpReluGate(cut), weights, facts
    if activation not in ("topk", "batchtopk"):
        raise AdapterError(
            f"{file}: key act_fn is {activation!r}, and 'relu', 'jumprelu', 'topk' or 'batchtopk' is expected"
        )
    if activation == "topk":
        gate = TopKGate(whole(config, "top_k", file=file), rectify=True)
    else:
        gate = batch_topk(config, "top_k", options, file=file)
    if not by_norm:
        return gate, weights, facts
    # Ranked by pre * norm: codes are in those units, and decoder rows of norm 1.
    divisor = torch.where(norms > 0, norms, torch.ones(()))
    ranked = SaeWeights(
        weights.w_enc * norms[:, None],
        weights.b_enc * norms,
        weights.w_dec / divisor[:, None],
        weights.b_dec,
        weights.b_pre,
    )
    return gate, ranked, facts
