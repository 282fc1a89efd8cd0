"""The text classifiers that score steered text."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from latentbench.data import Document
from latentbench.identity import sha256_text
from latentbench_tasks.steering._concepts import concepts
from latentbench_tasks.steering._labelled import ConceptTexts
from latentbench_tasks.steering._scorer import ScorerOptions, area_under_curve, fit_scorer, windows

OPTIONS = ScorerOptions(
    words=(8, 16), per_document=2, min_auroc=0.8, threshold=0.5, lexicon=False, false_positives=0.05
)
COMMON = [
    "the",
    "a",
    "of",
    "and",
    "in",
    "on",
    "it",
    "was",
    "were",
    "for",
    "with",
    "that",
    "this",
    "from",
    "over",
    "under",
    "near",
    "old",
    "new",
    "small",
]
TELLING = ["game", "team", "coach", "league", "score"]


def document(text: str) -> Document:
    return Document(
        sha256=sha256_text(text), text=text, source="97_news_class", labels={"97_news_class": "Sport"}
    )


def texts(rng: np.random.Generator, telling_share: tuple[float, float], count: int = 150) -> ConceptTexts:
    """Random documents; the two sides hold these shares of telling words."""

    def draw(share: float) -> list[Document]:
        words = [
            [rng.choice(TELLING if rng.random() < share else COMMON) for _ in range(40)] for _ in range(count)
        ]
        return [document(" ".join(found)) for found in words]

    return ConceptTexts(concepts(["sport"])[0], draw(telling_share[0]), draw(telling_share[1]))


def test_a_concept_that_can_be_told_is_kept_with_its_quality() -> None:
    scorer = fit_scorer(texts(np.random.default_rng(0), (0.3, 0.0)), [], OPTIONS, 0)
    assert scorer.item["kept"] is True
    assert scorer.item["auroc"] > 0.95
    assert scorer.item["auroc_low"] <= scorer.item["auroc"] <= scorer.item["auroc_high"]
    assert scorer.item["accuracy"] > 0.9
    high, low = scorer.probabilities(
        ["the coach of the old team in the league", "it was near the old and small"]
    )
    assert high > scorer.item["threshold"] > low


def test_a_concept_that_can_not_be_told_is_left_out_with_the_reason() -> None:
    scorer = fit_scorer(texts(np.random.default_rng(0), (0.2, 0.2)), [], OPTIONS, 0)
    assert scorer.item["kept"] is False
    assert "below 0.8" in scorer.item["reason"]
    assert abs(scorer.item["auroc"] - 0.5) < 0.15


def test_too_few_documents_are_named() -> None:
    scorer = fit_scorer(texts(np.random.default_rng(0), (0.3, 0.0), count=15), [], OPTIONS, 0)
    assert scorer.item["kept"] is False
    assert "are needed" in scorer.item["reason"]


def test_a_concept_without_texts_is_scored_by_its_words_if_asked_for() -> None:
    empty = ConceptTexts(concepts(["pirates"])[0], [], texts(np.random.default_rng(0), (0.3, 0.0)).negatives)
    assert not fit_scorer(empty, [], OPTIONS, 0).item["kept"]
    words = empty.concept.lexicon
    plain, touched = "a road by the river", f"a road with a {words[0]} by the river"
    scorer = fit_scorer(empty, [plain] * 40, OPTIONS._replace(lexicon=True), 0)
    assert scorer.item["kept"]
    assert "lexicon" in scorer.item["reason"]
    assert scorer.item["false_positive_rate_neutral"] == 0.0
    one, two, none = scorer.probabilities([touched, f"{touched} {words[1]}", plain])
    assert none < scorer.item["threshold"] <= one < two
    strict = fit_scorer(empty, [plain] * 10 + [touched] * 10, OPTIONS._replace(lexicon=True), 0)
    assert one < strict.item["threshold"] <= two, (
        "where unsteered text has such words, one of them is not enough"
    )
    assert strict.item["false_positive_rate_neutral"] <= 0.05


def test_at_most_the_stated_share_of_held_out_negatives_passes() -> None:
    drawn = texts(np.random.default_rng(1), (0.25, 0.08), count=300)
    neutral = [f"the team was near the {word} and {other}" for word in COMMON for other in COMMON[:8]]
    item = fit_scorer(drawn, neutral, OPTIONS, 0).item
    assert item["threshold"] > 0.5
    assert item["false_positive_rate"] <= 0.05
    assert item["false_positive_rate_neutral"] <= 0.05
    assert 0.05 < item["true_positive_rate"] < 1


def test_what_the_model_writes_anyway_counts_as_without_the_concept() -> None:
    drawn = texts(np.random.default_rng(2), (0.3, 0.0))
    habit = [f"it was a {word} game and the {other}" for word in COMMON for other in COMMON]
    without, with_habit = (
        fit_scorer(drawn, neutral, OPTIONS, 0).probabilities(["it was a small game and the new"])[0]
        for neutral in ([], habit)
    )
    assert with_habit < without


def test_auroc_agrees_with_scikit_learn_and_is_undefined_for_one_class() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    scores = np.asarray(np.round(rng.random(200) + 0.3 * labels, 1), dtype=np.float64)  # with ties
    assert area_under_curve(scores, labels) == pytest.approx(roc_auc_score(labels, scores))
    assert np.isnan(area_under_curve(scores[:3], np.ones(3, dtype=np.int64)))


def test_windows_are_short_runs_of_the_text_and_every_other_one_hides_the_phrase() -> None:
    text = " ".join(["we agree with the trial court on"] * 9)
    found = windows(text, (8, 12), 40, np.random.default_rng(0), phrase="trial court")
    assert len(found) == len(set(found))
    assert all(8 <= len(window.split()) <= 12 for window in found)
    shown = [window for window in found if "trial court" in window]
    assert 0 < len(shown) < len(found)
    assert all(window in text or window in text.replace("trial court ", "") for window in found)
    assert windows("two words", (8, 12), 3, np.random.default_rng(0)) == ["two words"]
