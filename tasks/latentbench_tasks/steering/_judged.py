"""From stored items to judged texts and chosen factors; NumPy only.

A text succeeds if its concept probability reaches the scorer's threshold, its fluency lies no further than a
margin below that of the unsteered texts, and it does not repeat itself. An empty text has no scores and no
success: the model was steered into silence. It is counted. A text whose logits were not finite is unscored: it is in
no mean, and a factor at which one of the selection texts broke is not chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Book",
    "Choice",
    "Rules",
    "Text",
    "choose_factors",
    "fluency_floor",
    "is_steerable",
    "judge_text",
    "read_items",
    "selection_curve",
]


_TEXTS = ("generation", "unsteered", "degenerate", "cost")


class Rules(NamedTuple):
    """The stated thresholds, from the task's options."""

    factors: tuple[float, ...]
    """Factor grid, ascending."""
    fluency_margin: float
    """Nats per token that a text may lie below the mean of the unsteered texts."""
    min_distinct_2: float
    """Lowest share of distinct token pairs."""
    choose_by: str
    """"score" (probability of the concept where the text is well formed, else 0) or "success"."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Rules:
        """Rules of a task configuration, as the run record holds it."""
        return cls(
            tuple(sorted(float(factor) for factor in config["factors"])),
            float(config["fluency_margin"]),
            float(config["min_distinct_2"]),
            str(config["choose_by"]),
        )


class Text(NamedTuple):
    """One judged text."""

    success: bool
    """See the module."""
    score: float
    """Probability of the concept if the text is well formed, else 0."""
    probability: float | None
    """Probability of the concept whatever the form; None for an empty text."""
    fluency: float | None
    """Mean log-probability per token under the unsteered model; None for an empty text."""
    keyword: bool
    """Whether a word of the concept's lexicon occurs."""
    kl: float | None = None
    """Divergence from the unsteered model, nats per token; None where it was not measured."""
    lens: float | None = None
    """Generated tokens that the latent's direction promotes most; None without a latent."""
    others: Mapping[str, float] | None = None
    """Probability of every other concept; None where it was not measured."""


class Book(NamedTuple):
    """The items of one cell, judged and sorted."""

    rules: Rules
    """Thresholds they were judged by."""
    scorers: dict[str, Mapping[str, Any]]
    """Scorer item by concept."""
    choices: dict[tuple[str, str], Mapping[str, Any]]
    """What steers, by (method, concept)."""
    unsteered: dict[tuple[str, str], list[Text]]
    """Unsteered texts by (concept, half), concepts with a usable scorer only."""
    degenerate: dict[str, list[Text]]
    """Texts made senseless on purpose, by concept."""
    steered: dict[tuple[str, str, float, str], list[Text]]
    """Steered texts by (method, concept, factor, half)."""
    broken: dict[tuple[str, str, float, str], int]
    """How many texts have no score, by the same."""
    counts: dict[str, int]
    """Texts, empty texts, tokens."""

    def scored_concepts(self, method: str) -> list[str]:
        """Concepts that have a usable scorer and something to steer with."""
        return [name for name in self.usable_concepts() if is_steerable(self.choices.get((method, name)))]

    def usable_concepts(self) -> list[str]:
        """Concepts that have a usable scorer."""
        return [name for name, scorer in self.scorers.items() if scorer["kept"]]

    def factors(self, method: str, concept: str, half: str) -> list[float]:
        """Factors at which every text of a half is scored, ascending."""
        found = {
            factor: len(texts)
            for (one, name, factor, part), texts in self.steered.items()
            if (one, name, part) == (method, concept, half)
        }
        whole = max((n + self.broken.get((method, concept, f, half), 0) for f, n in found.items()), default=0)
        return sorted(factor for factor, count in found.items() if count == whole)

    def mean(self, method: str, concept: str, factor: float, half: str, field: str) -> float:
        """Mean of a field of the texts at a factor; NaN where there is none."""
        return _mean(self.steered.get((method, concept, factor, half), ()), field)

    def means(self, method: str, concept: str, half: str, field: str) -> NDArray[np.float64]:
        """Float[factor]: the same at each factor of the grid that all concepts share."""
        return np.array([self.mean(method, concept, factor, half, field) for factor in self.rules.factors])

    def unsteered_mean(self, concept: str, half: str, field: str) -> float:
        """Mean of a field of the unsteered texts, scored for a concept."""
        return _mean(self.unsteered.get((concept, half), ()), field)


class Choice(NamedTuple):
    """Factors chosen on the selection half."""

    by_concept: dict[str, float]
    """Best factor of each concept."""
    at_end: dict[str, int]
    """1 where that is the largest factor tried, -1 where it is the smallest, else 0."""
    fixed: float | None
    """Best single factor of the shared grid for all concepts; None without concepts."""


def is_steerable(choice: Mapping[str, Any] | None) -> bool:
    """Whether a choice gives something to steer with: latents, a direction or words."""
    return choice is not None and choice["reason"] is None


def fluency_floor(unsteered: Iterable[Mapping[str, Any]], margin: float) -> float:
    """Lowest fluency that counts as well formed: the mean of the unsteered texts less the margin.

    Without any unsteered text that says something there is no floor.
    """
    found = [item["fluency"] for item in unsteered if item["fluency"] is not None]
    return float(np.mean(found)) - margin if found else -float("inf")


def judge_text(
    item: Mapping[str, Any],
    probability: float | None,
    hits: int,
    threshold: float,
    floor: float,
    rules: Rules,
) -> Text:
    """Judge one text.

    Args:
        item: a generation or an unsteered text: its `fluency` and `distinct_2` are read.
        probability: of the concept, from its scorer; None for an empty text.
        hits: words of the lexicon in it.
        threshold: the scorer's.
        floor: see `fluency_floor`.
        rules: the other thresholds.
    """
    fluency = item["fluency"]
    if probability is None or fluency is None:
        return Text(False, 0.0, None, None, False, lens=item.get("lens"))
    well_formed = fluency >= floor and item["distinct_2"] >= rules.min_distinct_2
    return Text(
        well_formed and probability >= threshold,
        probability if well_formed else 0.0,
        probability,
        fluency,
        hits > 0,
        item.get("kl"),
        item.get("lens"),
        item.get("other_scores"),
    )


def read_items(items: Iterable[Mapping[str, Any]], rules: Rules) -> Book:
    """Judge every text of a cell from its stored scores."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        kinds.setdefault(item["kind"], []).append(item)
    once = {kind: list({one["id"]: one for one in kinds.get(kind, [])}.values()) for kind in _TEXTS}
    unsteered = once["unsteered"]
    floor = fluency_floor(unsteered, rules.fluency_margin)
    book = Book(
        rules=rules,
        scorers={item["concept"]: item for item in kinds.get("scorer", [])},
        choices={(item["method"], item["concept"]): item for item in kinds.get("choice", [])},
        unsteered={},
        degenerate={},
        steered={},
        broken={},
        counts=_counts(once, floor, rules),
    )
    for concept in book.usable_concepts():
        threshold = float(book.scorers[concept]["threshold"])
        for item in (*unsteered, *once["degenerate"]):
            if is_broken(item):
                continue
            hits = item["lexicon_hits"].get(concept, 0)
            text = judge_text(item, item["concept_scores"].get(concept), hits, threshold, floor, rules)
            if item["kind"] == "unsteered":
                book.unsteered.setdefault((concept, item["split"]), []).append(text)
            else:
                book.degenerate.setdefault(concept, []).append(text)
    for item in once["generation"]:
        key = (item["method"], item["concept"], float(item["factor"]), item["split"])
        if is_broken(item):
            book.broken[key] = book.broken.get(key, 0) + 1
            continue
        threshold = float(book.scorers[item["concept"]]["threshold"])
        text = judge_text(item, item["concept_score"], item["lexicon_hits"], threshold, floor, rules)
        book.steered.setdefault(key, []).append(text)
    return book


def is_broken(item: Mapping[str, Any]) -> bool:
    """Whether a text has no score because the model broke, or its prompt left no room."""
    return str(item.get("status", "ok")).startswith("broken")


def _counts(once: Mapping[str, Sequence[Mapping[str, Any]]], floor: float, rules: Rules) -> dict[str, int]:
    generations = [item for item in once["generation"] if not is_broken(item)]
    said = [item for item in generations if item["fluency"] is not None]
    plain = sum(map(is_broken, once["unsteered"]))
    return {
        "generations": len(once["generation"]),
        "unsteered_texts": len(once["unsteered"]),
        "unscored_generations": len(once["generation"]) - len(generations),
        "empty_generations": len(generations) - len(said),
        "disfluent_generations": sum(item["fluency"] < floor for item in said),
        "repetitive_generations": sum(item["distinct_2"] < rules.min_distinct_2 for item in said),
        "generation_tokens": sum(item["forward_tokens"] for item in once["cost"]),
        "shadow_tokens": sum(item["shadow_tokens"] for item in once["cost"]),
        **({"unscored_unsteered_texts": plain} if plain else {}),
    }


def choose_factors(book: Book, method: str, concepts: Sequence[str]) -> Choice:
    """Choose factors on the selection half; ties go to the smaller factor.

    Concepts without a factor at which every selection text is scored are left out; the shared factor is chosen among
    those at which all remaining concepts are.
    """
    by_concept: dict[str, float] = {}
    at_end: dict[str, int] = {}
    for name in concepts:
        factors = book.factors(method, name, "select")
        if not factors:
            continue
        curve = np.array([book.mean(method, name, f, "select", book.rules.choose_by) for f in factors])
        best = best_factor(curve)
        by_concept[name] = factors[best]
        at_end[name] = 0 if len(factors) == 1 else int(best == len(factors) - 1) - int(best == 0)
    together = [selection_curve(book, method, name) for name in by_concept]
    if not together:
        return Choice({}, {}, None)
    average = np.where(np.isfinite(np.mean(together, axis=0)), np.mean(together, axis=0), -np.inf)
    fixed = book.rules.factors[best_factor(average)] if np.isfinite(average).any() else None
    return Choice(by_concept, at_end, fixed)


def selection_curve(book: Book, method: str, concept: str) -> NDArray[np.float64]:
    """Float[factor]: what the shared factor is chosen by; NaN at factors at which a selection text has no score."""
    whole = np.isin(book.rules.factors, book.factors(method, concept, "select"))
    return np.where(whole, book.means(method, concept, "select", book.rules.choose_by), np.nan)


def best_factor(curve: NDArray[np.float64]) -> int:
    """Position of the first maximum, where equal up to rounding counts as equal."""
    return int(np.flatnonzero(curve >= curve.max() - 1e-12)[0])


def _mean(texts: Iterable[Text], field: str) -> float:
    found = [float(value) for text in texts if (value := getattr(text, field)) is not None]
    return float(np.mean(found)) if found else float("nan")
