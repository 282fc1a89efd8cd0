"""Calibration anchors: constructed cases whose right verdict is certain, against which a judge can be checked.

They are put together from a bank of sentences (`anchors.toml`), in which one word of each sentence is marked. A truth
is certain because the construction decides it, not because somebody rated the result:

- Context anchors, on RouteSAE's 1-5 scale. The same word marked in all ten contexts, or a word of the same topic, is
  one clear pattern (5); one or two contexts exchanged for plain ones are the exceptions that 4 asks for; four of ten
  exchanged leave a clear pattern that quite a few do not fit (3); ten unlike sentences with unlike marked words have
  none (1). Truth 2, a broad theme without structure, is not built: no construction makes it certain.
- Text anchors, on AxBench's 0-2 scale. A text is wholly on the topic that was asked for (2) or on another one (0);
  fluent sentences (2) or their words in random order, or one phrase again and again (0). One sentence of four on the
  concept is the minimal presence that AxBench calls 1; it is the only truth between the ends, so the softest one.
  Instructions and fluency have no middle case, because none would be certain.

All is seeded. Kinds alternate, so the first anchors of a list are about as mixed as the whole, and an id stands for
the same kind under every seed.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from latentbench_judges._marked import MarkedText

__all__ = ["ContextAnchor", "TextAnchor", "context_anchors", "text_anchors"]

_ROUNDS = 8  # context anchors of a kind
_CONTEXTS = 10  # contexts of an anchor
_SENTENCES = 4  # sentences of a text
_PATTERNS = (  # kind, contexts that fit, truth
    ("token", 10, 5),
    ("topic", 10, 5),
    ("token_but_one", 9, 4),
    ("topic_but_two", 8, 4),
    ("token_half", 6, 3),
    ("topic_half", 6, 3),
)
_ASPECTS = (  # aspect, truth, sentences that are on the topic
    ("concept", 2, 4),
    ("concept", 1, 1),
    ("concept", 0, 0),
    ("instruct", 2, 4),
    ("instruct", 0, 0),
    ("fluency", 2, 4),
    ("fluency", 0, 4),
)
_TOKEN = re.compile(r"\s?(?:\w+(?:['-]\w+)*|[^\w\s])")


class ContextAnchor(NamedTuple):
    """Contexts of a made-up latent."""

    id: str
    """Unique among context anchors of a seed, such as "context-017"."""
    kind: str
    """How it was built, such as "token_half"; see the module."""
    contexts: tuple[MarkedText, ...]
    """Ten contexts, each active on one token, the strongest first."""
    truth: int
    """Right verdict on RouteSAE's scale: 5, 4, 3 or 1."""


class TextAnchor(NamedTuple):
    """A made-up answer of a steered model."""

    id: str
    """Unique among text anchors of a seed, such as "text-017"."""
    aspect: str
    """What the truth is about: "concept", "instruct" or "fluency"."""
    concept: str
    """Concept that the text is to show."""
    instruction: str
    """Request that the text is to answer."""
    text: str
    """The text."""
    truth: int
    """Right verdict for the aspect on AxBench's scale: 0, 1 or 2. Other aspects have no certain verdict."""


class _Topic(NamedTuple):
    """One topic of the bank."""

    description: str
    """Noun phrase for it."""
    instruction: str
    """Request for a text on it."""
    sentences: tuple[str, ...]
    """Sentences on it, each with a word in brackets."""


class _Bank(NamedTuple):
    """What `anchors.toml` holds."""

    topics: tuple[_Topic, ...]
    """Topics that do not touch each other."""
    words: tuple[tuple[str, ...], ...]
    """For each word, sentences in which it is the bracketed one."""
    plain: tuple[str, ...]
    """Sentences that have nothing in common."""


def context_anchors(seed: int = 0) -> list[ContextAnchor]:
    """Sets of contexts with known verdicts for a judge of latents.

    Args:
        seed: chooses the mixture; equal seeds give equal anchors.

    Returns:
        64 anchors, 16 of each truth.
    """
    columns: list[tuple[str, int, Iterator[list[str]]]] = [
        (kind, truth, _patterned(kind, fitting, seed)) for kind, fitting, truth in _PATTERNS
    ]
    columns += [("nothing", 1, _unlike(seed, plain=_CONTEXTS)), ("nothing", 1, _unlike(seed, plain=3))]
    anchors = chain.from_iterable(
        [(kind, truth, next(cases)) for kind, truth, cases in columns] for _ in range(_ROUNDS)
    )
    return [
        ContextAnchor(f"context-{number:03d}", kind, _contexts(sentences), truth)
        for number, (kind, truth, sentences) in enumerate(anchors)
    ]


def text_anchors(seed: int = 0) -> list[TextAnchor]:
    """Texts with known verdicts for a judge of steered answers.

    What an anchor's aspect does not ask about fits the larger part of the text, so that nothing else is wrong with it.

    Args:
        seed: chooses the mixture; equal seeds give equal anchors.

    Returns:
        84 anchors: 12 of each truth of "concept" (2, 1, 0), "instruct" (2, 0) and "fluency" (2, 0).
    """
    columns = [_texts(aspect, truth, fitting, seed) for aspect, truth, fitting in _ASPECTS]
    anchors = chain.from_iterable(zip(*columns, strict=True))
    return [anchor._replace(id=f"text-{number:03d}") for number, anchor in enumerate(anchors)]


@cache
def _bank() -> _Bank:
    with Path(__file__).with_suffix(".toml").open("rb") as file:
        bank = tomllib.load(file)
    return _Bank(
        topics=tuple(
            _Topic(topic["description"], topic["instruction"], tuple(topic["sentences"]))
            for topic in bank["topics"]
        ),
        words=tuple(tuple(word["sentences"]) for word in bank["words"]),
        plain=tuple(bank["plain"]),
    )


def _patterned(kind: str, fitting: int, seed: int) -> Iterator[list[str]]:
    """Ten sentences, of which some have a word or a topic in common and the others nothing."""
    rng = random.Random(f"anchors/{seed}/{kind}")
    bank = _bank()
    subjects = bank.words if kind.startswith("token") else [topic.sentences for topic in bank.topics]
    for subject in rng.sample(subjects, _ROUNDS):
        sentences = rng.sample(subject, fitting) + rng.sample(bank.plain, _CONTEXTS - fitting)
        rng.shuffle(sentences)
        yield sentences


def _unlike(seed: int, plain: int) -> Iterator[list[str]]:
    """Ten sentences without likeness: some plain, the others each of another topic or with another word."""
    rng = random.Random(f"anchors/{seed}/nothing/{plain}")
    bank = _bank()
    for _ in range(_ROUNDS):
        topics = (_CONTEXTS - plain) // 2
        subjects = [topic.sentences for topic in rng.sample(bank.topics, topics)]
        subjects += rng.sample(bank.words, _CONTEXTS - plain - topics)
        sentences = [rng.choice(subject) for subject in subjects] + rng.sample(bank.plain, plain)
        rng.shuffle(sentences)
        yield sentences


def _contexts(sentences: list[str]) -> tuple[MarkedText, ...]:
    """Marked texts of sentences, with falling strengths."""
    return tuple(_marked(sentence, round(9.8 - 0.3 * place, 1)) for place, sentence in enumerate(sentences))


def _marked(sentence: str, strength: float) -> MarkedText:
    """A sentence as words and punctuation, the bracketed word being active."""
    start = sentence.index("[")  # where the word starts once the brackets are gone
    tokens = list(_TOKEN.finditer(_bare(sentence)))
    return MarkedText(
        tokens=tuple(token.group() for token in tokens),
        strengths=tuple(strength if token.start() <= start < token.end() else 0.0 for token in tokens),
    )


def _bare(sentence: str) -> str:
    return sentence.replace("[", "").replace("]", "")


def _texts(aspect: str, truth: int, fitting: int, seed: int) -> Iterator[TextAnchor]:
    """One anchor, still without an id, for each topic."""
    rng = random.Random(f"anchors/{seed}/{aspect}/{truth}")
    topics = _bank().topics
    for place, topic in enumerate(rng.sample(topics, len(topics))):
        other = rng.choice([another for another in topics if another is not topic])
        sentences = rng.sample(topic.sentences, fitting) + rng.sample(other.sentences, _SENTENCES - fitting)
        rng.shuffle(sentences)
        text = _bare(" ".join(sentences))
        if aspect == "fluency" and truth == 0:
            text = _repeated(text, rng) if place % 2 else _shuffled(text, rng)
        main = topic if fitting == _SENTENCES else other
        yield TextAnchor(
            id="",
            aspect=aspect,
            concept=(topic if aspect == "concept" else main).description,
            instruction=(topic if aspect == "instruct" else main).instruction,
            text=text,
            truth=truth,
        )


def _shuffled(text: str, rng: random.Random) -> str:
    words = text.split()
    rng.shuffle(words)
    return " ".join(words)


def _repeated(text: str, rng: random.Random) -> str:
    phrase = " ".join(text.split()[: rng.randint(3, 5)]).rstrip(",")
    return " ".join([phrase] * rng.randint(18, 22))
