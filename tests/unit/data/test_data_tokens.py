"""Documents as rows of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import hypothesis.strategies as st
import pytest
from hypothesis import given

from latentbench.data import Document, TokenRow, measured_tokens, token_rows
from latentbench.errors import UserError

BOS = 1000
BosPolicy = Literal["tokenizer", "always", "never"]


class Letters:
    """A tokenizer of one token a letter, which may start a text with a BOS token."""

    def __init__(self, bos: bool) -> None:
        self.has_bos = bos

    def tokenize(
        self,
        texts: Sequence[str],
        max_tokens: int,
        *,
        bos: BosPolicy = "tokenizer",
    ) -> list[list[int]]:
        first = [BOS] if bos == "always" or (bos == "tokenizer" and self.has_bos) else []
        return [[*first, *map(ord, text)][:max_tokens] for text in texts]


def documents(texts: Sequence[str]) -> list[Document]:
    return [Document(sha256=f"{number:064x}", text=text, source="s") for number, text in enumerate(texts)]


texts = st.lists(st.text(alphabet="abcdefgh", max_size=40), max_size=150)


@given(texts, st.integers(3, 12), st.booleans())
def test_rows_hold_every_token_once(strings: list[str], context: int, bos: bool) -> None:
    rows = token_rows(documents(strings), Letters(bos), context=context, skip_first=0)
    joined = dict.fromkeys(range(len(strings)), "")
    for row in rows:
        assert len(row.ids) <= context
        assert row.special == int(bos)
        assert row.ids[: row.special] == [BOS] * row.special
        number = int(row.document, 16)
        assert row.start_token == len(joined[number])
        joined[number] += "".join(map(chr, row.ids[row.special :]))
        assert row.end_token == len(joined[number])
    assert list(joined.values()) == strings


@given(texts, st.integers(3, 12), st.integers(0, 2), st.integers(0, 400), st.booleans())
def test_budget_is_met_exactly(strings: list[str], context: int, skip: int, budget: int, bos: bool) -> None:
    everything = token_rows(documents(strings), Letters(bos), context=context, skip_first=skip)
    rows = token_rows(
        documents(strings), Letters(bos), context=context, skip_first=skip, budget_tokens=budget
    )
    assert measured_tokens(rows, skip) == min(budget, measured_tokens(everything, skip))
    assert all(len(row.ids) > skip for row in rows)
    assert rows[:-1] == everything[: len(rows[:-1])]
    if rows:
        last, whole = rows[-1], everything[len(rows) - 1]
        assert whole.ids[: len(last.ids)] == last.ids
        assert (last.document, last.start_token) == (whole.document, whole.start_token)


def test_no_row_holds_two_documents() -> None:
    rows = token_rows(documents(["ab", "cdefg", "h"]), Letters(False), context=4, skip_first=1)
    assert rows == [
        TokenRow(f"{0:064x}", "s", 0, [97, 98]),
        TokenRow(f"{1:064x}", "s", 0, [99, 100, 101, 102]),
        # "g" and "h" would be single tokens, and the first token of a row is not measured
    ]


def test_only_the_documents_needed_are_tokenised() -> None:
    class Counting(Letters):
        seen = 0

        def tokenize(
            self,
            texts: Sequence[str],
            max_tokens: int,
            *,
            bos: BosPolicy = "tokenizer",
        ) -> list[list[int]]:
            self.seen += len(texts)
            return super().tokenize(texts, max_tokens, bos=bos)

    lm = Counting(False)
    token_rows(documents(["abcdefgh"] * 10_000), lm, context=8, budget_tokens=100)
    assert lm.seen < 200


def test_context_too_short() -> None:
    with pytest.raises(UserError, match="context=1 leaves nothing to measure"):
        token_rows(documents(["ab"]), Letters(False), context=1)
    with pytest.raises(UserError, match="1 are special"):
        token_rows(documents(["ab"]), Letters(True), context=1, skip_first=0)
