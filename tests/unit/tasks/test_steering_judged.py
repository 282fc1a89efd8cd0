"""Steered texts and a judge: what is asked about, and what the ratings come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from latentbench.run import Item
from latentbench.stats import generator
from latentbench.store import Metric
from latentbench_judges import Answer, Question
from latentbench_tasks.steering._concepts import concepts
from latentbench_tasks.steering.task import SteeringConfig
from latentbench_tasks.steering_judged.metrics import Rated, units
from latentbench_tasks.steering_judged.task import SteeringJudgedTask

CONCEPTS = ("sport", "business", "medicine")
FACTORS = (1.0, 2.0)
METHODS = ("contrast", "prompting")
PER_HALF = 2


def task() -> SteeringJudgedTask:
    options = {"concepts": CONCEPTS, "factors": FACTORS, "methods": METHODS, "prompts": 2 * PER_HALF}
    return SteeringJudgedTask(SteeringConfig.model_validate(options))


def measured() -> list[Item]:
    """Factor 2 has the concept, factor 1 has not; one test text of it is empty."""
    items: list[Item] = []
    for half in ("select", "test"):
        for n in range(PER_HALF):
            about = {
                "id": f"u{half}{n}",
                "split": half,
                "prompt": f"Opening {half} {n}",
                "text": f"plain {half} {n}",
            }
            scores: dict[str, Any] = {"concept_scores": dict.fromkeys(CONCEPTS, 0.1), "lexicon_hits": {}}
            items.append({"kind": "unsteered", **about, "fluency": -1.0, "distinct_2": 1.0, **scores})
            if half == "test":
                spoiled = {**about, "id": f"{about['id']}|loop", "text": f"senseless {n}", "form": "loop"}
                items.append({"kind": "degenerate", **spoiled, "fluency": -1.0, "distinct_2": 0.2, **scores})
    for concept in CONCEPTS:
        items.append({"kind": "scorer", "concept": concept, "kept": True, "auroc": 0.9, "threshold": 0.5})
        for method in METHODS:
            items.append(
                {"kind": "choice", "method": method, "concept": concept, "latents": [0], "reason": None}
            )
            for factor in FACTORS if method == "contrast" else (1.0,):
                for half in ("select", "test"):
                    for n in range(PER_HALF):
                        empty = (concept, method, factor, half, n) == ("sport", "contrast", 2.0, "test", 0)
                        items.append(
                            {
                                "kind": "generation",
                                "id": f"{concept}|{method}|{factor:g}|{half}{n}",
                                "concept": concept,
                                "method": method,
                                "factor": factor,
                                "split": half,
                                "prompt": f"Opening {half} {n}",
                                "text": "" if empty else f"steered {concept} {method} {factor:g} {half} {n}",
                                "status": "empty" if empty else "ok",
                                "concept_score": None if empty else 0.9 if factor == 2.0 else 0.1,
                                "lexicon_hits": 1,
                                "fluency": None if empty else -1.0,
                                "distinct_2": None if empty else 1.0,
                            }
                        )
    return items


class Rater:
    """Rates by a rule; None is no answer."""

    role = "rubric"

    def __init__(self, rule: Callable[[Question], int | None]) -> None:
        self.asked: list[Question] = []
        self._rule = rule

    def identity(self) -> dict[str, Any]:
        return {"name": "rater"}

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        for question in questions:
            self.asked.append(question)
            value = self._rule(question)
            if value is None:
                yield Answer(question.id, question.key, "refused", reason="no", model="k")
            else:
                yield Answer(question.id, question.key, "ok", {"score": value}, value, "strict", model="k")


def judged(rule: Callable[[Question], int | None]) -> tuple[dict[str, Metric], dict[str, int], Rater]:
    steering, items, rater = task(), measured(), Rater(rule)
    judgements = list(steering.judge(items, rater, generator("judge")))
    summary = steering.summarise(items, judgements, generator("summary"))
    assert list(steering.judge([*items, *judgements], Rater(rule), generator("judge"))) == judgements
    return {metric.name: metric for metric in summary.metrics}, summary.counts, rater


def test_the_judge_sees_test_texts_at_the_chosen_factor_and_what_they_are_held_against() -> None:
    _, counts, rater = judged(lambda _: 2)
    texts = {str(question.material["text"]) for question in rater.asked}
    assert {text for text in texts if " contrast " in text} == {
        f"steered {concept} contrast 2 test {n}" for concept in CONCEPTS for n in range(PER_HALF)
    } - {"steered sport contrast 2 test 0"}
    assert {text for text in texts if "plain" in text} == {"plain test 0", "plain test 1"}
    assert {text for text in texts if "senseless" in text} == {"senseless 0", "senseless 1"}
    rubrics = {question.rubric.name for question in rater.asked}
    assert rubrics == {"steering_concept", "steering_instruct", "steering_fluency"}
    steered, prompted, plain, senseless = 5, 6, 6, 2
    assert len(rater.asked) == 3 * (steered + prompted + plain + senseless) == counts["judgements"]
    assert task().judge_calls() == pytest.approx(len(rater.asked), rel=0.2)
    asked = next(
        q for q in rater.asked if q.rubric.name == "steering_concept" and "sport" in str(q.material["text"])
    )
    assert asked.material["concept"] == f"{concepts(['sport'])[0].name}: {concepts(['sport'])[0].description}"


def test_scores_are_harmonic_means_and_a_zero_needs_no_other_rating() -> None:
    assert Rated("contrast", "x", {"concept": 2, "instruct": 1, "fluency": 2}).score == pytest.approx(1.5)
    assert Rated("contrast", "x", {"concept": 0}).score == 0.0
    assert Rated("contrast", "x", {"concept": 2, "instruct": 2}).score is None
    assert Rated("contrast", "x", {}).score is None


def test_steered_texts_are_set_against_unsteered_ones_and_other_methods() -> None:
    def rule(question: Question) -> int:
        text = str(question.material["text"])
        return 2 if " contrast " in text else 1 if "prompting" in text else 0

    found, counts, _ = judged(rule)
    values = {name: metric.value for name, metric in found.items()}
    assert values["score"] == 2.0
    assert values["score_success"] == 1.0
    assert values["score_unsteered"] == values["score_degenerate"] == values["score_success_unsteered"] == 0.0
    assert values["score_above_unsteered"] == 2.0
    assert values["score_prompting"] == 1.0
    assert values["score_over_prompting"] == 1.0
    assert [name for name, metric in found.items() if metric.headline] == ["score"]
    assert values["success"] == pytest.approx((0.5 + 1 + 1) / 3), "the empty text is no success, offline"
    assert counts["unscored"] == 0


def test_units_are_concepts_and_give_what_both_scorers_publish() -> None:
    items, drawn = measured(), generator("ratings")
    judgements = list(task().judge(items, Rater(lambda _: int(drawn.integers(0, 3))), generator("judge")))
    config = task().config.model_dump(mode="json")
    found = units(items, judgements, config)
    assert found is not None
    published = {one.name: one.value for one in task().summarise(items, judgements, generator("s")).metrics}
    values = found.values()
    assert {"score", "score_over_prompting", "score_degenerate", "success", "lift"} <= values.keys()
    for name, value in values.items():
        known = published.get(name)  # none of what an option switches off
        assert np.isnan(value) if known is None else value == pytest.approx(known), name
    assert units([], [], config) is None


def test_refusals_are_bounds_and_too_many_withhold_the_score() -> None:
    found, counts, _ = judged(
        lambda question: None if "steered business" in str(question.material["text"]) else 2
    )
    assert counts["unscored"] == counts["unscored: refused"] == 3 * 4
    assert found["score"].value is None
    assert found["score"].reason
    assert "at their worst and best" in found["score"].note
    assert found["score_prompting"].value == 2.0
