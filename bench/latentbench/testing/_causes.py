"""Why a dictionary reconstructs badly: it is tried again as it would be if one known mistake were undone.

Each attempt undoes one mistake (the site is off by one, the input should have been normalised, a matrix is
transposed) and measures the error again. A mistake is the likely cause if undoing it makes the error much smaller,
and smaller than undoing any other. Nothing is learnt from names or configurations, only from reconstructions.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from latentbench.adapters import Dictionary, InputTransform, RouteSae, SaeWeights, SparseAutoencoder, Written
from latentbench.errors import UserError
from latentbench.lm import Site
from latentbench.testing._subject import Acts, Subject, filled, misfit

__all__ = ["MUCH_BETTER", "Attempt", "Diagnosis", "diagnose"]

MUCH_BETTER = 0.85
"""An attempt counts if its error is below this share of the declared error. Measured on SmolLM2-135M with a TopK SAE
of resid_post.21 under standardised input: at the right site its neighbours have 1.4 times the error and other
normalisations at least as much; declared one site off, the right site has 0.7 times the error."""
_TIED = 1.1
"""Attempts within this factor of the best one are all named."""
_FITTED = 2.0
"""What the error of an attempt with a fitted factor counts for: a free factor makes up for part of other mistakes."""
_EXPLAINED = 0.9
"""An attempt whose error is above this explains nothing, however bad the declared one is."""
_NEGLIGIBLE = 1e-3
"""A declared error below this needs no explanation."""

Run = Callable[[Acts], Mapping[Site, Written]]


class Attempt(NamedTuple):
    """The dictionary with one mistake undone."""

    check: str
    """Check that this belongs to ("site", "normalisation", ...)."""
    cause: str
    """The mistake in two or three words."""
    setting: str
    """What was tried, as a phrase ("at resid_post.20")."""
    instead: str
    """What to do if this is it."""
    error: float
    """Typical error on the sample, see `Misfit`."""

    @property
    def weight(self) -> float:
        """The error as attempts are compared by."""
        return self.error * (_FITTED if self.check == "output scale" else 1.0)


class Diagnosis(NamedTuple):
    """The declared setting and everything that was tried instead."""

    declared: float
    """Typical error of the dictionary as it is, on the same sample as the attempts."""
    attempts: tuple[Attempt, ...]
    """In a fixed order."""

    def of(self, check: str) -> tuple[Attempt, ...]:
        """The attempts of one check."""
        return tuple(attempt for attempt in self.attempts if attempt.check == check)

    @property
    def likely(self) -> tuple[Attempt, ...]:
        """The attempts that explain the error, best first; none if nothing tried makes it much smaller."""
        if not self.attempts or self.declared < _NEGLIGIBLE:
            return ()
        best = min(attempt.weight for attempt in self.attempts)
        limit = min(best * _TIED, self.declared * MUCH_BETTER, _EXPLAINED)
        found = (attempt for attempt in self.attempts if attempt.weight <= limit)
        return tuple(sorted(found, key=lambda attempt: attempt.weight))


def diagnose(subject: Subject) -> Diagnosis:
    """Measure the dictionary as declared and with each known mistake undone; needs a model."""
    acts = subject.sample(subject.sites)
    feed = {site: acts[site] for site in subject.dictionary.reads}
    target = {site: acts[site] for site in subject.dictionary.writes}
    declared = misfit(_run(subject.dictionary), feed, target).typical
    attempts = [
        *_sites(subject),
        *(_measured(one, feed, target) for one in _normalisations(subject.dictionary, feed)),
        *(_measured(one, feed, target) for one in _pre_biases(subject.dictionary)),
        *(_measured(one, feed, target) for one in _orientations(subject.dictionary)),
        *(_measured(one, feed, target) for one in _scales(subject.dictionary, feed, target)),
    ]
    return Diagnosis(declared, tuple(attempts))


class _Trial(NamedTuple):
    check: str
    cause: str
    setting: str
    instead: str
    run: Run


def _measured(trial: _Trial, feed: Acts, target: Acts) -> Attempt:
    error = misfit(trial.run, feed, target).typical
    return Attempt(trial.check, trial.cause, trial.setting, trial.instead, error)


def _run(dictionary: Dictionary) -> Run:
    return lambda feed: dictionary.decode(dictionary.encode(feed))


def _sites(subject: Subject) -> Iterator[Attempt]:
    """Every site moved by the same number of layers, and other kinds of sites in the same layers."""
    assert subject.lm is not None
    layers = subject.lm.n_layers
    moves: list[Callable[[Site], Site | None]] = [
        *(partial(_shifted, offset=offset) for offset in range(-layers, layers) if offset),
        *(
            partial(_of_kind, kind=kind)
            for kind in ("resid_mid", "resid_post", "mlp_in", "mlp_out", "attn_out")
        ),
    ]
    subject.sample(sorted({site for move in moves for site in _moved(subject, move).values()}))  # in one pass
    for move in moves:
        attempt = _at(subject, move)
        if attempt is not None:
            yield attempt


def _moved(subject: Subject, move: Callable[[Site], Site | None]) -> dict[Site, Site]:
    """Where every site of the dictionary would go; empty if the model lacks one, or nothing would move."""
    assert subject.lm is not None
    moved: dict[Site, Site] = {}
    for site in subject.sites:
        place = move(site)
        try:
            if place is None or place == site:
                return {}
            moved[site] = subject.lm.site(place)
        except UserError:  # the model has no such site
            return {}
    return moved if len({*moved.values()}) == len(moved) else {}


def _at(subject: Subject, move: Callable[[Site], Site | None]) -> Attempt | None:
    """The dictionary at other sites; None if they don't exist."""
    dictionary, moved = subject.dictionary, _moved(subject, move)
    if not moved:
        return None
    acts = subject.sample(tuple(moved.values()))
    feed = {site: acts[moved[site]] for site in dictionary.reads}
    target = {site: acts[moved[site]] for site in dictionary.writes}
    shown = [str(moved[site]) for site in subject.sites]
    where = shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"
    error = misfit(_run(dictionary), feed, target).typical
    return Attempt(
        "site", "wrong site", f"at {where}", f"Declare {where} if that is where it was trained.", error
    )


def _shifted(site: Site, offset: int) -> Site | None:
    if site.layer is None:
        return Site("resid_post", offset - 1) if offset > 0 else None
    if site.layer + offset < 0:
        return Site("embed") if site.kind == "resid_post" and site.layer + offset == -1 else None
    return Site(site.kind, site.layer + offset)


def _of_kind(site: Site, kind: str) -> Site | None:
    return None if site.layer is None or site.kind in (kind, "attn_z") else Site(kind, site.layer)


def _normalisations(dictionary: Dictionary, feed: Acts) -> Iterator[_Trial]:
    """Input transforms other than the declared one, and one scale for all tokens."""
    declared = dictionary.card.normalisation
    if dictionary.reads != dictionary.writes:  # what a transcoder writes isn't in the units of what it reads
        return
    named = {
        "standardise": "with every token standardised (as RouteSAE, or SAELens' layer_norm)",
        "constant_norm": "with every token scaled to norm sqrt(d)",
        "none": "without input normalisation",
    }
    for kind, setting in named.items():
        same = declared == kind or {declared, kind} == {"standardise", "layer_norm"}
        run = None if same else _normalised(dictionary, kind)
        if run is not None:
            verb = "Undo" if kind == "none" else "Declare"
            name = declared if kind == "none" else kind
            cause = "needless normalisation" if kind == "none" else "forgotten normalisation"
            yield _Trial("normalisation", cause, setting, f"{verb} the input normalisation {name!r}.", run)
    if declared != "none":
        return
    width = math.sqrt(dictionary.card.d_model)
    length = float(torch.cat([value.float().norm(dim=1) for value in feed.values()]).median())
    for goal, words in ((width, "sqrt(d)"), (1.0, "1")):
        factor = goal / length if length > 0 else 1.0
        if not 0.8 < factor < 1.25:
            yield _Trial(
                "normalisation",
                "forgotten normalisation",
                f"with all activations multiplied by {factor:.3g} (median norm {words})",
                "Fold the factor that training multiplied activations by into the weights.",
                partial(_rescaled, dictionary, factor=factor),
            )


def _normalised(dictionary: Dictionary, kind: str) -> Run | None:
    """The dictionary under another transform; None where its own can't be taken off."""
    transform = InputTransform(kind)  # type: ignore[arg-type]
    sae = _inner(dictionary)
    if sae is not None:
        return _run(_with_sae(dictionary, SparseAutoencoder(sae.card, sae.weights, sae.gate, transform)))
    if dictionary.card.normalisation != "none":
        return None

    def run(feed: Acts) -> Mapping[Site, Written]:
        inputs = {site: transform.apply(value) for site, value in feed.items()}
        codes = dictionary.encode({site: value.acts for site, value in inputs.items()})
        undone = {}
        for site, written in dictionary.decode(codes).items():
            rows = slice(None) if written.rows is None else written.rows
            context = {name: value[rows] for name, value in inputs[site].context.items()}
            undone[site] = Written(written.rows, transform.undo(written.values, context))
        return undone

    return run


def _rescaled(dictionary: Dictionary, feed: Acts, factor: float) -> Mapping[Site, Written]:
    written = dictionary.decode(dictionary.encode({site: value * factor for site, value in feed.items()}))
    return {site: Written(one.rows, one.values / factor) for site, one in written.items()}


def _pre_biases(dictionary: Dictionary) -> Iterator[_Trial]:
    """The decoder bias subtracted before encoding where it isn't, and not subtracted where it is."""
    sae = _inner(dictionary)
    if sae is not None:
        bias = sae.weights.b_dec if sae.weights.b_pre is None else None
        if bias is None:
            yield _Trial(
                "pre-bias",
                "needless pre-bias",
                "without a bias subtracted before encoding",
                "Leave b_pre out: this encoder was trained on the activation itself.",
                _run(_with_weights(dictionary, sae, replace(sae.weights, b_pre=None))),
            )
        elif bias.shape == (sae.weights.w_enc.shape[1],):
            yield _forgotten(_run(_with_weights(dictionary, sae, replace(sae.weights, b_pre=bias))))
    elif dictionary.reads == dictionary.writes and dictionary.card.normalisation == "none":
        yield _forgotten(partial(_less_bias, dictionary))


def _forgotten(run: Run) -> _Trial:
    return _Trial(
        "pre-bias",
        "forgotten pre-bias",
        "with the decoder bias subtracted before encoding",
        "Subtract the decoder bias before encoding (b_pre = b_dec).",
        run,
    )


def _less_bias(dictionary: Dictionary, feed: Acts) -> Mapping[Site, Written]:
    """A dictionary of another family, fed with its input less what it writes when no latent is active."""
    codes = dictionary.encode(feed)
    silent = dictionary.decode(codes.keep(torch.zeros_like(codes.latents, dtype=torch.bool)))
    bias = {site: filled(written, feed[site])[0] for site, written in silent.items()}
    return dictionary.decode(
        dictionary.encode(
            {site: value - bias.get(site, torch.zeros_like(value)) for site, value in feed.items()}
        )
    )


def _orientations(dictionary: Dictionary) -> Iterator[_Trial]:
    """Square matrices, which a shape can't tell from their transpose, the other way round."""
    sae = _inner(dictionary)
    if sae is None:
        return
    weights = sae.weights
    if weights.w_enc.shape[0] != weights.w_enc.shape[1] or weights.w_enc.shape != weights.w_dec.shape:
        return
    turned: tuple[tuple[str, dict[str, Tensor]], ...] = (
        ("encoder", {"w_enc": weights.w_enc.T}),
        ("decoder", {"w_dec": weights.w_dec.T}),
        ("encoder and decoder", {"w_enc": weights.w_enc.T, "w_dec": weights.w_dec.T}),
    )
    for name, changes in turned:
        yield _Trial(
            "orientation",
            f"transposed {name}",
            f"with the {name} transposed",
            f"Transpose the {name} when the checkpoint is read: a row for every latent is wanted.",
            _run(_with_weights(dictionary, sae, replace(weights, **changes))),
        )


def _scales(dictionary: Dictionary, feed: Acts, target: Acts) -> Iterator[_Trial]:
    """What latents write, multiplied by the one factor that fits best."""
    codes = dictionary.encode(feed)
    silent = dictionary.decode(codes.keep(torch.zeros_like(codes.latents, dtype=torch.bool)))
    product = square = 0.0
    for site, written in dictionary.decode(codes).items():
        base = silent[site].values
        rows = slice(None) if written.rows is None else written.rows
        part = (written.values - base).double()
        product += float((part * (target[site][rows] - base)).sum())
        square += float(part.square().sum())
    factor = product / square if square > 0 else 1.0
    if not math.isfinite(factor) or 0.67 < factor < 1.5:
        return

    def run(acts: Acts) -> Mapping[Site, Written]:
        found = dictionary.encode(acts)
        return dictionary.decode(found.with_values(found.values * factor))

    yield _Trial(
        "output scale",
        "decoder of another scale",
        f"with every latent writing {factor:.3g} times as much",
        "Look for decoder norms or an activation scale that were folded once too often or not at all.",
        run,
    )


def _inner(dictionary: Dictionary) -> SparseAutoencoder | None:
    """The affine encoder and decoder inside, where there are such."""
    if isinstance(dictionary, RouteSae):
        return dictionary.sae
    return dictionary if isinstance(dictionary, SparseAutoencoder) else None


def _with_sae(dictionary: Dictionary, sae: SparseAutoencoder) -> Dictionary:
    if not isinstance(dictionary, RouteSae):
        return sae
    changed = copy.copy(dictionary)
    changed.sae = sae
    return changed


def _with_weights(dictionary: Dictionary, sae: SparseAutoencoder, weights: SaeWeights) -> Dictionary:
    return _with_sae(dictionary, SparseAutoencoder(sae.card, weights, sae.gate, sae.transform))
