"""The conditions: under which edits the model answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from latentbench.adapters import Dictionary, LatentChange, latent_edits, steering_edits, steering_rows
from latentbench.errors import LatentbenchError
from latentbench.lm import BOTH_PHASES, Edit
from latentbench_tasks.capability._model import EditsFor
from latentbench_tasks.steering._generate import directions

__all__ = ["check_identity", "conditions", "no_edits"]

_TOLERANCE = 1e-3
"""Nats, and share of the number itself, by which an edit that adds nothing may move a log-likelihood."""


def no_edits(rows: int) -> Sequence[Edit]:
    """The plain model."""
    return ()


def conditions(
    dictionary: Dictionary, choices: Sequence[Mapping[str, Any]], factors: Sequence[float], skip_first: int
) -> dict[str, EditsFor]:
    """Edits by condition: "identity", "spliced", and "steered@FACTOR:CONCEPT" for every concept with a latent.

    Args:
        dictionary: what is put into the model.
        choices: items of kind "choice".
        factors: of steering, in units.
        skip_first: tokens left alone at the start of every row.
    """

    def splice(rows: int) -> Sequence[Edit]:
        return latent_edits(dictionary, [LatentChange.none()] * rows, skip_first=skip_first)

    def steered(vector: Tensor) -> EditsFor:
        return lambda rows: steering_edits(dictionary, vector.expand(rows, -1), BOTH_PHASES, skip_first)

    nothing = torch.zeros_like(steering_rows(dictionary, [0])[0])
    found: dict[str, EditsFor] = {"identity": steered(nothing), "spliced": splice}
    vectors = directions(dictionary, choices)
    for factor in factors:
        for concept, vector in vectors.items():
            found[f"steered@{factor:g}:{concept}"] = steered(factor * vector)
    return found


def check_identity(plain: Sequence[Mapping[str, Any]], identity: Sequence[Mapping[str, Any]]) -> None:
    """Whether the plain model's answers are those under an edit that adds nothing.

    Raises:
        LatentbenchError: they differ by more than rounding, so no difference between conditions can be trusted.
    """
    for one, other in zip(plain, identity, strict=True):
        for name in ("loglik", "margin", "loss"):
            if not _same(one[name], other[name]):
                raise LatentbenchError(
                    f"{one['task']}, item {one['doc_id']}: {name} is {one[name]} without edits and {other[name]} under "
                    "an edit that adds nothing. The edits or the batches change what they should not; no difference "
                    "between conditions can be trusted"
                )
        if one["reply"] != other["reply"] or one["doc"] != other["doc"]:
            raise LatentbenchError(
                f"{one['task']}, item {one['doc_id']}: another reply under an edit that adds nothing"
            )


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _TOLERANCE * max(1.0, abs(one))
