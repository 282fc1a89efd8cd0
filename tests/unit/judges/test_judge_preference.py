"""Preference in both orders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from latentbench_judges import Answer, Question
from latentbench_judges.preference import Pair, prefer

PAIR = Pair("p", "Say hello.", "Hello!", "No.")


class Says:
    """A judge with a way of choosing."""

    role = "rubric"

    def __init__(self, way: str) -> None:
        self.way = way

    def identity(self) -> dict[str, Any]:
        return {"name": self.way}

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        for question in questions:
            texts = question.material["first"], question.material["second"]
            verdict = {
                "right": "first" if texts[0] == "Hello!" else "second",
                "wrong": "second" if texts[0] == "Hello!" else "first",
                "place": "first",
                "tie": "tie",
                "shy": "tie" if texts[0] == "Hello!" else "second",
            }.get(self.way)
            if verdict is None or (self.way == "lost" and question.id.endswith("1")):
                yield Answer(question.id, question.key, "refused", reason="no")
            else:
                yield Answer(question.id, question.key, "ok", {"better": verdict}, verdict, "strict")


@pytest.mark.parametrize(
    ("way", "better", "consistent"),
    [
        ("right", "first", True),
        ("wrong", "second", True),
        ("place", "tie", False),
        ("tie", "tie", True),
        ("shy", "tie", False),
        ("refuses", None, None),
    ],
)
def test_who_wins_in_one_order_alone_has_not_won(
    way: str, better: str | None, consistent: bool | None
) -> None:
    (found,) = prefer(Says(way), [PAIR])
    assert (found.id, found.better, found.consistent) == ("p", better, consistent)
    assert [answer.id for answer in found.answers] == ["p/0", "p/1"]
