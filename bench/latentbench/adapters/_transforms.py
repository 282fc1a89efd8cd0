"""Input transforms of dictionaries, as data: what is done to activations before encoding and undone after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

__all__ = ["TRANSFORM_KINDS", "InputTransform", "TransformKind", "Transformed"]

TransformKind = Literal["none", "standardise", "layer_norm", "constant_norm"]
TRANSFORM_KINDS: tuple[TransformKind, ...] = get_args(TransformKind)
"""Every kind of input transform."""


class Transformed(NamedTuple):
    """Transformed activations and the per-token statistics that undo it."""

    acts: Tensor
    """`Float[Tensor, "token d"]`."""
    context: dict[str, Tensor]
    """`mean` and `std`, `Float[Tensor, "token 1"]`; empty for "none"."""


class InputTransform(NamedTuple):
    """A per-token affine transform.

    Its statistics travel with the codes, so any batch can be decoded at any time.
    """

    kind: TransformKind
    """"standardise" (RouteSAE) and "layer_norm" (SAELens) subtract the token's mean over the hidden dimension
    and divide by its unbiased standard deviation plus `eps`; "constant_norm" scales every token to norm
    sqrt(d). Undoing is exact, except that "layer_norm" leaves `eps` out there, as SAELens does."""
    eps: float = 1e-6
    """Added to the standard deviation: 1e-6 in RouteSAE's code, 1e-5 in SAELens."""

    def apply(self, acts: Tensor) -> Transformed:
        """Transform `Float[Tensor, "token d"]`."""
        if self.kind == "none":
            return Transformed(acts, {})
        if self.kind == "constant_norm":
            mean = acts.new_zeros(())
            std = acts.norm(dim=-1, keepdim=True) / math.sqrt(acts.shape[-1]) + self.eps
            return Transformed(acts / std, {"mean": mean.expand_as(std), "std": std})
        mean = acts.mean(dim=-1, keepdim=True)
        centred = acts - mean
        # Not Tensor.std, which warns about batches without tokens.
        spread = torch.linalg.vector_norm(centred, dim=-1, keepdim=True) / math.sqrt(acts.shape[-1] - 1)
        std = spread + self.eps
        undone = spread if self.kind == "layer_norm" else std
        return Transformed(centred / std, {"mean": mean, "std": undone})

    def undo(self, acts: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Bring `Float[Tensor, "token d"]` back to raw units with the statistics of its own tokens."""
        if self.kind == "none":
            return acts
        return acts * context["std"].to(acts.dtype) + context["mean"].to(acts.dtype)
