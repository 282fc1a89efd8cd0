"""Asking a judge what is not answered yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from latentbench_judges._answer import Answer
from latentbench_judges._question import Question
from latentbench_judges._roles import RubricJudge

__all__ = ["ask"]


def ask(
    judge: RubricJudge, questions: Iterable[Question], stored: Iterable[Mapping[str, Any]] = ()
) -> Iterator[Answer]:
    """An answer to every question, as they come; those that stand from an earlier run first.

    Args:
        judge: whom to ask.
        questions: what to ask.
        stored: judgements of an earlier run (`Answer.as_item`); one to the same question is taken over.
    """
    known = {item["question"]: item for item in stored if "question" in item}
    rest = []
    for question in questions:
        if question.key in known:
            yield Answer.from_item(known[question.key])._replace(id=question.id)
        else:
            rest.append(question)
    yield from judge.answers(rest)
