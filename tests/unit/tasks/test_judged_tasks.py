"""Tasks with a rubric's judge: what they ask, what all-knowing and know-nothing judges get, what unscored ones do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from judged_toys import CONTEXTS, Knowing, autointerp, judged, measured

from latentbench.judging import make_judge
from latentbench.stats import generator
from latentbench_judges import Answer, MarkedText
from latentbench_tasks.autointerp.metrics import balanced_accuracy
from latentbench_tasks.autointerp.task import _misplaced
from latentbench_tasks.monosemanticity.task import MonosemanticityConfig, MonosemanticityTask


def test_a_judge_that_knows_all_gets_all_and_controls_stay_at_chance() -> None:
    _, found, counts = judged(autointerp(), Knowing(), measured(8))
    for name in ("detection", "detection_auroc", "fuzzing", "fuzzing_auroc", "intruder", "explained"):
        assert found[name].value == 1.0, name
    assert found["detection"].headline
    assert found["detection_shuffled"].value == 0.5
    assert counts["latents_explained"] == 8
    assert counts["unscored"] == 0


def test_a_judge_that_knows_nothing_is_at_chance() -> None:
    _, found, _ = judged(autointerp(intruders=20), make_judge("chance"), measured(60))
    for name, chance in (
        ("detection", 0.5),
        ("fuzzing", 0.5),
        ("detection_shuffled", 0.5),
        ("intruder", 0.2),
    ):
        interval = found[name].interval
        assert interval is not None
        assert interval.low - 0.03 <= chance <= interval.high + 0.03, (name, interval)


@pytest.mark.parametrize("flag", [0, 1])
def test_answering_always_the_same_is_chance(flag: int) -> None:
    def same(answer: Answer) -> Answer:
        return (
            answer._replace(verdict=[flag] * len(answer.verdict))
            if isinstance(answer.verdict, list)
            else answer
        )

    _, found, _ = judged(autointerp(), Knowing(same), measured(5))
    assert found["detection"].value == found["fuzzing"].value == 0.5


def test_explainer_and_scorers_see_different_documents_and_no_batch_is_lost() -> None:
    judge = Knowing()
    judgements, _, _ = judged(autointerp(), judge, measured(2))
    texts: dict[str, set[str]] = {"explain": set(), "detection": set()}
    for question in judge.asked:
        if question.rubric.name == "explain":
            texts["explain"] |= {
                one.text for one in question.material["contexts"] if isinstance(one, MarkedText)
            }
        elif question.rubric.name == "detection":
            texts["detection"] |= {str(one) for one in question.material["texts"]}
    assert not texts["explain"] & texts["detection"]
    sizes = [len(one["truth"]) for one in judgements if one["kind"] == "detection" and one["latent"] == 0]
    assert sizes == [5, 5, 2]
    truths = [flag for one in judgements if one["kind"] == "detection" for flag in one["truth"]]
    assert sum(truths) * 2 == len(truths)


def test_a_latent_without_an_explanation_is_counted_and_not_scored() -> None:
    def fail(answer: Answer) -> Answer:
        if answer.id == "0":
            return answer._replace(status="parse_failed", fields=None, verdict=None)
        return answer

    judgements, found, counts = judged(autointerp(), Knowing(fail), measured(4))
    assert not any(one["latent"] == 0 for one in judgements if one["kind"] in ("detection", "fuzzing"))
    assert found["explained"].value == 0.75
    assert counts["unscored: parse_failed"] == 1


def test_too_many_unscored_judgements_withhold_the_headline() -> None:
    def every(n: int) -> Callable[[Answer], Answer]:
        count = iter(range(10_000))

        def spoil(answer: Answer) -> Answer:
            lost = next(count) % n == n - 1
            return answer._replace(status="truncated", fields=None, verdict=None) if lost else answer

        return spoil

    task = MonosemanticityTask(MonosemanticityConfig(contexts=CONTEXTS, shown=5, mixed=10))
    _, found, counts = judged(task, Knowing(every(10)), measured(100))
    assert found["score"].value is None
    assert "of the judgements are unscored, more than 5%" in (found["score"].reason or "")
    assert "at their worst and best: 4.600 to 5.000" in found["score"].note
    assert counts["unscored: truncated"] == 11
    _, found, _ = judged(task, Knowing(every(30)), measured(100))
    assert found["score"].value == 5.0
    assert "warning: 3.0%" in found["score"].note
    _, found, _ = judged(task, Knowing(), measured(100))
    assert "unscored" not in found["score"].note


def test_ratings_stand_against_sets_of_different_latents() -> None:
    task = MonosemanticityTask(MonosemanticityConfig(contexts=CONTEXTS, shown=5, mixed=10))
    judge = Knowing()
    judgements, found, counts = judged(task, judge, measured(12))
    assert (found["score"].value, found["score_mixed"].value, found["score_above_mixed"].value) == (
        5.0,
        1.0,
        4.0,
    )
    assert found["low_level"].value == 1.0
    assert counts["latents_rated"] == 12
    first = next(one for one in judge.asked if one.id == "0")
    shown = [one for one in first.material["contexts"] if isinstance(one, MarkedText)]
    assert [max(one.strengths) for one in shown] == [12, 11, 10, 9, 8]
    assert {one["latent"] for one in judgements if one["kind"] == "rating"} == set(range(12))
    # Asked again with what stands, nothing is asked.
    again = Knowing()
    list(task.judge([*measured(12), *judgements], again, generator("j")))
    assert not again.asked


def test_a_panel_s_agreement_is_reported() -> None:
    def panel(answer: Answer) -> Answer:
        members = {"a": answer.verdict, "b": max(1, answer.verdict - int(answer.id[-1]) % 2)}
        return answer._replace(fields={"members": members, "score": answer.verdict})

    task = MonosemanticityTask(MonosemanticityConfig(contexts=CONTEXTS, shown=5, mixed=0))
    _, found, _ = judged(task, Knowing(panel), measured(12))
    assert found["panel_alpha"].value == pytest.approx(-0.2777777)
    _, found, _ = judged(task, Knowing(), measured(12))
    assert "panel_alpha" not in found


def test_chance_s_rating_is_not_above_its_rating_of_nothing() -> None:
    task = MonosemanticityTask(MonosemanticityConfig(contexts=CONTEXTS, shown=5, mixed=60))
    _, found, _ = judged(task, make_judge("chance"), measured(80))
    interval = found["score_above_mixed"].interval
    assert interval is not None
    assert interval.low < 0 < interval.high


def test_misplaced_marks_are_as_many_and_nowhere_right() -> None:
    text = MarkedText(("a", " b", " ", " c", " d", " e"), (0.0, 2.0, 0.0, 1.0, 0.0, 0.0))
    for seed in range(20):
        moved = _misplaced(text, generator(f"m/{seed}"))
        assert moved is not None
        marks = {place for place, strength in enumerate(moved.strengths) if strength > 0}
        assert len(marks) == 2
        assert marks <= {0, 4, 5}
    assert _misplaced(MarkedText(("a", "b"), (1.0, 1.0)), generator("m")) is None


def test_balanced_accuracy_needs_both_kinds() -> None:
    assert balanced_accuracy([(1, 1, 1.0), (1, 0, 0.0), (0, 0, 0.0)]) == 0.75
    assert balanced_accuracy([(1, 1, 1.0)]) is None


def test_tasks_name_their_rubrics() -> None:
    assert set(autointerp().rubrics()) == {"explain", "detection", "fuzzing", "intruder"}
    assert set(MonosemanticityTask(MonosemanticityConfig()).rubrics()) == {"monosemanticity"}
