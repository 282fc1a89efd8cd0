"""`Estimate`: a value with its interval, or an honest absence of either."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["ROUNDING", "Estimate", "check_level", "finite_array", "has_spread", "unscored"]

ROUNDING = 1e-12
"""Differences below this share of the numbers themselves are rounding, not spread."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic, its confidence interval and how the interval came about.

    Raises:
        ValueError: a number is NaN or infinite, the interval is half given or upside down, or there is an
            interval without a value or with fewer than two units.
    """

    value: float | None
    """The published statistic; None when it is unscored (no units, or undefined on these units)."""
    low: float | None
    """Lower end of the interval; None when the units can't carry an interval."""
    high: float | None
    """Upper end of the interval; None exactly when `low` is."""
    level: float
    """Nominal coverage of the interval, such as 0.95."""
    method: str
    """How the interval was made, or why there is none."""
    n: int
    """Number of independent units (clusters, when the units are clustered)."""

    def __post_init__(self) -> None:
        check_level(self.level)
        for name in ("value", "low", "high"):
            number = getattr(self, name)
            if number is None:
                continue
            if not math.isfinite(number):
                raise ValueError(
                    f"the {name} of an estimate is {number!r}; an undefined statistic is unscored (None)"
                )
            object.__setattr__(self, name, float(number))
        if (self.low is None) != (self.high is None):
            raise ValueError(f"half an interval: low is {self.low!r} and high is {self.high!r}")
        if self.low is None or self.high is None:
            return
        if self.value is None or self.n < 2:
            raise ValueError(
                f"an interval needs a value and at least 2 units, found {self.value!r} and n={self.n}"
            )
        if self.low > self.high:
            raise ValueError(f"the interval is upside down: low {self.low!r} is above high {self.high!r}")

    @property
    def scored(self) -> bool:
        """Whether there is a value."""
        return self.value is not None

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return self.low is not None


def unscored(method: str, n: int, level: float = 0.95) -> Estimate:
    """An estimate without a value; `method` says why."""
    return Estimate(None, None, None, level, method, n)


def check_level(level: float) -> None:
    """Refuse a coverage that is not strictly between 0 and 1 (95 for 0.95 is the usual slip)."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is {level!r}; it is a share strictly between 0 and 1, such as 0.95")


def finite_array(values: ArrayLike, what: str) -> NDArray[np.float64]:
    """`values` as float64, refused when any of them is NaN or infinite.

    A unit without a score has to be left out (and counted) by the caller: no number stands for it.
    """
    array = np.asarray(values, dtype=np.float64)
    bad = int(np.size(array) - np.count_nonzero(np.isfinite(array)))
    if bad:
        raise ValueError(
            f"{bad} of {array.size} entries of {what} are NaN or infinite; "
            "leave unscored units out and report how many there were"
        )
    return array


def has_spread(values: NDArray[np.float64]) -> bool:
    """Whether `values` differ by more than rounding (1e-12 of their size)."""
    if values.size < 2:
        return False
    return bool(np.ptp(values) > ROUNDING * np.max(np.abs(values)))
