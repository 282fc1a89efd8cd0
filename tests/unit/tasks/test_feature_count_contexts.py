"""Windows, offsets and texts of contexts, with the tokenizers that make them hard."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentbench.data import TokenRow
from latentbench.testing import toy_tokenizer
from latentbench_tasks._contexts import (
    Vocabulary,
    Window,
    centred_starts,
    sentence_window,
    text_and_context,
    token_texts,
)

END = 9


@cache
def byte_tokenizer() -> Any:
    """One token for each byte, as byte-level BPE splits what it has no merges for."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: place for place, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@cache
def sentencepiece_like() -> Any:
    """Decodes a token on its own without the space before it, as Llama's tokenizer does."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"▁the": 0, "▁cat": 1, "s": 2, "<unk>": 3}, unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


@given(st.text(alphabet="aé€😀 \n", max_size=12))
def test_token_texts_join_to_the_text_when_characters_are_split(text: str) -> None:
    ids = byte_tokenizer()(text)["input_ids"]
    assert len(ids) == len(text.encode())
    pieces = token_texts(byte_tokenizer(), ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text


def test_a_split_character_belongs_to_its_last_token() -> None:
    assert token_texts(byte_tokenizer(), byte_tokenizer()("a€b")["input_ids"]) == ["a", "", "", "€", "b"]
    cut = byte_tokenizer()("a€b")["input_ids"][:2]  # a window may begin or end within a character
    assert "".join(token_texts(byte_tokenizer(), cut)) == byte_tokenizer().decode(cut)


def test_spaces_before_words_are_kept() -> None:
    assert token_texts(sentencepiece_like(), [0, 1, 2, 0]) == ["the", " cat", "s", " the"]


@given(
    st.lists(st.sampled_from([5, 6, END]), min_size=1, max_size=80),
    st.data(),
    st.integers(2, 12),
    st.integers(0, 2),
)
def test_a_window_holds_its_token_and_no_sentence_end_but_its_last(
    ids: list[int], data: st.DataObject, longest: int, first: int
) -> None:
    first = min(first, len(ids) - 1)
    column = data.draw(st.integers(first, len(ids) - 1))
    window = sentence_window(ids, column, Vocabulary([], frozenset({END}), frozenset()), longest, first)
    assert first <= window.start <= column < window.end <= len(ids)
    assert END not in ids[window.start : window.end - 1]
    assert window.end - window.start <= max(longest, longest // 2 * 2 + 1)


def test_blanks_at_the_sides_are_left_out_unless_they_are_the_token() -> None:
    vocabulary = Vocabulary([], frozenset({END}), frozenset({0, END}))
    ids = [0, 0, 5, 0, 6, END, 0]
    assert sentence_window(ids, 4, vocabulary, 64) == Window(2, 5)
    assert sentence_window(ids, 5, vocabulary, 64) == Window(2, 6)
    assert sentence_window(ids, 0, vocabulary, 64) == Window(0, 5)
    assert sentence_window(ids, 6, vocabulary, 64) == Window(6, 7)


def test_a_bos_token_is_no_part_of_a_context() -> None:
    tokenizer = toy_tokenizer()
    ids = [1, *tokenizer("ab cd")["input_ids"]]  # the end token in front, as models with one special token do
    row = TokenRow("d" * 64, "toy", 10, ids, special=1)
    nothing = Vocabulary([], frozenset(), frozenset())
    window = sentence_window(ids, 3, nothing, 64, row.special)
    text, context = text_and_context(tokenizer, row, window, 3, {3: 2.5}, 7, True)
    assert (context["start"], context["end"]) == (10, 15)
    assert text["tokens"] == list("ab cd")
    assert text["tokens"][text["activated"]] == " "
    assert text["activations"] == [0, 0, 2.5, 0, 0]
    assert context["excerpt"] == {key: text[key] for key in ("tokens", "activations", "activated")}
    hidden, withheld = text_and_context(tokenizer, row, window, 3, None, 7, False)
    assert hidden["activations"] is None  # not measured is not zero
    assert withheld["excerpt"] is None
    assert not {"tokens", "activations"} & withheld.keys()


@pytest.mark.parametrize(("column", "expected"), [(1, 1), (4, 1), (5, 1), (10, 6), (16, 12), (19, 12)])
def test_centred_windows_move_inwards_at_the_ends(column: int, expected: int) -> None:
    assert centred_starts(column, 1, 20, 8) == expected
    assert centred_starts(np.array([column]), np.array([1]), np.array([5]), 8).tolist() == [1]
