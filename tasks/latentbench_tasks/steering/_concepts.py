"""The concepts and the prompts that ship with this task, and the options that choose among them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_serializer

from latentbench.errors import UserError, unknown_name
from latentbench.identity import sha256_json

__all__ = [
    "Concept",
    "Example",
    "Labelled",
    "Prompt",
    "all_concepts",
    "all_prompts",
    "background_sets",
    "concepts",
    "neutral_prompts",
    "prompts",
]

Half = Literal["select", "test", "neutral"]
_FILES = ("first", "sets", "nature", "people")
"""Files of concepts, in the order in which "all" takes them; the first holds the background, too."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Labelled(_Record):
    """A probe set and the targets in it that carry a concept."""

    set: str
    """Id of the probe set."""
    targets: tuple[str, ...] = ()
    """Target values; empty means every text of the set."""


def _as_example(given: Any) -> Any:
    return {"text": given} if isinstance(given, str) else given


class Example(_Record):
    """A text of a concept's own, for concepts that no probe set carries."""

    text: str = Field(min_length=1)
    """The text."""
    positive: bool = True
    """Whether it carries the concept."""
    split: Literal["select", "classifier"] = "select"
    """What it serves: the choice of latents or the text classifier."""


class Concept(_Record):
    """One thing to steer towards. The fields are described at the head of `concepts/first.toml`."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Short name, used in keys and items."""
    name: str
    """Name to show."""
    description: str
    """What a text with this concept is about."""
    positives: tuple[Labelled, ...] = ()
    """Labelled texts that carry it."""
    examples: tuple[Annotated[Example, BeforeValidator(_as_example)], ...] = ()
    """Texts of its own, where there are no labelled ones; a plain text is one that carries the concept, for
    the choice of latents."""
    others: bool = True
    """Whether texts of the same sets with other targets are negatives."""
    avoid: tuple[str, ...] = ()
    """Background sets that are no negatives of it."""
    phrase: str = ""
    """The phrase that all positives end in, for passage sets."""
    lexicon: tuple[str, ...] = Field(min_length=1)
    """Words that tell of it."""

    @field_serializer("examples")
    def _hashed(self, examples: tuple[Example, ...]) -> str:
        """In dumps, which only serve as keys, the checksum stands for the texts: there can be megabytes."""
        rows = [[example.text, example.positive, example.split] for example in examples]
        return sha256_json(rows) if rows else ""

    def lexicon_hits(self, text: str) -> int:
        """How many different words of the lexicon occur in `text`, as whole words, in any case."""
        return sum(
            bool(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)) for word in self.lexicon
        )


class Prompt(_Record):
    """An opening that generation continues."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Short name, used in keys and items."""
    text: str
    """The opening itself."""
    half: Half
    """"select" if the amount is chosen on it, "test" if it is scored, "neutral" for the classifiers'
    negatives."""


@cache
def all_concepts() -> tuple[Concept, ...]:
    """Every concept of the package, in the order of the files.

    To those with examples of their own, the sentences of `plain.toml` are added as negatives.
    """
    plain = tuple({"text": text, "positive": False} for text in _read("concepts/plain.toml")["sentences"])
    found = [entry for name in _FILES for entry in _read(f"concepts/{name}.toml")["concept"]]
    return tuple(
        Concept.model_validate({**entry, "examples": (*own, *plain) if own else ()})
        for entry in found
        for own in [entry.get("examples", ())]
    )


@cache
def all_prompts() -> tuple[Prompt, ...]:
    """Every prompt of the package, in the order of the file."""
    return tuple(Prompt.model_validate(entry) for entry in _read("prompts.toml")["prompt"])


@cache
def background_sets() -> tuple[str, ...]:
    """Probe sets whose texts are negatives of every concept that does not avoid them."""
    return tuple(_read("concepts/first.toml")["background"]["sets"])


def concepts(ids: Sequence[str], among: Sequence[Concept] | None = None) -> list[Concept]:
    """The concepts of these ids in the order given; all of them for no ids.

    Args:
        ids: which.
        among: of these; None takes those of the package.

    Raises:
        UserError: an id is unknown (the nearest are named) or given twice.
    """
    known = {concept.id: concept for concept in (all_concepts() if among is None else among)}
    for name in ids:
        if name not in known:
            raise unknown_name("steering concept", name, known)
    if len(set(ids)) != len(ids):
        raise UserError(f"steering concepts {list(ids)} hold one twice: name each concept once")
    return [known[name] for name in ids] if ids else list(known.values())


def prompts(count: int) -> list[Prompt]:
    """The first `count` prompts, half of them for selection and half for the test, in the order of the file.

    Raises:
        UserError: `count` is odd, below 2, or more than there are.
    """
    halves = {
        half: [prompt for prompt in all_prompts() if prompt.half == half] for half in ("select", "test")
    }
    most = 2 * min(map(len, halves.values()))
    if count % 2 or not 2 <= count <= most:
        raise UserError(f"steering needs an even number of prompts from 2 to {most}, not {count}")
    chosen = {prompt.id for half in halves.values() for prompt in half[: count // 2]}
    return [prompt for prompt in all_prompts() if prompt.id in chosen]


def neutral_prompts() -> list[Prompt]:
    """The prompts whose unsteered continuations are negatives for the text classifiers."""
    return [prompt for prompt in all_prompts() if prompt.half == "neutral"]


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))
