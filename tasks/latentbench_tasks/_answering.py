"""Questions answered with a dictionary spliced in, the latents that selectors choose for them, and other answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
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
from latentbench.errors import UserError
from latentbench.identity import sha256_json, sha256_text
from latentbench.lm import LM, Begun, Edit, Site
from latentbench.run import CellSetup, Shared
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
    count_to_choose,
    matched_by_activation,
    splice,
)
from latentbench_tasks._answering_config import AnsweringConfig, Count
from latentbench_tasks._questions import Asked, answer_text, asked_questions, stop_ids
from latentbench_tasks._squad import exact_match

__all__ = [
    "Answer",
    "Answering",
    "Ranked",
    "Rerun",
    "Skipped",
    "distinct",
    "divergence",
]

_TOO_LONG = "longer than the model's window"
_BATCH = 16
"""Questions of one batch of first answers."""
_LOGITS = 2**27
"""Logits that are held at once while answers are made again."""


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


class Rerun(NamedTuple):
    """Answers to one question under several changes of its codes."""

    texts: list[str]
    """The answers."""
    divergence: Tensor
    """`Float64[Tensor, "change"]`: KL from the first change's distribution to each, nats, mean over the tokens of the
    first answer, teacher-forced."""
    begins: Tensor
    """`Float64[Tensor, "change vocab"]`: log-probabilities of the first token."""


@dataclass(frozen=True, eq=False)
class Answering:
    """Asks a cell's model."""

    lm: LM
    """The model."""
    dictionary: Dictionary
    """What is spliced in."""
    config: AnsweringConfig
    """How."""
    seed: int
    """The cell's."""
    stops: frozenset[int]
    """Tokens that end an answer."""
    shared: Shared
    """Answers of the plain model are the same for all dictionaries of a run."""

    @classmethod
    def of(cls, setup: CellSetup, config: AnsweringConfig) -> Answering:
        """For a cell."""
        form = config.choices().form
        stops = setup.shared.once(
            f"answering:stops:{form}:{setup.lm.revision}", lambda: stop_ids(setup.lm, form)
        )
        return cls(setup.lm, setup.dictionary, config, setup.seed, stops, setup.shared)

    def questions(self, count: int | None = None, *, told: bool = True) -> list[Asked]:
        """The questions of the cell, or the first `count`; `told` as in `asked_questions`."""
        count = self.config.questions if count is None else count
        form = self.config.choices().form
        return asked_questions(self.lm, self.config.data, count, self.seed, form=form, told=told)

    def first_round(self, questions: Sequence[Asked], done: Collection[str] = ()) -> Iterator[Answer]:
        """Answers with nothing but the splice, in the order of the questions, without those that are done."""
        # With the error kept, an unchanged splice is the model itself.
        yield from self._answers(questions, done, plain=self.config.choices().keep_error)

    def guesses(self, count: int, done: Collection[str] = ()) -> Iterator[Answer]:
        """Answers of the plain model to the first questions without their contexts."""
        yield from self._answers(self.questions(count, told=False), done, plain=True)

    def _answers(self, questions: Sequence[Asked], done: Collection[str], *, plain: bool) -> Iterator[Answer]:
        for start in range(0, len(questions), _BATCH):  # batches stay the same, so that cells share them
            some = questions[start : start + _BATCH]
            if all(one.id in done for one in some):
                continue
            asked = [one for one in some if self._fits(one)]
            outputs = dict(zip((one.id for one in asked), self._outputs(asked, plain=plain), strict=True))
            for one in some:
                if one.id in done:
                    continue
                if one.id not in outputs:
                    yield Answer(one, (), "", correct=False, unasked=_TOO_LONG)
                    continue
                text = self.text(outputs[one.id])
                correct = exact_match(text, one.answers) == 1.0
                yield Answer(one, tuple(outputs[one.id]), text, correct)

    def _fits(self, asked: Asked) -> bool:
        longest = len(asked.example.prompt) + self.config.most_tokens
        return self.lm.window is None or longest <= self.lm.window

    def _outputs(self, some: Sequence[Asked], *, plain: bool) -> list[list[int]]:
        if not some:
            return []
        prompts = [asked.example.prompt for asked in some]
        most = self.config.most_tokens

        def run(edits: Sequence[Edit]) -> list[list[int]]:
            return self.lm.generate(prompts, max_new_tokens=most, edits=edits, stop_ids=self.stops).tokens

        if plain:
            return self.shared.once(f"answering:plain:{most}:{sha256_json(prompts)}", lambda: run([]))
        return run(latent_edits(self.dictionary, [LatentChange.none()] * len(some), keep_error=False))

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
        return Ranked(
            spliced, {name: LatentScores(*(part.cpu() for part in one)) for name, one in scores.items()}
        )

    def answers_under(
        self, answer: Answer, changes: Sequence[LatentChange], tokens: ChangedTokens, batch: int = 40
    ) -> Rerun:
        """Answers to one question under changes of its codes.

        Args:
            answer: the question with its first answer.
            changes: one for each new answer; the first is what divergences are from.
            tokens: where codes are changed, see `EditLatents`.
            batch: changes that are run side by side, at most.

        Raises:
            Skipped: the question fills an attention window of the model.
        """
        keep, most = self.config.choices().keep_error, self.config.most_tokens
        draft = answer.output[:most]
        begun = self._begun(answer.asked.example.prompt, draft, tokens)
        batch = max(1, min(batch, _LOGITS // ((len(draft) + 1) * self.lm.vocab_size)))
        texts: list[str] = []
        parts: list[tuple[Tensor, Tensor]] = []
        base: Tensor | None = None
        for start in range(0, len(changes), batch):
            some = changes[start : start + batch]
            run = self.lm.continue_begun(
                begun,
                len(some),
                max_new_tokens=most,
                edits=latent_edits(self.dictionary, some, tokens=tokens, keep_error=keep),
                stop_ids=self.stops,
            )
            assert run.draft_logits is not None
            texts += [self.text(output) for output in run.tokens]
            logs = run.draft_logits.double().log_softmax(dim=-1)
            base = logs[0] if base is None else base
            parts.append((divergence(base, logs), logs[:, 0]))
        return Rerun(texts, *(torch.cat(part) for part in zip(*parts, strict=True)))

    def _begun(self, prompt: tuple[int, ...], draft: tuple[int, ...], tokens: ChangedTokens) -> Begun:
        """The question with its first answer, run as far as all changes have it in common."""
        dictionary = self.dictionary
        first = min(dictionary.writes)
        try:
            if tokens == "all" and first.kind == "resid_post":
                begun = self.lm.begin_below(prompt, draft, first, observed_sites(dictionary))
                return begun.at(self._lowest(begun)) if isinstance(dictionary, RouteSae) else begun
            same = latent_edits(
                dictionary, [LatentChange.none()], keep_error=self.config.choices().keep_error
            )
            columns = 1 if tokens == "all" else len(prompt) - 1  # column 0 is never edited
            return self.lm.begin_columns(prompt, draft, columns, same)
        except UserError as error:
            raise Skipped("fills the model's attention window") from error

    def _lowest(self, begun: Begun) -> Site:
        """The first site that any of a row's tokens is routed to."""
        assert isinstance(self.dictionary, RouteSae)
        acts = {site: value[0, 1:] for site, value in begun.observed.items()}
        route, _ = self.dictionary.route(self.dictionary.gather(acts))
        used: list[int] = route.unique().tolist()
        return min(self.dictionary.reads[index] for index in used)

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


def divergence(base: Tensor, logs: Tensor) -> Tensor:
    """`Float64[Tensor, "change"]`: KL from a distribution to others, nats, mean over the tokens of an answer.

    Args:
        base: `Float64[Tensor, "token+1 vocab"]`: log-probabilities before each token and behind the last, which is left
            out unless there is no other.
        logs: `Float64[Tensor, "change token+1 vocab"]`.
    """
    last = max(1, len(base) - 1)
    first, others = base[:last], logs[:, :last]
    return (first.exp() * (first - others)).sum(dim=-1).clamp(min=0).mean(dim=1)
