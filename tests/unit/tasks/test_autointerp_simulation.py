"""The simulation scorer: what it asks, what it is worth, what has no correlation, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from judged_toys import CONTEXTS, Knowing, autointerp, judged, measured

from latentbench.judging import make_judge
from latentbench.run import Item
from latentbench.stats import generator
from latentbench_judges import Answer, MarkedText, Question
from latentbench_tasks.autointerp.metrics import correlation

SIMULATED = {"simulation", "simulation_shuffled"}
Simulate = Callable[[Question], list[int]]


def by_word(question: Question) -> list[int]:
    """10 on the word that is the explanation."""
    return [10 * (str(token).strip() == question.material["explanation"]) for token in tokens(question)]


def tokens(question: Question) -> tuple[Any, ...]:
    found = question.material["tokens"]
    assert isinstance(found, tuple)
    return found


class Simulator(Knowing):
    """Knows all, and simulates as it is told; None where it gives no verdict."""

    def __init__(self, simulate: Callable[[Question], list[int] | None] = by_word) -> None:
        super().__init__()
        self._simulate = simulate

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        for question in questions:
            if question.rubric.name != "simulation":
                yield from super().answers([question])
                continue
            self.asked.append(question)
            verdict = self._simulate(question)
            if verdict is None:
                yield Answer(question.id, question.key, "parse_failed", reason="no")
            else:
                yield Answer(question.id, question.key, "ok", {"activations": verdict}, verdict, "strict")


def test_a_simulator_that_knows_all_is_right_and_another_s_explanation_says_nothing() -> None:
    def a_little_of_everything(question: Question) -> list[int]:
        values = by_word(question)
        return [values[0] + 1, *values[1:]]  # so that no simulation is constant

    judgements, found, counts = judged(
        autointerp(simulations=3), Simulator(a_little_of_everything), measured(8)
    )
    assert found["simulation"].value is not None
    assert found["simulation_shuffled"].value is not None
    assert found["simulation"].value > 0.85  # it knows where, not how strongly
    assert -0.2 < found["simulation_shuffled"].value < 0
    assert (found["simulation"].n, found["simulation"].resampling_unit) == (8, "latent")
    assert not found["simulation"].headline
    assert found["detection"].headline
    assert counts["simulation_latents"] == counts["simulation_shuffled_latents"] == 8
    assert "have no correlation" not in found["simulation"].note
    for one in judgements:
        if one["kind"] in SIMULATED:
            assert len(one["truth"]) == len(one["verdict"]) == 7


def test_the_score_is_pearson_s_over_all_tokens_of_a_latent() -> None:
    drawn = np.random.default_rng(0)

    def random(question: Question) -> list[int]:
        return [int(value) for value in drawn.integers(0, 11, len(tokens(question)))]

    judgements, found, _ = judged(autointerp(simulations=2), Simulator(random), measured(4))
    expected = []
    for latent in range(4):
        mine = [one for one in judgements if one["kind"] == "simulation" and one["latent"] == latent]
        assert len(mine) == 4
        truth = np.concatenate([one["truth"] for one in mine])
        values = np.concatenate([one["verdict"] for one in mine]).astype(float)
        truth, values = truth - truth.mean(), values - values.mean()
        expected.append((truth @ values) / np.sqrt((truth @ truth) * (values @ values)))
    assert found["simulation"].value == pytest.approx(np.mean(expected))
    interval = found["simulation"].interval
    assert interval is not None
    spread = 3.182446 * np.std(expected, ddof=1) / 2  # t of 3 degrees of freedom
    assert interval.high - interval.low == pytest.approx(2 * spread, rel=1e-5)


def test_a_judge_that_knows_nothing_is_at_zero() -> None:
    _, found, _ = judged(autointerp(simulations=4, intruders=0), make_judge("chance"), measured(60))
    for name in sorted(SIMULATED):
        interval = found[name].interval
        assert interval is not None
        assert interval.low - 0.03 <= 0 <= interval.high + 0.03, (name, interval)


def test_texts_are_half_and_half_and_none_of_a_document_of_the_explainer() -> None:
    judge = Simulator()
    judgements, _, _ = judged(autointerp(simulations=CONTEXTS + 5), judge, measured(3))
    shown = {
        one.text
        for question in judge.asked
        if question.rubric.name == "explain"
        for one in question.material["contexts"]
        if isinstance(one, MarkedText)
    }
    simulated = {str(question.material["text"]) for question in judge.asked if "text" in question.material}
    assert simulated
    assert not shown & simulated
    for kind in SIMULATED:
        active = [max(one["truth"]) > 0 for one in judgements if one["kind"] == kind]
        assert (sum(active), len(active)) == (3 * CONTEXTS, 3 * 2 * CONTEXTS)
    few = Simulator()
    judgements, _, _ = judged(autointerp(simulations=2), few, measured(1))
    peaks = [max(one["truth"]) for one in judgements if one["kind"] == "simulation"]
    assert peaks == [11, 5, 0, 0]  # a strong one, one of the middle: the test half runs from 11 down to 1


def test_every_question_has_the_text_and_its_tokens_numbered() -> None:
    judge = Simulator()
    judged(autointerp(simulations=1), judge, measured(2))
    asked = next(question for question in judge.asked if question.rubric.name == "simulation")
    body = asked.messages("n0nce")[1]["content"]
    assert "Some words number1 secret0 and more." in body
    assert "\n1. Some\n2. words\n3. number1\n4. secret0\n5. and\n6. more\n7. .\n" in body
    assert asked.count == 7


def unmeasured(items: list[Item], first: int) -> list[Item]:
    return [item | {"unmeasured": first} if item["kind"] == "text" else item for item in items]


def test_tokens_that_were_not_measured_count_for_nothing() -> None:
    def loud_at_first(question: Question) -> list[int]:
        values = by_word(question)
        return [10, *values[1:]]

    task = autointerp(simulations=2)
    judgements, found, _ = judged(task, Simulator(loud_at_first), unmeasured(measured(3), 1))
    quiet = judged(task, Simulator(by_word), unmeasured(measured(3), 1))[1]
    assert found["simulation"].value == quiet["simulation"].value
    assert all(one["truth"][0] is None for one in judgements if one["kind"] == "simulation")
    counted = judged(task, Simulator(loud_at_first), measured(3))[1]
    assert (counted["simulation"].value or 0) < (found["simulation"].value or 0)


def test_a_latent_of_which_the_strongest_token_alone_was_kept_is_not_simulated() -> None:
    items = [
        item | {"activations": None}
        if item["kind"] == "text" and item["latent"] == 1 and "positives" in item["id"]
        else item
        for item in measured(4)
    ]
    judgements, found, counts = judged(autointerp(simulations=2), Simulator(), items)
    assert {one["latent"] for one in judgements if one["kind"] == "simulation"} == {0, 2, 3}
    assert (counts["simulation_latents"], counts["latents_explained"]) == (3, 4)
    assert found["simulation"].n == 3


def test_what_is_constant_has_no_correlation_and_is_counted() -> None:
    def silent_for_some(question: Question) -> list[int]:
        latent = int(question.id.split("-")[0])
        return [0] * len(tokens(question)) if latent < 2 else by_word(question)

    _, found, counts = judged(autointerp(simulations=2), Simulator(silent_for_some), measured(6))
    assert counts["simulation_constant"] == 2
    assert found["simulation"].n == 4
    value = found["simulation"].value
    assert value is not None
    worst, best = (4 * value - 2) / 6, (4 * value + 2) / 6
    assert f"with 2 unscored at their worst and best: {worst:.3f} to {best:.3f}" in found["simulation"].note
    assert f"{4 * value / 6:.3f} if 2 constant simulations" in found["simulation"].note
    # By another's explanation none of these texts holds anything.
    assert counts["simulation_shuffled_constant"] == 6
    shuffled = found["simulation_shuffled"]
    assert shuffled.value is None
    assert shuffled.reason == "a mean needs 2 latents; 0 have a correlation"


def test_replies_without_a_verdict_are_left_out_and_counted() -> None:
    def lost(question: Question) -> list[int] | None:
        latent, kind, number = question.id.split("-")
        if kind == "simulation_shuffled":
            return by_word(question)
        unanswered = latent == "0" or (latent == "1" and number in "01")
        return None if unanswered else by_word(question)

    _, found, counts = judged(autointerp(simulations=2), Simulator(lost), measured(5))
    assert counts["simulation_unanswered"] == 1
    assert counts["simulation_truth_constant"] == 1  # only texts without the latent were answered
    assert counts["unscored: parse_failed"] == 6
    assert found["simulation"].n == 3
    assert "warning: 30.0% of the judgements are unscored" in found["simulation"].note
    assert "unscored" not in found["detection"].note


def test_chances_go_before_numbers() -> None:
    class Unsure(Simulator):
        def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
            for answer in super().answers(questions):
                if "simulation" in answer.id:
                    weights = [0.1 + 0.01 * value for value in answer.verdict]
                    yield answer._replace(verdict=[0] * len(weights), weights=weights)
                else:
                    yield answer

    _, found, counts = judged(autointerp(simulations=2), Unsure(), measured(4))
    assert "simulation_constant" not in counts
    assert (found["simulation"].value or 0) > 0.9


def test_it_is_off_by_default_and_changes_no_other_question() -> None:
    plain, more = Simulator(), Simulator()
    off, on = autointerp(), autointerp(simulations=2)
    judgements, found, counts = judged(off, plain, measured(3))
    assert not SIMULATED & {one["kind"] for one in judgements}
    assert not SIMULATED & set(found)
    assert not any("simulation" in name for name in counts)
    judged(on, more, measured(3))
    others = [question.key for question in more.asked if question.rubric.name != "simulation"]
    assert others == [question.key for question in plain.asked]
    assert "simulation" not in off.rubrics()
    assert "simulation" in on.rubrics()


def test_what_stands_is_not_asked_again() -> None:
    task, first = autointerp(simulations=2), Simulator()
    judgements, found, _ = judged(task, first, measured(3))
    again = Simulator()
    kept, same, _ = judged(task, again, [*measured(3), *judgements])
    assert not again.asked
    assert [one["truth"] for one in kept if one["kind"] == "simulation"] == [
        one["truth"] for one in judgements if one["kind"] == "simulation"
    ]
    assert same["simulation"] == found["simulation"]


def test_the_plan_counts_the_simulations_that_are_asked() -> None:
    items = measured(5)
    for simulations in (0, 2, CONTEXTS, 50):
        task = autointerp(simulations=simulations, latents=5)
        judge = Simulator()
        list(task.judge(items, judge, generator("j")))
        assert task.judge_calls() == len(judge.asked)
    without, with_it = autointerp(latents=5), autointerp(simulations=4, latents=5)
    extra = with_it.judge_calls() - without.judge_calls()
    read, written = (b - a for a, b in zip(without.judge_tokens(), with_it.judge_tokens(), strict=True))
    assert (read / extra, written / extra) == (350 + 6 * 32, 40 + 12 * 32)


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        ([], "unanswered"),
        ([(0.0, 1.0), (0.0, 2.0)], "truth_constant"),
        ([(0.0, 0.0), (0.0, 0.0)], "truth_constant"),
        ([(0.0, 3.0), (1.0, 3.0)], "constant"),
        ([(0.0, 0.0), (2.0, 5.0)], 1.0),
        ([(0.0, 9.0), (2.0, 5.0)], -1.0),
        ([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)], 0.0),
    ],
)
def test_correlation(pairs: list[tuple[float, float]], found: float | str) -> None:
    assert correlation(pairs) == (found if isinstance(found, str) else pytest.approx(found))
