"""The frozen records of a finished cell: what is published, and the JSON that it is stored as.

The records refuse what would mislead later: NaN, a value without units, an interval upside down, a missing
value without a reason, a key that is not the hash of what it names.
"""

from __future__ import annotations

import json
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    model_validator,
)

from latentbench.identity import canonical_json, sha256_json

if TYPE_CHECKING:
    from latentbench.stats import Estimate

__all__ = [
    "SCHEMA_VERSION",
    "CellIdentity",
    "Curve",
    "CurvePoint",
    "ErrorRecord",
    "Interval",
    "Metric",
    "RunRecord",
    "pretty_json",
    "utc_now",
]

SCHEMA_VERSION: Final = 1
"""Version of the record format. Readers take older ones on to this one, and refuse newer ones; see `_migrate`."""


def _plain_json(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    canonical_json(value).encode(
        "utf-8"
    )  # refuses NaN, infinities and lone surrogates, which files can't hold
    return value


def _printable(text: str) -> str:
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def _utc(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an ISO 8601 time") from error
    if moment.utcoffset() != timedelta(0):
        raise ValueError(f"{text!r} is not in UTC; records hold times such as {utc_now()!r}")
    return text


Json = Annotated[dict[str, JsonValue], AfterValidator(_plain_json)]
AnyText = Annotated[str, BeforeValidator(_printable)]
UtcTime = Annotated[str, AfterValidator(_utc)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Level = Annotated[FiniteFloat, Field(gt=0, lt=1)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Interval(_Record):
    """A confidence interval."""

    low: FiniteFloat
    """Lower end, in the metric's unit."""
    high: FiniteFloat
    """Upper end, in the metric's unit."""
    level: Level = 0.95
    """Nominal coverage."""
    method: str
    """How it was made ("wilson", "cluster bootstrap, bca")."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"the interval is upside down: low {self.low} is above high {self.high}")
        return self


class Metric(_Record):
    """One published number with its uncertainty, or the reason why there is none."""

    name: str = Field(min_length=1)
    """Name within the task ("explained_variance")."""
    value: FiniteFloat | None
    """The number; None when it is unscored, never NaN and never a stand-in."""
    interval: Interval | None = None
    """Its confidence interval; None with fewer than two units or no spread between them."""
    n: int = Field(ge=0)
    """Number of resampling units."""
    resampling_unit: str = Field(min_length=1)
    """What was sampled independently ("document", "latent", "concept"), or "none"."""
    unit: str
    """Unit of the value ("nats/token", "share", "latents")."""
    direction: Literal["higher", "lower", "none"]
    """Which end is better."""
    reason: str | None = None
    """Why `value` is None; None otherwise."""
    note: str = ""
    """The definition in one line: centred or not, raw or standardised, which positions."""
    headline: bool = False
    """Whether the board shows it in its main table."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.value is None and (not self.reason or self.interval is not None):
            raise ValueError(
                f"metric {self.name!r} has no value, so it needs a reason and can't have an interval"
            )
        if self.value is not None and self.reason is not None:
            raise ValueError(
                f"metric {self.name!r} has a value and a reason for having none ({self.reason!r})"
            )
        if self.interval is not None and self.n < 2:
            raise ValueError(
                f"metric {self.name!r} has an interval from n={self.n}; fewer than 2 units carry none"
            )
        return self

    @classmethod
    def from_estimate(
        cls,
        name: str,
        estimate: Estimate,
        *,
        resampling_unit: str,
        unit: str,
        direction: Literal["higher", "lower", "none"],
        note: str = "",
        headline: bool = False,
    ) -> Self:
        """A metric from a `latentbench.stats.Estimate`; an unscored one takes its method as the reason."""
        interval = None
        if estimate.low is not None and estimate.high is not None:
            interval = Interval(
                low=estimate.low, high=estimate.high, level=estimate.level, method=estimate.method
            )
        return cls(
            name=name,
            value=estimate.value,
            interval=interval,
            n=estimate.n,
            resampling_unit=resampling_unit,
            unit=unit,
            direction=direction,
            reason=estimate.method if estimate.value is None else None,
            note=note,
            headline=headline,
        )


class CurvePoint(_Record):
    """One point of a curve."""

    x: FiniteFloat
    """Position, in the curve's `x_unit`."""
    value: FiniteFloat | None
    """Height, in the curve's `unit`; None when unscored."""
    low: FiniteFloat | None = None
    """Lower end of the band at this point."""
    high: FiniteFloat | None = None
    """Upper end of the band; None exactly when `low` is."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.low is None) != (self.high is None) or (self.value is None and self.low is not None):
            raise ValueError(f"curve point at x={self.x}: half a band, or a band without a value")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"curve point at x={self.x}: the band is upside down")
        return self


class Curve(_Record):
    """A metric against something (tokens watched, L0, steering factor)."""

    name: str = Field(min_length=1)
    """Name within the task ("rarefaction")."""
    x_name: str
    """What x is ("tokens watched")."""
    x_unit: str
    """Unit of x ("tokens")."""
    unit: str
    """Unit of the values."""
    points: list[CurvePoint]
    """The points, in the order they are drawn."""
    note: str = ""
    """The definition in one line, the method of the band included."""


class ErrorRecord(_Record):
    """What made a cell fail."""

    type: str = Field(min_length=1)
    """Class of the exception ("AdapterError")."""
    message: AnyText
    """Its message."""
    traceback: AnyText = ""
    """The formatted traceback; empty when it would tell a reader nothing."""

    @classmethod
    def from_exception(cls, error: BaseException) -> Self:
        """The record of a caught exception; the home folder in its traceback becomes `~`."""
        home = str(Path("~").expanduser())
        text = "".join(traceback.format_exception(error)).replace(home, "~")
        return cls(type=type(error).__name__, message=str(error), traceback=text)


class CellIdentity(_Record):
    """Everything that can change a cell's numbers, and nothing else."""

    lm: Json
    """The language model: name, revision, dtype, attention implementation."""
    dictionary: Json
    """Weights sha256, loader version and every override."""
    task: Json
    """Name, version and config."""
    judge: Json | None = None
    """Judge, rubric, schema and sampling; None for tasks that ask none."""
    corpus: Json
    """Name and sha256 of the corpus, and the split."""
    token_policy: Json
    """Which tokens are measured, one policy per suite."""
    sparsity: Json
    """Mode and target L0."""
    seed: int
    """Seed that every random choice of the cell derives from."""

    def key(self) -> str:
        """sha256 of all fields: the cell's name, folder and cache key."""
        return sha256_json(self.model_dump(mode="json"))

    def measurement_key(self) -> str:
        """sha256 of all fields but the judge: cells that share it can share their measured items."""
        return sha256_json(self.model_dump(mode="json", exclude={"judge"}))


class RunRecord(_Record):
    """A finished cell, as `run.json` holds it."""

    schema_version: Literal[1] = SCHEMA_VERSION
    """Version of this format."""
    key: Sha256
    """`cell.key()`."""
    measurement_key: Sha256
    """`cell.measurement_key()`."""
    status: Literal["ok", "failed"]
    """Whether the cell was measured to its end."""
    error: ErrorRecord | None = None
    """Why it failed; None exactly when it did not."""
    cell: CellIdentity
    """What was measured."""
    labels: Json = Field(default_factory=dict)
    """What to call it (display name of the dictionary, suite); not hashed, changes no number."""
    metrics: list[Metric] = Field(default_factory=list)
    """The numbers; names are unique. Empty for a failed cell."""
    curves: list[Curve] = Field(default_factory=list)
    """The curves; names are unique."""
    counts: dict[str, int] = Field(default_factory=dict)
    """What went into it: tokens, items, unscored items by reason."""
    provenance: Json = Field(default_factory=dict)
    """See `latentbench.store.provenance`."""
    started: UtcTime
    """ISO 8601, UTC."""
    finished: UtcTime
    """ISO 8601, UTC."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.key != self.cell.key() or self.measurement_key != self.cell.measurement_key():
            raise ValueError(f"the record's keys are not those of its cell ({self.cell.key()})")
        if (self.status == "failed") != (self.error is not None):
            raise ValueError(
                f"status {self.status!r} with error {self.error!r}; a failed record has its error"
            )
        if self.status == "failed" and (self.metrics or self.curves):
            raise ValueError("a failed record holds no metrics and no curves: they would look like results")
        for what, names in (
            ("metric", [metric.name for metric in self.metrics]),
            ("curve", [curve.name for curve in self.curves]),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"two {what}s of one record share a name: {sorted(names)}")
        if datetime.fromisoformat(self.finished) < datetime.fromisoformat(self.started):
            raise ValueError(f"the cell finished ({self.finished}) before it started ({self.started})")
        return self

    def metric(self, name: str) -> Metric | None:
        """The metric of that name, or None."""
        return next((metric for metric in self.metrics if metric.name == name), None)

    def to_json(self) -> str:
        """The text of `run.json`: indented, keys sorted, the same bytes for equal records."""
        return pretty_json(self.model_dump(mode="json"))


def pretty_json(value: JsonValue) -> str:
    """Indented JSON with sorted keys and a final newline, for the files that people open."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def utc_now() -> str:
    """The present time as a record holds it: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
