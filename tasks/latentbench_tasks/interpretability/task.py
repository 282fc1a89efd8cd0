"""Interpretability: can a judge who has seen some of a latent's contexts tell others from contexts without it?

See `latentbench_tasks._latent_contexts` for the latents and their contexts, and `metrics` for the scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from latentbench.run import Item, Summary, TaskConfig
from latentbench_judges import SimilarityJudge
from latentbench_tasks._latent_contexts import LatentContextsConfig, LatentContextsTask
from latentbench_tasks.interpretability.metrics import recompute, score_latents

__all__ = ["InterpretabilityConfig", "InterpretabilityTask"]


class InterpretabilityConfig(LatentContextsConfig):
    """Options of the interpretability task."""


class InterpretabilityTask(LatentContextsTask):
    """See the module."""

    name: ClassVar[str] = "interpretability"
    version: ClassVar[str] = "1"
    Config: ClassVar[type[TaskConfig]] = InterpretabilityConfig
    judge_role: ClassVar[str | None] = "similarity"
    config: InterpretabilityConfig

    def judge(self, items: list[Item], judge: SimilarityJudge, rng: np.random.Generator) -> Iterator[Item]:
        """One judgement a latent: AUROC, balanced accuracy, and AUROC with another latent's training contexts."""
        texts = {item["id"]: "".join(item["tokens"]) for item in items if item["kind"] == "text"}
        latents = [item for item in items if item["kind"] == "latent"]
        used = sorted({c["text"] for item in latents for c in (*item["positives"], *item["negatives"])})
        missing = [name for name in used if name not in texts]
        if missing:
            yield from _unscored(latents, f"{len(missing)} context texts are not stored here: measure again")
            return
        distinct = sorted({texts[name] for name in used})
        vectors = dict(zip(distinct, judge.embed(distinct), strict=True)) if distinct else {}
        yield from score_latents(latents, {name: vectors[texts[name]] for name in used}, rng)

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """See `Task.summarise`."""
        return Summary(*recompute(items, judgements, self.config.model_dump(mode="json"), rng))

    def judge_calls(self) -> int:
        """See `Task.judge_calls`: contexts to embed, at most."""
        return self.config.latents * 4 * self.config.contexts


def _unscored(latents: list[Item], reason: str) -> Iterator[Item]:
    for item in latents:
        yield {
            "kind": "judgement",
            "id": item["id"],
            "latent": item["latent"],
            "status": "unscored",
            "reason": reason,
        }
