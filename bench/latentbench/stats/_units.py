"""A cell's numbers as statistics of sums over named units, so that two cells can be compared on shared units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latentbench.identity import sha256_json
from latentbench.stats._bootstrap import SumStatistic, resampled_totals
from latentbench.stats._random import generator

__all__ = ["Units"]


@dataclass(frozen=True)
class Units:
    """What a cell measured, by unit of resampling."""

    names: tuple[str, ...]
    """What each unit is: the sha256 of a document, a concept, a context. Unique."""
    sums: NDArray[np.float64]
    """Float[unit, stat]: sufficient statistics that may be added up over units."""
    statistics: Mapping[str, SumStatistic]
    """By name of the metric: from totals Float[draw, stat] to its values Float[draw]."""

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names) or self.sums.shape[:1] != (len(self.names),):
            raise ValueError(
                f"{len(self.names)} names ({len(set(self.names))} different) for sums of shape {self.sums.shape}; "
                "every unit has one name and one row"
            )

    @property
    def key(self) -> str:
        """Hash of the set of units: cells with equal keys were measured on the same units."""
        return sha256_json(sorted(self.names))

    def values(self) -> dict[str, float]:
        """Every metric on all units; NaN where it is undefined."""
        totals = self.sums.sum(axis=0, keepdims=True)
        return {name: float(statistic(totals)[0]) for name, statistic in self.statistics.items()}

    def draws(self, n_draws: int) -> dict[str, NDArray[np.float64]]:
        """Float[draw] of every metric; NaN where a draw leaves it undefined.

        The draws depend on the names of the units alone: cells with equal `key` have the same units in draw
        number d, so that the difference of two cells' draws is a draw of their difference.
        """
        order = np.argsort(np.array(self.names, dtype=object))
        rng = generator(f"units/{self.key}")
        totals = resampled_totals(self.sums[order], rng, n_draws)
        return {name: np.asarray(of(totals), dtype=np.float64) for name, of in self.statistics.items()}
