"""Controls: dictionaries whose scores are known to mean nothing, measured beside the real ones.

What each of them leaves in place tells what a score can come from without a good dictionary:

* `identity:SITE`: every coordinate is a latent. Perfect reconstruction, no sparsity.
* `mean:SITE`: no latents; predicts the mean activation.
* `pca:SITE:RANK` or `pca:SITE:RANK:K`: principal components, all of them or each token's K largest.
* `random-directions:SITE:WIDTH:K`: random directions, each token's K largest projections.
* `random-codes:SOURCE`: as many latents per token as SOURCE, with its values and decoder, but random ones.
* `permuted-decoder:SOURCE`: SOURCE's latents, each writing another latent's direction.
* `random-decoder:SOURCE`: SOURCE's latents, each writing a random direction.
* `untrained:SOURCE`: SOURCE before training, at its L0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._crosscoder import Crosscoder
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._fitted_controls import (
    Calibration,
    mean_control,
    pca_control,
    random_directions,
    untrained,
)
from latentbench.adapters._identity import IdentityDictionary
from latentbench.adapters._random_codes import RandomCodesGate
from latentbench.adapters._routesae import RouteSae
from latentbench.adapters._sae import SparseAutoencoder
from latentbench.errors import AdapterError, UserError
from latentbench.identity import sha256_json
from latentbench.lm import LM, Site

__all__ = [
    "CONTROL_SCHEMES",
    "Calibration",
    "IdentityDictionary",
    "load_control",
    "permuted_decoder",
    "random_decoder",
    "with_random_codes",
]

D = TypeVar("D", bound=Dictionary)
_SHAPES = {
    "identity": "identity:SITE",
    "mean": "mean:SITE",
    "pca": "pca:SITE:RANK or pca:SITE:RANK:K",
    "random-directions": "random-directions:SITE:WIDTH:K",
    "random-codes": "random-codes:SOURCE",
    "permuted-decoder": "permuted-decoder:SOURCE",
    "random-decoder": "random-decoder:SOURCE",
    "untrained": "untrained:SOURCE",
}
CONTROL_SCHEMES = tuple(_SHAPES)
"""What a source of a control begins with, before a colon."""


def load_control(
    scheme: str,
    rest: str,
    lm: LM | None,
    load: Callable[[str], Dictionary],
    calibration: Calibration | None = None,
) -> Dictionary:
    """A control by the two parts of its source.

    Args:
        scheme: one of `CONTROL_SCHEMES`.
        rest: what follows the colon.
        lm: the model it will be used with, if known.
        load: loads the dictionary that a control is made from.
        calibration: activations for the controls that are fitted: mean, pca, and untrained where the sparsity of
            its source is not fixed by a k.

    Raises:
        UserError: the rest does not fit the scheme, or what the control needs is not given.
        AdapterError: it can't be made from this dictionary.
    """
    if scheme == "identity":
        return _identity(rest, lm)
    if scheme in ("mean", "pca", "random-directions"):
        return _of_site(scheme, rest, lm, calibration)
    source = load(rest)
    if scheme == "untrained":
        return untrained(source, calibration)
    make = {
        "random-codes": with_random_codes,
        "permuted-decoder": permuted_decoder,
        "random-decoder": random_decoder,
    }[scheme]
    return make(source)


def _identity(rest: str, lm: LM | None) -> IdentityDictionary:
    name, _, width = rest.partition(":")
    if not width and lm is None:
        raise UserError(f"identity:{rest} needs a width: load it with lm=..., or write identity:{name}:576")
    if width and not width.isdigit():
        raise UserError(f"identity:{rest}: {width!r} is not a width; write identity:{name}:576")
    site = lm.site(name) if lm is not None else Site.parse(name)
    d_model = int(width) if width else lm.d_model if lm is not None else 0
    return IdentityDictionary(site, d_model, torch.device("cpu"), torch.float32)


def _of_site(scheme: str, rest: str, lm: LM | None, calibration: Calibration | None) -> Dictionary:
    name, *numbers = rest.split(":")
    expected = {"mean": (0,), "pca": (1, 2), "random-directions": (2,)}[scheme]
    if len(numbers) not in expected or not all(part.isdigit() and int(part) > 0 for part in numbers):
        raise UserError(f"{scheme}:{rest} is no control: write {_SHAPES[scheme]}, with whole numbers above 0")
    sizes = [int(part) for part in numbers]
    site = lm.site(name) if lm is not None else Site.parse(name)
    if len(sizes) == 2 and sizes[1] > sizes[0]:
        raise UserError(f"{scheme}:{rest}: {sizes[1]} of {sizes[0]} latents can't be active")
    if scheme == "random-directions":
        if lm is None:
            raise UserError(
                f"{scheme}:{rest} needs to know the width of the activations: load it with lm=..."
            )
        return random_directions(site, lm.d_model, *sizes)
    if calibration is None:
        raise UserError(
            f"{scheme}:{rest} is fitted on activations: run it in a suite, or give load_dictionary(calibration=...)"
        )
    if scheme == "mean":
        return mean_control(site, calibration)
    return pca_control(site, sizes[0], sizes[-1], calibration)


def random_decoder(dictionary: D, seed: int = 0) -> D:
    """A copy that keeps its encoder but writes random directions of the same norms.

    Its latents activate exactly as the original's, so whatever depends on the directions alone must fall to
    chance, and whatever does not is no evidence for the directions.

    Raises:
        AdapterError: the dictionary has no decoder of its own.
    """

    def drawn(w_dec: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return _with_norms_of(torch.randn(w_dec.shape, generator=generator).to(w_dec), w_dec)

    return _redecoded(dictionary, _control_card(dictionary, "random-decoder", "random decoder", seed), drawn)


def permuted_decoder(dictionary: D, seed: int = 0) -> D:
    """A copy in which every latent writes another latent's direction, with its own norm.

    Unlike random directions these are ones that the model's activations do have. No latent keeps its own.

    Raises:
        AdapterError: the dictionary has no decoder of its own.
    """

    def permuted(w_dec: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(w_dec.shape[-2], generator=generator)
        donor = torch.empty_like(order)
        donor[order] = order.roll(1)  # one cycle through all latents
        return _with_norms_of(w_dec[..., donor.to(w_dec.device), :], w_dec)

    card = _control_card(dictionary, "permuted-decoder", "permuted decoder", seed)
    return _redecoded(dictionary, card, permuted)


def with_random_codes(dictionary: D, seed: int = 0) -> D:
    """A copy whose active latents are replaced by random ones, as many at every token; see `random_codes`.

    Raises:
        AdapterError: the dictionary has no gate.
    """
    card = _control_card(dictionary, "random-codes", "random codes", seed)

    def regated(sae: SparseAutoencoder, its: DictionaryCard) -> SparseAutoencoder:
        return SparseAutoencoder(its, sae.weights, RandomCodesGate(sae.gate, seed), sae.transform)

    made: Dictionary
    if isinstance(dictionary, SparseAutoencoder):
        made = regated(dictionary, _described(card, dictionary, seed))
    elif isinstance(dictionary, RouteSae):
        sae = regated(dictionary.sae, dictionary.sae.card)
        card = _described(card, dictionary.sae, seed)
        made = RouteSae(
            card, dictionary.router, sae, dictionary.pooling, dictionary.splice, dictionary.routing
        )
    elif isinstance(dictionary, Crosscoder):
        gate = RandomCodesGate(dictionary.gate, seed)
        card = _described(card, dictionary, seed)
        made = Crosscoder(card, dictionary.weights, gate, dictionary.transform)
    else:
        raise AdapterError(
            f"random-codes: {dictionary.card.name!r} is a {dictionary.card.family}: it has no gate whose choice of "
            "latents could be replaced"
        )
    return made  # type: ignore[return-value]  # each branch makes the class it was given


def _described(card: DictionaryCard, gated: SparseAutoencoder | Crosscoder, seed: int) -> DictionaryCard:
    options = {**card.options, **RandomCodesGate(gated.gate, seed).describe()}
    return card.model_copy(update={"options": options})


def _control_card(dictionary: Dictionary, scheme: str, words: str, seed: int) -> DictionaryCard:
    card = dictionary.card
    return card.model_copy(
        update={
            "name": f"{card.name}, {words}",
            "family": f"{card.family}-{scheme}",
            "source": f"{scheme}:{card.source}",
            "sha256": sha256_json([scheme, card.sha256, seed]),
            "control": True,
            "training": {},
        }
    )


def _redecoded(dictionary: D, card: DictionaryCard, change: Callable[[Tensor], Tensor]) -> D:
    """The dictionary with another decoder, of the same shape."""
    made: Dictionary
    if isinstance(dictionary, SparseAutoencoder):
        weights = replace(dictionary.weights, w_dec=change(dictionary.weights.w_dec))
        made = SparseAutoencoder(card, weights, dictionary.gate, dictionary.transform)
    elif isinstance(dictionary, RouteSae):
        sae = _redecoded(dictionary.sae, dictionary.sae.card, change)
        made = RouteSae(
            card, dictionary.router, sae, dictionary.pooling, dictionary.splice, dictionary.routing
        )
    elif isinstance(dictionary, Crosscoder):
        by_site = replace(dictionary.weights, w_dec=change(dictionary.weights.w_dec))
        made = Crosscoder(card, by_site, dictionary.gate, dictionary.transform)
    else:
        raise AdapterError(
            f"{card.source}: {dictionary.card.name!r} is a {dictionary.card.family}: it has no decoder to be replaced"
        )
    return made  # type: ignore[return-value]  # each branch makes the class it was given


def _with_norms_of(rows: Tensor, like: Tensor) -> Tensor:
    """The rows, each scaled to the norm of the row in its place."""
    have: Tensor = rows.norm(dim=-1, keepdim=True)
    want: Tensor = like.norm(dim=-1, keepdim=True)
    return rows / have.clamp(min=torch.finfo(rows.dtype).tiny) * want
