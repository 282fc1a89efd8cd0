"""Counting latents by RouteSAE's rule from per-row items; no torch.

A latent's events above a threshold are grouped by token class; at most `per_class` of a class count; a latent is
kept if it has at least `min_contexts` counted contexts and at most `max_classes` classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from latentbench.stats import per_set, rarefaction, subsample_count, unscored
from latentbench.store import Curve, CurvePoint, Metric

__all__ = ["Events", "Rule", "kept_latents", "read_events", "summarise"]

Ints = NDArray[np.int64]


class Rule(NamedTuple):
    """The constants of the count."""

    min_contexts: int
    """Counted contexts a latent needs."""
    max_classes: int | None
    """Most token classes it may have; None sets no limit."""
    per_class: int
    """Contexts of one class that count."""
    one_per_document: bool
    """Whether a document gives at most one context of a class."""


class Events(NamedTuple):
    """All events of a cell as columns of equal length."""

    document: Ints
    """Place of the document among the watched ones."""
    latent: Ints
    """The latent."""
    token_class: Ints
    """The token's class."""
    strength: NDArray[np.float64]
    """Activation on the paper's scale."""
    sizes: Ints
    """Measured tokens of each document."""
    n_latents: int
    """Width of the dictionary."""


def read_events(rows: Sequence[dict[str, Any]], threshold: float = 0.0) -> Events:
    """The events of row items above a threshold, in an order that does not depend on how rows were batched."""
    rows = sorted(rows, key=lambda item: (item["document"], item["start_token"]))
    places: dict[str, int] = {}
    documents, latents, classes, strengths = [], [], [], []
    sizes: list[int] = []
    for item in rows:
        place = places.setdefault(item["document"], len(places))
        if place == len(sizes):
            sizes.append(0)
        sizes[place] += item["tokens"]
        lengths = [len(columns) for columns in item["columns"]]
        columns = np.asarray([c for cs in item["columns"] for c in cs], dtype=np.int64)
        documents.append(np.full(len(columns), place))
        latents.append(np.repeat(np.asarray(item["latents"], dtype=np.int64), lengths))
        classes.append(np.asarray(item["classes"], dtype=np.int64)[columns])
        strengths.append(np.asarray([s for ss in item["strengths"] for s in ss], dtype=np.float64))
    strength = np.concatenate([*strengths, np.empty(0)])
    above, empty = strength > threshold, np.empty(0, dtype=np.int64)
    return Events(
        np.concatenate([*documents, empty])[above].astype(np.int64),
        np.concatenate([*latents, empty])[above],
        np.concatenate([*classes, empty])[above],
        strength[above],
        np.asarray(sizes, dtype=np.int64),
        rows[0]["n_latents"] if rows else 0,
    )


class _Groups(NamedTuple):
    """Events above a threshold, one entry a (document, latent, class)."""

    document: Ints
    pair: Ints
    """Place of the (latent, class) pair."""
    hits: Ints
    """Events of it that count."""
    latent_of_pair: Ints


def _groups(events: Events, threshold: float, rule: Rule) -> _Groups:
    above = events.strength > threshold
    width = int(events.token_class.max(initial=0)) + 1
    pair = events.latent[above] * width + events.token_class[above]
    names, pair = np.unique(pair, return_inverse=True)
    joint, count = np.unique(events.document[above] * max(1, len(names)) + pair, return_counts=True)
    document, pair = np.divmod(joint, max(1, len(names)))
    cap = 1 if rule.one_per_document else rule.per_class
    return _Groups(document, pair, np.minimum(count, cap), names // width)


def _kept(groups: _Groups, chosen: NDArray[np.bool_], rule: Rule, n_latents: int) -> NDArray[np.bool_]:
    """`Bool[latent]`: which latents the rule keeps on the chosen documents."""
    inside = chosen[groups.document]
    per_pair = np.bincount(
        groups.pair[inside], weights=groups.hits[inside], minlength=len(groups.latent_of_pair)
    )
    contexts = np.bincount(
        groups.latent_of_pair, weights=np.minimum(per_pair, rule.per_class), minlength=n_latents
    )
    kept: NDArray[np.bool_] = contexts >= rule.min_contexts
    if rule.max_classes is not None:
        classes = np.bincount(groups.latent_of_pair, weights=per_pair > 0, minlength=n_latents)
        kept &= classes <= rule.max_classes
    return kept


def kept_latents(
    events: Events, threshold: float, rule: Rule, documents: NDArray[np.bool_] | None = None
) -> Ints:
    """The latents kept on some documents, ascending.

    Args:
        events: see `read_events`.
        threshold: on the paper's scale (d = 2,048); an event lies strictly above it.
        rule: constants of the count.
        documents: `Bool[document]`, which ones to count on; None takes all.
    """
    if documents is None:
        documents = np.ones(len(events.sizes), dtype=bool)
    return np.flatnonzero(_kept(_groups(events, threshold, rule), documents, rule, events.n_latents))


def summarise(
    rows: Sequence[dict[str, Any]],
    thresholds: Sequence[float],
    headline: float,
    rule: Rule,
    rng: np.random.Generator,
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """Counts with intervals, rarefaction curves, and how much was watched.

    Args:
        rows: the watcher's items.
        thresholds: on the paper's scale (d = 2,048).
        headline: the threshold that the board shows.
        rule: constants of the count.
        rng: source of the subsamples.
    """
    events = read_events(rows, min(thresholds))
    tokens, documents = int(events.sizes.sum()), len(events.sizes)
    metrics, curves = [], []
    for threshold in thresholds:
        groups = _groups(events, threshold, rule)

        def count(members: Ints, groups: _Groups = groups) -> float:
            chosen = np.zeros(documents, dtype=bool)
            chosen[members] = True
            return float(_kept(groups, chosen, rule, events.n_latents).sum())

        estimate = (
            subsample_count(documents, per_set(count), rng, maximum=events.n_latents)
            if documents
            else unscored("no tokens were watched", 0)
        )
        name = f"features_at_{threshold:g}"
        metrics.append(
            Metric.from_estimate(
                name,
                estimate,
                resampling_unit="document",
                unit="latents",
                direction="higher",
                note=f"kept latents on {tokens:,} tokens, events above {threshold:g} on the scale of d = 2,048; "
                "grows with the tokens watched, so compare equal budgets only",
                headline=threshold == headline,
            )
        )
        if documents > 1:
            curves.append(_curve(name, events.sizes, count, rng, events.n_latents))
    return metrics, curves, {"documents": documents, "rows": len(rows), "tokens": tokens}


def _curve(name: str, sizes: Ints, count: Any, rng: np.random.Generator, n_latents: int) -> Curve:
    budgets = [int(sizes.sum() * share) for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)]
    points = rarefaction(sizes, per_set(count), budgets, rng, permutations=50, maximum=n_latents)
    return Curve(
        name=name,
        x_name="tokens watched",
        x_unit="tokens",
        unit="latents",
        points=[
            CurvePoint(x=p.reached, value=p.estimate.value, low=p.estimate.low, high=p.estimate.high)
            for p in points
        ],
        note="mean over random orders of the documents; the band is for another sample of that size",
    )
