"""`check_judge`: what a judge may get wrong is found by its own check."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from latentbench.testing import (
    JUDGE_CHECKS,
    ToyJudge,
    assert_judge,
    check_judge,
    parametrize_judge_checks,
    passages,
)

Floats = NDArray[np.float32]


class NoRole(ToyJudge):
    role = ""


class Clock(ToyJudge):
    ticks = itertools.count()

    def identity(self) -> dict[str, Any]:
        return {"calls": next(self.ticks)}


class Nameless(ToyJudge):
    def identity(self) -> dict[str, Any]:
        return {}


class Long(ToyJudge):
    def embed(self, texts: list[str]) -> Floats:
        return 2 * super().embed(texts)


class Doubles(ToyJudge):
    def embed(self, texts: list[str]) -> Any:
        return super().embed(texts).astype(np.float64)


class Lists(ToyJudge):
    def embed(self, texts: list[str]) -> Any:
        return super().embed(texts).tolist()


class Loses(ToyJudge):
    def embed(self, texts: list[str]) -> Floats:
        return super().embed(list(dict.fromkeys(texts))[: max(1, len(texts) - 1)])


class NeedsOne(ToyJudge):
    def embed(self, texts: list[str]) -> Floats:
        return super().embed([texts[0], *texts[1:]])


class Draws(ToyJudge):
    def embed(self, texts: list[str]) -> Floats:
        noise = np.random.default_rng().random((len(texts), 64), np.float32)
        return _unit(super().embed(texts) + noise / np.float32(9))


class Sorts(ToyJudge):
    def embed(self, texts: list[str]) -> Floats:
        return super().embed(sorted(texts))


class Centres(ToyJudge):
    def embed(self, texts: list[str]) -> Floats:
        found = super().embed(texts)
        return _unit(found - 0.5 * found.mean(axis=0)) if len(texts) else found


class NoEmpty(ToyJudge):
    def embed(self, texts: list[str]) -> Floats:
        found = super().embed(texts)
        found[[not text.strip() for text in texts]] = np.nan
        return found


class Blind(ToyJudge):
    def embed(self, texts: list[str]) -> Floats:
        return super().embed(["same" for _ in texts])


class Grades(ToyJudge):
    role = "grading"


def _unit(vectors: Floats) -> Floats:
    found: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


@parametrize_judge_checks(ToyJudge)
def test_toy_judge(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize(
    ("judge", "check", "found"),
    [
        (NoRole, "role", "role is ''"),
        (Clock, "identity", "changes from call to call"),
        (Nameless, "identity", "is empty"),
        (Long, "vectors", "lengths run from 2 to 2"),
        (Doubles, "vectors", "float64 of shape (4, 64)"),
        (Lists, "vectors", "embed gave list"),
        (Loses, "vectors", "3 vectors for 4 texts"),
        (NeedsOne, "no texts", "IndexError"),
        (Draws, "determinism", "equal texts differ by"),
        (Sorts, "batch invariance", "with the company of a text"),
        (Centres, "batch invariance", "with the company of a text"),
        (NoEmpty, "awkward texts", "finite: False"),
        (Blind, "distinct texts", "have cosine 1.0000"),
    ],
)
def test_broken(judge: Callable[[], Any], check: str, found: str) -> None:
    failed = {result.name: result for result in check_judge(judge()) if result.passed is False}
    assert check in failed, failed
    assert found in failed[check].found


def test_another_role() -> None:
    results = check_judge(Grades())
    assert tuple(result.name for result in results) == JUDGE_CHECKS
    assert [result.name for result in results if result.passed] == ["role", "identity"]
    assert {result.state for result in results[2:]} == {"skipped"}


def test_assert() -> None:
    assert_judge(ToyJudge())
    with pytest.raises(AssertionError, match="lengths run"):
        assert_judge(Long())


def test_passages_are_texts_of_their_own() -> None:
    assert len(passages()) == len(set(passages())) == 20
    assert min(len(text) for text in passages()) >= 150
