"""Which latents steer a concept: contrast of mean activations over labelled documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["ChoiceOptions", "Contrast", "Unit", "choose_latents", "contrast"]

Contrast = Literal["effect_size", "mean"]
Unit = Literal["max", "p95"]


class ChoiceOptions(NamedTuple):
    """How latents are chosen."""

    contrast: Contrast
    """"effect_size" divides the difference of means by the pooled standard deviation over documents (Cohen's
    d), "mean" multiplies it by the norm of the latent's decoder row. Neither changes when a latent is
    rescaled."""
    unit: Unit
    """Amount that factor 1 adds: the largest activation on the labelled texts, or the 95th percentile over
    documents (those in which the latent is active) of the document's largest activation."""
    n_latents: int
    """How many latents to choose."""
    max_density: float | None
    """Latents active on more than this share of tokens are passed over: they are on in nearly every text, so
    the difference of their means says more about the texts' style or length than about a concept."""


class _Tally:
    """Running totals over documents of one side of a concept."""

    def __init__(self, n_latents: int) -> None:
        self.documents = 0
        self.total = np.zeros(n_latents)
        self.squares = np.zeros(n_latents)

    def add(self, latents: NDArray[np.int64], means: NDArray[np.float64]) -> None:
        self.documents += 1
        self.total[latents] += means
        self.squares[latents] += means**2

    def mean(self) -> NDArray[np.float64]:
        return self.total / self.documents

    def deviations(self) -> NDArray[np.float64]:
        """Sum of squared deviations from the mean."""
        return np.maximum(self.squares - self.total**2 / self.documents, 0.0)


def choose_latents(
    items: Iterable[Mapping[str, Any]],
    concepts: Sequence[str],
    decoder_norms: NDArray[np.float64],
    options: ChoiceOptions,
) -> list[dict[str, Any]]:
    """The latents of every concept, as items of kind "choice".

    Args:
        items: the watcher's items; others are passed over.
        concepts: ids of the concepts.
        decoder_norms: `Float[latent]`.
        options: see `ChoiceOptions`.

    Returns:
        One item per concept with `latents`, `contrasts`, `units`, `densities` and the numbers of documents,
        or an empty list of latents and the `reason`.
    """
    once = {item["document"]: item for item in items if item["kind"] == "contrast" and item["tokens"]}
    rows = list(once.values())
    n_latents = len(decoder_norms)
    density, peaks = _activity(rows, n_latents)
    usable = peaks > 0
    skipped = 0
    if options.max_density is not None:
        dense = density > options.max_density
        # A dictionary most of whose latents are that dense (the identity) has no sparse ones to prefer.
        if n_latents and dense.mean() <= 0.5:
            usable &= ~dense
            skipped = int(dense.sum())
    chosen: list[dict[str, Any]] = []
    for concept in concepts:
        positives, negatives = _tallies(rows, concept, n_latents)
        item = {
            "kind": "choice",
            "concept": concept,
            "positives": positives.documents,
            "negatives": negatives.documents,
            "dense_latents_skipped": skipped,
        }
        if min(positives.documents, negatives.documents) < 2:
            chosen.append({**item, "latents": [], "reason": "fewer than 2 labelled documents on a side"})
            continue
        values = np.where(usable, contrast(positives, negatives, decoder_norms, options.contrast), -np.inf)
        best = [
            int(latent)
            for latent in np.argsort(-values, kind="stable")[: options.n_latents]
            if values[latent] > 0
        ]
        units = [_unit(rows, latent, peaks, options.unit) for latent in best]
        chosen.append(
            {
                **item,
                "latents": best,
                "reason": None if best else "no usable latent is more active with the concept than without",
                "contrasts": [float(values[latent]) for latent in best],
                "units": units,
                "densities": [float(density[latent]) for latent in best],
            }
        )
    return chosen


def contrast(
    positives: _Tally, negatives: _Tally, decoder_norms: NDArray[np.float64], kind: Contrast
) -> NDArray[np.float64]:
    """`Float[latent]`: how much more active each latent is in documents with the concept than without.

    A document counts by its mean activation per token, so long documents don't outweigh short ones.
    """
    difference = positives.mean() - negatives.mean()
    if kind == "mean":
        return difference * decoder_norms
    freedom = positives.documents + negatives.documents - 2
    pooled = np.sqrt((positives.deviations() + negatives.deviations()) / max(freedom, 1))
    return np.divide(difference, pooled, out=np.zeros_like(difference), where=pooled > 1e-12)


def _activity(
    rows: Sequence[Mapping[str, Any]], n_latents: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Share of tokens on which each latent is active, and its largest activation."""
    active = np.zeros(n_latents)
    peaks = np.full(n_latents, -np.inf)
    for row in rows:
        latents = np.asarray(row["latents"], dtype=np.int64)
        active[latents] += row["active"]
        peaks[latents] = np.maximum(peaks[latents], row["peaks"])
    return active / max(1, sum(row["tokens"] for row in rows)), peaks


def _tallies(rows: Sequence[Mapping[str, Any]], concept: str, n_latents: int) -> tuple[_Tally, _Tally]:
    sides = {1: _Tally(n_latents), -1: _Tally(n_latents)}
    for row in rows:
        side = row["concepts"].get(concept)
        if side is not None:
            latents = np.asarray(row["latents"], dtype=np.int64)
            sides[side].add(latents, np.asarray(row["sums"], dtype=np.float64) / row["tokens"])
    return sides[1], sides[-1]


def _unit(rows: Sequence[Mapping[str, Any]], latent: int, peaks: NDArray[np.float64], kind: Unit) -> float:
    if kind == "max":
        return float(peaks[latent])
    found = [
        peak
        for row in rows
        for index, peak in zip(row["latents"], row["peaks"], strict=True)
        if index == latent and peak > 0
    ]
    return float(np.quantile(found, 0.95))
