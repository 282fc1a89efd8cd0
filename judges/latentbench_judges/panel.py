"""Judge `panel:A+B+C`: several judges, whose verdicts are merged; what each said is kept.

Numbers are averaged unless votes are asked for, since a majority hides disagreement on a short scale. Of words (an
explanation) those of the first member are taken. How far the
members agree is `latentbench.stats.krippendorff_alpha` of their verdicts, which tasks report.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from latentbench.errors import UserError
from latentbench.judging import make_judge
from latentbench_judges._answer import Answer
from latentbench_judges._options import checked_options
from latentbench_judges._question import Question
from latentbench_judges._roles import RubricJudge

__all__ = ["PanelJudge", "PanelOptions"]


class PanelOptions(BaseModel):
    """Options of the panel."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    members: tuple[str, ...] = Field(min_length=2)
    """Judges of the role "rubric"."""
    member_options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options by member, or by the name before the colon for all such members."""
    merge: Literal["mean", "vote"] = "mean"
    """How numbers are merged; categories are always voted on."""
    quorum: int | None = Field(default=None, ge=1)
    """Verdicts that a merged one needs; None: of more than half of the members."""


class PanelJudge:
    """See the module."""

    name = "panel"
    """Registered name."""
    role = "rubric"
    """What it can be asked."""

    def __init__(self, options: PanelOptions) -> None:
        """A panel.

        Raises:
            UserError: a member is unknown, of another role, or named twice.
        """
        self.options = options
        if len(set(options.members)) < len(options.members):
            raise UserError(f"a panel names a member twice: {', '.join(options.members)}")
        self.members: dict[str, RubricJudge] = {}
        for spec in options.members:
            given = options.member_options.get(spec, options.member_options.get(spec.partition(":")[0], {}))
            member = make_judge(spec, given)
            if member.role != self.role:
                raise UserError(
                    f"panel member {spec!r} is a judge of the role {member.role!r}; rubrics need 'rubric'"
                )
            self.members[spec] = member
        if self._quorum > len(self.members):
            raise UserError(f"quorum is {self._quorum}, and the panel has {len(self.members)} members")

    @classmethod
    def make(cls, argument: str, options: Mapping[str, Any]) -> PanelJudge:
        """The judge of "panel:A+B", or of the option `members`; errors as in the class."""
        members = {"members": tuple(argument.split("+"))} if argument else {}
        return cls(checked_options(PanelOptions, {**members, **options}, "panel"))

    def identity(self) -> dict[str, Any]:
        """Everything that can change a verdict."""
        return {
            "name": self.name,
            "members": [member.identity() for member in self.members.values()],
            "merge": self.options.merge,
            "quorum": self._quorum,
        }

    def preflight(self) -> None:
        """Every member that can be is asked whether it is there."""
        for member in self.members.values():
            if hasattr(member, "preflight"):
                member.preflight()

    @property
    def _quorum(self) -> int:
        return self.options.quorum or len(self.members) // 2 + 1

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """A merged answer to every question, once all members have answered all."""
        asked = list(questions)
        given: dict[str, dict[str, Answer]] = {question.id: {} for question in asked}
        for spec, member in self.members.items():
            for answer in member.answers(asked):
                given[answer.id][spec] = answer
        for question in asked:
            yield self._merged(question, given[question.id])

    def _merged(self, question: Question, given: Mapping[str, Answer]) -> Answer:
        ok = {spec: answer for spec, answer in given.items() if answer.status == "ok"}
        raw = json.dumps(
            {
                spec: {"status": one.status, "verdict": one.verdict, "raw": one.raw}
                for spec, one in given.items()
            }
        )
        base = Answer(question.id, question.key, "ok", path="merged", raw=raw, model="+".join(self.members))
        if len(ok) < self._quorum:
            failed = [one for one in given.values() if one.status != "ok"]
            reason = f"{len(ok)} of {len(given)} members gave a verdict, {self._quorum} are needed"
            return base._replace(status=failed[0].status, path=None, reason=reason)
        verdicts = [answer.verdict for answer in ok.values()]
        merged = self._verdict(question, verdicts)
        if merged is None or (isinstance(merged, list) and None in merged):
            return base._replace(status="parse_failed", path=None, reason=f"the members disagree: {verdicts}")
        members = {spec: answer.verdict for spec, answer in ok.items()}
        fields = {"members": members, **_categories(question, ok.values()), question.rubric.verdict: merged}
        return base._replace(fields=fields, verdict=merged)

    def _verdict(self, question: Question, verdicts: list[Any]) -> Any:
        rubric = question.rubric
        if rubric.kind == "text":
            return verdicts[0]  # words can't be merged: those of the first member that gave any
        averaged = rubric.scale is not None and rubric.kind != "flags" and self.options.merge == "mean"
        merge = _mean if averaged else _vote
        if rubric.lists:
            return [merge(list(given)) for given in zip(*verdicts, strict=True)]
        return merge(verdicts)


def _categories(question: Question, given: Iterable[Answer]) -> dict[str, Any]:
    """The vote on every other property that is chosen from a list; a tie leaves it out."""
    found = {}
    for name, form in question.rubric.schema_["properties"].items():
        values = [one.fields[name] for one in given if one.fields and name in one.fields]
        if name != question.rubric.verdict and "enum" in form and values:
            found[name] = _vote(values)
    return {name: value for name, value in found.items() if value is not None}


def _mean(values: list[Any]) -> Any:
    return sum(values) / len(values)


def _vote(values: list[Any]) -> Any:
    """The most common value; None where two are equally common."""
    (first, most), *rest = Counter(values).most_common()
    return None if rest and rest[0][1] == most else first
