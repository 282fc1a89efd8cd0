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
    """Documents that carry it: labelled ones, then examples of its own."""
    negatives: list[Document]
    """Documents that don't: examples of its own and other classes of the same sets (up to half of them), then
    background."""


def draw_texts(
    corpus: Corpus, concepts: Sequence[Concept], background: Iterable[str], count: int, seed: int
) -> list[ConceptTexts]:
    """Up to `count` positives and `count` negatives of every concept.

    The draw depends on the seed, the concept and the documents alone, so a concept gets the same texts
    whichever other concepts are asked for. Background documents are drawn in one order for all concepts, so
    that most of them are shared. The corpus is already without duplicates, and texts that
    begin alike lie in one split.

    A concept without labelled sets takes its own examples of this split. Those are short, and latents that
    tell short texts from long ones must not win the choice, so its background documents are at most twice as
    long as its longest example.

    Args:
        corpus: one split.
        concepts: what to draw for.
        background: ids of the background sets.
        count: most documents on each side.
        seed: seed of the draw.
    """
    background = frozenset(background)
    order = sorted(corpus.pool, key=lambda document: _rank(document, seed))
    common = [document for document in order if not background.isdisjoint(document.labels)]
    return [
        _drawn(concept, order if concept.positives else common, background, count, corpus.split, seed)
        for concept in concepts
    ]


def _rank(document: Document, seed: int) -> str:
    return sha256_text(f"{seed}:{document.sha256}")


def _drawn(
    concept: Concept,
    order: Sequence[Document],
    background: frozenset[str],
    count: int,
    split: str,
    seed: int,
) -> ConceptTexts:
    own = {side: _own(concept, split, side, seed)[:count] for side in (True, False)}
    sides: dict[Side, list[Document]] = {"positive": [], "other": own[False], "background": []}
    longest = 2 * max((len(document.text) for document in own[True]), default=0)
    for document in order:
        if not concept.positives and len(sides["background"]) == count:
            break
        side = _side(document, concept, background)
        if side is None or len(sides[side]) == count:
            continue
        if concept.positives or not longest or len(document.text) <= longest:
            sides[side].append(document)
    others = sides["other"][: max(count // 2, count - len(sides["background"]))]
    negatives = others + sides["background"][: count - len(others)]
    return ConceptTexts(concept, (sides["positive"] + own[True])[:count], negatives)


def _own(concept: Concept, split: str, positive: bool, seed: int) -> list[Document]:
    """A concept's own examples of one split and one side, in the order of the seed."""
    from latentbench.data import Document

    texts = {
        example.text: None
        for example in concept.examples
        if example.split == split and example.positive == positive
    }
    found = [Document(sha256_text(" ".join(text.split())), text, f"examples:{concept.id}") for text in texts]
    return sorted(found, key=lambda document: _rank(document, seed))


def _side(document: Document, concept: Concept, background: frozenset[str]) -> Side | None:
    """Which side of a concept a document is on; None if it is on neither."""
    own = [(group, document.labels[group.set]) for group in concept.positives if group.set in document.labels]
    if any(not group.targets or target in group.targets for group, target in own):
        return "positive"
    if own:
        return "other" if concept.others else None
    sets = set(document.labels)
    return "background" if sets & background and not sets & set(concept.avoid) else None
