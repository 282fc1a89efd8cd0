"""From stored items to judged texts and chosen factors; NumPy only.

A text succeeds if its concept probability reaches the scorer's threshold, its fluency lies no further than a
margin below that of the unsteered texts, and it does not repeat itself. An empty text has no scores and no
success: the model was steered into silence. It is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Book", "Choice", "Rules", "Text", "choose_factors", "fluency_floor", "judge_text", "read_items"]


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


class Book(NamedTuple):
    """The items of one cell, judged and sorted."""

    rules: Rules
    """Thresholds they were judged by."""
    scorers: dict[str, Mapping[str, Any]]
    """Scorer item by concept."""
    choices: dict[str, Mapping[str, Any]]
    """Choice of latents by concept."""
    unsteered: dict[tuple[str, str], list[Text]]
    """Unsteered texts by (concept, half), concepts with a usable scorer only."""
    steered: dict[tuple[str, str, float, str], list[Text]]
    """Steered texts by (direction, concept, factor, half)."""
    counts: dict[str, int]
    """Texts, empty texts, tokens."""

    def scored_concepts(self) -> list[str]:
        """Concepts that have a usable scorer and a latent."""
        return [name for name in self.usable_concepts() if self.choices.get(name, {}).get("latents")]

    def usable_concepts(self) -> list[str]:
        """Concepts that have a usable scorer."""
        return [name for name, scorer in self.scorers.items() if scorer["kept"]]

    def mean(self, direction: str, concept: str, half: str, field: str) -> NDArray[np.float64]:
        """Float[factor]: mean of a field of the texts at each factor; NaN where there is none."""
        return np.array(
            [_mean(self.steered.get((direction, concept, f, half), ()), field) for f in self.rules.factors]
        )

    def unsteered_mean(self, concept: str, half: str, field: str) -> float:
        """Mean of a field of the unsteered texts, scored for a concept."""
        return _mean(self.unsteered.get((concept, half), ()), field)


class Choice(NamedTuple):
    """Factors chosen on the selection half, as positions in the grid."""

    by_concept: dict[str, int]
    """Best factor of each concept."""
    fixed: int | None
    """Best single factor for all concepts; None without concepts."""


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
        return Text(False, 0.0, None, None, False)
    well_formed = fluency >= floor and item["distinct_2"] >= rules.min_distinct_2
    return Text(
        well_formed and probability >= threshold,
        probability if well_formed else 0.0,
        probability,
        fluency,
        hits > 0,
    )


def read_items(items: Iterable[Mapping[str, Any]], rules: Rules) -> Book:
    """Judge every text of a cell from its stored scores."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        kinds.setdefault(item["kind"], []).append(item)
    generations = list({item["id"]: item for item in kinds.get("generation", [])}.values())
    unsteered = list({item["id"]: item for item in kinds.get("unsteered", [])}.values())
    costs = {item["id"]: item for item in kinds.get("cost", [])}.values()
    floor = fluency_floor(unsteered, rules.fluency_margin)
    book = Book(
        rules=rules,
        scorers={item["concept"]: item for item in kinds.get("scorer", [])},
        choices={item["concept"]: item for item in kinds.get("choice", [])},
        unsteered={},
        steered={},
        counts={
            "generations": len(generations),
            "unsteered_texts": len(unsteered),
            "empty_generations": sum(item["fluency"] is None for item in generations),
            "disfluent_generations": sum(
                item["fluency"] is not None and item["fluency"] < floor for item in generations
            ),
            "repetitive_generations": sum(
                item["fluency"] is not None and item["distinct_2"] < rules.min_distinct_2
                for item in generations
            ),
            "generation_tokens": sum(item["forward_tokens"] for item in costs),
            "shadow_tokens": sum(item["shadow_tokens"] for item in costs),
        },
    )
    for concept in book.usable_concepts():
        threshold = float(book.scorers[concept]["threshold"])
        for item in unsteered:
            hits = item["lexicon_hits"].get(concept, 0)
            text = judge_text(item, item["concept_scores"].get(concept), hits, threshold, floor, rules)
            book.unsteered.setdefault((concept, item["split"]), []).append(text)
    for item in generations:
        threshold = float(book.scorers[item["concept"]]["threshold"])
        text = judge_text(item, item["concept_score"], item["lexicon_hits"], threshold, floor, rules)
        key = (item["direction"], item["concept"], float(item["factor"]), item["split"])
        book.steered.setdefault(key, []).append(text)
    return book


def choose_factors(book: Book, direction: str, concepts: Sequence[str]) -> Choice:
    """Choose factors on the selection half; ties go to the smaller factor.

    Concepts without a text at every factor of the selection half are left out.
    """
    curves = {name: book.mean(direction, name, "select", book.rules.choose_by) for name in concepts}
    complete = {name: curve for name, curve in curves.items() if np.all(np.isfinite(curve))}
    if not complete:
        return Choice({}, None)
    together = np.mean(list(complete.values()), axis=0)
    return Choice({name: best_factor(curve) for name, curve in complete.items()}, best_factor(together))


def best_factor(curve: NDArray[np.float64]) -> int:
    """Position of the first maximum, where equal up to rounding counts as equal."""
    return int(np.flatnonzero(curve >= curve.max() - 1e-12)[0])


def _mean(texts: Iterable[Text], field: str) -> float:
    found = [float(value) for text in texts for value in [getattr(text, field)] if value is not None]
    return float(np.mean(found)) if found else float("nan")
