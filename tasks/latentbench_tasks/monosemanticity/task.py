"""Monosemanticity: a judge rates how consistent a latent's strongest contexts are (arXiv 2503.08200v3, appendix D).

Latents and contexts are drawn as in the task `interpretability`. Besides, the judge rates sets in which every context
is of another drawn latent: what it gives for nothing. A score that is not above that says nothing of latents.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from pydantic import Field

from latentbench.run import Item, Summary, TaskConfig
from latentbench_judges import MarkedText, Question, RubricJudge, ask, load_rubric
from latentbench_tasks._judging import marked_texts
from latentbench_tasks._latent_contexts import LatentContextsConfig, LatentContextsTask
from latentbench_tasks.monosemanticity.metrics import scale_of, summarise

__all__ = ["MonosemanticityConfig", "MonosemanticityTask"]


class MonosemanticityConfig(LatentContextsConfig):
    """Latents and contexts, and what the judge is shown."""

    shown: int = Field(default=10, ge=2)
    """Contexts of a latent that the judge is shown, the strongest ones."""
    mixed: int = Field(default=20, ge=0)
    """Sets of contexts of different latents."""
    rubric: str = "monosemanticity"
    """Rubric: a shipped one or a TOML file; its verdict is a number, and `category` is a property."""


class MonosemanticityTask(LatentContextsTask):
    """See the module."""

    name: ClassVar[str] = "monosemanticity"
    version: ClassVar[str] = "1"
    Config: ClassVar[type[TaskConfig]] = MonosemanticityConfig
    judge_role: ClassVar[str | None] = "rubric"
    config: MonosemanticityConfig

    def rubrics(self) -> dict[str, str]:
        """See `Task.rubrics`."""
        rubric = load_rubric(self.config.rubric)
        return {rubric.name: rubric.sha256}

    def judge(self, items: list[Item], judge: RubricJudge, rng: np.random.Generator) -> Iterator[Item]:
        """A rating of every drawn latent, and of the mixed sets."""
        texts = marked_texts(items)
        latents = [item for item in items if item["kind"] == "latent"]
        kept = {str(item["latent"]): self._shown(item, texts) for item in latents}
        rubric = load_rubric(self.config.rubric)
        questions = [
            Question(name, rubric, {"contexts": contexts}, strengths=True)
            for name, contexts in kept.items()
            if contexts
        ]
        questions += [
            Question(f"mixed-{n}", rubric, {"contexts": contexts}, strengths=True)
            for n, contexts in enumerate(self._mixed([c for c in kept.values() if c], rng))
        ]
        for answer in ask(judge, questions, [item for item in items if item["kind"] in ("rating", "mixed")]):
            mixed = answer.id.startswith("mixed-")
            yield answer.as_item("mixed" if mixed else "rating") | (
                {} if mixed else {"latent": int(answer.id)}
            )

    def _shown(self, item: Item, texts: dict[str, MarkedText]) -> tuple[MarkedText, ...]:
        strongest = sorted(item["positives"], key=lambda context: -context["activation"])
        return tuple(texts[one["text"]] for one in strongest[: self.config.shown] if one["text"] in texts)

    def _mixed(
        self, kept: list[tuple[MarkedText, ...]], rng: np.random.Generator
    ) -> Iterator[tuple[MarkedText, ...]]:
        """Sets of one context each of different latents; none if there are too few latents."""
        if len(kept) < self.config.shown:
            return
        for _ in range(self.config.mixed):
            chosen = rng.choice(len(kept), size=self.config.shown, replace=False)
            yield tuple(kept[n][int(rng.integers(len(kept[n])))] for n in chosen.tolist())

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """See `Task.summarise`."""
        return Summary(*summarise(items, judgements, scale_of(self.config.rubric)))

    def judge_calls(self) -> int:
        """See `Task.judge_calls`."""
        return self.config.latents + self.config.mixed

    def judge_tokens(self) -> tuple[int, int]:
        """See `Task.judge_tokens`: instructions of about 400 tokens, and marks."""
        return self.judge_calls() * (
            400 + self.config.shown * (self.config.context_tokens + 12)
        ), self.judge_calls() * 60
