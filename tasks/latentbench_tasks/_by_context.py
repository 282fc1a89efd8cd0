"""Means over examples, with contexts as the units of resampling. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from latentbench.stats import Estimate, bootstrap, ratio, unscored

__all__ = ["mean_by_context"]


def mean_by_context(
    items: Sequence[dict[str, Any]], values: Sequence[float | None], rng: np.random.Generator
) -> Estimate:
    """Mean over examples, with a bootstrap over contexts; undefined examples are left out of it.

    Differences between two conditions on the same examples are paired: pass the difference of each example.

    Args:
        items: examples, each with its `context`.
        values: one for each, or None where it is undefined.
        rng: source of the bootstrap's draws.
    """
    contexts = {name: place for place, name in enumerate(dict.fromkeys(item["context"] for item in items))}
    table = np.zeros((len(contexts), 2))
    for item, value in zip(items, values, strict=True):
        if value is not None:
            table[contexts[item["context"]]] += [value, 1.0]
    table = table[table[:, 1] > 0]
    if not len(table):
        return unscored("no example has it", 0)
    return bootstrap(table, ratio(0, 1), rng)
