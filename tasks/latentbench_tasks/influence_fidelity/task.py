"""Fidelity of influence: do cheap rankings of active latents agree with exact ablation?

For each example (a few-shot prompt with a question whose answer is in its context) the effect of setting one latent to
zero on all tokens is measured exactly, for a sample of the active latents; selectors rank the same latents. See
`latentbench.selectors` for what they do, and `metrics` for how the rankings are compared.

The sample is stratified: half of it is spread evenly over the latents in the order of their mean activation, the other
half in the order of their attribution, so that neither the many weak latents nor the few strong ones decide alone.

Output score and delta token confidence see a neutral prompt and never the question: what they say about a latent is
found once and kept for the examples that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from latentbench.errors import UserError
from latentbench.run import CellSetup, Item, Summary, Task, TaskConfig
from latentbench.selectors import (
    Attribution,
    DeltaConfidence,
    ExactAblation,
    GradSae,
    IntegratedGradients,
    LatentScores,
    MeanActivation,
    OutputScore,
    RandomActive,
    Selector,
    Spliced,
    Target,
    TargetKind,
    TargetTokens,
    VocabularyProjection,
    splice,
)
from latentbench_tasks._questions import Asked, QuestionsConfig, asked_questions
from latentbench_tasks.influence_fidelity.metrics import recompute

__all__ = ["InfluenceFidelityConfig", "InfluenceFidelityTask"]


class InfluenceFidelityConfig(QuestionsConfig):
    """Options of the fidelity of influence."""

    examples: int = Field(default=50, gt=0)
    """Questions."""
    latents: int = Field(default=64, ge=4)
    """Latents of each example whose exact effect is measured, at most."""
    target: TargetKind = "log_probability"
    """Of the answer: what latents influence."""
    tokens: TargetTokens = "first"
    """The first token of the answer, or all of it."""
    keep_error: bool = True
    """Add what the reconstruction leaves over, so that the unperturbed pass is the model's own."""
    steps: int = Field(default=10, gt=0)
    """Steps of the integrated gradients."""
    headline: str = "gradsae"
    """The selector that the board shows."""


class InfluenceFidelityTask(Task):
    """See the module."""

    name: ClassVar[str] = "influence_fidelity"
    version: ClassVar[str] = "3"
    Config: ClassVar[type[TaskConfig]] = InfluenceFidelityConfig
    config: InfluenceFidelityConfig

    def measure(self, setup: CellSetup, items: list[Item]) -> Iterator[Item]:
        """An item for every example that is not there yet."""
        done = {item["id"] for item in items}
        alone = [_Remembered(OutputScore()), _Remembered(DeltaConfidence())]
        questions = asked_questions(setup.lm, self.config.data, self.config.examples, setup.seed)
        for number, asked in enumerate(questions):
            setup.progress("examples", number, len(questions))
            if asked.id not in done:
                yield self._item(setup, asked, alone)

    def _item(self, setup: CellSetup, asked: Asked, alone: Sequence[_Remembered]) -> Item:
        target = Target(self.config.target, self.config.tokens)
        base = {"id": asked.id, "context": asked.context}
        try:
            spliced = splice(
                setup.lm, setup.dictionary, [asked.example], target, keep_error=self.config.keep_error
            )
        except UserError as error:
            return {
                "kind": "skipped",
                **base,
                "reason": "longer than the model's window",
                "message": str(error),
            }
        if not spliced.codes.nnz:
            return {"kind": "skipped", **base, "reason": "no latent is active"}
        found: dict[str, LatentScores] = {}
        passes: dict[str, list[float]] = {}
        for selector in self._selectors(setup.seed):
            before = spliced.cost.forwards, spliced.cost.backwards
            (found[selector.name],) = selector.scores(spliced)
            passes[selector.name] = [spliced.cost.forwards - before[0], spliced.cost.backwards - before[1]]
        chosen = _stratified(found["activation"], found["attribution"], self.config.latents)
        latents = found["activation"].latents[chosen]
        exact = ExactAblation(keep_error=self.config.keep_error).effects(spliced, latents)
        scores = {name: _rounded(one.scores[chosen]) for name, one in found.items()}
        projected = VocabularyProjection().among(spliced, latents)
        scores["vocabulary"], passes["vocabulary"] = _rounded(projected.scores), [0.0, 0.0]
        for known in alone:
            scores[known.selector.name] = _rounded(known.scores(setup, latents))
            passes[known.selector.name] = [0.0, 0.0]
        return {
            "kind": "example",
            **base,
            "correct": _correct(spliced),
            "value": float(spliced.values()[0]),
            "active": len(found["activation"].latents),
            "latents": latents.tolist(),
            "exact": _rounded(exact),
            "scores": scores,
            "passes": passes,
        }

    def _selectors(self, seed: int) -> list[Selector]:
        keep = self.config.keep_error
        return [
            MeanActivation(),
            GradSae(relu="after", keep_error=keep, name="gradsae"),
            GradSae(relu="before", keep_error=keep, name="gradsae_code"),
            Attribution(keep_error=keep),
            IntegratedGradients(self.config.steps, keep_error=keep),
            RandomActive(seed),
        ]

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """See `Task.summarise`."""
        return Summary(*recompute(items, judgements, self.config.model_dump(mode="json"), rng))

    def tokens(self) -> int:
        """See `Task.tokens`: suffixes count as whole passes here, over prompts of about 150 tokens."""
        return self.config.examples * 150 * (self.config.latents + 2 * self.config.steps + 8)


class _Remembered:
    """What a selector that sees the model alone says about latents, each asked for once."""

    def __init__(self, selector: OutputScore | DeltaConfidence) -> None:
        self.selector = selector
        self._known: dict[int, float] = {}

    def scores(self, setup: CellSetup, latents: Tensor) -> list[float]:
        """Scores of some latents, in their order; errors as in `OutputScore.scores`."""
        new = torch.tensor([one for one in latents.tolist() if one not in self._known], dtype=torch.int64)
        found = self.selector.scores(setup.lm, setup.dictionary, new)
        self._known |= dict(zip(new.tolist(), found.scores.tolist(), strict=True))
        return [self._known[one] for one in latents.tolist()]


def _stratified(activation: LatentScores, attribution: LatentScores, wanted: int) -> Tensor:
    """Places of the chosen latents, ascending."""
    n = len(activation.latents)
    if n <= wanted:
        return torch.arange(n)
    by_attribution = torch.argsort(attribution.scores, stable=True).tolist()
    by_activation = torch.argsort(activation.scores, stable=True).tolist()
    chosen = {by_activation[place] for place in _spread(n, wanted // 2)}
    rest = [place for place in by_attribution if place not in chosen]
    chosen |= {rest[place] for place in _spread(len(rest), wanted - len(chosen))}
    return torch.tensor(sorted(chosen))


def _spread(n: int, wanted: int) -> list[int]:
    """Evenly spaced places among n, both ends included; no two alike."""
    if wanted < 2:
        return list(range(min(n, wanted)))
    return sorted({round(place * (n - 1) / (wanted - 1)) for place in range(wanted)})


def _correct(spliced: Spliced) -> bool:
    return spliced.predicted()[0][0] == spliced.wanted[0][0]


def _rounded(values: Tensor | Sequence[float]) -> list[float]:
    return [float(f"{float(value):.6g}") for value in values]
