"""Metrics of the steering task from its stored items; no torch.

The factor of each concept is chosen on the `select` prompts and scored on the `test` prompts, because the
maximum over factors is biased upwards on the prompts it was taken on: with 14 factors and 5 prompts a true
score of 0.14 shows as 0.56. Concepts are the resampling unit; a concept's prompts go along with it.

Metrics of the first method have plain names; those of another carry its name behind (`success_auroc`), and
`lift_over_auroc` is the paired difference from the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from latentbench.stats import Estimate, Units, bootstrap, mean, ratio, unscored
from latentbench.store import Curve, CurvePoint, Metric
from latentbench_tasks.steering._judged import (
    Book,
    Choice,
    Rules,
    choose_factors,
    read_items,
    selection_curve,
)
from latentbench_tasks.steering._methods import METHODS

__all__ = ["concept_rows", "recompute", "summarise", "units"]

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
        "share", "lower", "concepts whose chosen factor is the smallest or largest that was tried", _SHARE
    ),
    "kl": _Spec(
        "nats/token", "lower", "divergence of the steered from the unsteered model on its own text", None
    ),
    "success_at_20": _Spec(
        "tokens", "higher", "generated tokens among the 20 that the latent's direction promotes most", None
    ),
    "side_effect": _Spec(
        "probability", "none", "change of the other concepts' probabilities, mean over them", _CHANGE
    ),
    "side_effect_largest": _Spec(
        "probability", "lower", "largest rise of another concept's probability", _CHANGE
    ),
}
_OPTIONAL = ("kl", "success_at_20", "side_effect", "side_effect_largest")
"""Left out where no text has them."""
_OF_EVERY_METHOD = (
    "success",
    "success_on_selection",
    "selection_gap",
    "boundary_share",
    "fluency_change",
    "kl",
)
"""What is reported for methods after the first one."""
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
_DEGENERATE = _Spec(
    "share",
    "none",
    "the same for unsteered texts made senseless (words shuffled, or three words over and over)",
    _SHARE,
)
_OVER = _Spec("share", "higher", "success less that of another method, paired by concept", _CHANGE)
_COVERAGE = _Spec(
    "share", "higher", "concepts with a usable scorer for which there is something to steer with", _SHARE
)
_ADJUSTED = _Spec(
    "share", "higher", "as success, concepts without a latent counting with their unsteered success", _SHARE
)
_SCORER = _Spec(
    "AUROC",
    "none",
    "held-out AUROC of the concepts' text classifiers, requested concepts with labelled texts",
    _SHARE,
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
    first, *others = config["methods"]
    concepts = book.scored_concepts(first)
    choice = choose_factors(book, first, concepts)
    rows = concept_rows(book, first)
    metrics = _of_rows(rows, _SPECS, "", rng)
    if METHODS[first].kind != "prompt":
        metrics.append(_fixed(book, first, choice, "", rng))
    metrics += _coverage(book, first, rows, rng)
    for other in others:
        metrics += _other_method(book, other, rows, rng)
    half = "test" if config["test_factors"] == "all" else "select"
    curves = [
        _curve(book, first, list(rows), half, field, rng) for field in ("success", "probability", "fluency")
    ]
    counts = {
        "concepts": len(rows),
        "concepts_requested": len(book.scorers),
        "concepts_excluded_by_scorer": len(book.scorers) - len(book.usable_concepts()),
        "concepts_without_latent": len(book.usable_concepts()) - len(concepts),
        **book.counts,
    }
    return metrics, curves, counts


def units(
    items: Sequence[Mapping[str, Any]], _judgements: Sequence[Mapping[str, Any]], config: Mapping[str, Any]
) -> Units | None:
    """The metrics that are means over concepts, of every method; None without a scored concept.

    The units are all usable concepts: one that a method has no number for counts in none of its means.
    """
    book = read_items(items, Rules.of(config))
    first, *others = config["methods"]
    columns = {(name, first): name for name in _SPECS}
    columns |= {(name, method): f"{name}_{method}" for method in others for name in _OF_EVERY_METHOD}
    rows = {method: concept_rows(book, method) for method in config["methods"]}
    names = book.usable_concepts()
    if not any(rows.values()):
        return None
    sums = np.zeros((len(names), 2 * len(columns)))
    for unit, concept in enumerate(names):
        for column, (name, method) in enumerate(columns):
            value = rows[method].get(concept, {}).get(name, float("nan"))
            if np.isfinite(value):
                sums[unit, 2 * column : 2 * column + 2] = [value, 1.0]
    return Units(
        tuple(names), sums, {name: ratio(2 * i, 2 * i + 1) for i, name in enumerate(columns.values())}
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
    return summarise(items, config, rng)


def _of_rows(
    rows: Mapping[str, Mapping[str, float]], specs: Mapping[str, _Spec], suffix: str, rng: np.random.Generator
) -> list[Metric]:
    found = []
    for name, spec in specs.items():
        values = [row[name] for row in rows.values()]
        if name not in _OPTIONAL or np.isfinite(values).any():
            found.append(_metric(name + suffix, spec, values, rng))
    return found


def _other_method(
    book: Book, method: str, first: Mapping[str, Mapping[str, float]], rng: np.random.Generator
) -> list[Metric]:
    """A method through the same choice of factor, and what the first one gains over it on the same concepts."""
    choice = choose_factors(book, method, book.scored_concepts(method))
    rows = concept_rows(book, method)
    title = METHODS[method].title
    specs = {
        name: _SPECS[name]._replace(note=f"{title}: {_SPECS[name].note}", direction="none", headline=False)
        for name in _OF_EVERY_METHOD
    }
    found = _of_rows(rows, specs, f"_{method}", rng)
    if METHODS[method].kind != "prompt":
        found.append(_fixed(book, method, choice, f"_{method}", rng))
    gained = [first[name]["success"] - row["success"] for name, row in rows.items() if name in first]
    found.append(_metric(f"lift_over_{method}", _OVER._replace(note=f"{_OVER.note}: {title}"), gained, rng))
    return found


def concept_rows(book: Book, method: str) -> dict[str, dict[str, float]]:
    """Every number of a method by concept and metric name; NaN where there is none. Means over these are published.

    Args:
        book: the cell's items, read.
        method: one of its methods.
    """
    choice = choose_factors(book, method, book.scored_concepts(method))
    return {name: _concept_row(book, method, name, choice) for name in choice.by_concept}


def _concept_row(book: Book, method: str, concept: str, choice: Choice) -> dict[str, float]:
    """Every per-concept number, by metric name."""
    factor = choice.by_concept[concept]

    def test(field: str) -> float:
        return book.mean(method, concept, factor, "test", field)

    def plain(field: str) -> float:
        return book.unsteered_mean(concept, "test", field)

    on_selection = book.mean(method, concept, factor, "select", "success")
    success, floor = test("success"), plain("success")
    changes = _side_effects(book, method, concept, factor)
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
        "boundary_share": float(choice.at_end[concept] != 0),
        "kl": test("kl"),
        "success_at_20": test("lens"),
        "side_effect": float(np.mean(changes)) if changes else float("nan"),
        "side_effect_largest": max(changes, default=float("nan")),
    }


def _side_effects(book: Book, method: str, concept: str, factor: float) -> list[float]:
    """Change of every other concept's mean probability on the test texts."""
    texts = [text.others for text in book.steered.get((method, concept, factor, "test"), ()) if text.others]
    if not texts:
        return []
    return [
        float(np.mean([one[other] for one in texts])) - book.unsteered_mean(other, "test", "probability")
        for other in texts[0]
        if other != concept
    ]


def _fixed(book: Book, method: str, choice: Choice, suffix: str, rng: np.random.Generator) -> Metric:
    """Success with one factor for all concepts. The bootstrap chooses that factor anew in every draw."""
    names, title = list(choice.by_concept), f"success_fixed_factor{suffix}"
    spec = _FIXED if not suffix else _FIXED._replace(direction="none")
    if choice.fixed is None:
        return _metric(title, spec, [], rng)
    select = np.array([selection_curve(book, method, name) for name in names])
    test = np.array([book.means(method, name, "test", "success") for name in names])
    spec = spec._replace(note=f"{spec.note}; here factor {choice.fixed:g}")
    place = book.rules.factors.index(choice.fixed)
    if not np.all(np.isfinite(test)) or not np.all(np.isfinite(select)):  # other factors have no test texts
        return _metric(title, spec, test[:, place].tolist(), rng)
    statistic = _choose_then_test(len(book.rules.factors))
    units = np.hstack([select, test, np.ones((len(names), 1))])
    return _as_metric(title, spec, _estimate(units, statistic, test[:, place], spec, rng))


def _choose_then_test(n_factors: int) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    def statistic(totals: NDArray[np.float64]) -> NDArray[np.float64]:
        select, test = totals[:, :n_factors], totals[:, n_factors:-1]
        best = (select >= select.max(axis=1, keepdims=True) - 1e-9).argmax(axis=1)
        return np.asarray(np.take_along_axis(test, best[:, None], axis=1)[:, 0] / totals[:, -1])

    return statistic


def _coverage(
    book: Book, method: str, rows: Mapping[str, Mapping[str, float]], rng: np.random.Generator
) -> list[Metric]:
    usable = book.usable_concepts()
    adjusted = [
        rows[name]["success"] if name in rows else book.unsteered_mean(name, "test", "success")
        for name in usable
    ]
    aurocs = [float(scorer["auroc"]) for scorer in book.scorers.values() if scorer.get("auroc") is not None]
    found = [
        _metric("coverage", _COVERAGE, [float(name in rows) for name in usable], rng),
        _metric("success_all_concepts", _ADJUSTED, adjusted, rng),
        _metric("scorer_auroc", _SCORER, aurocs, rng),
    ]
    if book.degenerate:
        passed = [_share(book.degenerate[name]) for name in usable]
        found.append(_metric("success_degenerate", _DEGENERATE, passed, rng))
    return found


def _share(texts: Iterable[Any]) -> float:
    return float(np.mean([text.success for text in texts]))


def _curve(
    book: Book,
    method: str,
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
            [book.unsteered_mean(name, half, field), *book.means(method, name, half, field)]
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
