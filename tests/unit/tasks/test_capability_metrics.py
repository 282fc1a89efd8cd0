"""Laws of the capability metrics, and what the embedded items are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latentbench.data import Corpus, Document
from latentbench.identity import sha256_text
from latentbench.run import Item
from latentbench.stats import generator
from latentbench.store import Metric
from latentbench_tasks.capability._sets import EMBEDDED, Row, embedded_rows, shown_rows
from latentbench_tasks.capability.metrics import summarise, units

Answers = list[tuple[float, float, float]]
SCORES = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0]), st.floats(-30, 30), st.floats(0, 9)), min_size=2, max_size=25
)


def answers(condition: str, values: Answers, task: str = "one") -> list[Item]:
    return [
        {
            "kind": "answer",
            "id": f"{condition}|{task}|{place}",
            "task": task,
            "doc_id": place,
            "condition": condition,
            "correct": correct,
            "chance": 0.25,
            "margin": margin,
            "loss": loss,
        }
        for place, (correct, margin, loss) in enumerate(values)
    ]


def metrics(items: list[Item]) -> dict[str, Metric]:
    return {metric.name: metric for metric in summarise(items, generator("laws"))[0]}


def number(found: dict[str, Metric], name: str) -> float:
    value = found[name].value
    assert value is not None
    return value


@settings(deadline=None, max_examples=25)
@given(values=SCORES)
def test_no_change_is_exactly_zero(values: Answers) -> None:
    conditions = ("plain", "spliced", "steered@1:sport", "steered@1:law")
    found = metrics([item for condition in conditions for item in answers(condition, values)])
    changes = [metric for name, metric in found.items() if "_change_" in name]
    assert len(changes) == 3 * (2 + 2 + 2)  # three scores: all items, one task, two concepts
    for metric in changes:
        assert (metric.value, metric.n) == (0.0, len(values))
        assert metric.interval is None or metric.interval.low <= 0 <= metric.interval.high


@settings(deadline=None, max_examples=25)
@given(values=SCORES, other=SCORES)
def test_swapping_the_conditions_turns_the_sign(values: Answers, other: Answers) -> None:
    n = min(len(values), len(other))
    values, other = values[:n], other[:n]
    there = metrics(answers("plain", values) + answers("spliced", other))
    back = metrics(answers("plain", other) + answers("spliced", values))
    for name in ("acc_change_spliced", "margin_change_spliced", "loss_change_spliced"):
        assert number(there, name) == pytest.approx(-number(back, name), abs=1e-12)
    expected = np.mean([late[0] - early[0] for early, late in zip(values, other, strict=True)])
    assert number(there, "acc_change_spliced") == pytest.approx(expected)


@settings(deadline=None, max_examples=15)
@given(values=SCORES, data=st.data())
def test_the_order_of_items_changes_nothing(values: Answers, data: st.DataObject) -> None:
    worse: Answers = [(0.0, margin - 1, loss + 1) for _, margin, loss in values]
    items = answers("plain", values) + answers("spliced", worse) + answers("steered@2:sport", worse)
    shuffled = data.draw(st.permutations(items))
    assert metrics(items) == metrics(shuffled)


def test_a_difference_is_paired_and_not_that_of_two_means() -> None:
    """Items differ far more from one another than between conditions: only pairs show the change."""
    rng = np.random.default_rng(0)
    plain = [(1.0, 10 * float(rng.normal()), 1.0) for _ in range(40)]
    spliced = [(correct, margin - 0.5 + 0.1 * float(rng.normal()), loss) for correct, margin, loss in plain]
    metric = metrics(answers("plain", plain) + answers("spliced", spliced))["margin_change_spliced"]
    assert metric.interval is not None
    assert -0.6 < metric.interval.low < -0.45 < metric.interval.high < -0.4
    assert "p = 0.0005" in metric.note


def test_items_that_a_condition_lacks_are_left_out_and_not_0() -> None:
    plain: Answers = [(1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0)]
    found = metrics(answers("plain", plain) + answers("spliced", plain[:2]))
    assert (found["acc_change_spliced"].value, found["acc_change_spliced"].n) == (0.0, 2)
    assert found["acc_plain"].n == 3
    nothing = metrics([])
    assert nothing["acc_change_spliced"].value is None
    assert nothing["acc_change_spliced"].headline
    assert not [name for name in nothing if "steered" in name]


@settings(deadline=None, max_examples=15)
@given(values=SCORES, other=SCORES)
def test_units_are_the_items_and_give_every_published_number(values: Answers, other: Answers) -> None:
    items = answers("plain", values) + answers("spliced", other[: len(values)])
    items += answers("steered@2:sport", values[::-1]) + answers("plain", other, "two")
    items += answers("steered@2:law", values) + answers("spliced", other, "two")
    found = units(items, [], {})
    assert found is not None
    assert len(found.names) == len(values) + len(other)
    published = {name: metric.value for name, metric in metrics(items).items() if metric.value is not None}
    assert {k: v for k, v in found.values().items() if not np.isnan(v)} == pytest.approx(published)
    shuffled = units(items[::-1], [], {})
    assert shuffled is not None
    assert shuffled.key == found.key
    assert units([], [], {}) is None


def test_factors_and_tasks_stand_beside_each_other() -> None:
    low: Answers = [(1.0, 0.0, 1.0)] * 4
    items: list[Item] = []
    for task, shift in (("one", 0.0), ("two", 1.0)):
        items += answers("plain", low, task)
        for factor in (0.5, 10):
            for concept, more in (("sport", 0.0), ("law", 2.0)):
                moved: Answers = [(0.0, shift + more + factor, 1.0)] * 4
                items += answers(f"steered@{factor:g}:{concept}", moved, task)
    found = metrics(items)
    assert number(found, "margin_change_steered_at_0.5") == pytest.approx(0.5 + 1 + 0.5)
    assert number(found, "margin_change_steered_at_10") == pytest.approx(10 + 1 + 0.5)
    assert number(found, "margin_change_steered_at_10_one") == pytest.approx(11)
    assert number(found, "margin_change_steered_at_10_law") == pytest.approx(12.5)
    assert number(found, "acc_change_steered_at_0.5_two") == -1
    assert number(found, "acc_chance_two") == 0.25
    counts = summarise(items, generator("t"))[2]
    assert (counts["items"], counts["tasks"], counts["items of two"]) == (8, 2, 4)


def corpus(*texts: tuple[str, str, str]) -> Corpus:
    pool = [
        Document(sha256=sha256_text(text), text=text, source=source, labels={source: label})
        for text, source, label in texts
    ]
    return Corpus(name="toy", sha256="0" * 64, split="capability", documents=pool, pool=pool)


def only(name: str, *texts: tuple[str, str, str]) -> Row:
    (row,) = embedded_rows(name, corpus(*texts))
    return row


def test_labelled_texts_become_questions() -> None:
    row = only("lb_openbookqa", ("What is hot? (A) ice (B) fire (C) snow (D) rain", "55_open_qa", "B"))
    assert (row["question"], row["choices"], row["answer"]) == (
        "What is hot?",
        ["ice", "fire", "snow", "rain"],
        1,
    )
    row = only("lb_piqa", ("Cool soup.\n\nA.Blow on it.\nB.Heat it.", "44_phys_tf", "0"))
    assert (row["question"], row["choices"], row["answer"]) == ("Cool soup.", ["Blow on it.", "Heat it."], 0)
    text = "Context: Ann ran. | Question: Why? | Option A: fun | Option B: fear | Option C: fog. The correct answer is"
    row = only("lb_social_iqa", (text, "86_social_iqa", "3"))
    assert (row["question"], row["choices"], row["answer"]) == ("Ann ran. Why?", ["fun", "fear", "fog"], 2)
    row = only("lb_news_topic", ("A <b>cup</b> &amp; a ball", "97_news_class", "Sport"))
    assert (row["question"], row["choices"][row["answer"]]) == ("A cup & a ball", "Sports")
    row = only("lb_movie_sentiment", ("a dull film", "113_movie_sent", "0"))
    assert row["prompts"][row["answer"]] == "This is a negative review of a film:"


def test_texts_of_another_form_are_passed_over() -> None:
    made = corpus(
        ("What is hot? (A) ice (B) fire", "55_open_qa", "B"), ("no choices at all", "44_phys_tf", "1")
    )
    assert embedded_rows("lb_openbookqa", made) == embedded_rows("lb_piqa", made) == []
    assert embedded_rows("lb_news_topic", made) == []


def test_sciq_has_the_right_answer_among_those_of_other_questions() -> None:
    texts = [(f"Q: What is {n}?\nA: thing {n}", "36_sciq_tf", "1") for n in range(9)]
    texts += [("Q: What is 3?\nA: thing 4", "36_sciq_tf", "0")]
    rows = embedded_rows("lb_sciq", corpus(*texts))
    assert len(rows) == 9
    for row in rows:
        wanted = row["question"].removeprefix("What is ").rstrip("?")
        assert len(set(row["choices"])) == 4
        assert row["choices"][row["answer"]] == f"thing {wanted}"
        if wanted == "3":  # what was said of it and is wrong would be no distractor from another question
            assert "thing 4" not in row["choices"]
    assert len({row["answer"] for row in rows}) > 1


def test_shown_items_take_answers_in_turn() -> None:
    texts = [(f"Do {n}.\n\nA.left\nB.right", "44_phys_tf", str(int(n < 8))) for n in range(20)]
    shown: list[dict[str, Any]] = shown_rows("lb_piqa", corpus(*texts))
    assert [row["answer"] for row in shown] == [0, 1] * 8
    assert all(shown_rows(name, corpus(*texts)) for name in ("lb_fact_sheets", "lb_text"))


def test_fact_sheets_and_shown_ones_have_nothing_in_common() -> None:
    items, shown = embedded_rows("lb_fact_sheets", corpus()), shown_rows("lb_fact_sheets", corpus())
    assert not {row["document"] for row in items} & {row["document"] for row in shown}
    assert all(row["answer"] in row["context"] for row in [*items, *shown])
    assert set(EMBEDDED) > {"lb_fact_sheets"}
