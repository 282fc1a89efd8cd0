"""Exact match and token F1 of short answers, as SQuAD defines them (Rajpurkar et al., arXiv 1606.05250). No torch."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

__all__ = ["exact_match", "normalised_answer", "token_f1"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised_answer(text: str) -> str:
    """Lower case, without punctuation and articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(text: str, answers: Sequence[str]) -> float:
    """1 if the answer is one of the accepted ones after normalisation, else 0."""
    return float(normalised_answer(text) in {normalised_answer(answer) for answer in answers})


def token_f1(text: str, answers: Sequence[str]) -> float:
    """The best F1 between the words of the answer and those of an accepted one; 0 if they share none."""
    return max(
        (_f1(normalised_answer(text).split(), normalised_answer(a).split()) for a in answers), default=0.0
    )


def _f1(found: list[str], wanted: list[str]) -> float:
    if not found or not wanted:
        return float(found == wanted)
    shared = (Counter(found) & Counter(wanted)).total()
    return 2 * shared / (len(found) + len(wanted))
