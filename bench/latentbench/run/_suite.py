"""Suites: which dictionaries are put through which tasks, on which model and tokens; read from TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from latentbench.errors import UserError, nearest, unknown_name

__all__ = [
    "DictionarySpec",
    "Suite",
    "TaskSpec",
    "TokenSpec",
    "checked_suite",
    "load_suite",
    "shipped_suites",
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DictionarySpec(_Part):
    """One dictionary of a suite and how it meets the target sparsity."""

    source: str
    """As `load_dictionary` takes it."""
    name: str = ""
    """Display name; empty takes the card's."""
    sparsity: Literal["native", "topk", "calibrated"] = "native"
    """"native": its own activation. "topk": the `target_l0` largest per token. "calibrated": one threshold for all
    latents, found on the calibration split to hit `target_l0`."""
    mode: Literal["paper", "code", "corrected"] | None = None
    """Preset of the places where paper and code part; None keeps what the checkpoint says."""


class TaskSpec(_Part):
    """One task of a suite."""

    name: str
    """Registered name."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Its configuration; checked by the task itself."""


class TokenSpec(_Part):
    """The suite's token policy; one for all its dictionaries."""

    context: int = Field(default=128, ge=2)
    """Tokens in a row."""
    skip_first: int = Field(default=1, ge=0)
    """Tokens at the start of each row left out of encoding, metrics and edits (attention sink)."""
    bos: Literal["tokenizer", "always", "never"] = "tokenizer"
    """Whether rows begin with a BOS token."""
    batch_rows: int = Field(default=8, ge=1)
    """Rows in one forward pass; not part of any key."""


class Suite(_Part):
    """A benchmark suite."""

    name: str
    """Name of the suite."""
    description: str = ""
    """What it is for."""
    lm: str
    """Language model, as `load_lm` takes it."""
    lm_parameters: float | None = Field(default=None, gt=0)
    """How many weights it has; told by `plan --estimate`, and part of no key."""
    dtype: str = "float32"
    """Type of the model's and the dictionaries' numbers."""
    corpus: str = "probe-texts"
    """Corpus; the test split is watched."""
    target_l0: float = Field(default=64.0, gt=0)
    """Sparsity at which dictionaries are compared."""
    calibration_tokens: int = Field(default=4096, gt=0)
    """Tokens of the calibration split behind the "calibrated" sparsity mode."""
    seeds: tuple[int, ...] = (0,)
    """Each cell is run once per seed."""
    judge: str | tuple[str, ...] | None = "embed"
    """Judge of the tasks that need one, or several; a task takes the first of the role that it needs."""
    judge_options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options of judges, by the name before the colon: `[judge_options.openai]`."""
    tokens: TokenSpec = TokenSpec()
    """Token policy."""
    dictionaries: tuple[DictionarySpec, ...] = Field(min_length=1)
    """What is measured."""
    tasks: tuple[TaskSpec, ...] = Field(min_length=1)
    """What it is put through."""

    @property
    def judges(self) -> tuple[str, ...]:
        """The judges, the preferred ones first."""
        if self.judge is None:
            return ()
        return (self.judge,) if isinstance(self.judge, str) else self.judge

    @model_validator(mode="after")
    def _distinct(self) -> Suite:
        stray = set(self.judge_options) - {spec.partition(":")[0] for spec in self.judges}
        if stray:
            raise ValueError(f"judge_options are given for {sorted(stray)}, which is no judge of this suite")
        if not self.seeds:
            raise ValueError("seeds is empty: name at least one")
        if len({task.name for task in self.tasks}) < len(self.tasks):
            raise ValueError("a task is named twice; one suite runs each task once")
        return self


def shipped_suites() -> dict[str, Path]:
    """The suites that come with the tasks, by name."""
    spec = find_spec("latentbench_tasks")
    if spec is None or spec.origin is None:
        return {}
    return {file.stem: file for file in sorted((Path(spec.origin).parent / "suites").glob("*.toml"))}


def load_suite(source: str | Path) -> Suite:
    """A suite from a TOML file, or a shipped one by name.

    Raises:
        UserError: there is no such file, or something in it is wrong; the first wrong key is named.
    """
    path = shipped_suites().get(str(source), Path(source))
    if not path.is_file():
        raise unknown_name("suite", str(source), shipped_suites(), hint="Or give the path of a TOML file.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"suite {path.name} is not TOML: {error}") from error
    return checked_suite(content, f"suite {path.name}")


def checked_suite(content: Mapping[str, Any], what: str) -> Suite:
    """A suite from its keys.

    Args:
        content: the keys of a suite.
        what: what the error calls it.

    Raises:
        UserError: something in it is wrong; the first wrong key is named.
    """
    try:
        return Suite.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{what}: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    """The first thing wrong, in one line, with the nearest known key if one is misspelt."""
    # A misspelt key explains the missing one beside it.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    where = ".".join(map(str, first["loc"])) or "the file"
    if first["type"] != "extra_forbidden":
        return f"{where}: {first['msg']}"
    parts = (Suite, DictionarySpec, TaskSpec, TokenSpec)
    close = nearest(str(first["loc"][-1]), [key for part in parts for key in part.model_fields])
    return f"unknown key {where}" + (f"; did you mean {close[0]!r}?" if close else "")
