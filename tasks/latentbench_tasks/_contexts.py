"""Token contexts shared by tasks: classes of tokens, sentence windows, texts for local reading. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from latentbench.data import Corpus, TokenRow

__all__ = [
    "ENDERS",
    "Vocabulary",
    "Window",
    "excerpts_allowed",
    "read_vocabulary",
    "sentence_window",
    "text_item",
]

ENDERS = (".", "!", "?", '"')
"""Raw tokens that end a sentence, beside the tokenizer's own end token (GitHub swei2001/RouteSAEs)."""


class _Tokenizer(Protocol):
    eos_token: str | None

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


class Vocabulary(NamedTuple):
    """What the rules need to know of a tokenizer."""

    classes: list[int]
    """Token class of each id: the smallest id whose raw token is the same, stripped and lower-cased. The variant
    with a leading-space marker is another class."""
    ends: frozenset[int]
    """Ids that end a sentence."""


class Window(NamedTuple):
    """A context within a row, in columns of the row."""

    start: int
    """First column."""
    end: int
    """Column behind the last."""


def read_vocabulary(tokenizer: _Tokenizer, size: int) -> Vocabulary:
    """Classes and sentence ends of a tokenizer with `size` ids."""
    raw = [token or "" for token in tokenizer.convert_ids_to_tokens(list(range(size)))]
    first: dict[str, int] = {}
    classes = [first.setdefault(token.strip().lower(), place) for place, token in enumerate(raw)]
    enders = {*ENDERS, tokenizer.eos_token}
    return Vocabulary(classes, frozenset(place for place, token in enumerate(raw) if token in enders))


def sentence_window(ids: Sequence[int], column: int, ends: frozenset[int], longest: int) -> Window:
    """The sentence around a token: from behind the previous sentence end to the next one, which is included.

    A sentence of more than `longest` tokens is cut to `longest // 2` on either side of the token
    (arXiv 2503.08200, section 3.3, as GitHub swei2001/RouteSAEs does it).
    """
    start = column
    while start > 0 and ids[start - 1] not in ends:
        start -= 1
    end = column
    while end < len(ids) - 1 and ids[end] not in ends:
        end += 1
    end += 1
    if end - start > longest:
        start, end = max(start, column - longest // 2), min(end, column + longest // 2)
    return Window(start, end)


def excerpts_allowed(corpus: Corpus) -> set[str]:
    """The documents whose excerpts may be published."""
    return {document.sha256 for document in corpus.documents if document.excerpts}


def text_item(
    tokenizer: _Tokenizer,
    row: TokenRow,
    window: Window,
    column: int,
    strengths: Mapping[int, float],
    latent: int,
) -> dict[str, Any]:
    """A `text` item: the tokens of a context and the latent's strength on each, for local reading only."""
    columns = range(window.start, window.end)
    return {
        "kind": "text",
        "id": f"{latent}:{row.document}:{row.start_token + window.start - row.special}:{column}",
        "latent": latent,
        "document": row.document,
        "start": row.start_token + window.start - row.special,
        "end": row.start_token + window.end - row.special,
        "tokens": [tokenizer.decode([row.ids[c]]) for c in columns],
        "activations": [strengths.get(c, 0.0) for c in columns],
        "activated": column - window.start,
    }
