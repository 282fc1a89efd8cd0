"""Perturbation: what happens to an answer when the latents that a selector puts first, or last, are set to zero.

Source: GradSAE, arXiv 2505.08080, section 4.1. The model with the dictionary spliced in answers questions about
contexts; for those it answers correctly each selector ranks the active latents, the K highest or K lowest are set to
zero, and the answer is generated again. Sets are fixed by the first round. Beyond the paper: random active latents and
latents matched by activation are set to zero as controls, and the change is also measured as the KL divergence on the
tokens of the first answer, which moves long before an answer does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from latentbench.adapters import ChangedTokens, LatentChange
from latentbench.run import CellSetup, Item, Summary, Task, TaskConfig
from latentbench_tasks._answering import (
    Answer,
    Answering,
    Ranked,
    Skipped,
    distinct,
)
from latentbench_tasks._answering_config import AnsweringConfig
from latentbench_tasks.perturbation.metrics import recompute

__all__ = ["PerturbationConfig", "PerturbationTask"]


class PerturbationConfig(AnsweringConfig):
    """Options of the perturbation task."""

    tokens: ChangedTokens = "all"
    """Where latents are set to zero: on "all" tokens, as the paper has it, on the prompt's "last" token and every
    generated one, or on the prompt's last token alone ("prompt_last")."""
    low_sets: tuple[str, ...] = ("activation", "gradsae")
    """Selectors whose lowest latents are set to zero as well."""
    matched: str = "gradsae"
    """The selector whose highest sets get a control that is matched by activation; "" for none."""
    unfiltered: int = Field(default=0, ge=0)
    """The first so many questions are measured whether the answer was right or not."""
    guesses: int = Field(default=100, ge=0)
    """Questions that are asked without their context, to see what a guess is worth."""


class PerturbationTask(Task):
    """See the module."""

    name: ClassVar[str] = "perturbation"
    version: ClassVar[str] = "1"
    Config: ClassVar[type[TaskConfig]] = PerturbationConfig
    config: PerturbationConfig

    def measure(self, setup: CellSetup, items: list[Item]) -> Iterator[Item]:
        """An item for every question that is not there yet."""
        done = {item["id"] for item in items}
        answering = Answering.of(setup, self.config)
        guessed = {name.removeprefix("guess:") for name in done if name.startswith("guess:")}
        for guess in answering.guesses(self.config.guesses, guessed):
            yield {
                "kind": "guess",
                "id": f"guess:{guess.asked.id}",
                "context": guess.asked.context,
                "correct": guess.correct,
            }
        questions = answering.questions()
        places = {asked.id: place for place, asked in enumerate(questions)}
        for answer in answering.first_round(questions, done):
            place = places[answer.asked.id]
            setup.progress("questions", place, len(questions))
            yield self._item(answering, answer, place < self.config.unfiltered)

    def _item(self, answering: Answering, answer: Answer, unfiltered: bool) -> Item:
        base: Item = {
            "id": answer.asked.id,
            "context": answer.asked.context,
            "answers": list(answer.asked.answers),
            "text": answer.text,
            "unfiltered": unfiltered,
        }
        if answer.unasked:
            return {"kind": "skipped", **base, "reason": answer.unasked}
        if not (answer.correct or unfiltered):
            return {"kind": "wrong", **base}
        try:
            ranked = answering.rank(answer)
            sets = self._sets(ranked, answer.asked.id)
            changes, places = distinct(
                [LatentChange.none(), *(LatentChange.zeroed(one["latents"]) for one in sets)]
            )
            rerun = answering.answers_under(answer, changes, self.config.tokens)
        except Skipped as error:
            return {"kind": "skipped", **base, "reason": str(error)}
        conditions = [
            {
                **{name: value for name, value in one.items() if name != "latents"},
                "n": len(one["latents"]),
                "text": rerun.texts[place],
                "kl": float(f"{float(rerun.divergence[place]):.6g}"),
            }
            for one, place in zip(sets, places[1:], strict=True)
        ]
        return {
            "kind": "example",
            **base,
            "again": rerun.texts[places[0]],
            "correct": answer.correct,
            "active": len(ranked.scores["activation"].latents),
            "active_last": int(ranked.codes.counts()[-1]),
            "conditions": conditions,
        }

    def _sets(self, ranked: Ranked, name: str) -> list[dict[str, Any]]:
        """Which latents are set to zero: selector, side, count and the latents themselves."""
        found: list[dict[str, Any]] = []
        for selector in self.config.selectors:
            for k in self.config.counts:
                found.append(_set(selector, "top", k, ranked.top(selector, k)))
                if selector in self.config.low_sets:
                    found.append(_set(selector, "bottom", k, ranked.bottom(selector, k)))
        if self.config.matched in self.config.selectors:
            for k in self.config.counts:
                others = ranked.matched(ranked.top(self.config.matched, k), f"{name}/{k}")
                found.append(_set("matched", "top", k, others))
        return found

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """See `Task.summarise`."""
        return Summary(*recompute(items, judgements, self.config.model_dump(mode="json"), rng))

    def tokens(self) -> int:
        """See `Task.tokens`: prompts of about 100 tokens, half of the questions answered."""
        sets = len(self.config.counts) * (len(self.config.selectors) + len(self.config.low_sets) + 1)
        return self.config.questions * 100 * (2 + sets // 2)


def _set(selector: str, side: str, k: int | str, latents: Tensor) -> dict[str, Any]:
    return {"selector": selector, "side": side, "k": k, "latents": latents}
