"""Where the probing sets come from, and what may be done with their texts."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["Source", "sources"]


@dataclass(frozen=True)
class Source:
    """One probing set."""

    set: str
    """Its id: the file's name in sae-probes, such as `97_news_class`."""
    family: str
    """Sets that draw on one source share a family, and with it one cap on their share of the stream."""
    origin: str
    """What its texts are and where they come from; the credit of a published excerpt."""
    licence: str
    """Terms of the texts, as far as known."""
    excerpts: bool
    """Whether excerpts may be published."""
    stream: bool
    """Whether its texts may enter the token stream; false for slurs and abuse."""


@cache
def sources() -> dict[str, Source]:
    """Every probing set of the shipped asset by id."""
    text = files("latentbench.data").joinpath("sources.toml").read_text(encoding="utf-8")
    return {
        set_id: Source(
            set=set_id,
            family=family,
            origin=table["origin"],
            licence=table["licence"],
            excerpts=table["excerpts"],
            stream=table.get("stream", True),
        )
        for family, table in tomllib.loads(text).items()
        for set_id in table["sets"]
    }
