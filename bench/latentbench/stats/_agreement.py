"""Agreement of several raters: Krippendorff's alpha."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Level", "krippendorff_alpha"]

Level = Literal["nominal", "ordinal", "interval"]


def krippendorff_alpha(ratings: Sequence[Sequence[float | None]], level: Level = "ordinal") -> float | None:
    """Krippendorff's alpha: 1 for perfect agreement, 0 for what chance gives, below 0 for less.

    Source: K. Krippendorff, Computing Krippendorff's Alpha-Reliability, 2011 (its example is a test of ours).

    Args:
        ratings: [rater][item]; None where a rater did not rate. Items with fewer than two ratings do not count.
        level: "nominal": values agree or not. "ordinal": by ranks between them. "interval": by squared differences.

    Returns:
        None without two ratings of one item, or where all ratings are the same: there is nothing to disagree about.
    """
    table = np.array([[np.nan if one is None else float(one) for one in row] for row in ratings])
    if table.size == 0:
        return None
    paired = table[:, (~np.isnan(table)).sum(axis=0) >= 2]
    values = np.unique(paired[~np.isnan(paired)])
    if len(values) < 2:
        return None
    coincidences = np.zeros((len(values), len(values)))
    for item in paired.T:
        places = np.searchsorted(values, item[~np.isnan(item)])
        counts = np.bincount(places, minlength=len(values)).astype(float)
        coincidences += (np.outer(counts, counts) - np.diag(counts)) / (len(places) - 1)
    totals = coincidences.sum(axis=1)
    distances = _distances(values, totals, level)
    expected = (np.outer(totals, totals) - np.diag(totals)) / (totals.sum() - 1)
    return 1 - float((coincidences * distances).sum() / (expected * distances).sum())


def _distances(values: NDArray[np.float64], totals: NDArray[np.float64], level: Level) -> NDArray[np.float64]:
    """Squared distance of each two values."""
    n = len(values)
    if level == "nominal":
        return 1.0 - np.eye(n)
    if level == "interval":
        squared: NDArray[np.float64] = (values[:, None] - values[None, :]) ** 2
        return squared
    between = np.cumsum(totals) - totals / 2  # the difference of two is what lies between, half of each end
    ranks: NDArray[np.float64] = (between[:, None] - between[None, :]) ** 2
    return ranks
