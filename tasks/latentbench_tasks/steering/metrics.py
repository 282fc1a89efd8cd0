"""Metrics of the steering task from its stored items; no torch.

The factor of each concept is chosen on the `select` prompts and scored on the `test` prompts, because the
maximum over factors is biased upwards on the prompts it was taken on: with 14 factors and 5 prompts a true
score of 0.14 shows as 0.56. Concepts are the resampling unit; a concept's prompts go along with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from latentbench.stats import Estimate, bootstrap, mean, ratio, unscored
from latentbench.store import Curve, CurvePoint, Metric
from latentbench_tasks.steering._judged import Book, Choice, Rules, choose_factors, read_items

__all__ = ["recompute", "summarise"]

_SHARE = (0.0, 1.0)
_CHANGE = (-1.0, 1.0)


class _Spec(NamedTuple):
    """How one metric over concepts is reported."""

    unit: str
    direction: Literal["higher", "lower", "none"]
    note: str
    bounds: tuple[float, float] | None
    headline: bool = False


_SPECS = {
    "success": _Spec(
        "share",
        "higher",
        "test prompts at the factor chosen per concept on the select prompts; concept, fluency "
        "and repetition thresholds all met",
        _SHARE,
        headline=True,
    ),
    "success_unsteered": _Spec("share", "none", "the same for unsteered texts: the floor", _SHARE),
    "lift": _Spec("share", "higher", "success less success_unsteered, paired by concept", _CHANGE),
    "success_on_selection": _Spec(
        "share", "none", "success on the select prompts that the factor was chosen on: biased upwards", _SHARE
    ),
    "selection_gap": _Spec("share", "none", "success_on_selection less success", _CHANGE),
    "concept_gain": _Spec(
        "probability",
        "higher",
        "concept probability less that of the unsteered texts, whatever the form",
        _CHANGE,
    ),
    "fluency_change": _Spec(
        "nats/token",
        "higher",
        "mean log-probability of the generated tokens under the unsteered model, less that of the "
        "unsteered texts",
        None,
    ),
    "keyword_rate": _Spec("share", "higher", "test texts with a word of the concept's lexicon", _SHARE),
    "keyword_rate_unsteered": _Spec("share", "none", "the same for unsteered texts: the floor", _SHARE),
    "boundary_share": _Spec(
        "share", "lower", "concepts whose chosen factor is the smallest or largest of the grid", _SHARE
    ),
}
_FIELDS: dict[str, tuple[str, tuple[float, float] | None]] = {
    "success": ("share", _SHARE),
    "probability": ("probability", _SHARE),
    "fluency": ("nats/token", None),
}
"""Unit and bounds of what is drawn over the factor."""
_FIXED = _Spec(
    "share",
    "higher",
    "as success, with one factor for all concepts, chosen on all their select prompts",
    _SHARE,
)
_RANDOM = _Spec(
    "share",
    "none",
    "as success, for a random direction of the same norm through the same choice of factor",
    _SHARE,
)
_OVER_RANDOM = _Spec("share", "higher", "success less success_random_direction, paired by concept", _CHANGE)
_COVERAGE = _Spec("share", "higher", "concepts with a usable scorer for which a latent was found", _SHARE)
_ADJUSTED = _Spec(
    "share", "higher", "as success, concepts without a latent counting with their unsteered success", _SHARE
)
_SCORER = _Spec(
    "AUROC", "none", "held-out AUROC of the concepts' text classifiers, all requested concepts", _SHARE
)


def summarise(
    items: Sequence[Mapping[str, Any]], config: Mapping[str, Any], rng: np.random.Generator
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """Metrics, curves and counts of one cell.

    Args:
        items: its stored items.
        config: the task's options, as the run record holds them.
        rng: source of the bootstrap.
    """
    book = read_items(items, Rules.of(config))
    concepts = book.scored_concepts()
    choice = choose_factors(book, "latent", concepts)
    rows = {name: _concept_row(book, "latent", name, index) for name, index in choice.by_concept.items()}
    metrics = [
        _metric(name, spec, [row[name] for row in rows.values()], rng) for name, spec in _SPECS.items()
    ]
    metrics.append(_fixed(book, choice, rng))
    metrics += _coverage(book, rows, rng)
    metrics += _random_control(book, rows, rng)
    half = "test" if config["test_factors"] == "all" else "select"
    curves = [_curve(book, list(rows), half, field, rng) for field in ("success", "probability", "fluency")]
    counts = {
        "concepts": len(rows),
        "concepts_requested": len(book.scorers),
        "concepts_excluded_by_scorer": len(book.scorers) - len(book.usable_concepts()),
        "concepts_without_latent": len(book.usable_concepts()) - len(concepts),
        **book.counts,
    }
    return metrics, curves, counts


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
    return summarise(items, config, rng)


def _concept_row(book: Book, direction: str, concept: str, index: int) -> dict[str, float]:
    """Every per-concept number, by metric name; `index` is the chosen factor's place in the grid."""

    def test(field: str) -> float:
        return float(book.mean(direction, concept, "test", field)[index])

    def plain(field: str) -> float:
        return book.unsteered_mean(concept, "test", field)

    on_selection = float(book.mean(direction, concept, "select", "success")[index])
    success, floor = test("success"), plain("success")
    return {
        "success": success,
        "success_unsteered": floor,
        "lift": success - floor,
        "success_on_selection": on_selection,
        "selection_gap": on_selection - success,
        "concept_gain": test("probability") - plain("probability"),
        "fluency_change": test("fluency") - plain("fluency"),
        "keyword_rate": test("keyword"),
        "keyword_rate_unsteered": plain("keyword"),
        "boundary_share": float(index in (0, len(book.rules.factors) - 1)),
    }


def _fixed(book: Book, choice: Choice, rng: np.random.Generator) -> Metric:
    """Success with one factor for all concepts. The bootstrap chooses that factor anew in every draw."""
    names = list(choice.by_concept)
    if choice.fixed is None:
        return _metric("success_fixed_factor", _FIXED, [], rng)
    select = np.array([book.mean("latent", name, "select", book.rules.choose_by) for name in names])
    test = np.array([book.mean("latent", name, "test", "success") for name in names])
    factor = book.rules.factors[choice.fixed]
    spec = _FIXED._replace(note=f"{_FIXED.note}; here factor {factor:g}")
    if not np.all(np.isfinite(test)):  # other factors were not generated on the test prompts
        return _metric("success_fixed_factor", spec, test[:, choice.fixed].tolist(), rng)
    statistic = _choose_then_test(len(book.rules.factors))
    units = np.hstack([select, test, np.ones((len(names), 1))])
    return _as_metric(
        "success_fixed_factor", spec, _estimate(units, statistic, test[:, choice.fixed], spec, rng)
    )


def _choose_then_test(n_factors: int) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    def statistic(totals: NDArray[np.float64]) -> NDArray[np.float64]:
        select, test = totals[:, :n_factors], totals[:, n_factors:-1]
        best = (select >= select.max(axis=1, keepdims=True) - 1e-9).argmax(axis=1)
        return np.asarray(np.take_along_axis(test, best[:, None], axis=1)[:, 0] / totals[:, -1])

    return statistic


def _coverage(book: Book, rows: Mapping[str, Mapping[str, float]], rng: np.random.Generator) -> list[Metric]:
    usable = book.usable_concepts()
    adjusted = [
        rows[name]["success"] if name in rows else book.unsteered_mean(name, "test", "success")
        for name in usable
    ]
    aurocs = [float(scorer["auroc"]) for scorer in book.scorers.values() if scorer.get("auroc") is not None]
    return [
        _metric("coverage", _COVERAGE, [float(name in rows) for name in usable], rng),
        _metric("success_all_concepts", _ADJUSTED, adjusted, rng),
        _metric("scorer_auroc", _SCORER, aurocs, rng),
    ]


def _random_control(
    book: Book, rows: Mapping[str, Mapping[str, float]], rng: np.random.Generator
) -> list[Metric]:
    choice = choose_factors(book, "random", list(rows))
    if not choice.by_concept:
        return []
    control = {name: _concept_row(book, "random", name, index) for name, index in choice.by_concept.items()}
    gained = [rows[name]["success"] - row["success"] for name, row in control.items()]
    return [
        _metric("success_random_direction", _RANDOM, [row["success"] for row in control.values()], rng),
        _metric("lift_over_random", _OVER_RANDOM, gained, rng),
    ]


def _curve(
    book: Book,
    concepts: Sequence[str],
    half: str,
    field: str,
    rng: np.random.Generator,
) -> Curve:
    """A field over the factor, from factor 0 (unsteered texts)."""
    unit, bounds = _FIELDS[field]
    spec = _Spec(unit, "none", "", bounds)
    table = np.array(
        [
            [book.unsteered_mean(name, half, field), *book.mean("latent", name, half, field)]
            for name in concepts
        ]
    ).reshape(len(concepts), len(book.rules.factors) + 1)
    points = []
    for factor, column in zip((0.0, *book.rules.factors), table.T, strict=True):
        estimate = _over_concepts(column.tolist(), spec, rng)
        points.append(CurvePoint(x=factor, value=estimate.value, low=estimate.low, high=estimate.high))
    return Curve(
        name=f"{field}_over_factor",
        x_name="factor",
        x_unit="x unit activation of the latent",
        unit=unit,
        points=points,
        note=f"mean over concepts on the {half} prompts; factor 0 is the unsteered model; "
        "bands by cluster bootstrap",
    )


def _metric(name: str, spec: _Spec, values: Sequence[float], rng: np.random.Generator) -> Metric:
    return _as_metric(name, spec, _over_concepts(values, spec, rng))


def _over_concepts(values: Sequence[float], spec: _Spec, rng: np.random.Generator) -> Estimate:
    """Mean over concepts, from those that have the number."""
    found = np.array([value for value in values if np.isfinite(value)], dtype=np.float64)
    if not len(found):
        return unscored("no concept has a usable scorer, a latent and a text to score", 0)
    return _estimate(np.column_stack([found, np.ones(len(found))]), ratio(0, 1), found, spec, rng)


def _estimate(
    units: NDArray[np.float64],
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    values: NDArray[np.float64],
    spec: _Spec,
    rng: np.random.Generator,
) -> Estimate:
    """The cluster bootstrap; where concepts don't differ at all, the bounded interval of `mean`."""
    estimate = bootstrap(units, statistic, rng)
    if not estimate.has_interval and len(values) > 1 and np.ptp(values) <= 1e-12:
        return mean(values, bounds=spec.bounds)
    return estimate


def _as_metric(name: str, spec: _Spec, estimate: Estimate) -> Metric:
    return Metric.from_estimate(
        name,
        estimate,
        resampling_unit="concept",
        unit=spec.unit,
        direction=spec.direction,
        note=spec.note,
        headline=spec.headline,
    )
