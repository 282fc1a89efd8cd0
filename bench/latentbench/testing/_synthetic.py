"""Dictionaries with weights from a seed: random ones, and ones that reconstruct every activation exactly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from latentbench.adapters import (
    DictionaryCard,
    Gate,
    InputTransform,
    Pooling,
    RouteSae,
    Routing,
    SaeWeights,
    SparseAutoencoder,
    SpliceMode,
    TopKGate,
)
from latentbench.identity import sha256_json
from latentbench.lm import Site

__all__ = ["perfect_weights", "random_routesae", "random_sae", "random_weights"]


def random_weights(
    d_model: int, n_latents: int, *, seed: int = 0, pre_bias: bool = True, dtype: torch.dtype = torch.float32
) -> SaeWeights:
    """Independent Gaussian weights; no bias is zero and, with `pre_bias`, no two are the same."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float) -> Tensor:
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)

    return SaeWeights(
        w_enc=draw(n_latents, d_model, scale=d_model**-0.5),
        b_enc=draw(n_latents, scale=0.1),
        w_dec=draw(n_latents, d_model, scale=d_model**-0.5),
        b_dec=draw(d_model, scale=0.1),
        b_pre=draw(d_model, scale=0.1) if pre_bias else None,
    )


def perfect_weights(d_model: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> SaeWeights:
    """As many orthonormal latents as dimensions: a signed TopK of `k = d_model` reconstructs exactly."""
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn((d_model, d_model), generator=generator, dtype=torch.float64))
    bias = torch.randn(d_model, generator=generator, dtype=torch.float64).to(dtype)
    return SaeWeights(basis.to(dtype), torch.zeros(d_model, dtype=dtype), basis.to(dtype), bias, bias)


def random_sae(
    *,
    d_model: int = 16,
    n_latents: int = 48,
    site: str | Site = "resid_post.1",
    gate: Gate | None = None,
    transform: InputTransform | None = None,
    weights: SaeWeights | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> SparseAutoencoder:
    """A single-site SAE with random weights.

    Args:
        d_model: width of the activations.
        n_latents: number of latents.
        site: where it reads and writes.
        gate: None takes the 4 largest positive pre-activations.
        transform: None leaves the input as it is.
        weights: used as they are; `d_model`, `n_latents`, `seed` and `dtype` are then ignored.
        seed: of the weights.
        dtype: of the weights.
    """
    gate = gate if gate is not None else TopKGate(4, rectify=True)
    transform = transform if transform is not None else InputTransform("none")
    weights = weights if weights is not None else random_weights(d_model, n_latents, seed=seed, dtype=dtype)
    card = _card((str(Site.parse(site)),), "sae", weights, gate, transform, seed)
    return SparseAutoencoder(card, weights, gate, transform)


def random_routesae(  # noqa: PLR0913 - each is one choice of a RouteSAE
    sites: Sequence[str | Site],
    *,
    d_model: int = 16,
    n_latents: int = 48,
    k: int = 4,
    weights: SaeWeights | None = None,
    router_scale: float = 0.05,
    pooling: Pooling = "sum",
    splice: SpliceMode = "corrected",
    routing: Routing = "hard",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> RouteSae:
    """A RouteSAE with random weights: standardised input, signed TopK.

    Args:
        sites: routed sites in router order.
        d_model: width of the activations.
        n_latents: number of latents.
        k: latents kept per token.
        weights: used as they are; `n_latents` is then ignored and `d_model` must agree.
        router_scale: spread of the router's weights; small ones keep every route's probability away from 1.
        pooling: how the router pools sites.
        splice: see `RouteSae`.
        routing: see `RouteSae`.
        seed: of the weights.
        dtype: of the weights.
    """
    weights = weights if weights is not None else random_weights(d_model, n_latents, seed=seed, dtype=dtype)
    gate, transform = TopKGate(k, rectify=False), InputTransform("standardise", 1e-6)
    names = tuple(str(Site.parse(site)) for site in sites)
    generator = torch.Generator().manual_seed(seed + 1)
    drawn = torch.randn((len(names), d_model), generator=generator, dtype=torch.float64)
    router = drawn / drawn.norm(dim=1, keepdim=True) if routing == "random" else drawn * router_scale
    inner = SparseAutoencoder(
        _card(names[:1], "sae", weights, gate, transform, seed), weights, gate, transform
    )
    card = _card(names, "routesae", weights, gate, transform, seed)
    options = {**card.options, "pooling": pooling, "splice": splice, "routing": routing}
    card = card.model_copy(update={"options": options})
    return RouteSae(card, router.to(weights.w_dec.dtype), inner, pooling, splice, routing)


def _card(
    sites: tuple[str, ...], family: str, weights: SaeWeights, gate: Gate, transform: InputTransform, seed: int
) -> DictionaryCard:
    n_latents, d_model = weights.w_enc.shape
    kind = str(gate.describe()["gate"]) if family == "sae" else family
    return DictionaryCard(
        name=f"synthetic {kind}",
        family=kind,
        reads=sites,
        writes=sites,
        d_model=d_model,
        n_latents=n_latents,
        nominal_l0=float(gate.k) if isinstance(gate, TopKGate) else None,
        normalisation=transform.kind,
        options={**gate.describe(), "eps": transform.eps},
        source="synthetic",
        sha256=sha256_json(["synthetic", family, n_latents, d_model, seed]),
    )
