"""The flat table as CSV and as Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from latentbench.errors import UserError
from latentbench_leaderboard.exports._rows import Row

__all__ = ["csv_text", "write_parquet"]

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\N{FULLWIDTH EQUALS SIGN}", "\N{FULLWIDTH PLUS SIGN}")
"""A spreadsheet takes a text that begins with one of these for a formula, and runs it."""
_FLOATS = frozenset({"target_l0", "value", "low", "high", "level"})
_INTEGERS = frozenset({"n_latents", "seed", "n"})
_BOOLEANS = frozenset({"control", "headline"})


def csv_text(rows: Sequence[Row]) -> str:
    """The table as CSV (RFC 4180); missing values are empty, and texts can't be formulas."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)  # ends lines with CR LF, and so quotes texts that hold either
    writer.writerow(Row._fields)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return stream.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str):
        # An apostrophe makes a spreadsheet show the text as it is.
        return f"'{value}" if value.lstrip(" ").startswith(_FORMULA) else value
    return str(value).lower() if isinstance(value, bool) else value


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write the table as a Parquet file with typed columns.

    Raises:
        UserError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            "Parquet files are written by pyarrow, which is not installed: `pip install latentbench[parquet]`, or "
            "export csv"
        ) from error

    def kind(name: str) -> Any:
        if name in _FLOATS:
            return pyarrow.float64()
        if name in _INTEGERS:
            return pyarrow.int64()
        return pyarrow.bool_() if name in _BOOLEANS else pyarrow.string()

    schema = pyarrow.schema([(name, kind(name)) for name in Row._fields])
    table = pyarrow.Table.from_pylist([row._asdict() for row in rows], schema=schema)
    pyarrow.parquet.write_table(table, path)
