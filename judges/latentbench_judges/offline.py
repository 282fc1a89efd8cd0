"""Judge `offline`: rules, sentence embeddings and a small language model in place of an LLM judge; no network, no key.

It answers five rubrics, each by a rule that can be read below:

* monosemanticity: the largest share of contexts that have one marked word in common, or are close in meaning to one of
  them by all-MiniLM-L6-v2. It can't see what depends on grammar, on the place in a text or on spelling within a word,
  and takes a shared subject for a shared meaning of the marked token.
* steering_concept: the share of sentences that are close in meaning to the concept's description.
* steering_instruct: how close the text is to the instruction. A text that repeats the instruction scores high.
* simulation: 10 on the tokens of words that the explanation holds, less on words close to it in meaning. It can't see
  what depends on context, and has no rule for `explain`: the explanation is somebody else's.
* steering_fluency: loops, then the mean surprisal of SmolLM2-135M. A model finds its own faults likely.

Its thresholds were set once, by what similarities of unrelated and related English sentences usually are, not on the
anchors. `latentbench judge calibrate offline` measures how far it agrees with them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from latentbench_judges._answer import Answer
from latentbench_judges._fence import collapse_repetition
from latentbench_judges._marked import MarkedText
from latentbench_judges._options import checked_options
from latentbench_judges._question import Question
from latentbench_judges.embed import EmbedJudge

if TYPE_CHECKING:
    from latentbench.lm import LM

__all__ = ["OfflineJudge", "OfflineOptions"]

_VERSION = "1"
"""Raised whenever a verdict may come out differently."""
_RELATED = 0.25
"""Cosine of two sentences from which they count as related."""
_SHARES = ((0.95, 5), (0.75, 4), (0.5, 3), (0.35, 2))
"""Smallest share of contexts that fit, by RouteSAE's score."""
_ANSWERS = ((0.4, 2), (0.25, 1))
"""Smallest cosine of text and instruction, by AxBench's score."""
_SURPRISAL = ((5.0, 2), (6.0, 1))
"""Largest mean surprisal in nats per token, by AxBench's score."""
_WORD = r"[^\W_]+"
_SHORTEST = 3
"""Letters of a word of an explanation that is looked for, at least."""
_LOOPED = 0.5
"""Share of distinct three-word sequences below which a text is a loop."""


class OfflineOptions(BaseModel):
    """Options of the judge."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lm: str = "smollm2-135m-q4"
    """Language model whose surprisal stands for fluency."""
    device: str = "cpu"
    """Where it runs."""


class OfflineJudge:
    """See the module."""

    name = "offline"
    """Registered name."""
    role = "rubric"
    """What it can be asked."""

    def __init__(self, options: OfflineOptions) -> None:
        """A judge; models are loaded when they are first needed."""
        self.options = options
        self._embed = EmbedJudge()
        self._rules: dict[str, Callable[[Question], dict[str, Any]]] = {
            "monosemanticity": self._monosemanticity,
            "steering_concept": self._concept,
            "steering_instruct": self._instruct,
            "steering_fluency": self._fluency,
            "simulation": self._simulation,
        }

    @classmethod
    def make(cls, argument: str, options: Mapping[str, Any]) -> OfflineJudge:
        """The judge of "offline"; options as in `OfflineOptions`, errors as in `checked_options`."""
        lm = {"lm": argument} if argument else {}
        return cls(checked_options(OfflineOptions, {**lm, **options}, "offline"))

    def identity(self) -> dict[str, Any]:
        """Everything that can change a verdict."""
        return {
            "name": self.name,
            "version": _VERSION,
            "embed": self._embed.identity(),
            "lm": self.options.lm,
        }

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """An answer to every question of a rubric that it knows; "missing" to the others."""
        for question in questions:
            rule = self._rules.get(question.rubric.name)
            base = Answer(question.id, question.key, "missing", model=self.name)
            if rule is None:
                yield base._replace(
                    reason=f"the offline judge has no rule for the rubric {question.rubric.name!r}"
                )
                continue
            fields = rule(question)
            yield base._replace(
                status="ok", fields=fields, verdict=fields[question.rubric.verdict], path="computed"
            )

    def _monosemanticity(self, question: Question) -> dict[str, Any]:
        contexts = [one for one in question.material["contexts"] if isinstance(one, MarkedText)]
        words = Counter(_word(one) for one in contexts)
        word, common = words.most_common(1)[0]
        by_word = common / len(contexts)
        vectors = self._vectors([one.text for one in contexts])
        by_meaning = float(((vectors @ vectors.T) >= _RELATED).mean(axis=1).max())
        share = max(by_word, by_meaning)
        score = next((score for least, score in _SHARES if share >= least), 1)
        found = f"marked word {word!r}" if by_word >= by_meaning else "a common subject"
        return {
            "explanation": f"{found} in {share:.0%} of the contexts" if score > 1 else "nothing in common",
            "category": "undiscernible"
            if score == 1
            else "low_level"
            if by_word >= by_meaning
            else "high_level",
            "score": score,
        }

    def _concept(self, question: Question) -> dict[str, Any]:
        concept, text = str(question.material["concept"]), str(question.material["text"])
        sentences = _sentences(text)
        if not sentences:
            return {"reason": "an empty text", "score": 0}
        close = self._vectors(sentences) @ self._vectors([concept])[0]
        share = float((close >= _RELATED).mean())
        score = 2 if share >= 0.75 else 1 if share > 0 else 0
        return {"reason": f"{share:.0%} of the sentences are close to the concept", "score": score}

    def _instruct(self, question: Question) -> dict[str, Any]:
        instruction, text = str(question.material["instruction"]), str(question.material["text"])
        if not text.strip():
            return {"reason": "an empty text", "score": 0}
        close = float(self._vectors([instruction])[0] @ self._vectors([text])[0])
        score = next((score for least, score in _ANSWERS if close >= least), 0)
        return {"reason": f"cosine {close:.2f} with the instruction", "score": score}

    def _fluency(self, question: Question) -> dict[str, Any]:
        text = str(question.material["text"])
        words = text.lower().split()
        triples = list(zip(words, words[1:], words[2:], strict=False))
        if not triples:
            return {"reason": "fewer than three words", "score": 0}
        if len(set(triples)) / len(triples) < _LOOPED or collapse_repetition(text) != text:
            return {"reason": "a loop", "score": 0}
        surprisal = self._surprisal(text)
        score = next((score for most, score in _SURPRISAL if surprisal <= most), 0)
        return {"reason": f"{surprisal:.2f} nats a token", "score": score}

    def _simulation(self, question: Question) -> dict[str, Any]:
        explanation = str(question.material["explanation"])
        tokens = [one for one in question.material["tokens"] if isinstance(one, str)]
        words = _word_of_each(tokens)
        known = {_stem(word) for word in re.findall(_WORD, explanation.lower()) if len(word) >= _SHORTEST}
        others = sorted({word for word in words if word and _stem(word) not in known})
        close = self._vectors(others) @ self._vectors([explanation])[0] if others else []
        graded = (np.clip((np.asarray(close) - _RELATED) / (1 - _RELATED), 0, 1) * 10).round().astype(int)
        value = dict(zip(others, graded.tolist(), strict=True))
        return {
            "reasons": f"words {', '.join(sorted(known)) or 'of no length'}, and what is close to them",
            "activations": [10 if _stem(word) in known else value.get(word, 0) for word in words],
        }

    def _vectors(self, texts: list[str]) -> NDArray[np.float32]:
        return self._embed.embed([_whole(text) for text in texts])

    @cached_property
    def _lm(self) -> LM:
        from latentbench.lm import load_lm

        return load_lm(self.options.lm, device=self.options.device)

    def _surprisal(self, text: str) -> float:
        """Nats per token, the first one left out."""
        import torch

        (ids,) = self._lm.tokenize([_whole(text)], max_tokens=512)
        if len(ids) < 2:
            return 0.0
        logits = self._lm.forward(self._lm.batch([ids])).logits
        assert logits is not None
        logs = logits[0, :-1].double().log_softmax(dim=-1)
        return float(-logs.gather(1, torch.tensor(ids[1:], device=logs.device)[:, None]).mean())


def _word(context: MarkedText) -> str:
    return re.sub(r"\W+", "", context.tokens[context.peak].lower()) or context.tokens[context.peak].strip()


def _whole(text: str) -> str:
    """The text without halves of characters, which no tokenizer takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _word_of_each(tokens: list[str]) -> list[str]:
    """The word that each token is a part of, in lower case; "" for white space and punctuation."""
    lower = [token.lower() for token in tokens]
    text = "".join(lower)
    at = [""] * (len(text) + 1)
    for found in re.finditer(_WORD, text):
        at[found.start() : found.end()] = [found[0]] * (found.end() - found.start())
    words, start = [], 0
    for token in lower:
        words.append(next((word for word in at[start : start + len(token)] if word), ""))
        start += len(token)
    return words


def _stem(word: str) -> str:
    """A word without the ending of a plural."""
    return word.removesuffix("es") if word.endswith("ches") else word.removesuffix("s")


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part]
