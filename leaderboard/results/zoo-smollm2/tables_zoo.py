"""The tables of the page beside this file, from the bundle in this folder.

    python leaderboard/results/zoo-smollm2/tables_zoo.py

prints them; `--write` puts them into README.md. A test holds the page to what this prints.
"""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist

import numpy as np

from latentbench.store import Metric
from latentbench_leaderboard._board import Board, Row, boards_of, targets_of
from latentbench_leaderboard._subjects import Subject, load_subjects
from latentbench_leaderboard._units import UnitBook
from latentbench_leaderboard.bundles import open_bundle
from latentbench_leaderboard.pages import markdown_table, page_main
from latentbench_tasks.steering._methods import METHODS

HERE = Path(__file__).parent
BUNDLE = "zoo-smollm2.zip"
TOLERANCE = 0.05
"""What `latentbench leaderboard build` takes by default."""
COLUMNS = (
    ("features at 10", "features_at_10", 0),
    ("AUROC", "auroc", 3),
    ("steering success", "success", 2),
    ("explained variance", "explained_variance", 3),
    ("CE recovered", "ce_recovered", 3),
)
PAIRED = (
    ("explained variance", "explained_variance", 3),
    ("CE recovered", "ce_recovered", 3),
    ("KL, nats/token", "kl", 3),
    ("steering success", "success", 2),
)
STEERED_BY = ("contrast", "gradsae", "diffmean")
REFERENCE = "TopK resid_post.21"


def tables(folder: Path = HERE) -> dict[str, str]:
    """Markdown tables by the name of their place in the page."""
    with open_bundle(folder / BUNDLE) as opened:
        subjects, _ = load_subjects(opened.path)
        units = UnitBook()
        (board,) = boards_of(subjects, targets_of(subjects, TOLERANCE), units)
        return {
            "board": _board(board),
            "differences": _differences(board, units),
            "steering": _steering(board),
            "how": _how(board),
        }


def _board(board: Board) -> str:
    places = [next(i for i, one in enumerate(board.columns) if one.metric == name) for _, name, _ in COLUMNS]
    lines = []
    for band, rows in board.bands:
        for row in rows:
            cells = [
                _with_rank(_metric(row.subject, name), row.scores[place].rank, digits)
                for place, (_, name, digits) in zip(places, COLUMNS, strict=True)
            ]
            name = row.subject.name + {"controls": " (control)", "asides": " (off target)"}.get(band, "")
            lines.append([name, *cells, _shown(row.subject.l0, 1)])
    return markdown_table(["dictionary", *(title for title, _, _ in COLUMNS), "L0"], lines)


def _differences(board: Board, units: UnitBook) -> str:
    """What each row has more than the reference, over the documents or concepts that both were measured on.

    The interval is that of the site's page of comparisons: normal, from the standard deviation of joint draws.
    """
    (first,) = [row for row in board.rows if row.subject.name == REFERENCE]
    lines = [
        [row.subject.name, *(_difference(row, first, name, units, digits) for _, name, digits in PAIRED)]
        for row in board.rows
        if row is not first
    ]
    return markdown_table([f"less {REFERENCE}", *(title for title, _, _ in PAIRED)], lines)


def _difference(row: Row, first: Row, name: str, units: UnitBook, digits: int) -> str:
    drawn = [_draws(one.subject, name, units) for one in (row, first)]
    values = [metric.value for one in (row, first) if (metric := _metric(one.subject, name)) is not None]
    if len(values) < 2 or values[0] is None or values[1] is None or drawn[0] is None or drawn[1] is None:
        return "none"
    difference = values[0] - values[1]
    half = NormalDist().inv_cdf(0.975) * float(np.std(drawn[0] - drawn[1], ddof=1))
    return _number(difference, difference - half, difference + half, digits)


def _draws(subject: Subject, name: str, units: UnitBook) -> np.ndarray | None:
    for entry in subject.entries:
        drawn = units.of(entry) if entry.record.metric(name) is not None else None
        if drawn is not None and name in drawn.draws:
            return drawn.draws[name]
    return None


def _steering(board: Board) -> str:
    lines = []
    for band, rows in board.bands:
        for row in rows:
            cells = [
                _shown(_metric(row.subject, "success" if method == STEERED_BY[0] else f"success_{method}"), 2)
                for method in STEERED_BY
            ]
            unsteered = _shown(_metric(row.subject, "success_unsteered"), 2)
            name = row.subject.name + (" (control)" if band == "controls" else "")
            lines.append([name, *cells, unsteered])
    head = ["dictionary", *(METHODS[method].title for method in STEERED_BY), "unsteered"]
    return markdown_table(head, lines)


def _how(board: Board) -> str:
    lines = [
        [
            title,
            next(text for one, text in zip(board.columns, board.rankings, strict=True) if one.metric == name),
        ]
        for title, name, _ in COLUMNS
    ]
    return markdown_table(["column", "how its ranks were made"], lines)


def _metric(subject: Subject, name: str) -> Metric | None:
    return next((found for entry in subject.entries if (found := entry.record.metric(name))), None)


def _with_rank(metric: Metric | None, rank: str, digits: int) -> str:
    return _shown(metric, digits) + (f"; rank {rank}" if rank else "")


def _shown(metric: Metric | None, digits: int) -> str:
    if metric is None or metric.value is None:
        return "none"
    interval = metric.interval
    low, high = (interval.low, interval.high) if interval else (None, None)
    return _number(metric.value, low, high, digits)


def _number(value: float, low: float | None, high: float | None, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text if low is None or high is None else f"{text} ({low:,.{digits}f} to {high:,.{digits}f})"


if __name__ == "__main__":
    page_main(HERE, tables, __doc__)
