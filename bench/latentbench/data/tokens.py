"""Documents cut into rows of tokens for the watching pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from latentbench.data.corpus import Corpus, Document
from latentbench.errors import UserError

__all__ = ["TokenRow", "Tokenizer", "measured_tokens", "token_rows"]

Bos = Literal["tokenizer", "always", "never"]
_DOCUMENTS_AT_ONCE = 64


class Tokenizer(Protocol):
    """What a language model must offer; `latentbench.lm.LM` does."""

    def tokenize(self, texts: Sequence[str], max_tokens: int, *, bos: Bos = "tokenizer") -> list[list[int]]:
        """Token ids of each text, cut after `max_tokens`, without padding."""
        ...


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A piece of one document; no row holds two documents, so none attends to another."""

    document: str
    """The document's sha256."""
    source: str
    """The document's source."""
    start_token: int
    """Place of the row's first own token among the document's tokens."""
    ids: list[int]
    """Token ids, special ones included; not padded."""
    special: int = 0
    """How many of the first ids are special tokens (BOS) that are no part of the document."""

    @property
    def end_token(self) -> int:
        """Place after the row's last token among the document's tokens."""
        return self.start_token + len(self.ids) - self.special


def token_rows(
    corpus: Corpus | Sequence[Document],
    lm: Tokenizer,
    *,
    context: int,
    skip_first: int = 1,
    budget_tokens: int | None = None,
    bos: Bos = "tokenizer",
) -> list[TokenRow]:
    """The stream as rows of at most `context` tokens, until `budget_tokens` measured tokens are in them.

    A document of n tokens becomes ceil(n / context) rows, the last of them short; a row that would hold no
    measured token is left out. The last row is cut so that the budget is met exactly; a stream that is too
    small gives fewer, which `measured_tokens` tells. The same input always gives the same rows, and a smaller
    budget a prefix of them (but for the cut).

    Args:
        corpus: a corpus, whose stream is taken, or documents.
        lm: the model whose tokenizer is used.
        context: most tokens in a row, special ones included.
        skip_first: tokens at the start of each row that are not measured (attention sink).
        budget_tokens: measured tokens wanted; None takes all.
        bos: as in `LM.tokenize`; a BOS token, if any, starts every row and counts among the first tokens.

    Raises:
        UserError: no token of a row would be measured with this context.
    """
    prefix = lm.tokenize([""], context, bos=bos)[0]
    own = context - len(prefix)
    if context <= skip_first or own < 1:
        raise UserError(
            f"context={context} leaves nothing to measure: {skip_first} tokens of each row are skipped and "
            f"{len(prefix)} are special; take a longer context"
        )
    documents = corpus.documents if isinstance(corpus, Corpus) else corpus
    rows: list[TokenRow] = []
    left = budget_tokens
    for row in _pieces(documents, lm, own, prefix):
        measured = len(row.ids) - skip_first
        if measured < 1:
            continue
        if left is not None and measured >= left:
            if left > 0:
                cut = row.ids[: left + skip_first]
                rows.append(TokenRow(row.document, row.source, row.start_token, cut, row.special))
            return rows
        rows.append(row)
        left = None if left is None else left - measured
    return rows


def measured_tokens(rows: Sequence[TokenRow], skip_first: int = 1) -> int:
    """How many tokens of these rows are measured."""
    return sum(max(0, len(row.ids) - skip_first) for row in rows)


def _pieces(documents: Sequence[Document], lm: Tokenizer, own: int, prefix: list[int]) -> Iterator[TokenRow]:
    for first in range(0, len(documents), _DOCUMENTS_AT_ONCE):
        batch = documents[first : first + _DOCUMENTS_AT_ONCE]
        longest = max(len(document.text.encode("utf-8", errors="surrogatepass")) for document in batch)
        # A token stands for at least one byte (bytes can become unknown tokens one by one), so nothing is cut
        # here.
        encoded = lm.tokenize([document.text for document in batch], longest + 1, bos="never")
        for document, ids in zip(batch, encoded, strict=True):
            for start in range(0, len(ids), own):
                piece = [*prefix, *ids[start : start + own]]
                yield TokenRow(document.sha256, document.source, start, piece, len(prefix))
