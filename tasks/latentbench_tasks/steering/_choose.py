"""What labelled documents say of each latent, and which latents a contrast of activations chooses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["ChoiceOptions", "Contrast", "Labelled", "Ranking", "Unit", "choice_item", "choose_latents"]

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


class Ranking(NamedTuple):
    """Latents in the order of a method, the best first."""

    latents: list[int]
    """May be empty."""
    scores: list[float]
    """What the method makes of each."""
    reason: str | None = None
    """Why there are none."""


class Labelled:
    """The watcher's items, read once for all concepts of a cell."""

    def __init__(
        self, items: Iterable[Mapping[str, Any]], decoder_norms: NDArray[np.float64], options: ChoiceOptions
    ) -> None:
        """Read the items.

        Args:
            items: the watcher's; others are passed over.
            decoder_norms: `Float[latent]`.
            options: see `ChoiceOptions`.
        """
        once = {item["document"]: item for item in items if item["kind"] == "contrast" and item["tokens"]}
        self.documents = list(once.values())
        self.options = options
        self._norms = decoder_norms
        self.n_latents = len(decoder_norms)
        self.density, self.peaks = self._activity()
        self.usable = self.peaks > 0
        self.dense_skipped = 0
        if options.max_density is not None:
            dense = self.density > options.max_density
            # A dictionary most of whose latents are that dense (the identity) has no sparse ones to prefer.
            if self.n_latents and dense.mean() <= 0.5:
                self.usable &= ~dense
                self.dense_skipped = int(dense.sum())

    def sides(self, concept: str) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        """Documents with a concept and without it."""
        return tuple(
            [one for one in self.documents if one["concepts"].get(concept) == side] for side in (1, -1)
        )  # type: ignore[return-value]

    def pooled(self, documents: Sequence[Mapping[str, Any]], field: str) -> NDArray[np.float64]:
        """`Float[document, latent]`: mean activation over tokens ("sums") or the largest one ("peaks"; 0 if none)."""
        found = np.zeros((len(documents), self.n_latents))
        for row, document in enumerate(documents):
            values = np.asarray(document[field], dtype=np.float64)
            latents = np.asarray(document["latents"], dtype=np.int64)
            found[row, latents] = values / document["tokens"] if field == "sums" else np.maximum(values, 0.0)
        return found

    def contrast(self, concept: str) -> Ranking:
        """All usable latents that are more active with a concept than without, by contrast.

        A document counts by its mean activation per token, so long documents don't outweigh short ones.
        """
        positives, negatives = self.sides(concept)
        if min(len(positives), len(negatives)) < 2:
            return Ranking([], [], "fewer than 2 labelled documents on a side")
        values = _contrast(
            self.pooled(positives, "sums"), self.pooled(negatives, "sums"), self._norms, self.options
        )
        return self.ranking(values, positive=True)

    def ranking(self, values: NDArray[np.float64], *, positive: bool) -> Ranking:
        """Usable latents by descending value; ties go to the lower index.

        Args:
            values: `Float[latent]`.
            positive: leave out those that aren't above 0.
        """
        values = np.where(self.usable, values, -np.inf)
        kept = values > 0 if positive else np.isfinite(values)
        order = [int(latent) for latent in np.argsort(-values, kind="stable") if kept[latent]]
        reason = None if order else "no usable latent is more active with the concept than without"
        return Ranking(order, [float(values[latent]) for latent in order], reason)

    def unit(self, latent: int) -> float:
        """What factor 1 adds of a latent."""
        if self.options.unit == "max":
            return float(self.peaks[latent])
        found = [
            peak
            for row in self.documents
            for index, peak in zip(row["latents"], row["peaks"], strict=True)
            if index == latent and peak > 0
        ]
        return float(np.quantile(found, 0.95))

    def _activity(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Share of tokens on which each latent is active, and its largest activation."""
        active = np.zeros(self.n_latents)
        peaks = np.full(self.n_latents, -np.inf)
        for row in self.documents:
            latents = np.asarray(row["latents"], dtype=np.int64)
            active[latents] += row["active"]
            peaks[latents] = np.maximum(peaks[latents], row["peaks"])
        return active / max(1, sum(row["tokens"] for row in self.documents)), peaks


def choice_item(labelled: Labelled, concept: str, method: str, ranking: Ranking) -> dict[str, Any]:
    """The first latents of a ranking as an item of kind "choice": `latents` may be empty, and then has a `reason`."""
    positives, negatives = labelled.sides(concept)
    best = ranking.latents[: labelled.options.n_latents]
    return {
        "kind": "choice",
        "concept": concept,
        "method": method,
        "positives": len(positives),
        "negatives": len(negatives),
        "dense_latents_skipped": labelled.dense_skipped,
        "latents": best,
        "reason": None if best else ranking.reason or "no latent was left to choose",
        "scores": ranking.scores[: len(best)],
        "units": [labelled.unit(latent) for latent in best],
        "densities": [float(labelled.density[latent]) for latent in best],
    }


def choose_latents(
    items: Iterable[Mapping[str, Any]],
    concepts: Sequence[str],
    decoder_norms: NDArray[np.float64],
    options: ChoiceOptions,
) -> list[dict[str, Any]]:
    """The latents of highest contrast for every concept, as items of kind "choice".

    Args:
        items: the watcher's items; others are passed over.
        concepts: ids of the concepts.
        decoder_norms: `Float[latent]`.
        options: see `ChoiceOptions`.
    """
    labelled = Labelled(items, decoder_norms, options)
    return [choice_item(labelled, concept, "contrast", labelled.contrast(concept)) for concept in concepts]


def _contrast(
    positives: NDArray[np.float64],
    negatives: NDArray[np.float64],
    decoder_norms: NDArray[np.float64],
    options: ChoiceOptions,
) -> NDArray[np.float64]:
    """`Float[latent]` from `Float[document, latent]` of either side."""
    difference = positives.mean(axis=0) - negatives.mean(axis=0)
    if options.contrast == "mean":
        return np.asarray(difference * decoder_norms, dtype=np.float64)
    deviations = positives.var(axis=0) * len(positives) + negatives.var(axis=0) * len(negatives)
    pooled = np.sqrt(deviations / max(len(positives) + len(negatives) - 2, 1))
    found = np.divide(difference, pooled, out=np.zeros_like(difference), where=pooled > 1e-12)
    return np.asarray(found, dtype=np.float64)
