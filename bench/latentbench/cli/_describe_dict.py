"""`latentbench describe dict PATH`: which format a checkpoint is of, and what it holds.

Apart from `describe` because this needs torch, which the commands that list things never import.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from latentbench.adapters import Dictionary, LoadOptions, load_dictionary, recognise
from latentbench.cli._checkpoint import CheckpointFacts
from latentbench.errors import UserError

__all__ = ["checkpoint_row"]


def checkpoint_row(source: str, facts: CheckpointFacts) -> dict[str, Any]:
    """Format, reason and card of a checkpoint.

    Args:
        source: as `load_dictionary` takes it.
        facts: what the checkpoint does not say.

    Raises:
        UserError: it can't be loaded; where a format recognised it, the message begins with which and why.
    """
    path = Path(source)
    found = recognise(path) if path.exists() else []
    try:
        dictionary = load_dictionary(source, k=facts.k, options=LoadOptions(**facts._asdict()))
    except UserError as error:
        reasons = "; ".join(f"{one.format} ({one.reason})" for one in found)
        if len(found) == 1:
            raise type(error)(f"recognised as {reasons}, but: {error}") from error
        raise
    row: dict[str, Any] = {"name": source}
    if found:
        row |= {"format": found[0].format, "recognised by": found[0].reason}
    return row | _facts(dictionary)


def _facts(dictionary: Dictionary) -> dict[str, Any]:
    card = dictionary.card
    same = card.reads == card.writes
    return {
        "card name": card.name,
        "family": card.family,
        **({"sites": list(card.reads)} if same else {"reads": list(card.reads), "writes": list(card.writes)}),
        "d_model": card.d_model,
        "latents": card.n_latents,
        "declared l0": card.nominal_l0,
        "normalisation": card.normalisation,
        "options": card.options,
        "language model": card.lm,
        "sha256": card.sha256,
        "control": "yes: measured, never ranked" if card.control else "",
        "training": card.training,
    }
