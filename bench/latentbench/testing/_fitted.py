"""A small SAE trained on the spot, so that tests have a dictionary that really fits its site."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from latentbench.adapters import InputTransform, SaeWeights, SparseAutoencoder, TopKGate, decode_rows
from latentbench.lm import LM, Site
from latentbench.testing._subject import Subject
from latentbench.testing._synthetic import random_sae, random_weights

__all__ = ["fitted_sae"]


def fitted_sae(
    lm: LM,
    site: str | Site,
    *,
    n_latents: int = 48,
    k: int = 4,
    transform: InputTransform | None = None,
    tokens: int = 2048,
    steps: int = 400,
    seed: int = 0,
) -> SparseAutoencoder:
    """A rectified TopK SAE trained for a moment on a toy model's activations.

    Args:
        lm: the model; one of `toy_lm` trains in about a second.
        site: where the SAE reads and writes.
        n_latents: number of latents.
        k: latents kept per token.
        transform: of the input; None leaves it as it is.
        tokens: activations to train on.
        steps: optimiser steps, each on 256 tokens.
        seed: of weights, tokens and order.
    """
    place = lm.site(site)
    transform = transform if transform is not None else InputTransform("none")
    start = random_weights(lm.d_model, n_latents, seed=seed)
    sample = Subject(random_sae(site=place, weights=start), lm, max_tokens=tokens, context=48, seed=seed)
    inputs = transform.apply(sample.at([place])[place]).acts.float()
    weights = _trained(inputs, start, TopKGate(k, rectify=True), steps, seed)
    return random_sae(
        site=place, gate=TopKGate(k, rectify=True), transform=transform, weights=weights, seed=seed
    )


def _trained(inputs: Tensor, start: SaeWeights, gate: TopKGate, steps: int, seed: int) -> SaeWeights:
    mean = inputs.mean(dim=0)
    unit = start.w_dec / start.w_dec.norm(dim=1, keepdim=True)
    names = ("w_enc", "b_enc", "w_dec", "b_dec")
    values = (unit.clone(), torch.zeros_like(start.b_enc), unit.clone(), mean.clone())
    parameters = {name: value.requires_grad_() for name, value in zip(names, values, strict=True)}
    optimiser = torch.optim.Adam(parameters.values(), lr=0.01)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = inputs[torch.randint(len(inputs), (256,), generator=generator)]
        weights = SaeWeights(**parameters, b_pre=parameters["b_dec"])
        codes = gate(weights.pre_activations(x), {})
        loss = (decode_rows(codes, weights.w_dec, weights.b_dec) - x).square().sum() / (
            x - mean
        ).square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    found = {name: value.detach() for name, value in parameters.items()}
    return replace(start, **found, b_pre=found["b_dec"].clone())
