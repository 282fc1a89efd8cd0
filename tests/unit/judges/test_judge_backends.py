"""Judges beside the client: people, replays, panels, local models, chance, the offline rules."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from latentbench.errors import UserError
from latentbench.judging import make_judge
from latentbench.testing import ToyJudge, toy_lm, toy_tokenizer
from latentbench_judges import Answer, MarkedText, Question, ask, load_rubric
from latentbench_judges.hf_judge import HfJudge, _shared
from latentbench_judges.human import write_sheet
from latentbench_judges.panel import PanelJudge, _categories


def question(number: int, text: str = "") -> Question:
    context = MarkedText((text or "a ", f"word{number}"), (0.0, 1.0))
    return Question(f"q{number}", load_rubric("monosemanticity"), {"contexts": (context,)})


def detection(number: int, texts: int) -> Question:
    shown = tuple(f"text {number} {n}" for n in range(texts))
    return Question(f"d{number}", load_rubric("detection"), {"explanation": "rivers", "texts": shown})


def simulation(number: int, *tokens: str, explanation: str = "rivers") -> Question:
    return Question(
        f"s{number}",
        load_rubric("simulation"),
        {"explanation": explanation, "text": "".join(tokens), "tokens": tokens},
    )


class Fixed:
    """Gives what it is told, by the question's id."""

    role = "rubric"

    def __init__(self, verdicts: dict[str, Any]) -> None:
        self.verdicts = verdicts
        self.asked: list[str] = []

    def identity(self) -> dict[str, Any]:
        return {"name": "fixed", "verdicts": self.verdicts}

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        for one in questions:
            self.asked.append(one.id)
            verdict = self.verdicts.get(one.id)
            if verdict is None:
                yield Answer(one.id, one.key, "parse_failed", reason="no")
            else:
                yield Answer(one.id, one.key, "ok", {one.rubric.verdict: verdict}, verdict, "strict")


def test_a_sheet_is_blind_shuffled_and_read_back(tmp_path: Path) -> None:
    questions = [question(n) for n in range(30)]
    sheet = tmp_path / "sheet.csv"
    assert write_sheet([*questions, question(0)], sheet) == 30
    with sheet.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["question"] for row in rows] != [one.key for one in questions]
    assert not any(one.id in json.dumps(rows) for one in questions)
    with pytest.raises(UserError, match="may be filled in"):
        write_sheet(questions, sheet)
    for place, row in enumerate(rows):
        row["verdict"] = ["4", " 2 ", "", "7"][place % 4]
    filled = tmp_path / "filled.csv"
    with filled.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    answers = {one.key: one for one in make_judge(f"human:{filled}").answers(questions)}
    for place, row in enumerate(rows):
        answer = answers[row["question"]]
        assert (answer.status, answer.verdict) == [
            ("ok", 4),
            ("ok", 2),
            ("missing", None),
            ("parse_failed", None),
        ][place % 4]
    assert (
        make_judge(f"human:{filled}").identity() != make_judge(f"human:{filled}", {"rater": "A"}).identity()
    )
    (unknown,) = make_judge(f"human:{filled}").answers([question(99)])
    assert unknown.status == "missing"


def test_a_sheet_holds_no_formula(tmp_path: Path) -> None:
    rubric = load_rubric("monosemanticity").model_copy(update={"user": "=HYPERLINK(1) {contexts}"})
    evil = Question("q", type(rubric).model_validate(rubric.model_dump()), question(1).material)
    write_sheet([evil], tmp_path / "sheet.csv")
    assert ",'=HYPERLINK" in (tmp_path / "sheet.csv").read_text().replace('"', "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "lacks the columns"),
        ("question,verdict\nk,1\nk,2\n", "two verdicts on"),
        (b"\xff\xfe\x00", "not CSV in UTF-8"),
        (None, "can't be read"),
    ],
)
def test_a_bad_sheet_is_named(tmp_path: Path, content: str | bytes | None, message: str) -> None:
    path = tmp_path / "s.csv"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError, match=message):
        make_judge(f"human:{path}")


def test_replies_are_replayed_with_the_present_parser(tmp_path: Path) -> None:
    raw = json.dumps({"explanation": "x", "category": "low_level", "score": 3})
    kept = Answer("q1", question(1).key, "ok", {"score": 5}, 5, "strict", raw=raw, model="m")
    broken = Answer("q2", question(2).key, "parse_failed", raw="no")
    path = tmp_path / "runs" / "judgements.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(one.as_item("rating")) + "\n" for one in (kept, broken)))
    found = {one.id: one for one in make_judge(f"replay:{tmp_path}").answers([question(1), question(2)])}
    assert (found["q1"].status, found["q1"].verdict, found["q1"].model) == ("ok", 3, "m")
    assert (found["q2"].status, found["q2"].raw) == ("parse_failed", "no")
    other = tmp_path / "more" / "judgements.jsonl"
    other.parent.mkdir()
    other.write_text(json.dumps(kept._replace(raw=raw.replace("3", "2")).as_item("rating")) + "\n")
    with pytest.raises(UserError, match="two replies to one question"):
        make_judge(f"replay:{tmp_path}")
    with pytest.raises(UserError, match="holds no replies"):
        make_judge(f"replay:{tmp_path / 'none'}")


def test_what_stands_is_not_asked_again() -> None:
    judge = Fixed({"q1": 4, "q2": 2})
    first = list(ask(judge, [question(1), question(2)]))
    stored = [one.as_item("rating") for one in first]
    again = list(ask(judge, [question(1), question(2), question(3)], stored))
    assert judge.asked == ["q1", "q2", "q3"]
    assert [(one.id, one.verdict, one.stored) for one in again] == [
        ("q1", 4, True),
        ("q2", 2, True),
        ("q3", None, False),
    ]


def panel(merge: str, *members: dict[str, Any], quorum: int | None = None) -> PanelJudge:
    made = make_judge("panel", {"members": ["chance", "offline"], "merge": merge, "quorum": quorum})
    made.members = {f"m{n}": Fixed(verdicts) for n, verdicts in enumerate(members)}
    result: PanelJudge = made
    return result


def test_a_panel_averages_numbers_and_keeps_what_each_said() -> None:
    (answer,) = panel("mean", {"q1": 4}, {"q1": 5}).answers([question(1)])
    assert (answer.status, answer.verdict, answer.path) == ("ok", 4.5, "merged")
    assert answer.fields == {"members": {"m0": 4, "m1": 5}, "score": 4.5}
    rated = question(1)
    kinds = ("low_level", "low_level", "high_level")
    answers = [Answer("q1", rated.key, "ok", {"category": kind, "score": 4}, 4, "strict") for kind in kinds]
    assert _categories(rated, answers) == {"category": "low_level"}
    assert _categories(rated, answers[1:]) == {}
    (voted,) = panel("vote", {"q1": 4}, {"q1": 5}, {"q1": 5}).answers([question(1)])
    assert voted.verdict == 5
    (split,) = panel("vote", {"q1": 4}, {"q1": 5}).answers([question(1)])
    assert (split.status, split.verdict) == ("parse_failed", None)
    (alone,) = panel("mean", {"q1": 4}, {}, {}).answers([question(1)])
    assert (alone.status, alone.reason) == ("parse_failed", "1 of 3 members gave a verdict, 2 are needed")
    (enough,) = panel("mean", {"q1": 4}, {}, {}, quorum=1).answers([question(1)])
    assert enough.verdict == 4
    (flags,) = panel("mean", {"d1": [1, 0]}, {"d1": [1, 1]}, {"d1": [0, 0]}).answers([detection(1, 2)])
    assert flags.verdict == [1, 0]
    (tied,) = panel("mean", {"d1": [1, 0]}, {"d1": [1, 1]}).answers([detection(1, 2)])
    assert (tied.status, tied.verdict) == ("parse_failed", None)
    (numbers,) = panel("mean", {"s1": [0, 8]}, {"s1": [1, 10]}).answers([simulation(1, "a", " b")])
    assert numbers.verdict == [0.5, 9.0]
    (most,) = panel("vote", {"s1": [0, 8]}, {"s1": [1, 8]}, {"s1": [1, 10]}).answers(
        [simulation(1, "a", " b")]
    )
    assert most.verdict == [1, 8]
    explain = Question("e1", load_rubric("explain"), question(1).material)
    (words,) = panel("mean", {"e1": "rivers"}, {"e1": "names of rivers"}).answers([explain])
    assert words.verdict == "rivers"


def test_a_panel_of_the_wrong_people_is_refused() -> None:
    with pytest.raises(UserError, match="twice"):
        make_judge("panel:chance+chance")
    with pytest.raises(UserError, match="at least 2"):
        make_judge("panel:chance")
    with pytest.raises(UserError, match="unknown judge"):
        make_judge("panel:chance+nobody")


def local(tmp_path: Path, words: int = 4) -> HfJudge:
    judge: HfJudge = make_judge("hf:toy", {"words": words, "batch": 2, "cache": tmp_path / "r.sqlite"})
    lm = toy_lm("llama", tokenizer=toy_tokenizer())
    lm.config.max_position_embeddings = 1 << 16
    judge.__dict__["lm"] = lm
    return judge


def test_a_local_model_answers_in_the_form_and_on_the_menu(tmp_path: Path) -> None:
    questions = [
        question(1),
        question(2, "a longer text than the first one "),
        detection(1, 3),
        detection(2, 1),
    ]
    answers = {one.id: one for one in local(tmp_path).answers(questions)}
    for one in questions:
        answer = answers[one.id]
        assert (answer.status, answer.path) == ("ok", "constrained")
        assert json.loads(answer.raw) == answer.fields
        one.rubric.validator.validate(answer.fields)
    assert answers["q1"].verdict in (1, 2, 3, 4, 5)
    assert sum(answers["q1"].weights or []) == pytest.approx(1)
    assert len(answers["q1"].weights or []) == 5
    assert len(answers["d1"].verdict) == len(answers["d1"].weights or []) == 3
    assert [one.stored for one in local(tmp_path).answers(questions)] == [True] * 4


def test_a_local_model_s_answer_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    many = [question(n, "text " * n) for n in range(5)]
    together = {one.id: one for one in local(tmp_path / "a", words=0).answers(many)}
    for one in many:
        (alone,) = local(tmp_path / "b", words=0).answers([one])
        assert alone.verdict == together[one.id].verdict
        assert alone.weights == pytest.approx(together[one.id].weights, abs=1e-4)


def test_menu_values_of_several_tokens_are_summed(tmp_path: Path) -> None:
    """The likeliest value is that of the whole value's log-probability, by definition."""
    judge = local(tmp_path, words=0)
    lm, prompt = judge.lm, "The category is "
    menu = ["low_level", "low", "high_level"]  # one is the beginning of another

    class Draft:
        text = prompt

    ((value, weights),) = judge._chosen([Draft()], menu, ["}"])  # type: ignore[list-item]
    sums = []
    for one in menu:
        ids = lm.tokenizer(prompt + json.dumps(one) + "}", add_special_tokens=False)["input_ids"]
        start = _shared(
            [lm.tokenizer(prompt + json.dumps(m), add_special_tokens=False)["input_ids"] for m in menu]
        )
        logits = lm.forward(lm.batch([ids])).logits
        assert logits is not None
        logs = logits[0].double().log_softmax(-1)
        sums.append(sum(float(logs[place - 1, ids[place]]) for place in range(start, len(ids))))
    assert value == menu[sums.index(max(sums))]
    assert [a / b for a, b in pairwise(weights)] == pytest.approx(
        [2.718281828459045 ** (a - b) for a, b in pairwise(sums)], rel=1e-3
    )


def test_a_local_model_rates_each_token_in_one_pass(tmp_path: Path) -> None:
    """Values from 0 to 10 against the definition: P(10) is P(1) P(0|1), and P(1) goes on with what ends it."""
    judge = local(tmp_path, words=0)
    lm, asked = judge.lm, simulation(1, "The", " old", " Thames")
    rows = []
    forward = lm.forward

    def counted(tokens: Any, **options: Any) -> Any:
        rows.append(tokens.ids.shape[0])
        return forward(tokens, **options)

    lm.forward = counted  # type: ignore[method-assign]
    (answer,) = judge.answers([asked])
    assert rows == [1, 1, 1]
    assert (answer.status, answer.path, answer.fields) == (
        "ok",
        "constrained",
        {"reasons": "", "activations": answer.verdict},
    )
    written = json.loads(answer.raw)
    asked.rubric.validator.validate(written)
    assert [one["n"] for one in written["activations"]] == [1, 2, 3]
    assert [one["value"] for one in written["activations"]] == answer.verdict
    draft = judge._prompt(asked) + '{"reasons": "", "activations": [{"n": 1, "value": '
    chances = []
    for value in range(11):
        tail = "}" if value == 1 else ""  # what tells it from 10
        ids = judge._ids(f"{draft}{value}{tail}")
        logits = forward(lm.batch([ids])).logits
        assert logits is not None
        logs = logits[0].double().log_softmax(-1)
        start = len(judge._ids(draft))
        chances.append(sum(float(logs[n - 1, ids[n]]) for n in range(start, len(ids))))
    assert answer.verdict[0] == chances.index(max(chances))
    weights = [2.718281828459045**one for one in chances]
    mean = sum(value * weight for value, weight in enumerate(weights)) / sum(weights)
    assert answer.weights is not None
    assert answer.weights[0] == pytest.approx(mean, rel=1e-4)
    assert len(answer.weights) == 3


def test_a_question_beyond_the_window_has_a_status_and_spoils_no_other(tmp_path: Path) -> None:
    judge = local(tmp_path)
    window = len(judge._ids(judge._prompt(question(1)))) + 200
    judge.lm.config.max_position_embeddings = window
    found = {one.id: one for one in judge.answers([question(1), question(2, " ".join(map(str, range(200))))])}
    assert found["q1"].status == "ok"
    assert (found["q2"].status, found["q2"].verdict) == ("truncated", None)
    assert f"window of {window}" in (found["q2"].reason or "")


def test_chance_is_fair_and_the_same_every_time() -> None:
    judge = make_judge("chance")
    answers = list(judge.answers([question(n) for n in range(400)]))
    assert list(judge.answers([question(n) for n in range(400)])) == answers
    counts = [sum(one.verdict == score for one in answers) for score in range(1, 6)]
    assert min(counts) > 50
    (flags,) = judge.answers([detection(1, 7)])
    assert len(flags.verdict) == 7
    (rated,) = judge.answers([simulation(1, *("word" for _ in range(500)))])
    assert set(rated.verdict) == set(range(11))
    assert len(rated.verdict) == 500


def test_the_offline_judge_simulates_by_the_words_of_the_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = make_judge("offline")
    monkeypatch.setattr(judge, "_embed", ToyJudge())
    tokens = (
        "The",
        " riv",
        "ers",
        " and",
        "\n",
        " a",
        " beach",
        ",",
        " \u0130st",
        "anbul River",
        " riverbed",
    )
    (answer,) = judge.answers([simulation(1, *tokens, explanation="beaches, a river")])
    assert (answer.status, answer.path) == ("ok", "computed")
    assert [place for place, value in enumerate(answer.verdict) if value == 10] == [1, 2, 6]
    assert len(answer.verdict) == len(tokens)


@pytest.mark.slow
def test_the_offline_judge_knows_words_that_are_close_in_meaning() -> None:
    tokens = (
        "The",
        " riv",
        "ers",
        " and",
        "\n",
        " the",
        " Thames",
        ",",
        " a",
        " stream",
        ".",
        " İst",
        "anbul River",
    )
    judge = make_judge("offline")
    (answer,) = judge.answers([simulation(1, *tokens, explanation="a river")])
    values = dict(enumerate(answer.verdict))
    assert (answer.status, answer.path, len(values)) == ("ok", "computed", len(tokens))
    assert [place for place, value in values.items() if value == 10] == [1, 2]
    assert values[4] == values[7] == values[10] == 0
    assert 0 < values[9] < 10  # a stream is close to a river
    assert values[9] > values[0]
    (empty,) = judge.answers([simulation(2, "\n", ".", explanation="rivers")])
    assert empty.verdict == [0, 0]


def test_the_offline_judge_has_no_rule_for_other_rubrics() -> None:
    (answer,) = make_judge("offline").answers([detection(1, 2)])
    assert (answer.status, answer.reason) == (
        "missing",
        "the offline judge has no rule for the rubric 'detection'",
    )


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("nobody", {}, "unknown judge"),
        ("embed:x", {}, "takes no argument"),
        ("chance", {"a": 1}, "takes no argument and no options"),
        ("hf:", {}, "model"),
        ("hf:m", {"word": 1}, "did you mean 'words'"),
        ("hf:m", {"model": "n"}, "takes its model from its name"),
        ("openai:m", {"model": "n"}, "takes its model from its name"),
        ("openai:m", {"url": "http://bob:secret@localhost/v1"}, "may hold a secret"),
        ("openai:m", {"url": "http://localhost/v1?api-key=x"}, "may hold a secret"),
        ("openai:m", {"url": "localhost:8000"}, "begins with http"),
        ("panel:chance+offline", {"quorum": 3}, "the panel has 2 members"),
    ],
)
def test_a_wrong_judge_is_named(spec: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_judge(spec, options)
