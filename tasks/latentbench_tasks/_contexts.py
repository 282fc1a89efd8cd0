"""Token contexts shared by tasks: classes of tokens, sentence windows, texts for local reading. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from latentbench.data import Corpus, TokenRow

if TYPE_CHECKING:
    from latentbench.run import CellSetup

__all__ = [
    "ENDERS",
    "Vocabulary",
    "Window",
    "centred_starts",
    "excerpts_allowed",
    "read_vocabulary",
    "rows_by_id",
    "sentence_window",
    "shortened",
    "text_and_context",
    "token_texts",
]

ENDERS = (".", "!", "?", '"')
"""Raw tokens that end a sentence, beside the tokenizer's own end token (GitHub swei2001/RouteSAEs)."""
_BROKEN = "\ufffd"
"""What a tokenizer writes for bytes that are no whole character."""


class _Tokenizer(Protocol):
    eos_token: str | None

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]: ...
    def decode(self, ids: Sequence[int], *, clean_up_tokenization_spaces: bool) -> str: ...


class Vocabulary(NamedTuple):
    """What the rules need to know of a tokenizer."""

    classes: list[int]
    """Token class of each id: the smallest id whose raw token is the same, stripped and lower-cased. The variant
    with a leading-space marker is another class."""
    ends: frozenset[int]
    """Ids that end a sentence."""
    blank: frozenset[int]
    """Ids trimmed from both sides of a context: the tokenizer's end token and empty ones."""


class Window(NamedTuple):
    """A context within a row, in columns of the row."""

    start: int
    """First column."""
    end: int
    """Column behind the last."""


def read_vocabulary(tokenizer: _Tokenizer, size: int) -> Vocabulary:
    """Classes, sentence ends and blanks of a tokenizer with `size` ids."""
    raw = [token or "" for token in tokenizer.convert_ids_to_tokens(list(range(size)))]
    first: dict[str, int] = {}
    classes = [first.setdefault(token.strip().lower(), place) for place, token in enumerate(raw)]
    enders, blanks = {*ENDERS, tokenizer.eos_token}, {"", " ", tokenizer.eos_token}
    return Vocabulary(
        classes,
        frozenset(place for place, token in enumerate(raw) if token in enders),
        frozenset(place for place, token in enumerate(raw) if token in blanks),
    )


def sentence_window(
    ids: Sequence[int], column: int, vocabulary: Vocabulary, longest: int, first: int = 0
) -> Window:
    """The sentence around a token: from behind the previous sentence end to the next one, which is included.

    A sentence of more than `longest` tokens is cut to `longest // 2` on either side of the token; blanks at both
    sides are left out (arXiv 2503.08200, section 3.3, as GitHub swei2001/RouteSAEs does it).

    Args:
        ids: the row.
        column: the token.
        vocabulary: see `read_vocabulary`.
        longest: tokens of a sentence that is kept whole, at most.
        first: columns before it are no part of the document (BOS).
    """
    start = column
    while start > first and ids[start - 1] not in vocabulary.ends:
        start -= 1
    end = column
    while end < len(ids) - 1 and ids[end] not in vocabulary.ends:
        end += 1
    end += 1
    if end - start > longest:
        start, end = max(start, column - longest // 2), min(end, column + longest // 2 + 1)
    while start < column and ids[start] in vocabulary.blank:
        start += 1
    while end - 1 > column and ids[end - 1] in vocabulary.blank:
        end -= 1
    return Window(start, end)


def centred_starts(
    columns: ArrayLike, first: ArrayLike, lengths: ArrayLike, size: ArrayLike
) -> NDArray[np.int64]:
    """First columns of windows of `size` tokens around `columns`, moved inwards at the ends of their rows.

    Args:
        columns: Int[window].
        first: Int[window], first column of each row that belongs to its document.
        lengths: Int[window], tokens of each row; a row with fewer than `size` has a shorter window.
        size: Int[window] or one number for all.
    """
    columns, size = np.asarray(columns), np.asarray(size)
    starts: NDArray[np.int64] = np.maximum(first, np.minimum(columns - size // 2, np.asarray(lengths) - size))
    return starts


def excerpts_allowed(corpus: Corpus) -> set[str]:
    """The documents whose excerpts may be published."""
    return {document.sha256 for document in corpus.documents if document.excerpts}


def rows_by_id(setup: CellSetup, budget_tokens: int) -> dict[str, TokenRow]:
    """The rows that watchers of this budget saw, by the id their items carry."""
    return {f"{row.document}:{row.start_token}": row for row in setup.rows(budget_tokens)}


def shortened(values: ArrayLike, digits: int, thresholds: Sequence[float] = ()) -> NDArray[np.float64]:
    """Positive numbers with `digits` significant digits, which make files small, but never across a threshold.

    A number that rounding would move to the other side of a threshold (`> threshold`) is kept as it is.
    """
    exact = np.asarray(values, dtype=np.float64)
    scale = 10.0 ** (digits - 1 - np.floor(np.log10(np.where(exact > 0, exact, 1.0))))
    rounded: NDArray[np.float64] = np.rint(exact * scale) / scale
    for threshold in thresholds:
        rounded = np.where((rounded > threshold) == (exact > threshold), rounded, exact)
    return rounded


def token_texts(tokenizer: _Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token, so that together they are exactly the text of all.

    A character that is spread over several tokens belongs to the last of them.
    """
    whole = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    alone = [tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in ids]
    if "".join(alone) == whole:
        return alone
    ends = [0]
    for place in range(1, len(ids)):
        so_far = tokenizer.decode(ids[:place], clean_up_tokenization_spaces=False)
        ends.append(min(len(whole), max(ends[-1], len(so_far.rstrip(_BROKEN)))))
    return [whole[start:end] for start, end in zip(ends, [*ends[1:], len(whole)], strict=True)]


def text_and_context(
    tokenizer: _Tokenizer,
    row: TokenRow,
    window: Window,
    column: int,
    strengths: Mapping[int, float] | None,
    latent: int,
    free: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A `text` item, for local reading only, and what may be published of it.

    Args:
        tokenizer: the model's.
        row: where the context is.
        window: its columns.
        column: the token it is about.
        strengths: the latent's strength by column, where it is active; None if it was measured on `column` alone.
        latent: the latent.
        free: whether an excerpt may be published.

    Returns:
        The item with the tokens of the context and the latent's strength on each, and a context with document,
        offsets and, where allowed, an excerpt.
    """
    columns = range(window.start, window.end)
    place = {
        "document": row.document,
        "start": row.start_token + window.start - row.special,
        "end": row.start_token + window.end - row.special,
    }
    shown = {
        "tokens": token_texts(tokenizer, row.ids[window.start : window.end]),
        "activations": None if strengths is None else [strengths.get(c, 0.0) for c in columns],
        "activated": column - window.start,
    }
    name = f"{latent}:{row.document}:{place['start']}:{column}"
    text = {"kind": "text", "id": name, "latent": latent, **place, **shown}
    context = {
        "text": name,
        "source": row.source,
        **place,
        "activated": column - window.start,
        "excerpt": shown if free else None,
    }
    return text, context
