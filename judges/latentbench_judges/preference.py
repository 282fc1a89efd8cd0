"""Pairwise preference, asked in both orders: who wins in one order alone has not won.

A judge that prefers a place gives opposite verdicts in the two orders; that is a tie, and it is counted (GPT-4 is
consistent in about 65 % of pairs, FastChat's paper).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from latentbench_judges._answer import Answer
from latentbench_judges._question import Question
from latentbench_judges._roles import RubricJudge
from latentbench_judges.rubric import load_rubric

__all__ = ["Pair", "Preference", "prefer"]

_SWAPPED = {"first": "second", "second": "first", "tie": "tie"}


class Pair(NamedTuple):
    """Two texts on one instruction."""

    id: str
    """Name of the pair; unique among those asked together."""
    instruction: str
    """What both were to do."""
    first: str
    """One text."""
    second: str
    """The other."""


class Preference(NamedTuple):
    """A verdict from both orders."""

    id: str
    """The pair's name."""
    better: Literal["first", "second", "tie"] | None
    """None if one of the answers has no verdict."""
    consistent: bool | None
    """Whether both orders gave the same; None without two verdicts."""
    answers: tuple[Answer, Answer]
    """As given, and with the texts swapped."""


def prefer(judge: RubricJudge, pairs: Sequence[Pair]) -> Iterator[Preference]:
    """The judge's preference on each pair.

    Args:
        judge: whom to ask.
        pairs: what to compare.
    """
    rubric = load_rubric("preference")
    questions = []
    for pair in pairs:
        for order, (first, second) in enumerate(((pair.first, pair.second), (pair.second, pair.first))):
            material = {"instruction": pair.instruction, "first": first, "second": second}
            questions.append(Question(f"{pair.id}/{order}", rubric, material))
    found = {answer.id: answer for answer in judge.answers(questions)}
    for pair in pairs:
        yield _merged(pair, found[f"{pair.id}/0"], found[f"{pair.id}/1"])


def _merged(pair: Pair, given: Answer, swapped: Answer) -> Preference:
    if given.status != "ok" or swapped.status != "ok":
        return Preference(pair.id, None, None, (given, swapped))
    one, other = given.verdict, _SWAPPED[swapped.verdict]
    return Preference(pair.id, one if one == other else "tie", one == other, (given, swapped))
