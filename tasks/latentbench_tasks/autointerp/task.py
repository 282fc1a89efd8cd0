"""Explain, then score, in the manner of delphi and SAEBench, with what they got wrong put right.

Latents and contexts are drawn as in the task `interpretability`, so the explainer's and the scorers' contexts are of
different documents, and texts without the latent are of documents in which it was nowhere active (delphi shows 10 to 20
of 50 test contexts to the explainer; SAEBench takes random windows for inactive). The last batch is as long as it is
(delphi throws it away), a latent without an explanation is counted and scored by nothing (delphi scores the sentence
"could not be parsed"), and chance stands beside every score (SAEBench's accuracy of "none" is 0.714).

Simulation (OpenAI's scorer, see `simulate`) is off by default: it asks about every token, twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from latentbench.run import Item, Summary, TaskConfig
from latentbench_judges import MarkedText, Question, RubricJudge, ask, load_rubric
from latentbench_tasks._judging import marked_texts
from latentbench_tasks._latent_contexts import LatentContextsConfig, LatentContextsTask
from latentbench_tasks.autointerp.metrics import recompute
from latentbench_tasks.autointerp.simulate import SimulatedPart, simulated_texts, simulation_parts

__all__ = ["AutointerpConfig", "AutointerpTask"]

_KINDS = (
    "explanation",
    "detection",
    "detection_shuffled",
    "fuzzing",
    "intruder",
    "simulation",
    "simulation_shuffled",
)
_OF_FIVE = 5
_READ_A_TOKEN, _WRITTEN_A_TOKEN = 6, 12
"""Tokens that a judge reads and writes for each one that it simulates: in the text, in the numbered list, as answer."""


class AutointerpConfig(LatentContextsConfig):
    """Latents and contexts, and of the judge's questions."""

    batch: int = Field(default=5, ge=1)
    """Texts in one question."""
    intruders: int = Field(default=4, ge=0)
    """Sets of five contexts for each latent."""
    simulations: int = Field(default=0, ge=0)
    """Test contexts with the latent, and as many without, in which the judge simulates the latent's activation on every
    token, by its explanation and by another's; 0 leaves simulation out. At most `contexts` of each kind. A reply takes
    about 12 tokens for each token of the context: with long contexts raise the judge's `max_tokens`."""


class _Latent(NamedTuple):
    """What is shown of a latent."""

    name: str
    train: list[MarkedText]
    """For the explainer."""
    active: list[MarkedText]
    """Test contexts with the latent."""
    silent: list[MarkedText]
    """Test contexts without."""


class _Part(NamedTuple):
    """A question with the truth about its texts."""

    kind: str
    latent: str
    truth: list[int]
    question: Question


class AutointerpTask(LatentContextsTask):
    """See the module."""

    name: ClassVar[str] = "autointerp"
    version: ClassVar[str] = "1"
    Config: ClassVar[type[TaskConfig]] = AutointerpConfig
    judge_role: ClassVar[str | None] = "rubric"
    config: AutointerpConfig

    def rubrics(self) -> dict[str, str]:
        """See `Task.rubrics`."""
        names = ["explain", "detection", "fuzzing", "intruder"] + ["simulation"] * (
            self.config.simulations > 0
        )
        return {name: load_rubric(name).sha256 for name in names}

    def judge(self, items: list[Item], judge: RubricJudge, rng: np.random.Generator) -> Iterator[Item]:
        """Explanations, then the scorers' answers, each with the truth."""
        stored = [item for item in items if item["kind"] in _KINDS]
        latents = _latents(items)
        explain = load_rubric("explain")
        questions = [
            Question(one.name, explain, {"contexts": tuple(one.train)}, strengths=True)
            for one in latents
            if one.train
        ]
        explained = {}
        for answer in ask(judge, questions, stored):
            if answer.status == "ok":
                explained[answer.id] = str(answer.verdict)
            yield answer.as_item("explanation") | {"latent": int(answer.id)}
        others = _others([one.name for one in latents if one.name in explained])
        asked: list[_Part | SimulatedPart] = [*self._parts(latents, explained, others, rng)]
        if self.config.simulations:
            asked += simulation_parts(simulated_texts(items, self.config.simulations), explained, others)
        parts = {part.question.id: part for part in asked}
        for answer in ask(judge, [part.question for part in parts.values()], stored):
            part = parts[answer.id]
            yield answer.as_item(part.kind) | {"latent": int(part.latent), "truth": part.truth}

    def _parts(
        self,
        latents: Sequence[_Latent],
        explained: dict[str, str],
        others: dict[str, str],
        rng: np.random.Generator,
    ) -> Iterator[_Part]:
        for one in latents:
            yield from self._intruders(one, rng)
            shown = self._detected(one, rng)
            wrong = self._fuzzed(one, rng)
            if one.name not in explained:
                continue
            yield from self._flags("detection", one.name, explained[one.name], shown)
            if one.name in others:
                yield from self._flags("detection_shuffled", one.name, explained[others[one.name]], shown)
            yield from self._flags("fuzzing", one.name, explained[one.name], wrong)

    def _flags(
        self, kind: str, latent: str, explanation: str, shown: Sequence[tuple[MarkedText, int]]
    ) -> Iterator[_Part]:
        rubric = load_rubric("fuzzing" if kind == "fuzzing" else "detection")
        for start in range(0, len(shown), self.config.batch):
            part = shown[start : start + self.config.batch]
            texts = tuple(text for text, _ in part)
            material = (
                {"contexts": texts} if kind == "fuzzing" else {"texts": tuple(text.text for text in texts)}
            )
            question = Question(f"{latent}-{kind}-{start}", rubric, {"explanation": explanation, **material})
            yield _Part(kind, latent, [truth for _, truth in part], question)

    def _detected(self, one: _Latent, rng: np.random.Generator) -> list[tuple[MarkedText, int]]:
        """Test contexts with and without the latent, in random order."""
        count = min(len(one.active), len(one.silent))
        both = [(text, 1) for text in one.active[:count]] + [(text, 0) for text in one.silent[:count]]
        return [both[place] for place in rng.permutation(len(both)).tolist()]

    def _fuzzed(self, one: _Latent, rng: np.random.Generator) -> list[tuple[MarkedText, int]]:
        """Test contexts with the marks where they belong, and every second one with as many misplaced."""
        found = []
        for place, text in enumerate(one.active):
            moved = _misplaced(
                text, rng
            )  # drawn for all, so that the draws do not depend on what is possible
            if place % 2 == 0:
                found.append((text, 1))
            elif moved is not None:
                found.append((moved, 0))
        return [found[place] for place in rng.permutation(len(found)).tolist()]

    def _intruders(self, one: _Latent, rng: np.random.Generator) -> Iterator[_Part]:
        rubric = load_rubric("intruder")
        if len(one.active) < _OF_FIVE - 1 or not one.silent:
            return
        for number in range(self.config.intruders):
            rows = rng.choice(len(one.active), size=_OF_FIVE - 1, replace=False).tolist()
            stranger = one.silent[int(rng.integers(len(one.silent)))]
            marked = _at_random(stranger, sum(s > 0 for s in one.active[rows[0]].strengths), rng)
            place = int(rng.integers(_OF_FIVE))
            texts = [one.active[row] for row in rows]
            texts.insert(place, marked)
            question = Question(f"{one.name}-intruder-{number}", rubric, {"contexts": tuple(texts)})
            yield _Part("intruder", one.name, [place + 1], question)

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """See `Task.summarise`."""
        return Summary(*recompute(items, judgements, self.config.model_dump(mode="json"), rng))

    def judge_calls(self) -> int:
        """See `Task.judge_calls`."""
        texts = 2 * self.config.contexts
        flags = 2 * -(-texts // self.config.batch) + -(-self.config.contexts // self.config.batch)
        return self.config.latents * (1 + flags + self.config.intruders) + self._simulation_calls()

    def _simulation_calls(self) -> int:
        of_each = min(self.config.simulations, self.config.contexts)
        return self.config.latents * 2 * 2 * of_each  # with the latent and without, by two explanations

    def judge_tokens(self) -> tuple[int, int]:
        """See `Task.judge_tokens`: instructions of about 300 tokens, and marks; numbers of simulated tokens."""
        shown = self.config.contexts * (self.config.context_tokens + 12)
        simulations = self._simulation_calls()
        others = self.judge_calls() - self.config.latents - simulations
        each = 300 + self.config.batch * (self.config.context_tokens + 12)
        read = self.config.latents * (300 + shown) + others * each
        read += simulations * (350 + _READ_A_TOKEN * self.config.context_tokens)
        written = (self.config.latents + others) * 80
        return read, written + simulations * (40 + _WRITTEN_A_TOKEN * self.config.context_tokens)


def _latents(items: Sequence[Item]) -> list[_Latent]:
    texts = marked_texts(items)
    found = []
    for item in items:
        if item["kind"] == "latent":
            halves = {
                (kind, split): [
                    texts[c["text"]] for c in item[kind] if c["split"] == split and c["text"] in texts
                ]
                for kind in ("positives", "negatives")
                for split in ("train", "test")
            }
            found.append(
                _Latent(
                    str(item["latent"]),
                    halves["positives", "train"],
                    halves["positives", "test"],
                    halves["negatives", "test"],
                )
            )
    return found


def _others(explained: Sequence[str]) -> dict[str, str]:
    """For each latent another one, whose explanation stands in for its own; none for a single one."""
    return dict(zip(explained, [*explained[1:], *explained[:1]], strict=True)) if len(explained) > 1 else {}


def _misplaced(text: MarkedText, rng: np.random.Generator) -> MarkedText | None:
    """As many marks, on tokens on which the latent is not active; None if there are too few."""
    silent = [
        place for place, strength in enumerate(text.strengths) if strength <= 0 and text.tokens[place].strip()
    ]
    wanted = sum(strength > 0 for strength in text.strengths)
    chosen = rng.permutation(len(silent)).tolist()
    if len(silent) < wanted or not wanted:
        return None
    marks = {silent[n] for n in chosen[:wanted]}
    return MarkedText(text.tokens, tuple(float(place in marks) for place in range(len(text.tokens))))


def _at_random(text: MarkedText, wanted: int, rng: np.random.Generator) -> MarkedText:
    places = [place for place, token in enumerate(text.tokens) if token.strip()] or [0]
    marks = {places[n] for n in rng.permutation(len(places))[: max(1, wanted)].tolist()}
    return MarkedText(text.tokens, tuple(float(place in marks) for place in range(len(text.tokens))))
