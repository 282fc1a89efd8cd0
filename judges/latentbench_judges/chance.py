"""Judge `chance`: verdicts drawn at random by the question's hash. What a protocol gives to a judge that knows nothing.

Run a task with it to see its floor. The conformance kit runs tasks with it, too, and has from it what it asks judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from latentbench.stats import generator
from latentbench_judges._answer import Answer
from latentbench_judges._examples import examples
from latentbench_judges._question import Question

__all__ = ["ChanceJudge"]


class ChanceJudge:
    """See the module."""

    name = "chance"
    """Registered name."""
    role = "rubric"
    """What it can be asked."""

    def identity(self) -> dict[str, Any]:
        """Everything that can change a verdict."""
        return {"name": self.name, "version": "1"}

    def examples(self, *, hostile: bool = False) -> list[Question]:
        """Questions of every kind for `latentbench.testing.check_judge`; or such about hostile texts."""
        return examples(hostile=hostile)

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """A random verdict on every question, the same for equal questions."""
        for question in questions:
            rng, rubric = generator(f"chance/{question.key}"), question.rubric
            fields = {name: self._drawn(form, rng) for name, form in rubric.schema_["properties"].items()}
            if rubric.lists:
                fields[rubric.verdict] = [
                    rubric.menu[int(rng.integers(len(rubric.menu)))] for _ in range(question.count or 0)
                ]
            verdict = fields[rubric.verdict]
            yield Answer(
                question.id, question.key, "ok", fields, verdict, "computed", raw="", model=self.name
            )

    def _drawn(self, form: dict[str, Any], rng: Any) -> Any:
        menu = form.get("enum")
        return menu[int(rng.integers(len(menu)))] if menu else "drawn at random"
