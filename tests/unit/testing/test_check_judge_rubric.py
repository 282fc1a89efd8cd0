"""`check_judge` of judges that answer rubrics: what one may get wrong is found by its own check."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from latentbench.judging import make_judge
from latentbench.testing import JUDGE_CHECKS, check_judge, parametrize_judge_checks
from latentbench_judges import Answer, Question

OF_RUBRICS = ["no questions", "answers", "statuses", "menu", "asked again", "hostile texts"]


class Sound:
    """Chance, with every answer changed by `change`."""

    role = "rubric"

    def identity(self) -> dict[str, Any]:
        return {"name": "sound"}

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        for question in questions:
            for answer in make_judge("chance").answers([question]):
                yield self.change(question, answer)

    def change(self, _question: Question, answer: Answer) -> Answer:
        return answer


class SpeaksUp(Sound):
    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        yield Answer("hello", "k", "missing", reason="nobody asked")
        yield from super().answers(questions)


class Loses(Sound):
    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        yield from itertools.islice(super().answers(questions), 1, None)


class Doubles(Sound):
    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        for answer in super().answers(questions):
            yield from (answer, answer)


class Counts(Sound):
    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        yield from super().answers([questions[n] for n in range(len(questions))])  # type: ignore[index, arg-type]


class NoKey(Sound):
    def change(self, _question: Question, answer: Answer) -> Answer:
        return answer._replace(key="")


class Unstorable(Sound):
    def change(self, _question: Question, answer: Answer) -> Answer:
        return answer._replace(weights=[float("nan")])


class Invents(Sound):
    def change(self, _question: Question, answer: Answer) -> Answer:
        return answer._replace(status="unsure")  # type: ignore[arg-type]


class OkForNothing(Sound):
    def change(self, _question: Question, answer: Answer) -> Answer:
        return answer._replace(verdict=None)


class Guesses(Sound):
    def change(self, _question: Question, answer: Answer) -> Answer:
        return answer._replace(status="parse_failed", reason="no")


class Silent(Sound):
    def change(self, _question: Question, answer: Answer) -> Answer:
        return answer._replace(status="refused", verdict=None)


class Kinds(Sound):
    """Spoils the verdicts of one kind of rubric."""

    def __init__(self, kind: str, spoil: Callable[[Any], Any]) -> None:
        self._kind, self._spoil = kind, spoil

    def change(self, question: Question, answer: Answer) -> Answer:
        if question.rubric.kind != self._kind:
            return answer
        return answer._replace(verdict=self._spoil(answer.verdict))


class Wavers(Sound):
    rounds = itertools.count()

    def change(self, question: Question, answer: Answer) -> Answer:
        menu = question.rubric.menu
        return answer._replace(verdict=menu[next(self.rounds) % 2]) if question.id == "choice" else answer


class Remembers(Sound):
    def __init__(self) -> None:
        self._asked = 0

    def identity(self) -> dict[str, Any]:
        return {"name": "remembers", "asked": self._asked}

    def change(self, _question: Question, answer: Answer) -> Answer:
        self._asked += 1
        return answer


class Trusting(Sound):
    def change(self, question: Question, answer: Answer) -> Answer:
        for material in question.material.values():
            str(material[0] if isinstance(material, tuple) else material).encode("utf-8")
        return answer


@parametrize_judge_checks(Sound)
def test_a_sound_judge(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize(
    ("judge", "check", "found"),
    [
        (SpeaksUp, "no questions", "1 answers to no questions"),
        (SpeaksUp, "answers", "of 9 questions never asked: hello"),
        (Loses, "answers", "of 9 questions lost: choice"),
        (Doubles, "answers", "answered twice: choice, choice-of-one"),
        (Counts, "answers", "TypeError"),
        (NoKey, "answers", "the answer to 'choice' has another key"),
        (Unstorable, "answers", "ValueError"),
        (Invents, "statuses", "'choice' has the status 'unsure'"),
        (OkForNothing, "statuses", "'choice' is ok without a verdict"),
        (Guesses, "statuses", "'choice' is parse_failed and has a verdict"),
        (Silent, "statuses", "'choice' is refused without a reason"),
        (lambda: Kinds("choice", float), "menu", "is not on the menu [1, 2, 3, 4, 5]"),
        (lambda: Kinds("choice", lambda _one: 9), "menu", "'choice': 9 is not on the menu"),
        (lambda: Kinds("choice", str), "menu", "is not on the menu"),
        (lambda: Kinds("flags", lambda _one: 1), "menu", "'flags': 1 is no list"),
        (
            lambda: Kinds("flags", lambda one: [bool(flag) for flag in one]),
            "menu",
            "is not on the menu [0, 1]",
        ),
        (lambda: Kinds("flags", lambda one: one[1:]), "menu", "'flags': 2 values for 3 items"),
        (lambda: Kinds("ratings", lambda one: [*one, 0]), "menu", "'ratings': 10 values for 9 items"),
        (lambda: Kinds("ratings", lambda one: [11 for _ in one]), "menu", "11 is not on the menu"),
        (lambda: Kinds("text", lambda _one: 3), "menu", "'text': 3 is no text"),
        (Wavers, "asked again", "'choice' got"),
        (Remembers, "asked again", "identity changes with what is asked"),
        (Trusting, "hostile texts", "UnicodeEncodeError"),
    ],
)
def test_a_broken_judge(judge: Callable[[], Any], check: str, found: str) -> None:
    failed = {result.name: result for result in check_judge(judge()) if result.passed is False}
    assert check in failed, failed
    assert found in failed[check].found


def test_other_checks_are_skipped() -> None:
    results = check_judge(Sound())
    assert tuple(result.name for result in results) == JUDGE_CHECKS
    assert [result.name for result in results if result.passed] == ["role", "identity", *OF_RUBRICS]


def test_who_knows_nothing_has_no_menu_to_keep() -> None:
    class Nobody(Sound):
        def change(self, _question: Question, answer: Answer) -> Answer:
            return answer._replace(status="missing", verdict=None, fields=None, reason="no reply is stored")

    states = {result.name: result.state for result in check_judge(Nobody())}
    assert states["menu"] == "skipped"
    assert {states[name] for name in OF_RUBRICS if name != "menu"} == {"passed"}
