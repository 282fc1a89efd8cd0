"""Rubrics: what an LLM judge is asked, and the form of its answer. One TOML file each, in `rubrics/`.

A rubric's `user` text has the place holder `{contexts}`, filled by plain replacement, so braces in judged text are
harmless. The schema's properties are in the order in which they are to be written: reasons before the verdict.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from latentbench.errors import UserError, unknown_name

__all__ = ["Rubric", "load_rubric", "rubric_names"]

_FOLDER = Path(__file__).parent / "rubrics"


class Rubric(BaseModel):
    """One rubric."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Name; part of the judge's identity, as are all other fields."""
    version: str
    """Raised with every change of the texts or the schema."""
    source: str = ""
    """Where the question comes from."""
    direction: Literal["higher", "lower"]
    """Which end of the scale is better."""
    scale: tuple[float, float]
    """Lowest and highest score."""
    system: str
    """Standing instruction."""
    user: str
    """The question, with the place holder `{contexts}`."""
    schema_: dict[str, Any]
    """JSON schema of the answer; `schema` in the file."""

    @field_validator("user")
    @classmethod
    def _place(cls, text: str) -> str:
        if text.count("{contexts}") != 1:
            raise ValueError("the user text needs the place holder {contexts} exactly once")
        return text

    @model_validator(mode="after")
    def _scored(self) -> Rubric:
        properties = self.schema_.get("properties", {})
        if "score" not in properties or "score" not in self.schema_.get("required", []):
            raise ValueError("the schema needs a required property 'score'")
        if list(properties)[-1] != "score":
            raise ValueError(
                "'score' must come last in the schema, so that reasons are written before the verdict"
            )
        return self

    def ask(self, contexts: str) -> str:
        """The question about these contexts."""
        return self.user.replace("{contexts}", contexts)


def rubric_names() -> list[str]:
    """Names of the shipped rubrics."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_rubric(source: str | Path) -> Rubric:
    """A shipped rubric by name, or one from a TOML file.

    Raises:
        UserError: there is no such rubric, or the file is none; the first thing wrong is named.
    """
    path = _FOLDER / f"{source}.toml" if str(source) in rubric_names() else Path(source)
    if not path.is_file():
        raise unknown_name("rubric", str(source), rubric_names(), hint="Or give the path of a TOML file.")
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
        if "schema" in fields:
            fields["schema_"] = fields.pop("schema")
        return Rubric.model_validate(fields)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"rubric {path.name} is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"rubric {path.name}: {'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}"
        ) from error
