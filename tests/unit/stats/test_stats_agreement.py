"""Krippendorff's alpha against its author's example, and by its definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from latentbench.stats import krippendorff_alpha
from latentbench.stats._agreement import Level

N = None
EXAMPLE = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, N, N, N],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, N, 3],
    [N, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, N],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, N],
]


@pytest.mark.parametrize(("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_the_author_s_example(level: Level, alpha: float) -> None:
    assert krippendorff_alpha(EXAMPLE, level) == pytest.approx(alpha, abs=5e-4)


def test_alpha_is_observed_over_expected_disagreement_of_pairs() -> None:
    rng = np.random.default_rng(0)
    ratings = rng.integers(0, 4, (3, 15)).astype(float)
    within = [(a - b) ** 2 for item in ratings.T for a, b in itertools.permutations(item, 2)]
    among = [(a - b) ** 2 for a, b in itertools.permutations(ratings.ravel(), 2)]
    assert krippendorff_alpha(ratings.tolist(), "interval") == pytest.approx(
        1 - np.mean(within) / np.mean(among)
    )


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval"])
def test_agreement_chance_and_nothing(level: Level) -> None:
    assert krippendorff_alpha([[1, 2, 3], [1, 2, 3]], level) == 1.0
    rng = np.random.default_rng(1)
    drawn = krippendorff_alpha(rng.integers(0, 5, (2, 5000)).tolist(), level)
    assert drawn == pytest.approx(0, abs=0.05)
    assert krippendorff_alpha([[1, 2], [2, 1]], level) == -0.5
    nothings: list[list[list[float | None]]] = [[], [[], []], [[1, 2]], [[1, N], [N, 2]], [[1, 1], [1, 1]]]
    for nothing in nothings:
        assert krippendorff_alpha(nothing, level) is None
