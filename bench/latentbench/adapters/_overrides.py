"""The same dictionary at another sparsity, or its first latents alone."""

from __future__ import annotations

import torch

from latentbench.adapters._crosscoder import Crosscoder
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._gates import AbsTopKGate, Gate, ThresholdGate, TopKGate
from latentbench.adapters._routesae import RouteSae
from latentbench.adapters._sae import SparseAutoencoder
from latentbench.errors import AdapterError

__all__ = ["with_k", "with_prefix", "with_threshold"]


def with_k(dictionary: Dictionary, k: int) -> Dictionary:
    """The same dictionary with the k largest latents per token (`topk` mode of fixed sparsity).

    Families that keep signed values go on doing so.

    Raises:
        AdapterError: the family has no gate to replace.
    """
    gate = _gated(dictionary).gate.core
    if isinstance(gate, AbsTopKGate):
        return _regated(dictionary, AbsTopKGate(k))
    signed = isinstance(gate, TopKGate) and not gate.rectify
    return _regated(dictionary, TopKGate(k, rectify=not signed))


def with_threshold(dictionary: Dictionary, threshold: float) -> Dictionary:
    """The same dictionary with one threshold for all latents (`calibrated` mode of fixed sparsity).

    Raises:
        AdapterError: the family has no gate to replace, or keeps latents by size whatever their sign.
    """
    if isinstance(_gated(dictionary).gate.core, AbsTopKGate):
        raise AdapterError(
            f"{dictionary.card.name!r} ranks latents by size, negative ones too: one threshold from below can't "
            "stand in for that; set its k instead"
        )
    return _regated(dictionary, ThresholdGate(threshold))


def with_prefix(dictionary: Dictionary, n: int) -> Dictionary:
    """The first n latents of a matryoshka dictionary, which is a smaller dictionary by itself.

    Raises:
        AdapterError: the card names no groups, or n is not the end of one.
    """
    groups = dictionary.card.options.get("groups")
    if not groups or not isinstance(dictionary, SparseAutoencoder):
        raise AdapterError(
            f"{dictionary.card.name!r} is a {dictionary.card.family} whose card names no groups: only a prefix of "
            "a matryoshka dictionary is one by itself"
        )
    if n not in groups:
        raise AdapterError(
            f"{dictionary.card.name!r} has prefixes of {', '.join(map(str, groups))} latents; {n} would cut a group"
        )
    fixed = isinstance(dictionary.gate.core, TopKGate | AbsTopKGate)
    card = dictionary.card.model_copy(
        update={
            "name": f"{dictionary.card.name}, first {n}",
            # A threshold's L0 is that of all latents; of the first ones alone it can only be measured.
            "nominal_l0": dictionary.card.nominal_l0 if fixed else None,
            "n_latents": n,
            "options": {
                **dictionary.card.options,
                "groups": [size for size in groups if size <= n],
                "prefix": n,
            },
        }
    )
    return dictionary.narrow(torch.arange(n, device=dictionary.device), card)


def _gated(dictionary: Dictionary) -> SparseAutoencoder | Crosscoder:
    if isinstance(dictionary, RouteSae):
        return dictionary.sae
    if isinstance(dictionary, SparseAutoencoder | Crosscoder):
        return dictionary
    raise AdapterError(f"{dictionary.card.name!r} is a {dictionary.card.family}: its sparsity can't be set")


def _regated(dictionary: Dictionary, gate: Gate) -> Dictionary:
    if isinstance(dictionary, RouteSae):
        return dictionary.with_gate(gate)
    return _gated(dictionary).with_gate(gate)
