"""Options for what a checkpoint does not say of itself. No torch: `describe` takes them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

__all__ = ["CheckpointFacts", "checkpoint_options"]

F = TypeVar("F", bound=Callable[..., Any])


class CheckpointFacts(NamedTuple):
    """What was given; see `latentbench.adapters.LoadOptions`, whose names these are."""

    site: str | None
    k: int | None
    architecture: str | None
    pooling: str | None
    n_layers: int | None
    prefix: int | None
    mode: str | None


def checkpoint_options(command: F) -> F:
    """Add an option for each field of `CheckpointFacts`."""
    for decorate in reversed(
        (
            click.option("--site", help="Site, where the checkpoint doesn't say."),
            click.option("--k", type=click.IntRange(min=1), help="Keep the k largest latents per token."),
            click.option("--architecture", help="Family, where the tensors can't tell."),
            click.option("--pooling", help="sum or mean over sites, for a RouteSAE that doesn't say."),
            click.option(
                "--n-layers", type=click.IntRange(min=1), help="Layers of the model, to derive sites from."
            ),
            click.option(
                "--prefix", type=click.IntRange(min=1), help="First latents of a matryoshka, a group's end."
            ),
            click.option("--mode", help="paper, code or corrected, where paper and code part."),
        )
    ):
        command = decorate(command)
    return command
