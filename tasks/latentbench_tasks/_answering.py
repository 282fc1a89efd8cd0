"""Questions answered with a dictionary spliced in, the latents that selectors choose for them, and other answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor

from latentbench.adapters import (
    ChangedTokens,
    Codes,
    Dictionary,
    LatentChange,
    RouteSae,
    latent_edits,
    observed_sites,
)
from latentbench.identity import sha256_json, sha256_text
from latentbench.lm import LM, Site
from latentbench.run import CellSetup, Shared, TaskConfig
from latentbench.selectors import (
    Attribution,
    Example,
    GradSae,
    IntegratedGradients,
    LatentScores,
    MeanActivation,
    RandomActive,
    Selector,
    Spliced,
    Target,
    TargetKind,
    count_to_choose,
    matched_by_activation,
    splice,
)
from latentbench_tasks._questions import Asked, Form, answer_text, asked_questions, stop_ids
from latentbench_tasks._squad import exact_match

__all__ = [
    "Answer",
    "Answering",
    "AnsweringConfig",
    "Ranked",
    "SelectorName",
    "Skipped",
    "distinct",
    "guess_rate",
]

SelectorName = Literal["activation", "gradsae", "attribution", "integrated_gradients", "random"]
Count = int | Literal["50%"]
Preset = Literal["paper", "code", "corrected"]


_TOO_LONG = "longer than the model's window"


class _Choices(NamedTuple):
    form: Form
    target: TargetKind
    at: Literal["first", "answer", "bracket"]
    relu: Literal["before", "after"]
    keep_error: bool


_PRESETS: dict[Preset, _Choices] = {
    "paper": _Choices("few-shot", "probability", "first", "after", keep_error=False),
    "code": _Choices("brackets", "probability", "bracket", "before", keep_error=False),
    "corrected": _Choices("few-shot", "log_probability", "answer", "after", keep_error=True),
}


class AnsweringConfig(TaskConfig):
    """Options that the tasks about GradSAE's hypotheses share."""

    data: str = "fact-sheets"
    """"fact-sheets", "rajpurkar/squad", or the path of a file in the format of SQuAD 1.1."""
    questions: int = Field(default=200, gt=0)
    """Questions that are asked; what is measured are those that the spliced model answers correctly."""
    preset: Preset = "corrected"
    """Readings of GradSAE (arXiv 2505.08080). "paper": the error is dropped, and the target is the probability of the
    first answer token. "code": as its code has it, with the bracket that opens the answer as the target and products
    cut before the mean. "corrected": the error is kept, so that only chosen latents differ from the model's own pass,
    and the target is the log-probability of the whole answer."""
    form: Form | None = None
    """How questions are asked; None takes the preset's, "brackets" for "code"."""
    target: TargetKind | None = None
    """The number that influence is measured on; None takes the preset's."""
    at: Literal["first", "answer", "bracket"] | None = None
    """Of which tokens of the model's own answer; None takes the preset's."""
    relu: Literal["before", "after"] | None = None
    """Where GradSAE cuts negative numbers, before or after the token mean; None takes the preset's."""
    keep_error: bool | None = None
    """Whether what the reconstruction leaves over is added back; None takes the preset's."""
    selectors: tuple[SelectorName, ...] = ("activation", "gradsae", "random")
    """What ranks latents."""
    counts: tuple[Count, ...] = (1, 10, 20, 30, "50%")
    """How many latents are chosen; "50%" is half of those active at the last token."""
    headline: Count = 10
    """The count of the board's numbers, one of `counts`."""
    max_new_tokens: int = Field(default=10, gt=0)
    """Tokens of an answer, at most; "brackets" needs about 50."""

    @model_validator(mode="after")
    def _consistent(self) -> AnsweringConfig:
        if self.choices().at == "bracket" and self.choices().form != "brackets":
            raise ValueError("at = 'bracket' needs form = 'brackets': few-shot answers have none")
        if self.headline not in self.counts:
            raise ValueError(f"headline = {self.headline!r} is not among the counts {self.counts}")
        return self

    def choices(self) -> _Choices:
        """The preset with the options laid over it."""
        given = {name: getattr(self, name) for name in _Choices._fields if getattr(self, name) is not None}
        return _PRESETS[self.preset]._replace(**given)


class Skipped(Exception):
    """An example that can't be measured; the message says why."""


@dataclass(frozen=True, eq=False)
class Answer:
    """A question and what the spliced model said."""

    asked: Asked
    output: tuple[int, ...]
    """Tokens of the output, without a stop token."""
    text: str
    """The answer in it."""
    correct: bool
    """Whether it is right by exact match."""
    unasked: str = ""
    """Why the question could not be asked at all."""


@dataclass(frozen=True, eq=False)
class Ranked:
    """The active latents of an answered question, as selectors rank them."""

    spliced: Spliced
    """The pass."""
    scores: dict[str, LatentScores]
    """By selector; always with "activation"."""

    @property
    def codes(self) -> Codes:
        """Codes of all measured tokens."""
        return self.spliced.codes

    def count(self, k: Count) -> int:
        """How many latents a count is."""
        return count_to_choose(self.spliced, 0, k)

    def top(self, selector: str, k: Count) -> Tensor:
        """The latents with the largest positive scores; fewer than k if there are fewer."""
        scores = self.scores[selector]
        return scores.top(min(self.count(k), int((scores.scores > 0).sum())))

    def bottom(self, selector: str, k: Count) -> Tensor:
        """The latents with the smallest positive scores."""
        return self.scores[selector].bottom(self.count(k))

    def matched(self, latents: Tensor, seed: str) -> Tensor:
        """Other active latents, each with the mean activation of a chosen one."""
        generator = torch.Generator().manual_seed(int(sha256_text(seed)[:8], 16))
        return matched_by_activation(latents, self.scores["activation"], generator)


@dataclass(frozen=True, eq=False)
class Answering:
    """Asks a cell's model."""

    lm: LM
    dictionary: Dictionary
    config: AnsweringConfig
    seed: int
    stops: frozenset[int]
    shared: Shared

    @classmethod
    def of(cls, setup: CellSetup, config: AnsweringConfig) -> Answering:
        """For a cell."""
        form = config.choices().form
        stops = setup.shared.once(
            f"answering:stops:{form}:{setup.lm.revision}", lambda: stop_ids(setup.lm, form)
        )
        return cls(setup.lm, setup.dictionary, config, setup.seed, stops, setup.shared)

    def questions(self) -> list[Asked]:
        """The questions of the cell."""
        form = self.config.choices().form
        return asked_questions(self.lm, self.config.data, self.config.questions, self.seed, form=form)

    def first_round(
        self, questions: Sequence[Asked], done: Collection[str] = (), batch: int = 16
    ) -> Iterator[Answer]:
        """Answers with nothing but the splice, in the order of the questions, without those that are done."""
        for start in range(0, len(questions), batch):  # batches stay the same, so that cells share them
            some = questions[start : start + batch]
            if all(one.id in done for one in some):
                continue
            asked = [one for one in some if self._fits(one)]
            answers = {answer.asked.id: answer for answer in self._ask(asked)} if asked else {}
            for one in (one for one in some if one.id not in done):
                yield answers.get(one.id) or Answer(one, (), "", correct=False, unasked=_TOO_LONG)

    def _fits(self, asked: Asked) -> bool:
        longest = len(asked.example.prompt) + self.config.max_new_tokens
        return self.lm.window is None or longest <= self.lm.window

    def _ask(self, some: Sequence[Asked]) -> Iterator[Answer]:
        prompts = [asked.example.prompt for asked in some]
        most = self.config.max_new_tokens

        def plain() -> list[list[int]]:
            return self.lm.generate(prompts, max_new_tokens=most, stop_ids=self.stops).tokens

        if self.config.choices().keep_error:  # an unchanged splice is the model itself, for every dictionary
            outputs = self.shared.once(f"answering:plain:{most}:{sha256_json(prompts)}", plain)
        else:
            edits = latent_edits(self.dictionary, [LatentChange.none()] * len(some), keep_error=False)
            outputs = self.lm.generate(prompts, max_new_tokens=most, edits=edits, stop_ids=self.stops).tokens
        for asked, output in zip(some, outputs, strict=True):
            text = self.text(output)
            correct = exact_match(text, asked.answers) == 1.0
            yield Answer(asked, tuple(output), text, correct)

    def text(self, output: Sequence[int]) -> str:
        """The answer in an output."""
        return answer_text(
            self.lm.tokenizer.decode(list(output), skip_special_tokens=True), self.config.choices().form
        )

    def rank(self, answer: Answer) -> Ranked:
        """Put an answered question through the selectors.

        Raises:
            Skipped: it has no target, or no latent is active on it.
        """
        choices = self.config.choices()
        target = Target(choices.target, "answer" if choices.at == "answer" else "first")
        example = self._example(answer)
        spliced = splice(self.lm, self.dictionary, [example], target, keep_error=choices.keep_error)
        if not spliced.codes.nnz:
            raise Skipped("no latent is active")
        scores = {one.name: one.scores(spliced)[0] for one in self._selectors()}
        return Ranked(spliced, scores)

    def answers_under(
        self,
        answer: Answer,
        changes: Sequence[LatentChange],
        tokens: ChangedTokens,
        batch: int = 40,
    ) -> tuple[list[str], Tensor]:
        """Answers to one question under changes of its codes.

        Args:
            answer: the question with its first answer.
            changes: one for each new answer.
            tokens: where codes are changed, see `EditLatents`.
            batch: changes that are run side by side.

        Returns:
            The answers, and `Float64[Tensor, "change token+1 vocab"]`: log-probabilities before each token of the first
            answer and behind the last, teacher-forced.
        """
        keep = self.config.choices().keep_error
        prompt, draft = answer.asked.example.prompt, answer.output[: self.config.max_new_tokens]
        first = self._first_site(answer)
        if tokens == "all" and first.kind == "resid_post":
            begun = self.lm.begin_below(prompt, draft, first, observed_sites(self.dictionary))
        else:  # column 0 is never edited
            same = latent_edits(self.dictionary, [LatentChange.none()], keep_error=keep)
            begun = self.lm.begin_columns(prompt, draft, 1 if tokens == "all" else len(prompt) - 1, same)
        texts: list[str] = []
        found: list[Tensor] = []
        for start in range(0, len(changes), batch):
            some = changes[start : start + batch]
            run = self.lm.continue_begun(
                begun,
                len(some),
                max_new_tokens=self.config.max_new_tokens,
                edits=latent_edits(self.dictionary, some, tokens=tokens, keep_error=keep),
                stop_ids=self.stops,
            )
            assert run.draft_logits is not None
            texts += [self.text(output) for output in run.tokens]
            found.append(run.draft_logits.double().log_softmax(dim=-1))
        return texts, torch.cat(found)

    def _first_site(self, answer: Answer) -> Site:
        """The first site that is written on this question: with a router, the lowest that any of its tokens takes."""
        dictionary = self.dictionary
        if not isinstance(dictionary, RouteSae):
            return min(dictionary.writes)
        ids = [*answer.asked.example.prompt, *answer.output[: self.config.max_new_tokens]]
        batch = self.lm.batch([ids])
        acts = self.lm.forward(batch, capture=dictionary.reads, logits=False).acts
        route, _ = dictionary.route(dictionary.gather({site: value[0] for site, value in acts.items()}))
        used: list[int] = route[1:].unique().tolist()
        return min(dictionary.reads[index] for index in used)

    def _example(self, answer: Answer) -> Example:
        """The prompt and the target tokens of the model's own answer."""
        choices, output = self.config.choices(), answer.output
        prompt = answer.asked.example.prompt
        if not output:
            raise Skipped("the answer is empty")
        if choices.form == "few-shot":
            return Example(prompt, output)
        texts = self.lm.tokenizer.batch_decode([[token] for token in output])
        opened = [place for place, text in enumerate(texts) if "[" in text]
        if not opened:
            raise Skipped("the answer has no bracket")
        last = opened[-1]
        if choices.at == "bracket":
            return Example((*prompt, *output[:last]), (output[last],))
        closed = next((place for place in range(last + 1, len(texts)) if "]" in texts[place]), len(texts))
        if closed == last + 1:
            raise Skipped("the brackets are empty")
        return Example((*prompt, *output[: last + 1]), output[last + 1 : closed])

    def _selectors(self) -> list[Selector]:
        choices = self.config.choices()
        known: dict[str, Selector] = {
            "activation": MeanActivation(),
            "gradsae": GradSae(relu=choices.relu, keep_error=choices.keep_error),
            "attribution": Attribution(keep_error=choices.keep_error),
            "integrated_gradients": IntegratedGradients(keep_error=choices.keep_error),
            "random": RandomActive(self.seed),
        }
        return [known[name] for name in dict.fromkeys(("activation", *self.config.selectors))]


def distinct(changes: Sequence[LatentChange]) -> tuple[list[LatentChange], list[int]]:
    """Changes without repetitions, and where each of the given ones is among them."""
    place: dict[Any, int] = {}
    kept: list[LatentChange] = []
    places: list[int] = []
    for change in changes:
        values = sorted(zip(change.put.tolist(), change.values.tolist(), strict=True))
        key = (tuple(sorted(change.zero.tolist())), tuple(values))
        if key not in place:
            place[key] = len(kept)
            kept.append(change)
        places.append(place[key])
    return kept, places


def guess_rate(setup: CellSetup, config: AnsweringConfig, count: int) -> list[dict[str, Any]]:
    """Items of kind "guess": questions asked of the plain model without their context, and whether it was right."""
    form = config.choices().form

    def ask() -> list[dict[str, Any]]:
        asked = asked_questions(setup.lm, config.data, count, setup.seed, form=form, told=False)
        stops = stop_ids(setup.lm, form)
        items: list[dict[str, Any]] = []
        for start in range(0, len(asked), 16):
            some = asked[start : start + 16]
            outputs = setup.lm.generate(
                [one.example.prompt for one in some], max_new_tokens=config.max_new_tokens, stop_ids=stops
            ).tokens
            for one, output in zip(some, outputs, strict=True):
                text = answer_text(setup.lm.tokenizer.decode(output, skip_special_tokens=True), form)
                items.append(
                    {
                        "kind": "guess",
                        "id": f"guess:{one.id}",
                        "context": one.context,
                        "correct": exact_match(text, one.answers) == 1.0,
                    }
                )
        return items

    return setup.shared.once(f"answering:guess:{config.data}:{form}:{count}:{setup.seed}", ask)
