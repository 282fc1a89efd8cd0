"""The offline judge on the real MiniLM weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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
    judge.batch = 1
    again = EmbedJudge(cache=tmp_path / "two.sqlite").embed(TEXTS[::-1])[::-1]
    assert np.allclose(vectors, again, atol=1e-5)


def test_a_known_text_is_not_embedded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = EmbedJudge(cache=tmp_path / "cache.sqlite").embed(TEXTS)

    def refuse(_self: EmbedJudge, _texts: list[str]) -> None:
        raise AssertionError("a stored text was embedded again")

    monkeypatch.setattr(EmbedJudge, "_encode", refuse)
    assert np.array_equal(EmbedJudge(cache=tmp_path / "cache.sqlite").embed(TEXTS), first)
