"""Rubrics: what a judge is asked, and the form of its answer. One TOML file each, in `rubrics/`.

A rubric's `user` text has place holders such as `{contexts}`; the judged material goes there, fenced. The schema's
properties are in the order in which they are to be written: reasons before the verdict.
"""

from __future__ import annotations

import re
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, model_validator

from latentbench.errors import UserError, unknown_name
from latentbench.identity import sha256_json
from latentbench.registry import RUBRICS

__all__ = ["PLACE", "RATING", "Rubric", "load_rubric", "rubric_names"]

_FOLDER = Path(__file__).parent / "rubrics"
PLACE = re.compile(r"\{([a-z_]+)\}")
"""A place holder in a rubric's text."""
RATING = ("n", "value")
"""Properties of each item of ratings in a reply: its number, counted from 1, and the value of the menu."""


class Rubric(BaseModel):
    """One rubric."""

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    name: str
    """Name; part of the judge's identity, as are all other fields."""
    version: str
    """Raised with every change of the texts or the schema."""
    title: str
    """What is judged, in a few words."""
    source: str = ""
    """Where the question comes from."""
    verdict: str = "score"
    """The schema's property that holds the verdict; the last one."""
    kind: Literal["choice", "flags", "ratings", "text"]
    """"choice": one value of the menu. "flags": a list with one value of the menu for each item. "ratings": the same,
    with numbers on a scale, for lists so long that an item might be skipped unnoticed: the reply holds the number of
    each item, too (see `RATING`). "text": words."""
    menu: tuple[int | str, ...] = ()
    """What a verdict may be; empty for words."""
    direction: Literal["higher", "lower", "none"]
    """Which end of the scale is better."""
    scale: tuple[float, float] | None = None
    """Lowest and highest score of a numeric choice, or of each rating."""
    system: str
    """Standing instruction."""
    user: str
    """The question, with the place holders."""
    schema_: dict[str, Any]
    """JSON schema of the answer; `schema` in the file."""
    example: dict[str, JsonValue]
    """An answer of the right form; checked, and shown where a server takes no schema."""

    @model_validator(mode="after")
    def _agrees(self) -> Rubric:
        places = self.places
        if not places or len(set(places)) < len(places):
            raise ValueError("the user text needs place holders such as {contexts}, each exactly once")
        try:
            Draft202012Validator.check_schema(self.schema_)
        except SchemaError as error:
            raise ValueError(f"the schema is no JSON schema: {error.message}") from error
        properties, required = self.schema_.get("properties", {}), self.schema_.get("required", [])
        if self.verdict not in properties or self.verdict not in required:
            raise ValueError(f"the schema needs a required property {self.verdict!r}, the verdict")
        if list(properties)[-1] != self.verdict:
            raise ValueError(
                f"{self.verdict!r} must come last in the schema, so that reasons are written before the verdict"
            )
        self._menu_agrees(properties[self.verdict])
        wrong = best_match(self.validator.iter_errors(self.example))
        if wrong is not None:
            raise ValueError(f"the example is no answer of this schema: {wrong.message}")
        return self

    def _menu_agrees(self, verdict: dict[str, Any]) -> None:
        listed = verdict.get("items", {}) if self.lists else verdict
        if self.kind == "ratings":
            listed = self._rating_agrees(listed)
        if self.kind == "text":
            if self.menu:
                raise ValueError("a rubric whose verdict is words has no menu")
            return
        if len(self.menu) < 2:
            raise ValueError("the menu needs two values at least")
        if listed.get("enum") != list(self.menu):
            raise ValueError(
                f"the schema allows {listed.get('enum')} for {self.verdict!r} and the menu is {list(self.menu)}: they "
                "must be the same, or verdicts off the menu would count"
            )
        if self.scale is not None:
            low, high = self.scale
            outside = [one for one in self.menu if isinstance(one, str) or not low <= one <= high]
            if outside:
                raise ValueError(f"the menu holds {outside}, outside the scale {low:g} to {high:g}")

    def _rating_agrees(self, item: dict[str, Any]) -> dict[str, Any]:
        if set(item.get("properties", {})) != set(RATING) or set(item.get("required", [])) != set(RATING):
            raise ValueError(
                f"an item of ratings has the required properties {' and '.join(RATING)}, and no other"
            )
        if self.scale is None:
            raise ValueError("ratings need a scale, the lowest and the highest number of the menu")
        rating: dict[str, Any] = item["properties"][RATING[1]]
        return rating

    @property
    def lists(self) -> bool:
        """Whether the verdict is a list, with one value of the menu for each item."""
        return self.kind in ("flags", "ratings")

    @cached_property
    def validator(self) -> Draft202012Validator:
        """Checks answers against the schema."""
        return Draft202012Validator(self.schema_)

    @cached_property
    def places(self) -> list[str]:
        """Names of the place holders, in the order of the text."""
        return PLACE.findall(self.user)

    @cached_property
    def sha256(self) -> str:
        """Of the whole rubric."""
        return sha256_json(self.model_dump(mode="json"))


def rubric_names() -> list[str]:
    """Names of the shipped rubrics and of those that other packages register under `latentbench.rubrics`."""
    return sorted({path.stem for path in _FOLDER.glob("*.toml")} | set(RUBRICS.names()))


def load_rubric(source: str | Path) -> Rubric:
    """A rubric by name, shipped or registered by another package, or one from a TOML file.

    Raises:
        UserError: there is no such rubric, or the file is none; the first thing wrong is named.
    """
    path = _FOLDER / f"{source}.toml"
    if not path.is_file():
        path = Path(RUBRICS.load(str(source))) if str(source) in RUBRICS.names() else Path(source)
    if not path.is_file():
        raise unknown_name("rubric", str(source), rubric_names(), hint="Or give the path of a TOML file.")
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"rubric {path.name} is not TOML: {error}") from error
    if "schema" in fields:
        fields["schema_"] = fields.pop("schema")
    try:
        return Rubric.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise UserError(f"rubric {path.name}: {where}: {first['msg']}") from error
