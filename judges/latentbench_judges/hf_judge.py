"""Judge `hf:MODEL`: a local language model, its verdicts drawn from the menu by log-probabilities.

The answer is written in the form of the rubric's schema: words are generated, and a choice is the value of the menu
that the model finds likeliest at its place. So there is always a verdict on the menu, whether or not the model
understood anything: calibrate it before you believe it (`latentbench judge calibrate hf:MODEL`).

A list is written item by item, and the model reads all that stands before each: a text whose tokens are simulated is
read once for every token of it. That is for a GPU; on a CPU ask for few.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from latentbench.data import cache_root
from latentbench.errors import UserError
from latentbench.store import ResponseCache
from latentbench_judges._answer import Answer
from latentbench_judges._options import checked_options
from latentbench_judges._question import Question
from latentbench_judges.rubric import RATING

if TYPE_CHECKING:
    from latentbench.lm import LM

__all__ = ["HfJudge", "HfJudgeOptions"]

_VERSION = "1"
"""Raised whenever an answer may come out differently."""
_NONCE = "0"
"""Fixed: the model is here, so nobody can learn a nonce, and equal questions get equal answers."""


class HfJudgeOptions(BaseModel):
    """Options of the judge."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    """Model, as `load_lm` takes it: asset, hub id or folder."""
    device: str = "cpu"
    """Where it runs."""
    dtype: str = "float32"
    """Type of its numbers."""
    words: int = Field(default=32, ge=0)
    """Tokens of each part that is words, at most; 0 leaves reasons out."""
    batch: int = Field(default=8, ge=1)
    """Questions at once; changes no verdict beyond rounding."""
    cache: Path | None = None
    """SQLite file of answers; None takes one in the project's cache folder."""


class HfJudge:
    """See the module."""

    name = "hf"
    """Registered name."""
    role = "rubric"
    """What it can be asked."""

    def __init__(self, options: HfJudgeOptions) -> None:
        """A judge; the model is loaded when it is first needed."""
        self.options = options
        self._cache = options.cache or cache_root() / "judges" / "replies.sqlite"

    @classmethod
    def make(cls, argument: str, options: Mapping[str, Any]) -> HfJudge:
        """The judge of "hf:MODEL"; options as in `HfJudgeOptions`, errors as in `checked_options`."""
        if "model" in options:
            raise UserError("the judge 'hf' takes its model from its name, hf:MODEL, and not as an option")
        return cls(checked_options(HfJudgeOptions, {"model": argument, **options}, "hf"))

    @cached_property
    def lm(self) -> LM:
        """The model."""
        from latentbench.lm import load_lm

        return load_lm(self.options.model, device=self.options.device, dtype=self.options.dtype)

    def identity(self) -> dict[str, Any]:
        """Everything that can change a verdict."""
        return {
            "name": self.name,
            "version": _VERSION,
            "model": self.lm.identity(),
            "words": self.options.words,
        }

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """An answer to every question; those of one rubric together, those that are known first."""
        identity = self.identity()
        with ResponseCache(self._cache) as cache:
            groups: dict[str, list[Question]] = {}
            for question in questions:
                kept = cache.get({"judge": identity, "question": question.key})
                if kept is None:
                    groups.setdefault(question.rubric.sha256, []).append(question)
                else:
                    yield Answer.from_item({**kept, "id": question.id, "question": question.key})
            for group in groups.values():
                group.sort(key=lambda one: len(one.plain_messages[1]["content"]))  # little padding
                for start in range(0, len(group), self.options.batch):
                    for answer in self._answered(group[start : start + self.options.batch]):
                        if answer.status == "ok":
                            cache.put(
                                {"judge": self.identity(), "question": answer.key}, answer.as_item("answer")
                            )
                        yield answer

    def _answered(self, questions: Sequence[Question]) -> list[Answer]:
        drafts, long = [], []
        for question in questions:
            draft = _Draft(question, self._prompt(question))
            reason = self._too_long(draft)
            if reason is None:
                drafts.append(draft)
            else:
                base = Answer(question.id, question.key, "truncated", model=self.options.model)
                long.append(base._replace(reason=reason))
        return [*long, *(self._filled(drafts) if drafts else ())]

    def _too_long(self, draft: _Draft) -> str | None:
        question, window = draft.question, self.lm.window
        each = 16 if question.rubric.kind == "ratings" else 8
        room = 64 + self.options.words * len(question.rubric.schema_["properties"])
        room += each * (question.count or 1)
        length = len(self._ids(draft.text))
        if window is None or length + room <= window:
            return None
        return f"{length} tokens and the answer are longer than the model's window of {window}"

    def _filled(self, drafts: Sequence[_Draft]) -> list[Answer]:
        """All properties in their order, for questions of one rubric."""
        properties = drafts[0].question.rubric.schema_["properties"]
        for name, form in properties.items():
            for draft in drafts:
                draft.begin(name)
            if form.get("type") == "array":
                self._list(drafts, name)
            elif "enum" in form:
                ends = ["}" if name == list(properties)[-1] else ","] * len(drafts)
                for draft, (value, weights) in zip(
                    drafts, self._chosen(drafts, form["enum"], ends), strict=True
                ):
                    draft.put(name, value, weights)
            else:
                for draft, words in zip(drafts, self._words(drafts), strict=True):
                    draft.put(name, words, None)
        return [draft.answer(self.options.model) for draft in drafts]

    def _list(self, drafts: Sequence[_Draft], name: str) -> None:
        """A list of flags or ratings, one item after the other."""
        rubric = drafts[0].question.rubric
        rated = rubric.kind == "ratings"
        found: list[list[tuple[Any, list[float]]]] = [[] for _ in drafts]
        for place in range(max(draft.question.count or 0 for draft in drafts)):
            open_ones = [n for n, draft in enumerate(drafts) if place < (draft.question.count or 0)]
            for n in open_ones:
                drafts[n].text += ", " if place else "["
                drafts[n].text += f'{{"{RATING[0]}": {place + 1}, "{RATING[1]}": ' if rated else ""
            last = [place + 1 == drafts[n].question.count for n in open_ones]
            ends = ["}" if rated else "]" if one else "," for one in last]
            chosen = self._chosen([drafts[n] for n in open_ones], rubric.menu, ends, brief=rated)
            for n, one in zip(open_ones, chosen, strict=True):
                drafts[n].text += json.dumps(one[0]) + ("}" if rated else "")
                found[n].append(one)
        for draft, ones in zip(drafts, found, strict=True):
            draft.text += "]"
            draft.fields[name] = [value for value, _ in ones]
            menu = [float(one) for one in rubric.menu] if rated else [0.0] * (len(rubric.menu) - 1) + [1.0]
            draft.weights = [sum(a * b for a, b in zip(menu, weights, strict=True)) for _, weights in ones]

    def _chosen(
        self, drafts: Sequence[_Draft], menu: Sequence[Any], ends: Sequence[str], *, brief: bool = False
    ) -> list[tuple[Any, list[float]]]:
        """The likeliest value of a menu behind each draft, and what each value gets.

        A value counts with what ends it, since 1 would otherwise win against every 10.

        Args:
            drafts: what stands before.
            menu: the values.
            ends: what follows a value, for each draft.
            brief: whether a value counts only up to where no other begins like it, which needs fewer passes.
        """
        import torch

        rows: list[list[int]] = []
        trees: list[tuple[int, _Options]] = []
        for draft, end in zip(drafts, ends, strict=True):
            options = _Options.of([self._ids(draft.text + json.dumps(value) + end) for value in menu], brief)
            trees.append((len(rows), options))
            rows += options.rows
        last = max(len(row) + 1 - options.shared for _, options in trees for row in options.rows)
        logits = self.lm.forward(self.lm.batch(rows, side="left"), last_logits=last).logits
        assert logits is not None
        logs = logits.double().log_softmax(dim=-1).cpu()
        found = []
        for first, options in trees:
            sums = [
                sum(
                    # the last of the logits is about the token behind the row
                    float(logs[first + row, last - 1 - len(options.rows[row]) + place, ids[place]])
                    for place in range(options.shared, len(ids))
                )
                for ids, row in zip(options.ids, options.row_of, strict=True)
            ]
            weights = torch.tensor(sums).softmax(dim=0).tolist()
            found.append((menu[max(range(len(menu)), key=lambda n: sums[n])], weights))
        return found

    def _words(self, drafts: Sequence[_Draft]) -> list[str]:
        """Words behind each draft, up to a quotation mark or the end of the line."""
        if not self.options.words:
            return ["" for _ in drafts]
        prompts = [self._ids(f'{draft.text}"') for draft in drafts]
        written = self.lm.generate(prompts, max_new_tokens=self.options.words)
        texts = [self.lm.tokenizer.decode(ids, skip_special_tokens=True) for ids in written.tokens]
        return [text.split("\n")[0].split('"')[0].replace("\\", "").strip() for text in texts]

    def _prompt(self, question: Question) -> str:
        messages = question.messages(_NONCE)
        form = f"\n\nAnswer with one JSON object of the form {json.dumps(question.rubric.example)}"
        messages[-1] = {**messages[-1], "content": messages[-1]["content"] + form}
        tokenizer = self.lm.tokenizer
        if getattr(tokenizer, "chat_template", None):
            text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return text
        return "\n\n".join(one["content"] for one in messages) + "\n\nAnswer:\n"

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.lm.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


class _Draft:
    """An answer that is being written."""

    def __init__(self, question: Question, prompt: str) -> None:
        self.question = question
        self.text = prompt
        self.fields: dict[str, Any] = {}
        self.weights: list[float] | None = None
        self._start = len(prompt)

    def begin(self, name: str) -> None:
        """The name of the next property."""
        self.text += f"{', ' if self.fields else '{'}{json.dumps(name)}: "

    def put(self, name: str, value: Any, weights: list[float] | None) -> None:
        """Its value."""
        self.text += json.dumps(value)
        self.fields[name] = value
        self.weights = weights

    def answer(self, model: str) -> Answer:
        """What came of it."""
        question = self.question
        return Answer(
            id=question.id,
            key=question.key,
            status="ok",
            fields=self.fields,
            verdict=self.fields[question.rubric.verdict],
            path="constrained",
            raw=self.text[self._start :] + "}",
            weights=self.weights,
            model=model,
        )


class _Options(NamedTuple):
    """The values of a menu behind a draft, as tokens, and the rows in which all of them can be read."""

    ids: list[list[int]]
    """Draft and value, for each value."""
    shared: int
    """Tokens that all begin with."""
    rows: list[list[int]]
    """Rows that the model reads; none is the beginning of another."""
    row_of: list[int]
    """The row that each value is read in."""

    @classmethod
    def of(cls, ids: list[list[int]], brief: bool) -> _Options:
        shared = _shared(ids)
        firsts = {tuple(one[shared : shared + 1]) for one in ids}
        if brief or (len(firsts) == len(ids) and () not in firsts):
            ids = [_told_apart(one, ids, shared) for one in ids]
        rows: list[list[int]] = []
        for one in sorted((one[:-1] for one in ids), key=len, reverse=True):
            if not any(row[: len(one)] == one for row in rows):
                rows.append(one)
        row_of = [next(n for n, row in enumerate(rows) if row[: len(one) - 1] == one[:-1]) for one in ids]
        return cls(ids, shared, rows, row_of)


def _told_apart(one: list[int], all_of_them: Sequence[list[int]], shared: int) -> list[int]:
    """A value up to the token that tells it from all others, or all of it."""
    for end in range(shared + 1, len(one)):
        if sum(other[:end] == one[:end] for other in all_of_them) == 1:
            return one[:end]
    return one


def _shared(rows: Sequence[Sequence[int]]) -> int:
    """Tokens that all rows begin with."""
    for place, tokens in enumerate(zip(*rows, strict=False)):
        if len(set(tokens)) > 1:
            return place
    return min(map(len, rows))
