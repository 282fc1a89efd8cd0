"""Activations of texts, one number for each text and latent, as selectors that learn from labels need them."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from latentbench.adapters import Codes
from latentbench.errors import UserError
from latentbench.selectors._selector import LatentScores

__all__ = ["LabelledSelector", "checked_labels", "pool_codes"]


class LabelledSelector(Protocol):
    """Ranks all latents by labelled texts; one method, one file."""

    @property
    def name(self) -> str:
        """Name in results."""
        ...

    def scores(self, pooled: Tensor, labels: Tensor) -> LatentScores:
        """Scores of all latents.

        Args:
            pooled: `Float[Tensor, "text latent"]`, see `pool_codes`.
            labels: `Bool[Tensor, "text"]`, or any number of each text where the method takes outcomes.
        """
        ...


def pool_codes(codes: Codes, rows: Tensor, n_rows: int, how: Literal["mean", "max"] = "mean") -> Tensor:
    """`Float[Tensor, "text latent"]`: mean or largest activation of each latent over the tokens of each text.

    Args:
        codes: codes of the tokens.
        rows: `Int64[Tensor, "token"]`: the text of each.
        n_rows: how many texts; one without a token has zeros.
        how: "max" counts tokens on which a latent is not active as 0, as "mean" does.
    """
    where = rows.to(codes.latents.device)[codes.rows()] * codes.n_latents + codes.latents
    flat = codes.values.new_zeros(n_rows * codes.n_latents)
    if how == "max":
        flat = flat.scatter_reduce(0, where, codes.values, "amax")
        return flat.view(n_rows, codes.n_latents)
    sizes = torch.bincount(rows.to(flat.device), minlength=n_rows).clamp(min=1)
    return flat.index_add(0, where, codes.values).view(n_rows, codes.n_latents) / sizes[:, None]


def checked_labels(pooled: Tensor, labels: Tensor) -> Tensor:
    """`Bool[Tensor, "text"]` on the device of the activations.

    Raises:
        UserError: there is not a label for each text, or only one kind of text.
    """
    if labels.shape != pooled.shape[:1]:
        raise UserError(f"{len(labels)} labels for {len(pooled)} texts: each text needs one")
    found = labels.to(device=pooled.device, dtype=torch.bool)
    if bool(found.all()) or not bool(found.any()):
        raise UserError(f"all {len(found)} texts have the same label: a contrast needs both kinds")
    return found
