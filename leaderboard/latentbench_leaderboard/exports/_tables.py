"""Headline metrics with intervals as tables for papers and pages: one per language model, one row per dictionary."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from latentbench.store import Interval, Metric
from latentbench_leaderboard._format import MINUS, decimals_for, number
from latentbench_leaderboard.exports._rows import Row
from latentbench_leaderboard.pages import markdown_table

__all__ = ["latex_text", "markdown_text"]

_OTHER = "*"
"""Behind a number that was measured under other settings than most of its column."""
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$])")
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}",
}  # fmt: skip


class _Table(NamedTuple):
    lm: str
    columns: list[tuple[str, str, str | None]]
    """Task, metric and judge."""
    units: list[str]
    lines: list[list[Row | None]]
    """For each row of the table the number of each column."""
    settings: list[str]
    """What most numbers of each column were measured under."""
    names: list[str]


def markdown_text(rows: Sequence[Row]) -> str:
    """The tables in Markdown; whatever a name holds is shown as it is."""
    parts = []
    for table in _tables(rows):
        head = [
            "dictionary",
            *(_heading(c, u, _markdown) for c, u in zip(table.columns, table.units, strict=True)),
        ]
        texts = _texts(table, number)
        lines = [[_markdown(name), *line] for name, line in zip(table.names, texts, strict=True)]
        parts.append(f"**{_markdown(table.lm)}**\n\n{markdown_table(head, lines)}\n")
    return "\n".join([*parts, _levels(rows), *_others(rows)])


def latex_text(rows: Sequence[Row]) -> str:
    """The tables in LaTeX, without packages; whatever a name holds is set as it is."""
    parts = []
    for table in _tables(rows):
        head = [
            "dictionary", *(_heading(c, u, _latex) for c, u in zip(table.columns, table.units, strict=True))
        ]  # fmt: skip
        texts = _texts(table, _in_latex)
        lines = [[_latex(name), *line] for name, line in zip(table.names, texts, strict=True)]
        body = "\n".join(f"{' & '.join(line)} \\\\" for line in lines)
        # A comment ends with its line, so the name must not have another.
        parts.append(
            f"% {' '.join(table.lm.split())}\n\\begin{{tabular}}{{l{'r' * len(table.columns)}}}\n\\hline\n"
            f"{' & '.join(head)} \\\\\n\\hline\n{body}\n\\hline\n\\end{{tabular}}\n"
        )
    return "\n".join([*parts, *(f"% {line}" for line in _others(rows))])


def _others(rows: Sequence[Row]) -> list[str]:
    """What the mark means, where a table has it."""
    marked = any(
        row is not None and row.settings != usual
        for table in _tables(rows)
        for line in table.lines
        for row, usual in zip(line, table.settings, strict=True)
    )
    return (
        [f"{_OTHER} measured under other settings than most of its column: not comparable.\n"]
        if marked
        else []
    )


def _levels(rows: Sequence[Row]) -> str:
    levels = sorted({row.level for row in rows if row.headline and row.level is not None})
    return f"Intervals in brackets: {', '.join(f'{100 * level:g} %' for level in levels) or 'none'}.\n"


def _tables(rows: Sequence[Row]) -> list[_Table]:
    shown = [row for row in rows if row.headline and row.metric is not None]
    return [
        _table(lm, [row for row in shown if row.lm == lm]) for lm in dict.fromkeys(row.lm for row in shown)
    ]


def _table(lm: str, rows: list[Row]) -> _Table:
    units: dict[tuple[str, str, str | None], str] = {}
    lines: dict[tuple[object, ...], dict[tuple[str, str, str | None], Row]] = {}
    usual = _usual(rows)
    for row in rows:
        column = (row.task, str(row.metric), row.judge)
        units.setdefault(column, row.unit or "")
        subject = (row.dictionary, row.dictionary_sha256, row.sparsity, row.target_l0, row.seed)
        line = lines.setdefault(subject, {})
        if column not in line or line[column].settings != usual[column]:
            line[column] = row
    seeds = len({row.seed for row in rows}) > 1
    names = [f"{subject[0]}, seed {subject[-1]}" if seeds else str(subject[0]) for subject in lines]
    controls = [next(iter(line.values())).control for line in lines.values()]
    named = [f"{name} (control)" if control else name for name, control in zip(names, controls, strict=True)]
    table = [[line.get(column) for column in units] for line in lines.values()]
    return _Table(lm, list(units), list(units.values()), table, [usual[column] for column in units], named)


def _usual(rows: Sequence[Row]) -> dict[tuple[str, str, str | None], str]:
    """The settings that most numbers of each column were measured under, those of controls counting least."""
    votes: dict[tuple[str, str, str | None], Counter[str]] = {}
    for row in rows:
        found = votes.setdefault((row.task, str(row.metric), row.judge), Counter())
        found[row.settings] += 1 if row.control else 1000
    return {column: min(found, key=lambda one: (-found[one], one)) for column, found in votes.items()}


def _heading(column: tuple[str, str, str | None], unit: str, escape: Callable[[str], str]) -> str:
    task, metric, judge = column
    return escape(f"{task}: {metric}" + (f" by {judge}" if judge else "") + (f" [{unit}]" if unit else ""))


def _texts(table: _Table, one: Callable[[float, int], str]) -> list[list[str]]:
    """The numbers of a table as text, with one number of decimals a column."""
    columns = zip(*table.lines, strict=True)
    decimals = [decimals_for([_metric(row) for row in column if row is not None]) for column in columns]
    return [
        [
            "" if row is None else _text(row, places, one) + (_OTHER if row.settings != usual else "")
            for row, places, usual in zip(line, decimals, table.settings, strict=True)
        ]
        for line in table.lines
    ]


def _metric(row: Row) -> Metric:
    interval = None
    if row.low is not None and row.high is not None:
        interval = Interval(low=row.low, high=row.high, method="")
    reason = None if row.value is not None else "unscored"
    return Metric(
        name="m", value=row.value, interval=interval, n=row.n or 0, resampling_unit="u", unit="",
        direction="none", reason=reason,
    )  # fmt: skip


def _text(row: Row, places: int, one: Callable[[float, int], str]) -> str:
    if row.value is None:
        return "unscored"
    value = one(row.value, places)
    if row.low is None or row.high is None:
        return value
    return f"{value} ({one(row.low, places)} to {one(row.high, places)})"


def _in_latex(value: float, places: int) -> str:
    return f"${number(value, places).replace(MINUS, '-').replace(',', '{,}')}$"


def _markdown(text: str) -> str:
    line = " ".join(text.split())
    return html.escape(_MARKDOWN.sub(r"\\\1", line), quote=False)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))
