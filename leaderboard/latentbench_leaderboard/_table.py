"""The rows of a board's table: the first ones in the page itself, the rest as shards that its script draws.

Row in a shard: {b: band, s: slug, n: name, f: family, i: sites, u: suites, l: whether it has a page of latents, r: why
it is unranked, c: cells}. Cell: {k: first letter of its state, v: value, i: interval, r: rank, g: letter of the tie
group, m: mark, e: reason, t: tip, s: number to sort by, p: [value, low, high] of the strip, a: anchor}; empty ones are
left out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from typing import Any

from latentbench_leaderboard._board import Board, Row
from latentbench_leaderboard._format import sites_text
from latentbench_leaderboard._scores import Score

__all__ = ["ROWS_SHOWN", "Table", "table_of"]

ROWS_SHOWN = 60
"""Rows that a page shows at first, and that its script adds each time."""
_PER_SHARD = 200


@dataclass(frozen=True)
class Table:
    """The rows of one board's page."""

    shown: dict[str, list[Row]]
    """Rows that the page holds, by band."""
    total: int
    """All rows."""
    shards: list[list[dict[str, Any]]]
    """The rows that it does not hold, in order."""


def table_of(board: Board, latent_pages: Collection[str], shown: int = ROWS_SHOWN) -> Table:
    """Split a board's rows.

    Args:
        board: which.
        latent_pages: keys of the rows that have a page of latents.
        shown: how many rows the page holds.
    """
    every = [(band, row) for band, rows in board.bands for row in rows]
    first: dict[str, list[Row]] = {band: [] for band, _ in board.bands}
    for band, row in islice(every, shown):
        first[band].append(row)
    rest = [_row(band, row, latent_pages) for band, row in every[shown:]]
    return Table(first, len(every), [rest[i : i + _PER_SHARD] for i in range(0, len(rest), _PER_SHARD)])


def _row(band: str, row: Row, latent_pages: Collection[str]) -> dict[str, Any]:
    subject = row.subject
    made = {
        "b": band,
        "s": subject.slug,
        "n": subject.name,
        "f": subject.family,
        "i": sites_text(subject.sites),
        "u": subject.suites,
        "l": subject.key in latent_pages,
        "r": row.reason,
        "c": [_cell(score) for score in row.scores],
    }
    return {name: value for name, value in made.items() if value}


def _cell(score: Score) -> dict[str, Any]:
    strip = score.strip
    made = {
        "k": score.state[0],
        "v": score.value,
        "i": score.interval,
        "r": score.rank,
        "g": score.letter,
        "m": score.mark,
        "e": score.reason,
        "t": score.tip,
        "p": None if strip is None else [strip.value, strip.low, strip.high],
        "a": score.anchor,
    }
    kept: dict[str, Any] = {name: value for name, value in made.items() if value}
    return kept if score.sort is None else kept | {"s": score.sort}
