"""The part of `check_judge` for judges that answer a rubric's questions.

What is asked comes from the registered judge "chance", since the core knows of questions and answers no more than is
read here: of a question `id`, `key`, `count` and its rubric's `kind`, `menu` and `scale`; of an answer `id`, `key`,
`status`, `verdict`, `path`, `reason` and `as_item`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from latentbench.identity import canonical_json
from latentbench.judging import STATUSES, make_judge
from latentbench.testing._results import Check, Finding

__all__ = ["RUBRIC_CHECKS", "other_role"]

Pair = tuple[Any, Any]
"""A question and its answer."""


def other_role(judge: Any) -> Finding:
    """What a check of one role finds at a judge of another."""
    return Finding(None, f"there is no such check for the role {judge.role!r}")


def _examples(*, hostile: bool = False) -> list[Any]:
    found: list[Any] = make_judge("chance").examples(hostile=hostile)
    return found


def _asked(judge: Any, questions: Sequence[Any]) -> list[Any]:
    """The judge's answers. Questions come one by one: a task may not have them all at once."""
    return list(judge.answers(question for question in questions))


def _of_rubrics(check: Callable[[Any], Finding]) -> Callable[[Any], Finding]:
    """The check for judges of the role "rubric" alone."""
    return lambda judge: check(judge) if judge.role == "rubric" else other_role(judge)


def _none_asked(judge: Any) -> Finding:
    found = _asked(judge, [])
    return Finding(not found, f"{len(found)} answers to no questions")


def _every_one(judge: Any) -> Finding:
    questions = _examples()
    return _each_once(questions, _asked(judge, questions))


def _each_once(questions: Sequence[Any], answers: Sequence[Any]) -> Finding:
    wanted = {question.id: question.key for question in questions}
    counts = Counter(answer.id for answer in answers)
    lost, strange = sorted(set(wanted) - set(counts)), sorted(set(counts) - set(wanted))
    twice = [name for name, count in counts.items() if count > 1]
    for what, names in (("lost", lost), ("answered twice", twice), ("never asked", strange)):
        if names:
            instead = (
                "Give each question one answer, with the question's id and a status if there is no verdict."
            )
            return Finding(False, f"of {len(wanted)} questions {what}: {', '.join(map(str, names))}", instead)
    for answer in answers:
        if answer.key != wanted[answer.id]:
            instead = "Copy the question's key: what stands is found again by it."
            return Finding(False, f"the answer to {answer.id!r} has another key", instead)
        canonical_json(answer.as_item("answer"))  # raises where it can't be stored
    return Finding(True, f"{len(wanted)} questions, each answered once")


def _statuses(judge: Any) -> Finding:
    answers = _asked(judge, _examples())
    for answer in answers:
        if answer.status not in STATUSES:
            return Finding(
                False,
                f"{answer.id!r} has the status {answer.status!r}",
                f"Take one of {', '.join(STATUSES)}.",
            )
        if answer.status == "ok" and answer.verdict is None:
            return Finding(
                False, f"{answer.id!r} is ok without a verdict", "Say what went wrong by a status."
            )
        if answer.status != "ok" and answer.verdict is not None:
            instead = "Leave the verdict out: what is unscored must not be counted."
            return Finding(False, f"{answer.id!r} is {answer.status} and has a verdict", instead)
        if answer.status != "ok" and not answer.reason:
            return Finding(False, f"{answer.id!r} is {answer.status} without a reason", "Give one in words.")
    counts = Counter(answer.status for answer in answers)
    return Finding(True, ", ".join(f"{count} {status}" for status, count in sorted(counts.items())))


def _menu(judge: Any) -> Finding:
    questions = {question.id: question for question in _examples()}
    answers = [answer for answer in _asked(judge, list(questions.values())) if answer.status == "ok"]
    if not answers:
        return Finding(None, "no question of the kit has a verdict")
    for answer in answers:
        wrong = _off(questions[answer.id].rubric, questions[answer.id].count, answer)
        if wrong is not None:
            return Finding(False, f"{answer.id!r}: {wrong}", "Give parse_failed for what is off the menu.")
    return Finding(True, f"{len(answers)} verdicts are on their menus")


def _off(rubric: Any, count: int | None, answer: Any) -> str | None:
    """What is wrong with a verdict."""
    verdict = answer.verdict
    if rubric.kind == "text":
        return None if isinstance(verdict, str) else f"{verdict!r} is no text"
    if rubric.kind == "choice":
        values = [verdict]
    elif not isinstance(verdict, list):
        return f"{verdict!r} is no list"
    elif len(verdict) != count:
        return f"{len(verdict)} values for {count} items"
    else:
        values = verdict
    for value in values:
        # 1, 1.0 and True are equal; only the menu's own value will do.
        known = any(value == one and type(value) is type(one) for one in rubric.menu)
        if not known and not (answer.path == "merged" and _within(rubric.scale, value)):
            return f"{value!r} is not on the menu {list(rubric.menu)}"
    return None


def _within(scale: tuple[float, float] | None, value: Any) -> bool:
    """Whether a mean of several verdicts is possible."""
    return scale is not None and isinstance(value, int | float) and scale[0] <= value <= scale[1]


def _again(judge: Any) -> Finding:
    before = canonical_json(judge.identity())
    first, second = (_by_id(_asked(judge, _examples()[::step])) for step in (1, -1))
    if canonical_json(judge.identity()) != before:
        return Finding(
            False, "identity changes with what is asked", "Leave counters and what was answered out of it."
        )
    for name, answer in first.items():
        if answer.status == second[name].status == "ok" and answer.verdict != second[name].verdict:
            instead = "Judge at temperature 0 with a seed, or keep what was answered."
            return Finding(
                False, f"{name!r} got {answer.verdict!r} and then {second[name].verdict!r}", instead
            )
    return Finding(True, "the same questions in another order get the same verdicts")


def _by_id(answers: Sequence[Any]) -> dict[str, Any]:
    return {answer.id: answer for answer in answers}


def _hostile(judge: Any) -> Finding:
    questions = _examples(hostile=True)
    found = _each_once(questions, _asked(judge, questions))
    return (
        Finding(True, f"{len(questions)} questions on hostile texts are answered") if found.passed else found
    )


RUBRIC_CHECKS: tuple[Check[Any], ...] = (
    Check("no questions", "A cell may have nothing to judge.", _of_rubrics(_none_asked), ("role",)),
    Check(
        "answers",
        "A question without an answer is a hole that nobody counts.",
        _of_rubrics(_every_one),
        ("role",),
    ),
    Check(
        "statuses",
        "What went wrong is counted by its status, never scored.",
        _of_rubrics(_statuses),
        ("answers",),
    ),
    Check("menu", "What is off the menu would move a mean.", _of_rubrics(_menu), ("statuses",)),
    Check("asked again", "A verdict that stands is not asked for again.", _of_rubrics(_again), ("statuses",)),
    Check(
        "hostile texts",
        "Judged texts hold anything, orders to the judge among them.",
        _of_rubrics(_hostile),
        ("answers",),
    ),
)
"""The checks, in their order."""
