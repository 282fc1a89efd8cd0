"""Rubrics: what a language model is asked of a latent, as data. One TOML file each, in `rubrics/`.

A rubric is checked as a whole when it is read, so that a judge never finds out in the middle of a run that the
prompt has a misspelt placeholder or that the schema does not hold the score.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Formatter
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from latentbench.errors import UserError, unknown_name
from latentbench.identity import sha256_json

__all__ = ["Rubric", "load_rubric", "rubric_names"]

_SHIPPED = files("latentbench_judges").joinpath("rubrics")
_OF_USER = {"contexts", "mark_open", "mark_close"}
_OF_LINE = {"token", "activation", "context"}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Scale(_Part):
    """The numbers a verdict may be."""

    low: float
    """Lowest score."""
    high: float
    """Highest score."""
    direction: Literal["higher", "lower"]
    """Which end is better."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} is not below high = {self.high}")
        return self


class Prompt(_Part):
    """The two messages, with placeholders in braces."""

    system: str = Field(min_length=1)
    """The system message, as it is."""
    user: str
    """The user message: {contexts}, and perhaps {mark_open} and {mark_close}."""
    line: str
    """One context of {contexts}: {token}, {activation}, {context}."""
    mark_open: str
    """Stands before the active token in its context."""
    mark_close: str
    """Stands behind it."""

    @model_validator(mode="after")
    def _placeholders(self) -> Self:
        for name, text, known, needed in (
            ("user", self.user, _OF_USER, {"contexts"}),
            ("line", self.line, _OF_LINE, {"context"}),
        ):
            try:
                found = {field for _, field, _, _ in Formatter().parse(text) if field is not None}
            except ValueError as error:
                raise ValueError(
                    f"{name}: {error}; write braces that mean themselves as {{{{ and }}}}"
                ) from error
            if found - known or needed - found:
                raise ValueError(
                    f"{name} has the placeholders {sorted(found)}; it needs {sorted(needed)} and may have "
                    f"{sorted(known)}"
                )
        return self


class Answer(_Part):
    """How a reply is read."""

    schema_: dict[str, Any] = Field(alias="schema")
    """JSON schema of the reply, an object."""
    score: str
    """Its property that holds the score."""
    category: str | None = None
    """Its property that holds a class, with an `enum`."""

    @model_validator(mode="after")
    def _holds_what_is_read(self) -> Self:
        properties = self.schema_.get("properties")
        if self.schema_.get("type") != "object" or not isinstance(properties, dict):
            raise ValueError("schema: a reply is an object with properties")
        for name in (self.score, self.category):
            if name is not None and (name not in properties or name not in self.schema_.get("required", ())):
                raise ValueError(
                    f"schema: {name!r} is read from the reply, so it has to be a required property"
                )
        if self.category is not None and not properties[self.category].get("enum"):
            raise ValueError(f"schema: {self.category!r} is a class, so it needs an enum of its values")
        return self


class Rubric(_Part):
    """One way to judge a latent by its contexts."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    """The file's name without its ending."""
    title: str = Field(min_length=1)
    """What it asks, in a few words."""
    version: str = Field(min_length=1)
    """Raised with every change, wording included."""
    source: str = ""
    """Where the question comes from."""
    scale: Scale
    """The numbers a verdict may be."""
    prompt: Prompt
    """What the model is told."""
    answer: Answer
    """How its reply is read."""

    @model_validator(mode="after")
    def _schema_keeps_the_scale(self) -> Self:
        score = self.answer.schema_["properties"][self.answer.score]
        ends = (score.get("minimum"), score.get("maximum"))
        if score.get("type") not in ("integer", "number") or ends != (self.scale.low, self.scale.high):
            raise ValueError(
                f"answer.schema: the score is {score}; it has to be a number from {self.scale.low:g} to "
                f"{self.scale.high:g}, as the scale says"
            )
        return self

    def identity(self) -> dict[str, str]:
        """What can change a verdict, as JSON for cache keys: the whole text enters the hash."""
        content = self.model_dump(mode="json", by_alias=True, exclude={"title", "source"})
        return {"name": self.name, "version": self.version, "sha256": sha256_json(content)}

    def card(self) -> dict[str, Any]:
        """What listings show."""
        return {
            "name": self.name,
            "title": self.title,
            "version": self.version,
            "source": self.source,
            "scale": f"{self.scale.low:g} to {self.scale.high:g}, {self.scale.direction} is better",
        }

    def messages(self, contexts: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
        """The chat messages that ask about one latent.

        Args:
            contexts: `text` items: `tokens`, `activated` and the `activation` of the active token. Line breaks are
                shown as blanks, so that one context is one line.

        Raises:
            ValueError: there are no contexts.
        """
        if not contexts:
            raise ValueError("a rubric asks about contexts, and there are none: the latent is unscored")
        marks = {"mark_open": self.prompt.mark_open, "mark_close": self.prompt.mark_close}
        lines = "\n".join(self._line(context) for context in contexts)
        user = self.prompt.user.strip().format(contexts=lines, **marks)
        return [{"role": "system", "content": self.prompt.system}, {"role": "user", "content": user}]

    def _line(self, context: Mapping[str, Any]) -> str:
        tokens, place = [str(token) for token in context["tokens"]], int(context["activated"])
        marked = f"{self.prompt.mark_open}{tokens[place]}{self.prompt.mark_close}"
        text = "".join([*tokens[:place], marked, *tokens[place + 1 :]])
        return self.prompt.line.format(
            token=" ".join(tokens[place].split()),
            activation=f"{context['activation']:g}",
            context=" ".join(text.split()),
        )


def rubric_names() -> list[str]:
    """The rubrics that come with this package."""
    return sorted(
        entry.name.removesuffix(".toml") for entry in _SHIPPED.iterdir() if entry.name.endswith(".toml")
    )


def load_rubric(source: str | Path) -> Rubric:
    """A rubric that comes with this package, by name, or one from a TOML file.

    Raises:
        UserError: there is no such rubric, or something in the file is wrong; the first wrong place is named.
    """
    shipped = str(source) in rubric_names()
    path = Path(str(source))
    if not shipped and not (path.suffix == ".toml" and path.is_file()):
        raise unknown_name("rubric", str(source), rubric_names(), hint="Or give a TOML file.")
    try:
        text = (_SHIPPED.joinpath(f"{source}.toml") if shipped else path).read_text(encoding="utf-8")
        rubric = Rubric.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"rubric {source} is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"rubric {source}, {where}: {first['msg']}") from error
    if not shipped and rubric.name != path.stem:
        raise UserError(f"rubric {source} calls itself {rubric.name!r}: name and file have to agree")
    return rubric
