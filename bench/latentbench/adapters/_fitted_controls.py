"""Controls with weights of their own: the mean, principal components, random directions, an untrained twin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._crosscoder import Crosscoder, CrosscoderWeights
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._gates import AbsTopKGate, Gate, ReluGate, TopKGate
from latentbench.adapters._routesae import RouteSae
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder, with_gate_card
from latentbench.adapters._transforms import InputTransform
from latentbench.errors import AdapterError, UserError
from latentbench.identity import sha256_json
from latentbench.lm import Site

__all__ = ["Calibration", "mean_control", "pca_control", "random_directions", "untrained"]

_Trainable = SparseAutoencoder | RouteSae | Crosscoder


@dataclass(frozen=True)
class Calibration:
    """Activations that a control is fitted on; never those that it is measured on."""

    acts: Callable[[Sequence[Site]], Iterable[Mapping[Site, Tensor]]]
    """From sites to batches of `Float[Tensor, "token d"]` at each of them; the same ones at every call."""
    identity: Callable[[], Mapping[str, Any]]
    """What they come from (model, corpus, number of tokens), as JSON: part of the control's checksum."""


def mean_control(site: Site, calibration: Calibration) -> SparseAutoencoder:
    """No latents at all: every activation is predicted to be the mean of the calibration tokens."""
    mean, _ = _moments(site, calibration)
    weights = _linear(mean, mean.new_zeros((0, len(mean))))
    card = _card(
        "mean", f"{site}", site, weights, 0.0, sha256_json(["mean", str(site), calibration.identity()])
    )
    return _assembled(card, weights, ReluGate(), InputTransform("none"))


def pca_control(site: Site, rank: int, k: int, calibration: Calibration) -> SparseAutoencoder:
    """The first principal components of the calibration tokens as latents, signed, the k largest of each token.

    Of all linear codes of that rank it has the least squared error on the calibration tokens: a dictionary that does
    not beat it at its own L0 has found nothing but the directions of largest variance.

    Raises:
        UserError: the rank exceeds the width or what the calibration tokens can tell.
    """
    mean, covariance = _moments(site, calibration, rank)
    if rank > len(mean):
        raise UserError(
            f"pca:{site}:{rank}: activations at {site} have {len(mean)} dimensions, no more components"
        )
    vectors = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, :rank].T
    # An eigenvector's sign is the library's whim: its largest entry is made positive.
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    weights = _linear(mean, vectors * largest.sign())
    rest = f"{site}:{rank}" + (f":{k}" if k != rank else "")
    card = _card("pca", rest, site, weights, float(k), sha256_json(["pca", rest, calibration.identity()]))
    return _assembled(card, weights, AbsTopKGate(k), InputTransform("none"))


def random_directions(site: Site, d_model: int, width: int, k: int, seed: int = 0) -> SparseAutoencoder:
    """Random unit directions as encoder and decoder; the k largest positive projections of a standardised token."""
    generator = torch.Generator().manual_seed(seed)
    rows = _unit(torch.randn((width, d_model), generator=generator))
    zero = torch.zeros(d_model)
    weights = SaeWeights(rows, torch.zeros(width), rows.clone(), zero, None)
    rest = f"{site}:{width}:{k}"
    sha = sha256_json(["random-directions", width, d_model, seed])
    return _assembled(
        _card("random-directions", rest, site, weights, float(k), sha),
        weights,
        TopKGate(k, rectify=True),
        InputTransform("standardise"),
    )


def untrained(dictionary: Dictionary, calibration: Calibration | None, seed: int = 0) -> Dictionary:
    """The same shape, input transform and sparsity, with the weights that training would start from.

    Encoder uniform in +-1/sqrt(d), decoder its copy with unit rows, biases and skip 0, router as a fresh linear layer:
    RouteSAE's initialisation (GitHub swei2001/RouteSAEs). A gate that keeps k latents stays; any other becomes one
    threshold for all latents, set so that the mean L0 on the calibration tokens is the original's there.

    Raises:
        AdapterError: the dictionary has no encoder that could be trained.
        UserError: its L0 is not fixed by its gate, and no calibration is given.
    """
    if not isinstance(dictionary, SparseAutoencoder | RouteSae | Crosscoder):
        raise AdapterError(
            f"untrained: {dictionary.card.name!r} is a {dictionary.card.family}: it has no weights to be trained"
        )
    generator = torch.Generator().manual_seed(seed)
    gate = (dictionary.sae if isinstance(dictionary, RouteSae) else dictionary).gate.core
    fixed = isinstance(gate, TopKGate | AbsTopKGate)
    fresh = _fresh(dictionary, gate if fixed else ReluGate(), seed, generator)
    if fixed:
        return fresh
    from latentbench.adapters._calibrate import calibrate  # it uses the loader, which uses this module

    if calibration is None:
        raise UserError(
            f"untrained:{dictionary.card.source}: its L0 is not fixed by its gate, so the threshold must be set on "
            "calibration tokens: run it in a suite, or give load_dictionary(calibration=...)"
        )
    target = _mean_l0(dictionary, calibration)
    found = calibrate(fresh, calibration.acts(fresh.reads), target)
    sha = sha256_json(["untrained", dictionary.card.sha256, seed, calibration.identity()])
    found.card = found.card.model_copy(update={"sha256": sha})
    return found


def _fresh(dictionary: _Trainable, gate: Gate, seed: int, generator: torch.Generator) -> _Trainable:
    card = dictionary.card.model_copy(
        update={
            "name": f"{dictionary.card.name}, untrained",
            "family": f"{dictionary.card.family}-untrained",
            "source": f"untrained:{dictionary.card.source}",
            "sha256": sha256_json(["untrained", dictionary.card.sha256, seed]),
            "control": True,
            "training": {},
        }
    )
    if isinstance(dictionary, RouteSae):
        sae = _fresh_sae(dictionary.sae, dictionary.sae.card, gate, generator)
        card = with_gate_card(card, dictionary.sae.gate, gate)
        router = dictionary.router
        if dictionary.routing != "random":  # there it is no weight but the hash that spreads the tokens
            router = _uniform(router.shape, router.shape[1], generator).to(router)
        return RouteSae(card, router, sae, dictionary.pooling, dictionary.splice, dictionary.routing)
    card = with_gate_card(card, dictionary.gate, gate)
    if isinstance(dictionary, SparseAutoencoder):
        return _fresh_sae(dictionary, card, gate, generator)
    old = dictionary.weights
    w_enc = _uniform(old.w_enc.shape, old.w_enc.shape[-1], generator).to(old.w_enc)
    empty = {name: torch.zeros_like(value) for name, value in (("b_enc", old.b_enc), ("b_dec", old.b_dec))}
    b_pre = None if old.b_pre is None else torch.zeros_like(old.b_pre)
    weights = CrosscoderWeights(w_enc=w_enc, w_dec=_unit(w_enc), b_pre=b_pre, **empty)
    return Crosscoder(card, weights, gate, dictionary.transform)


def _fresh_sae(
    sae: SparseAutoencoder, card: DictionaryCard, gate: Gate, generator: torch.Generator
) -> SparseAutoencoder:
    old = sae.weights
    w_enc = _uniform(old.w_enc.shape, old.w_enc.shape[1], generator)
    square = old.w_dec.shape == old.w_enc.shape
    w_dec = _unit(w_enc if square else torch.randn(old.w_dec.shape, generator=generator))
    optional = {
        name: None if value is None else torch.zeros_like(value)
        for name, value in (("b_pre", old.b_pre), ("skip", old.skip))
    }
    zeros = {name: torch.zeros_like(value) for name, value in (("b_enc", old.b_enc), ("b_dec", old.b_dec))}
    weights = SaeWeights(w_enc=w_enc.to(old.w_enc), w_dec=w_dec.to(old.w_dec), **zeros, **optional)  # type: ignore[arg-type]
    return SparseAutoencoder(card, weights, gate, sae.transform)


def _mean_l0(dictionary: Dictionary, calibration: Calibration) -> float:
    active = tokens = 0
    for acts in calibration.acts(dictionary.reads):
        codes = dictionary.encode(acts)
        active, tokens = active + codes.nnz, tokens + codes.n_tokens
    return active / max(1, tokens)


def _moments(site: Site, calibration: Calibration, rank: int = 0) -> tuple[Tensor, Tensor]:
    """Mean `Float64[Tensor, "d"]` and covariance `Float64[Tensor, "d d"]`; more tokens than `rank` are needed."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for batch in calibration.acts([site]):
        acts = batch[site].double().cpu()
        count += len(acts)
        total = total + acts.sum(dim=0)
        squares = squares + acts.T @ acts
    if count <= rank:
        raise UserError(
            f"{count} calibration tokens at {site} can't tell {rank or 'any'} components: give more of them"
        )
    mean = total / count
    return mean, squares / count - torch.outer(mean, mean)


def _linear(mean: Tensor, rows: Tensor) -> SaeWeights:
    """Codes are projections on orthonormal rows of what is left after the mean."""
    mean, rows = mean.float(), rows.float()
    return SaeWeights(rows, torch.zeros(len(rows)), rows.clone(), mean, mean.clone())


def _card(scheme: str, rest: str, site: Site, weights: SaeWeights, l0: float, sha256: str) -> DictionaryCard:
    return DictionaryCard(
        name=f"{scheme} {rest}",
        family=scheme,
        reads=(str(site),),
        writes=(str(site),),
        d_model=weights.w_enc.shape[1],
        n_latents=weights.w_enc.shape[0],
        nominal_l0=l0,
        source=f"{scheme}:{rest}",
        sha256=sha256,
        control=True,
    )


def _assembled(
    card: DictionaryCard, weights: SaeWeights, gate: Gate, transform: InputTransform
) -> SparseAutoencoder:
    options = {**gate.describe(), "eps": transform.eps}
    update = {"options": options, "normalisation": transform.kind}
    return SparseAutoencoder(card.model_copy(update=update), weights, gate, transform)


def _uniform(shape: torch.Size, fan_in: int, generator: torch.Generator) -> Tensor:
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def _unit(rows: Tensor) -> Tensor:
    norms: Tensor = rows.norm(dim=-1, keepdim=True)
    return rows / norms.clamp(min=torch.finfo(rows.dtype).tiny)
