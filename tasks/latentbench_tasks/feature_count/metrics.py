"""Counting latents by RouteSAE's rule from per-row items; no torch.

A latent's events above a threshold are grouped by token class; at most `per_class` of a class count; a latent is
kept if it has at least `min_contexts` counted contexts and at most `max_classes` classes.

The limit on classes makes the count fall again as more is watched, so the same count without it is given too, and
only counts that never fall are estimated further: how many latents there would be on an endless corpus, what share of
the activity is seen, what as many documents again would add (see `latentbench.stats.richness`).
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from latentbench.stats import (
    Estimate,
    Richness,
    SetCount,
    rarefaction,
    richness,
    subsample_count,
    unscored,
)
from latentbench.store import Curve, CurvePoint, Metric

__all__ = [
    "Events",
    "Rule",
    "active_latents",
    "kept_counter",
    "kept_latents",
    "pack_latents",
    "read_events",
    "recompute",
    "rule_of",
    "summarise",
    "unpack_latents",
]

Ints = NDArray[np.int64]
_CHUNK_CELLS = 4_000_000
"""Numbers that exist at once while sets of documents are counted."""


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


_PRESETS = {
    "paper": Rule(min_contexts=4, max_classes=None, per_class=2, one_per_document=False),
    "code": Rule(min_contexts=5, max_classes=32, per_class=2, one_per_document=False),
    "corrected": Rule(min_contexts=5, max_classes=32, per_class=2, one_per_document=True),
}


def rule_of(config: Mapping[str, Any]) -> Rule:
    """The preset of a task's options with the other options laid over it."""
    rule = _PRESETS[config["preset"]]._replace(per_class=config["per_class"])
    if config["min_contexts"] is not None:
        rule = rule._replace(min_contexts=config["min_contexts"])
    return rule if config["max_classes"] is None else rule._replace(max_classes=config["max_classes"])


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
    """Events above a threshold by (latent, class) pair; only of latents that all documents together keep."""

    hits: sparse.csr_array
    """`Float[pair, document]`: events of the pair that count."""
    members: sparse.csr_array
    """`Float[latent, pair]`: 1 where the pair is the latent's."""


def _groups(events: Events, threshold: float, rule: Rule) -> _Groups:
    above = events.strength > threshold
    documents = len(events.sizes)
    width = int(events.token_class.max(initial=0)) + 1
    names, pair = np.unique(events.latent[above] * width + events.token_class[above], return_inverse=True)
    joint, count = np.unique(pair * max(1, documents) + events.document[above], return_counts=True)
    pair, document = np.divmod(joint, max(1, documents))
    hits = np.minimum(count, 1 if rule.one_per_document else rule.per_class)
    # Contexts only grow with documents: a latent with too few on all of them is kept on none.
    counted = np.minimum(np.bincount(pair, weights=hits, minlength=len(names)), rule.per_class)
    latent = names // width
    contexts = np.bincount(latent, weights=counted, minlength=events.n_latents)
    possible = contexts[latent] >= rule.min_contexts
    place = np.cumsum(possible) - 1
    inside, pairs = possible[pair], int(possible.sum())
    return _Groups(
        sparse.csr_array(
            (hits[inside].astype(np.float64), (place[pair[inside]], document[inside])),
            shape=(pairs, documents),
        ),
        sparse.csr_array(
            (np.ones(pairs), (latent[possible], np.arange(pairs))), shape=(events.n_latents, pairs)
        ),
    )


def _kept(groups: _Groups, chosen: NDArray[np.bool_], rule: Rule) -> NDArray[np.bool_]:
    """`Bool[latent, draw]`: which latents the rule keeps on each set of documents, `Bool[draw, document]`."""
    per_pair = groups.hits @ chosen.T.astype(np.float64)
    kept: NDArray[np.bool_] = groups.members @ np.minimum(per_pair, rule.per_class) >= rule.min_contexts
    if rule.max_classes is not None:
        kept &= groups.members @ (per_pair > 0).astype(np.float64) <= rule.max_classes
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
    return np.flatnonzero(_kept(_groups(events, threshold, rule), documents[None], rule)[:, 0])


def kept_counter(events: Events, threshold: float, rule: Rule) -> SetCount:
    """How many latents the rule keeps on sets of documents, for `latentbench.stats.paired_ratio` and the like."""
    groups = _groups(events, threshold, rule)
    chunk = max(1, _CHUNK_CELLS // max(1, *groups.hits.shape, *groups.members.shape))

    def count(chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        parts = [
            _kept(groups, chosen[first : first + chunk], rule).sum(axis=0)
            for first in range(0, len(chosen), chunk)
        ]
        return np.concatenate(parts).astype(np.float64)

    return count


def pack_latents(latents: Ints, n_latents: int) -> str:
    """A set of latents as text: one bit for each latent of the dictionary, compressed."""
    bits = np.zeros(n_latents, dtype=np.uint8)
    bits[latents] = 1
    return base64.b64encode(zlib.compress(np.packbits(bits).tobytes(), 6)).decode("ascii")


def unpack_latents(text: str, n_latents: int) -> Ints:
    """The set of latents that `pack_latents` was given, ascending."""
    packed = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(packed, count=n_latents)).astype(np.int64)


def active_latents(rows: Sequence[dict[str, Any]]) -> tuple[Ints, Ints]:
    """Document and latent of every pair of them where the latent is active at all, in the order of `read_events`."""
    rows = sorted(rows, key=lambda item: (item["document"], item["start_token"]))
    places: dict[str, int] = {}
    documents, latents = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for item in rows:
        found = unpack_latents(item["active"], item["n_latents"])
        documents.append(np.full(len(found), places.setdefault(item["document"], len(places))))
        latents.append(found)
    return np.concatenate(documents), np.concatenate(latents)


def summarise(
    rows: Sequence[dict[str, Any]],
    thresholds: Sequence[float],
    headline: float,
    rule: Rule,
    rng: np.random.Generator,
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """Counts with intervals, richness, rarefaction curves, and how much was watched.

    Args:
        rows: the watcher's items.
        thresholds: on the paper's scale (d = 2,048).
        headline: the threshold that the board shows.
        rule: constants of the count.
        rng: source of the subsamples.
    """
    events = read_events(rows, min(thresholds))
    cell = _Cell(events, int(events.sizes.sum()), rng)
    metrics, curves = [], []
    for threshold in thresholds:
        scale = f"events above {threshold:g} on the scale of d = 2,048"
        for prefix, its, limit in (
            ("features", rule, "kept latents"),
            ("unlimited", rule._replace(max_classes=None), "kept latents, of any number of token classes"),
        ):
            shown = threshold == headline and prefix == "features"
            made, curve = cell.count(f"{prefix}_at_{threshold:g}", threshold, its, f"{limit}; {scale}", shown)
            metrics.append(made)
            curves += curve
        above = events.strength > threshold
        found = cell.richness(events.document[above], events.latent[above])
        metrics += _richness_metrics(found, f"_at_{threshold:g}", f"an event above {threshold:g}")
    active = cell.richness(*active_latents(rows))
    metrics += [_active_metric(active.observed, cell.tokens), *_richness_metrics(active, "_active", "active")]
    return (
        metrics,
        curves,
        {"documents": len(events.sizes), "rows": len(rows), "tokens": cell.tokens},
    )


def recompute(
    items: list[dict[str, Any]],
    judgements: list[dict[str, Any]],
    config: Mapping[str, Any],
    rng: np.random.Generator,
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """`summarise` of a stored cell, as entry points of `latentbench.metrics` are called.

    Args:
        items: what was measured.
        judgements: what was judged.
        config: the task's options, as the run record holds them.
        rng: source of the draws.
    """
    return summarise(
        [item for item in items if item["kind"] == "row"],
        config["thresholds"],
        config["headline"],
        rule_of(config),
        rng,
    )


@dataclass(frozen=True, eq=False)
class _Cell:
    """What is counted."""

    events: Events
    tokens: int
    rng: np.random.Generator

    def count(
        self, name: str, threshold: float, rule: Rule, what: str, headline: bool
    ) -> tuple[Metric, list[Curve]]:
        """A count with its interval, and its curve over tokens if there is more than one document."""
        sizes, width = self.events.sizes, self.events.n_latents
        counter = kept_counter(self.events, threshold, rule)
        estimate = (
            subsample_count(len(sizes), counter, self.rng, maximum=width)
            if len(sizes)
            else unscored("no tokens were watched", 0)
        )
        note = f"{what}; on {self.tokens:,} tokens, grows with them, so compare equal budgets only"
        metric = _metric(name, estimate, "latents", "higher", note, headline)
        return metric, [_curve(name, sizes, counter, self.rng, width)] if len(sizes) > 1 else []

    def richness(self, documents: Ints, latents: Ints) -> Richness:
        """Of the latents with something in some documents."""
        return richness(documents, latents, len(self.events.sizes), self.events.n_latents, self.rng)


def _metric(
    name: str,
    estimate: Estimate,
    unit: str,
    direction: Literal["higher", "lower", "none"],
    note: str,
    headline: bool = False,
) -> Metric:
    return Metric.from_estimate(
        name,
        estimate,
        resampling_unit="document",
        unit=unit,
        direction=direction,
        note=note,
        headline=headline,
    )


def _active_metric(estimate: Estimate, tokens: int) -> Metric:
    note = f"latents with a positive activation on one of {tokens:,} tokens, however weak"
    return _metric("active", estimate, "latents", "none", note)


def _richness_metrics(found: Richness, suffix: str, what: str) -> list[Metric]:
    bound = f"Chao2 lower bound of the latents with {what} on an endless corpus, from those in one and in two documents"
    if what == "active":
        bound = bound.replace("with active", "active")
    return [
        _metric(f"richness{suffix}", found.chao2, "latents", "none", bound),
        _metric(
            f"coverage{suffix}",
            found.coverage,
            "share",
            "none",
            "share of further (document, latent) pairs that belong to latents already seen (Chao and Jost)",
        ),
        _metric(
            f"doubling_gain{suffix}",
            found.doubling_gain,
            "share",
            "none",
            "growth of the latents seen that as many documents again are expected to bring",
        ),
    ]


def _curve(name: str, sizes: Ints, counter: SetCount, rng: np.random.Generator, n_latents: int) -> Curve:
    budgets = [int(sizes.sum() * share) for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)]
    points = rarefaction(sizes, counter, budgets, rng, permutations=50, maximum=n_latents)
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
