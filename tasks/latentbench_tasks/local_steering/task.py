"""Local steering: does an answer become that of another question when the latents of the other are swapped in?

Source: GradSAE, arXiv 2505.08080, section 4.2. Two questions on one context, both answered correctly: while the first
is answered, its own K highest (or lowest) latents are set to zero and those of the other question are set to a value;
the output is scored against the other question's answer. Beyond the paper: random latents as a control, and the
exchange of all latents of the last token for scale; the first token alone, since what is injected into generated
tokens too is said again and again; and the shift of the other answer's first token in log-probability, which moves
long before an answer does. Pairs that share an answer are left out and counted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import groupby
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from latentbench.adapters import ChangedTokens, LatentChange
from latentbench.run import CellSetup, Item, Summary, Task, TaskConfig
from latentbench_tasks._answering import (
    Answer,
    Answering,
    Ranked,
    Rerun,
    Skipped,
    distinct,
)
from latentbench_tasks._answering_config import AnsweringConfig, Preset
from latentbench_tasks._squad import normalised_answer
from latentbench_tasks.local_steering.metrics import recompute

__all__ = ["LocalSteeringConfig", "LocalSteeringTask"]

Inject = Literal["influence", "mean", "last"]


class _Manner(NamedTuple):
    tokens: ChangedTokens
    inject: Inject
    most: float | None


_PRESETS: dict[Preset, _Manner] = {
    "paper": _Manner("all", "influence", None),
    "code": _Manner("last", "influence", 50.0),
    "corrected": _Manner("prompt_last", "mean", None),
}


class LocalSteeringConfig(AnsweringConfig):
    """Options of local steering."""

    tokens: ChangedTokens | None = None
    """Where latents are changed: on "all" tokens, on the prompt's "last" token and every generated one, or on the
    prompt's last token alone ("prompt_last"), where the answer is decided and nothing keeps repeating it. None takes
    the preset's: "all" for "paper", "last" for "code", "prompt_last" for "corrected"."""
    inject: Inject | None = None
    """The value that the other question's latents are set to: their influence score (as the code has it), their mean
    activation over the other question's tokens on which they are active, or their activation on its last token. None
    takes the preset's: "mean" for "corrected", else "influence"."""
    low_sets: tuple[str, ...] = ("activation", "gradsae")
    """Selectors whose lowest latents are swapped as well."""

    def manner(self) -> _Manner:
        """How latents are swapped: the preset with the options laid over it."""
        given = {
            name: getattr(self, name) for name in ("tokens", "inject") if getattr(self, name) is not None
        }
        return _PRESETS[self.preset]._replace(**given)


class LocalSteeringTask(Task):
    """See the module."""

    name: ClassVar[str] = "local_steering"
    version: ClassVar[str] = "1"
    Config: ClassVar[type[TaskConfig]] = LocalSteeringConfig
    config: LocalSteeringConfig

    def measure(self, setup: CellSetup, items: list[Item]) -> Iterator[Item]:
        """Items of every context that is not done yet: its questions, and its pairs."""
        done = {item["context"] for item in items if item["kind"] == "context"}
        answering = Answering.of(setup, self.config)
        questions = answering.questions()
        started = {item["id"] for item in items}
        answers = answering.first_round(questions, {one.id for one in questions if one.context in done})
        read = 0
        for context, group in groupby(answers, key=lambda answer: answer.asked.context):
            several = list(group)
            setup.progress("questions", read, len(questions))
            read += len(several)
            for item in self._context(answering, context, several):
                if item["id"] not in started:
                    yield item

    def _context(self, answering: Answering, context: str, answers: list[Answer]) -> Iterator[Item]:
        ranked: dict[str, Ranked] = {}
        for answer in answers:
            if answer.unasked:
                yield {"kind": "skipped", "id": answer.asked.id, "context": context, "reason": answer.unasked}
        right = [answer for answer in answers if answer.correct]
        for answer in right:
            name = answer.asked.id
            try:
                ranked[name] = answering.rank(answer)
            except Skipped as error:
                yield {"kind": "skipped", "id": name, "context": context, "reason": str(error)}
        usable = [answer for answer in right if answer.asked.id in ranked]
        for answer in usable:
            yield self._pair(answering, answer, usable, ranked)
        yield {
            "kind": "context",
            "id": f"context:{context}",
            "context": context,
            "questions": len(answers),
            "right": len(right),
        }

    def _pair(
        self, answering: Answering, answer: Answer, usable: list[Answer], ranked: dict[str, Ranked]
    ) -> Item:
        """One question steered towards another, drawn by a seed from those with another answer."""
        asked = answer.asked
        own = {normalised_answer(text) for text in asked.answers}
        others = [
            other
            for other in usable
            if other is not answer and not own & {normalised_answer(text) for text in other.asked.answers}
        ]
        base: Item = {"id": asked.id, "context": asked.context}
        if not others:
            return {"kind": "skipped", **base, "reason": "no other question with another answer was right"}
        other = random.Random(f"local-steering/{answering.seed}/{asked.id}").choice(others)
        mine, its = ranked[asked.id], ranked[other.asked.id]
        sets = self._swaps(mine, its)
        changes, places = distinct([LatentChange.none(), *(one["change"] for one in sets)])
        try:
            rerun = answering.answers_under(answer, changes, self.config.manner().tokens)
        except Skipped as error:
            return {"kind": "skipped", **base, "reason": str(error)}
        # In the form with brackets an output begins with other words than the answer.
        wanted = other.output[0] if self.config.choices().form == "few-shot" else None
        return {
            "kind": "example",
            **base,
            "other": other.asked.id,
            "answers": list(other.asked.answers),
            "own_answers": list(asked.answers),
            "text": rerun.texts[places[0]],
            "conditions": [
                {
                    **{name: value for name, value in one.items() if name != "change"},
                    "text": rerun.texts[place],
                    **_beginning(rerun, places[0], place, wanted),
                }
                for one, place in zip(sets, places[1:], strict=True)
            ],
        }

    def _swaps(self, mine: Ranked, its: Ranked) -> list[dict[str, Any]]:
        """What is swapped: selector, side, count, the latents put in, and the change itself."""
        found: list[dict[str, Any]] = []
        for selector in self.config.selectors:
            for side in ("top", "bottom") if selector in self.config.low_sets else ("top",):
                for k in self.config.counts:
                    out = mine.top(selector, k) if side == "top" else mine.bottom(selector, k)
                    into = its.top(selector, k) if side == "top" else its.bottom(selector, k)
                    change = LatentChange(out, into, self._values(its, selector, into))
                    found.append(_swap(selector, side, k, change))
        everything = LatentChange(torch.unique(mine.codes.latents).cpu(), *_last_codes(its))
        found.append(_swap("everything", "top", "all", everything))
        return found

    def _values(self, its: Ranked, selector: str, latents: Tensor) -> Tensor:
        """`Float64[Tensor, "latent"]`: what the other question's latents are set to."""
        manner = self.config.manner()
        if manner.inject == "influence":
            scores = its.scores[selector]
            values = scores.scores[torch.searchsorted(scores.latents, latents)]
            return values if manner.most is None else values.clamp(0, manner.most)
        if manner.inject == "mean":
            return _mean_where_active(its, latents)
        active, last = _last_codes(its)
        values = torch.zeros(len(latents), dtype=torch.float64)
        for place, latent in enumerate(latents.tolist()):
            values[place] = last[active == latent].sum().double()
        return values

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """See `Task.summarise`."""
        return Summary(*recompute(items, judgements, self.config.model_dump(mode="json"), rng))

    def tokens(self) -> int:
        """See `Task.tokens`: prompts of about 100 tokens, half of the questions paired."""
        sets = len(self.config.counts) * (len(self.config.selectors) + len(self.config.low_sets))
        return self.config.questions * (200 + 5 * sets)


def _swap(selector: str, side: str, k: int | str, change: LatentChange) -> dict[str, Any]:
    return {"selector": selector, "side": side, "k": k, "n": len(change.put), "change": change}


def _beginning(rerun: Rerun, base: int, place: int, wanted: int | None) -> dict[str, Any]:
    """Whether the other answer's first token is the likeliest, and how its log-probability changed, in nats."""
    if wanted is None:
        return {"first": None, "shift": None}
    shift = rerun.begins[place, wanted] - rerun.begins[base, wanted]
    return {
        "first": bool(rerun.begins[place].argmax() == wanted),
        "shift": float(f"{float(shift):.6g}"),
    }


def _last_codes(ranked: Ranked) -> tuple[Tensor, Tensor]:
    """Latents and values on the prompt's last token."""
    codes, example = ranked.codes, ranked.spliced
    place = codes.n_tokens - len(example.wanted[0])
    start, end = codes.offsets[place : place + 2].tolist()
    return codes.latents[start:end].cpu(), codes.values[start:end].cpu()


def _mean_where_active(ranked: Ranked, latents: Tensor) -> Tensor:
    """`Float64[Tensor, "latent"]`: mean activation over the tokens on which each is active."""
    codes = ranked.codes
    width = codes.n_latents
    sums = torch.zeros(width, dtype=torch.float64).index_add(
        0, codes.latents.cpu(), codes.values.double().cpu()
    )
    return sums[latents] / torch.bincount(codes.latents.cpu(), minlength=width)[latents].clamp(min=1)
