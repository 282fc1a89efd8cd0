"""Means over examples, with contexts as the units of resampling. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from latentbench.stats import Estimate, Units, bootstrap, ratio, unscored

__all__ = ["mean_by_context", "units_by_context"]


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


def units_by_context(
    asked: Sequence[dict[str, Any]],
    items: Sequence[dict[str, Any]],
    values: Mapping[str, Sequence[float | None]],
) -> Units | None:
    """Means over examples as statistics of sums over contexts; None without any.

    Args:
        asked: every question of the cell with its `context`, so that cells on the same questions have the same
            units whatever became of them.
        items: examples, each with its `context`.
        values: by metric, one for each example, or None where it is undefined.
    """
    names = {name: place for place, name in enumerate(dict.fromkeys(str(item["context"]) for item in asked))}
    if not names:
        return None
    sums = np.zeros((len(names), 2 * len(values)))
    for column, found in enumerate(values.values()):
        for item, value in zip(items, found, strict=True):
            if value is not None:
                sums[names[str(item["context"])], 2 * column : 2 * column + 2] += [value, 1.0]
    return Units(tuple(names), sums, {name: ratio(2 * i, 2 * i + 1) for i, name in enumerate(values)})
