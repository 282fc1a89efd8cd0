"""Measured latents of a simple world, and a judge that knows it all: for tests of tasks with a rubric's judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from latentbench.run import Item
from latentbench.stats import generator
from latentbench.store import Metric
from latentbench_judges import Answer, Question
from latentbench_tasks.autointerp.task import AutointerpConfig, AutointerpTask

CONTEXTS = 6


def measured(latents: int) -> list[Item]:
    """Latents that are active on a word of their own, each context in a document of its own."""
    items: list[Item] = [{"kind": "drawn", "id": "drawn", "eligible": latents, "live": latents, "drawn": []}]
    for latent in range(latents):
        contexts: dict[str, list[Item]] = {"positives": [], "negatives": []}
        for n in range(2 * CONTEXTS):
            for kind, word in (("positives", f" secret{latent}"), ("negatives", " nothing")):
                name = f"{latent}:{kind}:{n}"
                tokens = ["Some", " words", f" number{n}", word, " and", " more", "."]
                active = [0.0, 0, 0, 12.0 - n, 0, 0, 0] if kind == "positives" else [0.0] * 7
                items.append(
                    {
                        "kind": "text",
                        "id": name,
                        "latent": latent,
                        "tokens": tokens,
                        "activations": active,
                        "activated": 3,
                        "unmeasured": 0,
                    }
                )
                split = "train" if n % 2 == 0 else "test"
                contexts[kind].append(
                    {"text": name, "split": split, "activation": active[3], "document": name}
                )
        items.append({"kind": "latent", "id": str(latent), "latent": latent, **contexts})
    return items


class Knowing:
    """Answers as an all-knowing reader would; `spoil` may change an answer."""

    role = "rubric"

    def __init__(self, spoil: Callable[[Answer], Answer] = lambda answer: answer) -> None:
        self.asked: list[Question] = []
        self._spoil = spoil

    def identity(self) -> dict[str, Any]:
        return {"name": "knowing"}

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        for question in questions:
            self.asked.append(question)
            verdict = self._verdict(question)
            fields = {"category": "low_level", question.rubric.verdict: verdict}
            yield self._spoil(Answer(question.id, question.key, "ok", fields, verdict, "strict", model="k"))

    def _verdict(self, question: Question) -> Any:
        material = question.material
        if question.rubric.name == "explain":
            return words(material["contexts"])[0]
        if question.rubric.name == "monosemanticity":
            return 5 if len(set(words(material["contexts"]))) == 1 else 1
        if question.rubric.name == "detection":
            return [int(str(material["explanation"]) in str(text)) for text in material["texts"]]
        marked = words(material["contexts"])
        if question.rubric.name == "fuzzing":
            return [int(word == material["explanation"]) for word in marked]
        common = Counter(marked).most_common(1)[0][0]
        return next(n for n, word in enumerate(marked, start=1) if word != common)


def words(contexts: Any) -> list[str]:
    """The marked words."""
    return [one.tokens[one.peak].strip() for one in contexts]


def judged(task: Any, judge: Any, items: list[Item]) -> tuple[list[Item], dict[str, Metric], dict[str, int]]:
    judgements = [{"id": one["id"], **one} for one in task.judge(items, judge, generator("j"))]
    summary = task.summarise(items, judgements, generator("s"))
    return judgements, {metric.name: metric for metric in summary.metrics}, summary.counts


def autointerp(**options: Any) -> AutointerpTask:
    return AutointerpTask(AutointerpConfig(contexts=CONTEXTS, batch=5, **options))
