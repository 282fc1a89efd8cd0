"""Judge `human:SHEET.csv`: verdicts of a person, from a sheet that `latentbench judge sheet` writes.

The sheet is blind (no latent, dictionary or method is named) and shuffled. Its column `verdict` is filled in with a
value of the rubric's menu; what is left empty is "missing", and asked again the next time.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from latentbench.errors import UserError
from latentbench.identity import sha256_json
from latentbench_judges._answer import Answer
from latentbench_judges._options import checked_options
from latentbench_judges._question import Question

__all__ = ["HumanJudge", "HumanOptions", "write_sheet"]

_COLUMNS = ("question", "rubric", "menu", "shown", "verdict")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class HumanOptions(BaseModel):
    """Options of the judge."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sheet: Path
    """The filled sheet."""
    rater: str = "unnamed"
    """Who filled it in, as it is to be published; part of the judge's identity."""


def write_sheet(questions: Iterable[Question], path: Path, seed: int = 0) -> int:
    """Write a blind, shuffled sheet.

    Args:
        questions: what is to be judged; equal questions get one row.
        path: CSV file, which must not be there yet.
        seed: of the order.

    Returns:
        The number of rows.

    Raises:
        UserError: the file is there already, or a rubric asks for words or lists, which a sheet can't hold.
    """
    rows = {}
    for question in questions:
        if question.rubric.kind != "choice":
            raise UserError(
                f"rubric {question.rubric.name!r} asks for {question.rubric.kind}; a sheet holds choices alone"
            )
        menu = " | ".join(map(str, question.rubric.menu))
        shown = question.plain_messages[1]["content"]
        rows[question.key] = (question.key, question.rubric.name, menu, shown, "")
    order = [rows[key] for key in sorted(rows)]
    random.Random(f"sheet/{seed}").shuffle(order)
    try:
        with path.open("x", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(_COLUMNS)
            writer.writerows([_as_text(cell) for cell in row] for row in order)
    except FileExistsError as error:
        raise UserError(
            f"{str(path)!r} is there already, and may be filled in: choose another name"
        ) from error
    return len(order)


def _as_text(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


class HumanJudge:
    """See the module."""

    name = "human"
    """Registered name."""
    role = "rubric"
    """What it can be asked."""

    def __init__(self, options: HumanOptions) -> None:
        """A judge from a filled sheet.

        Raises:
            UserError: the sheet is missing or of another form.
        """
        self.options = options
        self._verdicts = _read(options.sheet)

    @classmethod
    def make(cls, argument: str, options: Mapping[str, Any]) -> HumanJudge:
        """The judge of "human:SHEET.csv"; errors as in the class."""
        sheet = {"sheet": argument} if argument else {}
        return cls(checked_options(HumanOptions, {**sheet, **options}, "human"))

    def identity(self) -> dict[str, Any]:
        """Everything that can change a verdict."""
        return {
            "name": self.name,
            "rater": self.options.rater,
            "verdicts_sha256": sha256_json(self._verdicts),
        }

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """The sheet's verdicts."""
        for question in questions:
            base = Answer(question.id, question.key, "missing", model=self.options.rater)
            written = self._verdicts.get(question.key, "")
            if not written:
                yield base._replace(reason="the sheet has no verdict on this")
                continue
            known = {str(one).lower(): one for one in question.rubric.menu}
            if written.lower() not in known:
                reason = f"{written!r} is not on the menu {list(question.rubric.menu)}"
                yield base._replace(status="parse_failed", reason=reason, raw=written)
                continue
            verdict = known[written.lower()]
            fields = {question.rubric.verdict: verdict}
            yield base._replace(status="ok", fields=fields, verdict=verdict, path="rated", raw=written)


def _read(path: Path) -> dict[str, str]:
    """Verdicts by question; empty ones left out."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            missing = {"question", "verdict"} - set(reader.fieldnames or ())
            if missing:
                raise UserError(
                    f"sheet {path.name!r} lacks the columns {sorted(missing)}: is it one of `judge sheet`?"
                )
            rows = [(row["question"], (row["verdict"] or "").strip()) for row in reader]
    except OSError as error:
        raise UserError(f"sheet {str(path)!r} can't be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"sheet {path.name!r} is not CSV in UTF-8: {error}") from error
    found: dict[str, str] = {}
    for question, verdict in rows:
        if verdict and found.setdefault(question, verdict) != verdict:
            raise UserError(
                f"sheet {path.name!r} has two verdicts on {question[:10]}: {found[question]!r} and {verdict!r}"
            )
    return found
