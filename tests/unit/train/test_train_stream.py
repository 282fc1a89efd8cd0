"""The activation stream and its cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from latentbench.adapters import routed_sites
from latentbench.data import Corpus
from latentbench.errors import UserError
from latentbench.lm import LM
from latentbench.train import ActivationStream, Block, Recipe


def stream(
    lm: LM, corpus: Corpus, recipe: Recipe, *, tokens: int = 1500, cache: Path | None = None
) -> ActivationStream:
    return ActivationStream(lm, corpus, routed_sites(lm.n_layers), recipe, tokens, cache)


def same(first: Block, second: Block) -> bool:
    tensors = zip(first[:3], second[:3], strict=True)
    return first[3:] == second[3:] and all(torch.equal(a, b) for a, b in tensors)


def test_blocks_cover_every_row_once(lm: LM, corpus: Corpus, recipe: Recipe) -> None:
    source = stream(lm, corpus, recipe)
    blocks = list(source.blocks())
    assert len(blocks) > 2
    assert sum(block.n_tokens for block in blocks) == source.tokens
    assert [block.first for block in blocks[1:]] == [block.after for block in blocks[:-1]]
    assert blocks[-1].after == len(source.rows)


def test_a_stream_can_be_entered_at_any_block(lm: LM, corpus: Corpus, recipe: Recipe) -> None:
    source = stream(lm, corpus, recipe)
    blocks = list(source.blocks())
    late = list(source.blocks(blocks[1].first))
    assert len(late) == len(blocks) - 1
    assert all(same(a, b) for a, b in zip(late, blocks[1:], strict=True))


def test_making_blocks_ahead_changes_nothing(lm: LM, corpus: Corpus, recipe: Recipe) -> None:
    source = stream(lm, corpus, recipe)
    plain = list(source.blocks())
    source.prefetch = True
    assert all(same(a, b) for a, b in zip(source.blocks(), plain, strict=True))


def test_raw_activations_come_back(lm: LM, corpus: Corpus, recipe: Recipe) -> None:
    source = stream(lm, corpus, recipe)
    block = next(iter(source.blocks()))
    rows = [row.ids for row in source.rows[: block.after]]
    found = []
    for start in range(0, len(rows), recipe.rows):
        tokens = lm.batch(rows[start : start + recipe.rows])
        acts = lm.forward(tokens, capture=source.sites, logits=False).acts[source.sites[1]]
        found.append(acts[tokens.measured(recipe.skip_first)])
    torch.testing.assert_close(block.raw(1), torch.cat(found), rtol=1e-4, atol=1e-5)


def test_a_cache_gives_the_same_blocks_without_the_model(
    lm: LM, corpus: Corpus, recipe: Recipe, tmp_path: Path
) -> None:
    exact = list(stream(lm, corpus, recipe).blocks())
    first = stream(lm, corpus, recipe, cache=tmp_path)
    made = list(first.blocks())
    assert first.clock.lm_tokens == first.tokens
    again = stream(lm, corpus, recipe, cache=tmp_path)
    read = list(again.blocks())
    assert again.clock.lm_tokens == 0
    for block, stored, plain in zip(read, made, exact, strict=True):
        assert same(block, stored)
        torch.testing.assert_close(block.acts.float(), plain.acts, rtol=1e-3, atol=1e-3)


def test_a_shorter_stream_does_not_see_the_rows_of_a_longer_one(
    lm: LM, corpus: Corpus, recipe: Recipe, tmp_path: Path
) -> None:
    list(stream(lm, corpus, recipe, cache=tmp_path).blocks())
    short = stream(lm, corpus, recipe, tokens=700, cache=tmp_path)
    assert sum(block.n_tokens for block in short.blocks()) == short.tokens < 1000


def test_a_cache_of_another_stream_is_refused(lm: LM, corpus: Corpus, recipe: Recipe, tmp_path: Path) -> None:
    stream(lm, corpus, recipe, cache=tmp_path)
    other = recipe.model_copy(update={"context": 16})
    with pytest.raises(UserError, match="caches activations of another model, corpus or block size"):
        stream(lm, corpus, other, cache=tmp_path)


def test_an_unfinished_block_in_the_cache_is_not_used(
    lm: LM, corpus: Corpus, recipe: Recipe, tmp_path: Path
) -> None:
    (tmp_path / "0000000-0000016.safetensors.tmp").write_bytes(b"half a file")
    block = next(iter(stream(lm, corpus, recipe, cache=tmp_path).blocks()))
    assert block.first == 0
