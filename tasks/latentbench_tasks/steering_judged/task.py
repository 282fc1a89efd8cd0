"""Steering rated by a judge, in the manner of AxBench (arXiv 2501.17148), with what it cost there put right.

The factor is chosen offline on the select prompts, and the judge sees test texts at that factor alone: AxBench judges
every factor of both halves, fourteen times as many. Unsteered and senseless texts are rated, too: what a judge gives
for nothing stands beside every score. An empty text has nothing to rate and is counted by the offline metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from latentbench.run import Item, Summary
from latentbench_judges import Question, RubricJudge, ask, load_rubric
from latentbench_tasks.steering._concepts import Concept
from latentbench_tasks.steering.task import SteeringTask
from latentbench_tasks.steering_judged.metrics import ASPECTS, chosen_texts, summarise

__all__ = ["SteeringJudgedTask"]


class SteeringJudgedTask(SteeringTask):
    """See the module."""

    name: ClassVar[str] = "steering_judged"
    version: ClassVar[str] = "1"
    judge_role: ClassVar[str | None] = "rubric"

    def rubrics(self) -> dict[str, str]:
        """See `Task.rubrics`."""
        return {f"steering_{aspect}": load_rubric(f"steering_{aspect}").sha256 for aspect in ASPECTS}

    def judge(self, items: list[Item], judge: RubricJudge, rng: np.random.Generator) -> Iterator[Item]:
        """Ratings of test texts, and of unsteered and senseless ones."""
        about: dict[str, Item] = {}
        questions = []
        for group, concept, item in self._texts(items):
            for aspect in ASPECTS:
                question = self._question(
                    f"{group}|{concept.id}|{item['id']}|{aspect}", aspect, concept, item
                )
                questions.append(question)
                about[question.id] = {
                    "group": group,
                    "concept": concept.id,
                    "text": item["id"],
                    "aspect": aspect,
                }
        for answer in ask(judge, questions, [item for item in items if item["kind"] == "rating"]):
            yield answer.as_item("rating") | about[answer.id]

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """See `metrics.summarise`."""
        return Summary(*summarise(items, judgements, self.config.model_dump(mode="json"), rng))

    def judge_calls(self) -> int:
        """See `Task.judge_calls`."""
        concepts, test = len(self._concepts()), self.config.prompts // 2 * self.config.samples
        return len(ASPECTS) * test * (concepts * (len(self.config.methods) + 1) + 2)

    def judge_tokens(self) -> tuple[int, int]:
        """See `Task.judge_tokens`: instructions of about 250 tokens, and the text."""
        return self.judge_calls() * (250 + self.config.max_new_tokens), self.judge_calls() * 40

    def _texts(self, items: list[Item]) -> Iterator[tuple[str, Concept, dict[str, Any]]]:
        """Group, concept and item of every text to rate."""
        config = self.config.model_dump(mode="json")
        concepts = {concept.id: concept for concept in self._concepts()}
        chosen = chosen_texts(items, config)
        for method, name, item in chosen:
            yield method, concepts[name], dict(item)
        rated = [concepts[name] for name in dict.fromkeys(name for _, name, _ in chosen)]
        plain = {one["id"]: one for one in items if one["kind"] == "unsteered" and one["split"] == "test"}
        for item in plain.values():
            if item["fluency"] is not None:
                for concept in rated:
                    yield "unsteered", concept, item
        senseless = {one["id"]: one for one in items if one["kind"] == "degenerate"}
        for number, item in enumerate(senseless.values()):
            if rated and item["fluency"] is not None:
                origin = plain[item["id"].rpartition("|")[0]]
                yield "degenerate", rated[number % len(rated)], {**item, "prompt": origin["prompt"]}

    def _question(self, name: str, aspect: str, concept: Concept, item: Item) -> Question:
        # The opening is the model's only instruction; it is no part of the text, so that it can't be rated as such.
        material = {
            "concept": {"concept": f"{concept.name}: {concept.description}", "text": item["text"]},
            "instruct": {"instruction": f"Continue this text: {item['prompt']}", "text": item["text"]},
            "fluency": {"text": item["text"]},
        }[aspect]
        return Question(name, load_rubric(f"steering_{aspect}"), material)
