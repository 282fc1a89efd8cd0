"""How often each latent of a dictionary is active, from the items of the task `core`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from latentbench_leaderboard._columns import tokens_watched
from latentbench_leaderboard._subjects import Subject, items_of_kind
from latentbench_leaderboard._values import as_list, whole

__all__ = ["Activity", "activity_of"]


class Activity(NamedTuple):
    """Counts of one dictionary."""

    tokens: int
    """Tokens watched."""
    active: Mapping[int, int]
    """Tokens on which a latent was active, by latent; one that is not here was active on none."""

    def density(self, latent: int) -> float:
        """Share of the tokens on which a latent was active; 0 says only that none was seen."""
        return self.active.get(latent, 0) / self.tokens


def activity_of(subject: Subject) -> Activity | None:
    """Counts from the `core` cell with most tokens that has its items, None if no cell has.

    Raises:
        StoreError: an item file is damaged.
    """
    width = whole(subject.card.get("n_latents"))
    cells = [entry for entry in subject.entries if entry.task == "core" and entry.record.status == "ok"]
    for entry in sorted(cells, key=lambda entry: -(tokens_watched(entry) or 0)):
        items = items_of_kind(entry.measured, "core")
        tokens = sum(max(0, whole(item.get("tokens")) or 0) for item in items)
        if tokens == 0:
            continue
        active: Counter[int] = Counter()
        for item in items:
            for latent, n in zip(as_list(item.get("latents")), as_list(item.get("active")), strict=False):
                number, times = whole(latent), whole(n)
                if number is None or times is None or times <= 0 or number < 0:
                    continue
                if width is None or number < width:
                    active[number] += times
        return Activity(tokens, active)
    return None
