"""The offline judge of steered text: one linear text classifier per concept, with its own held-out quality.

Generated texts are short, so classifiers learn from windows of the documents that are as short as what they
will score. A classifier that can't tell the concept on held-out documents is not used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from latentbench.identity import sha256_text
from latentbench.stats import bootstrap_indices, generator, wilson
from latentbench_tasks.steering._concepts import Concept
from latentbench_tasks.steering._labelled import ConceptTexts

__all__ = ["ScorerOptions", "TextScorer", "area_under_curve", "fit_scorer", "windows"]

_FIT_SHARE = 0.6
"""Share of the documents, by hash, that a classifier learns from; the rest measures it."""
_NEUTRAL_SHARE = 1 / 3
"""Weight of the neutral texts among the negatives."""
_FEWEST = 12
"""Fewest held-out documents on each side for a classifier to be trusted."""
_DRAWS = 500


class ScorerOptions(NamedTuple):
    """How classifiers are fitted and which are used."""

    words: tuple[int, int]
    """Shortest and longest window, in words."""
    per_document: int
    """Windows that one document gives for learning."""
    min_auroc: float
    """Held-out AUROC below which a classifier is not used."""
    threshold: float
    """Lowest probability at which a text counts as having the concept."""
    lexicon: bool
    """Whether concepts without labelled texts are scored by their lexicon instead of being left out."""
    false_positives: float
    """Share of held-out negatives that may pass; the threshold is raised until no more do."""


class TextScorer(NamedTuple):
    """A fitted classifier and what it is worth."""

    concept: Concept
    """What it looks for."""
    model: Any
    """scikit-learn pipeline; None if there were too few texts: then words of the lexicon stand in for it."""
    item: dict[str, Any]
    """Its quality, as stored: `kept`, `reason`, `auroc`, `threshold`, ..."""

    def probabilities(self, texts: Sequence[str]) -> list[float]:
        """Probability of the concept in each text; by words of the lexicon alone where there is no classifier."""
        if not texts:
            return []
        if self.model is None:
            return [1 - 0.5 ** self.concept.lexicon_hits(text) for text in texts]
        return [float(value) for value in self.model.predict_proba(list(texts))[:, 1]]


def windows(
    text: str, words: tuple[int, int], count: int, rng: np.random.Generator, phrase: str = ""
) -> list[str]:
    """Random runs of words of a text, without repeats.

    Args:
        text: any text.
        words: shortest and longest run; a shorter text is taken whole.
        count: how many to draw.
        rng: source of the draw.
        phrase: removed from every other run.
    """
    hidden = re.sub(re.escape(phrase), " ", text, flags=re.IGNORECASE) if phrase else text
    found: list[str] = []
    for turn in range(count):
        tokens = (hidden if turn % 2 else text).split()
        length = int(rng.integers(words[0], words[1] + 1))
        start = int(rng.integers(0, max(1, len(tokens) - length + 1)))
        found.append(" ".join(tokens[start : start + length]))
    return [window for window in dict.fromkeys(found) if window]


def fit_scorer(texts: ConceptTexts, neutral: Sequence[str], options: ScorerOptions, seed: int) -> TextScorer:
    """Fit a concept's classifier on a part of its texts and measure it on the others.

    Word 1-2-grams and character 2-4-grams, TF-IDF, logistic regression with balanced classes. Held-out
    numbers take one window of every document, so documents are the units of their intervals.

    Args:
        texts: labelled documents.
        neutral: what the unsteered model writes on other prompts: negatives in the style of the texts that
        will
            be scored, which documents alone don't give.
        options: see `ScorerOptions`.
        seed: seed of the windows and of the bootstrap.
    """
    concept = texts.concept
    rng = generator(f"{seed}:steering-scorer:{concept.id}")
    fit: list[tuple[str, int]] = []
    held_out: list[tuple[str, int]] = []
    for documents, label in ((texts.positives, 1), (texts.negatives, 0)):
        for document in documents:
            learns = _is_learnt(document.sha256)
            drawn = windows(
                document.text, options.words, options.per_document if learns else 1, rng, concept.phrase
            )
            (fit if learns else held_out).extend((window, label) for window in drawn)
    learnt = [text for text in neutral if _is_learnt(text)]
    fit += [(text, 0) for text in learnt]
    held_out_neutral = [text for text in neutral if not _is_learnt(text)]
    item: dict[str, Any] = {
        "kind": "scorer",
        "concept": concept.id,
        "n_fit": len(fit),
        "n_held_out": len(held_out),
        "n_held_out_neutral": len(held_out_neutral),
    }
    sides = [sum(label == side for _, label in held_out) for side in (0, 1)]
    if min(sides) < _FEWEST:
        reason = (
            f"{sides[1]} positive and {sides[0]} negative held-out documents; {_FEWEST} of each are needed"
            if texts.positives
            else f"concept {concept.id!r} has no labelled texts that a classifier could learn from"
        )
        if options.lexicon and not texts.positives:
            return _by_lexicon(concept, neutral, options, item)
        return TextScorer(concept, None, {**item, "kept": False, "reason": reason})
    model = _fitted([text for text, _ in fit], np.array([label for _, label in fit]), len(learnt))
    scorer = TextScorer(concept, model, item)
    probabilities = np.array(scorer.probabilities([text for text, _ in held_out]))
    labels = np.array([label for _, label in held_out], dtype=np.int64)
    quality = _quality(probabilities, labels, np.array(scorer.probabilities(held_out_neutral)), options, rng)
    return scorer._replace(item={**item, **quality})


def _by_lexicon(
    concept: Concept, neutral: Sequence[str], options: ScorerOptions, item: dict[str, Any]
) -> TextScorer:
    """A scorer that counts words of the lexicon; what it lets pass is measured on all neutral texts."""
    scorer = TextScorer(concept, None, item)
    passed = np.array(scorer.probabilities(neutral))
    threshold = max(
        options.threshold, _strict_threshold(passed, options.false_positives) if len(passed) else 0.0
    )
    return scorer._replace(
        item={
            **item,
            "kept": True,
            "reason": "scored by words of its lexicon: no labelled texts to measure a classifier on",
            "auroc": None,
            "threshold": threshold,
            "false_positive_rate_neutral": float((passed >= threshold).mean()) if len(passed) else None,
        }
    )


def _is_learnt(name: str) -> bool:
    return int(sha256_text(f"scorer:{name}")[:8], 16) < _FIT_SHARE * 2**32


def area_under_curve(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """AUROC: chance that a positive scores above a negative, ties counting half; NaN without both."""
    from scipy.stats import rankdata

    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return float("nan")
    ranks = float(rankdata(scores)[labels == 1].sum())
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)


def _fitted(texts: Sequence[str], labels: NDArray[np.int64], n_neutral: int) -> Any:
    """A scikit-learn pipeline fitted on these texts, of which the last `n_neutral` are neutral.

    Both classes weigh the same, and neutral texts, which are few, weigh `_NEUTRAL_SHARE` of the negatives.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union

    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), min_df=2, sublinear_tf=True)
    # C = 10 because TF-IDF rows have norm 1: the default of 1 leaves probabilities near a half.
    pipeline = make_pipeline(make_union(words, characters), LogisticRegression(C=10.0, max_iter=500))
    group = np.where(labels == 1, 0, 1)
    group[len(labels) - n_neutral :] = 2
    shares = np.array(
        [0.5, 0.5, 0.0] if n_neutral == 0 else [0.5, 0.5 * (1 - _NEUTRAL_SHARE), 0.5 * _NEUTRAL_SHARE]
    )
    weights = (shares / np.maximum(np.bincount(group, minlength=3), 1))[group] * len(labels)
    return pipeline.fit(texts, labels, logisticregression__sample_weight=weights)


def _quality(
    probabilities: NDArray[np.float64],
    labels: NDArray[np.int64],
    neutral: NDArray[np.float64],
    options: ScorerOptions,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Held-out AUROC and accuracy on documents, the threshold, and whether the classifier is used."""
    auroc = bootstrap_indices(
        len(labels), lambda drawn: area_under_curve(probabilities[drawn], labels[drawn]), rng, draws=_DRAWS
    )
    negatives = probabilities[labels == 0]
    threshold = max(
        options.threshold,
        *(_strict_threshold(group, options.false_positives) for group in (negatives, neutral) if len(group)),
    )
    accuracy = wilson(int(((probabilities >= 0.5) == (labels == 1)).sum()), len(labels))
    assert auroc.value is not None
    kept = auroc.value >= options.min_auroc
    return {
        "kept": kept,
        "reason": None if kept else f"held-out AUROC {auroc.value:.3f} is below {options.min_auroc:g}",
        "auroc": auroc.value,
        "auroc_low": auroc.low,
        "auroc_high": auroc.high,
        "accuracy": accuracy.value,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "threshold": threshold,
        "true_positive_rate": float((probabilities[labels == 1] >= threshold).mean()),
        "false_positive_rate": float((negatives >= threshold).mean()),
        "false_positive_rate_neutral": float((neutral >= threshold).mean()) if len(neutral) else None,
    }


def _strict_threshold(negatives: NDArray[np.float64], share: float) -> float:
    """The threshold that at most this share of the negatives reaches."""
    # "higher" takes a value that was seen; the next number above it shuts that value and its ties out.
    return float(np.nextafter(np.quantile(negatives, 1 - share, method="higher"), 2.0))
