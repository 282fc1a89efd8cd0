"""The offline judge on the real MiniLM weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from latentbench.data import asset_path
from latentbench.errors import AssetError
from latentbench_judges import SimilarityJudge
from latentbench_judges.embed import EmbedJudge

TEXTS = [
    "The dog ran across the park.",
    "A puppy was running in the garden.",
    "Interest rates rose by half a percent.",
]
pytestmark = pytest.mark.slow


def test_near_meanings_are_near_and_order_and_batches_do_not_matter(tmp_path: Path) -> None:
    judge = EmbedJudge(cache=tmp_path / "one.sqlite")
    vectors = judge.embed(TEXTS)
    similarity = vectors @ vectors.T
    assert np.allclose(np.diag(similarity), 1, atol=1e-5)
    assert similarity[0, 1] > similarity[0, 2] + 0.2
    single = EmbedJudge(cache=tmp_path / "two.sqlite")
    single.batch = 1
    assert np.allclose(vectors, single.embed(TEXTS[::-1])[::-1], atol=1e-5)


def test_a_known_text_is_not_embedded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = EmbedJudge(cache=tmp_path / "cache.sqlite").embed(TEXTS)

    def refuse(_self: EmbedJudge, _texts: list[str]) -> None:
        raise AssertionError("a stored text was embedded again")

    monkeypatch.setattr(EmbedJudge, "_encode", refuse)
    assert np.array_equal(EmbedJudge(cache=tmp_path / "cache.sqlite").embed(TEXTS), first)


def test_the_model_is_pooled_as_its_own_configuration_says() -> None:
    pooling = json.loads((asset_path("minilm") / "1_Pooling/config.json").read_text(encoding="utf-8"))
    modes = {name: on for name, on in pooling.items() if name.startswith("pooling_mode")}
    assert modes.pop("pooling_mode_mean_tokens") is True
    assert not any(modes.values())


def test_what_is_read_of_a_long_text_is_part_of_the_identity(tmp_path: Path) -> None:
    judge = EmbedJudge(cache=tmp_path / "cache.sqlite")
    assert isinstance(judge, SimilarityJudge)
    head = "word " * 200
    same = judge.embed([f"{head} apples", f"{head} engines"])
    assert np.allclose(same[0], same[1], atol=1e-6)
    assert judge.identity()["max_tokens"] == 128
    assert judge.embed([]).shape[0] == 0
    judge.max_tokens = 256  # another identity: nothing of the shorter reading is taken from the cache
    longer = judge.embed([f"{head} apples", f"{head} engines"])
    assert not np.allclose(longer[0], longer[1], atol=1e-4)


def test_a_missing_asset_is_named_with_the_command_that_fetches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATENTBENCH_CACHE", str(tmp_path))
    with pytest.raises(AssetError, match="assets pull minilm"):
        EmbedJudge()
