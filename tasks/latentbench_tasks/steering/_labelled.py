"""Labelled texts of the concepts, drawn from one split of a corpus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from latentbench.identity import sha256_text
from latentbench_tasks.steering._concepts import Concept

if TYPE_CHECKING:
    from latentbench.data import Corpus, Document

__all__ = ["ConceptTexts", "draw_texts"]

Side = Literal["positive", "other", "background"]


class ConceptTexts(NamedTuple):
    """Documents with and without one concept; no document twice."""

    concept: Concept
    """The concept."""
    positives: list[Document]
    """Documents that carry it."""
    negatives: list[Document]
    """Documents that don't: other classes of the same sets (up to half of them), then background."""


def draw_texts(
    corpus: Corpus, concepts: Sequence[Concept], background: Iterable[str], count: int, seed: int
) -> list[ConceptTexts]:
    """Up to `count` positives and `count` negatives of every concept.

    The draw depends on the seed, the concept and the documents alone, so a concept gets the same texts
    whichever other concepts are asked for. Background documents are drawn in one order for all concepts, so
    that most of them are shared. The corpus is already without duplicates, and texts that
    begin alike lie in one split.

    Args:
        corpus: one split.
        concepts: what to draw for.
        background: ids of the background sets.
        count: most documents on each side.
        seed: seed of the draw.
    """
    background = frozenset(background)
    order = sorted(corpus.pool, key=lambda document: sha256_text(f"{seed}:{document.sha256}"))
    drawn: list[ConceptTexts] = []
    for concept in concepts:
        sides: dict[Side, list[Document]] = {"positive": [], "other": [], "background": []}
        for document in order:
            side = _side(document, concept, background)
            if side is not None and len(sides[side]) < count:
                sides[side].append(document)
        others = sides["other"][: max(count // 2, count - len(sides["background"]))]
        negatives = others + sides["background"][: count - len(others)]
        drawn.append(ConceptTexts(concept, sides["positive"], negatives))
    return drawn


def _side(document: Document, concept: Concept, background: frozenset[str]) -> Side | None:
    """Which side of a concept a document is on; None if it is on neither."""
    own = [(group, document.labels[group.set]) for group in concept.positives if group.set in document.labels]
    if any(not group.targets or target in group.targets for group, target in own):
        return "positive"
    if own:
        return "other" if concept.others else None
    sets = set(document.labels)
    return "background" if sets & background and not sets & set(concept.avoid) else None
