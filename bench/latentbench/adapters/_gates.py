"""Gates: how pre-activations become codes. One frozen record each, so an override is a replaced record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from latentbench.adapters._codes import Codes, codes_from_dense, codes_from_topk
from latentbench.errors import AdapterError

__all__ = ["Gate", "JumpReluGate", "ReluGate", "ThresholdGate", "TopKGate"]


class Gate(Protocol):
    """Turns pre-activations into codes."""

    def __call__(self, pre: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """Codes of `Float[Tensor, "token latent"]`, carrying `context`."""
        ...

    def describe(self) -> dict[str, object]:
        """The gate as JSON, for the card's options."""
        ...


@dataclass(frozen=True)
class ReluGate:
    """z = max(pre, 0)."""

    def __call__(self, pre: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Gate`."""
        return codes_from_dense(pre.clamp(min=0), context)

    def describe(self) -> dict[str, object]:
        """See `Gate`."""
        return {"gate": "relu"}


@dataclass(frozen=True)
class TopKGate:
    """The k largest pre-activations of each token."""

    k: int
    """Latents kept per token."""
    rectify: bool
    """True drops the non-positive among them; False keeps their sign (RouteSAE)."""

    def __post_init__(self) -> None:
        if self.k < 1:
            raise AdapterError(f"k = {self.k}: TopK needs at least one latent per token")

    def __call__(self, pre: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Gate`."""
        return codes_from_topk(pre, self.k, rectify=self.rectify, context=context)

    def describe(self) -> dict[str, object]:
        """See `Gate`."""
        return {"gate": "topk", "k": self.k, "rectify": self.rectify}


@dataclass(frozen=True, eq=False)
class JumpReluGate:
    """z = max(pre, 0) where pre exceeds a threshold of the latent's own, else 0."""

    threshold: Tensor
    """`Float[Tensor, "latent"]`; a negative one acts as 0."""

    def __call__(self, pre: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Gate`."""
        # Compared in float32: in bfloat16 latents near their threshold flip.
        active = pre.float() > self.threshold.float().clamp(min=0)
        return codes_from_dense(pre.where(active, pre.new_zeros(())), context)

    def describe(self) -> dict[str, object]:
        """See `Gate`."""
        return {"gate": "jumprelu"}


@dataclass(frozen=True)
class ThresholdGate:
    """z = pre where pre exceeds one threshold for all latents, else 0: the calibrated sparsity mode."""

    threshold: float
    """In units of the pre-activation; never below 0."""

    def __call__(self, pre: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Gate`."""
        return codes_from_dense(pre.where(pre > max(self.threshold, 0.0), pre.new_zeros(())), context)

    def describe(self) -> dict[str, object]:
        """See `Gate`."""
        return {"gate": "threshold", "threshold": self.threshold}
