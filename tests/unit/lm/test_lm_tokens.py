"""Token batches: masks come from lengths; tokenising keeps texts as they are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latentbench.errors import UserError
from latentbench.lm import LM, make_batch
from latentbench.testing import toy_lm, toy_tokenizer

id_rows = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=5)


@given(id_rows, st.sampled_from(["left", "right"]), st.integers(0, 9))
def test_real_tokens_read_back_as_the_rows_whatever_the_pad_id(
    rows: list[list[int]], side: str, pad_id: int
) -> None:
    batch = make_batch(rows, pad_id, side)  # type: ignore[arg-type]
    assert [batch.ids[index][batch.real[index]].tolist() for index in range(len(rows))] == rows
    assert batch.lengths.tolist() == [len(row) for row in rows]
    assert bool((batch.ids[~batch.real] == pad_id).all())
    assert batch.padded == (len({len(row) for row in rows}) > 1)


@given(id_rows, st.sampled_from(["left", "right"]), st.integers(0, 9))
def test_measured_leaves_out_padding_and_the_first_tokens_of_each_row(
    rows: list[list[int]], side: str, skip: int
) -> None:
    batch = make_batch(rows, 0, side)  # type: ignore[arg-type]
    measured = batch.measured(skip)
    assert measured.sum(dim=1).tolist() == [max(0, len(row) - skip) for row in rows]
    assert not bool((measured & ~batch.real).any())
    for index, row in enumerate(rows):
        assert batch.positions[index][batch.real[index]].tolist() == list(range(len(row)))
        assert batch.ids[index][measured[index]].tolist() == row[skip:]


@pytest.mark.parametrize("rows", [[], [[1, 2], []]])
def test_empty_batches_are_refused(rows: list[list[int]]) -> None:
    with pytest.raises(UserError, match="at least one row and no empty rows"):
        make_batch(rows, 0)


@pytest.fixture(scope="module")
def spelling() -> LM:
    return toy_lm(tokenizer=toy_tokenizer())


def test_tokenize_adds_nothing_and_cuts_at_the_limit(spelling: LM) -> None:
    [short, cut] = spelling.tokenize(["cab", "cabbage"], 4)
    assert short == [5, 3, 4]
    assert cut == [5, 3, 4, 4]
    assert spelling.tokenizer.decode(spelling.tokenize(["a cab, please!"], 99)[0]) == "a cab, please!"


def test_special_tokens_spelt_out_in_a_text_stay_text(spelling: LM) -> None:
    [row] = spelling.tokenize(["a<end>b"], 99)
    assert not set(row) & spelling.eos_ids
    assert spelling.tokenizer("a<end>b")["input_ids"] == [3, 1, 4]  # what the tokenizer does by itself


def test_bos_policy(spelling: LM) -> None:
    with pytest.raises(UserError, match="no BOS token"):
        spelling.tokenize(["a"], 9, bos="always")
    tokenizer = toy_tokenizer()
    tokenizer.bos_token = "<end>"
    with_bos = toy_lm(tokenizer=tokenizer)
    assert with_bos.tokenize(["ab"], 2, bos="always") == [[1, 3]]
    assert with_bos.tokenize(["ab"], 2, bos="never") == [[3, 4]]


def test_an_end_token_that_the_tokenizer_adds_is_taken_off() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = toy_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <end>", special_tokens=[("<end>", 1)]
    )
    assert tokenizer("ab")["input_ids"] == [3, 4, 1]
    assert toy_lm(tokenizer=tokenizer).tokenize(["ab"], 9) == [[3, 4]]


def test_a_model_without_tokenizer_takes_ids_only(llama: LM) -> None:
    with pytest.raises(UserError, match="without a tokenizer"):
        llama.tokenize(["a"], 4)
    batch = llama.batch([[5, 6], [7]], side="left")
    assert batch.ids.tolist() == [[5, 6], [llama.pad_id, 7]]
    assert batch.to("cpu").real.dtype == torch.bool
