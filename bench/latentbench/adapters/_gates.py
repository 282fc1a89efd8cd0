"""Gates: how pre-activations become codes. One frozen record each, so an override is a replaced record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from latentbench.adapters._codes import Codes, codes_from_dense, codes_from_topk
from latentbench.errors import AdapterError

__all__ = [
    "AbsTopKGate",
    "Gate",
    "GatedGate",
    "JumpReluGate",
    "ReluGate",
    "ThresholdGate",
    "TopKGate",
]


@dataclass(frozen=True, eq=False)
class Gate:
    """Turns pre-activations W_enc (x - b_pre) + b_enc into codes. A subclass gives `__call__` and `describe`."""

    def __call__(self, pre: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """Codes of `Float[Tensor, "token latent"]`, carrying `context`."""
        raise NotImplementedError

    def describe(self) -> dict[str, object]:
        """The gate as JSON, for the card's options; tensors are left out."""
        raise NotImplementedError

    @property
    def core(self) -> Gate:
        """The gate that decides what is active; itself, but for a gate around another one."""
        return self

    def around(self, gate: Gate) -> Gate:
        """What another gate in this one's place becomes: itself, but for a gate around another one."""
        return gate

    def tensors(self) -> dict[str, Tensor]:
        """What the gate has for each latent, `Float[Tensor, "latent"]` by name, for checkpoints."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    def to(self, device: torch.device | str | None) -> Self:
        """The same gate elsewhere. Its tensors stay in float32: in bfloat16 latents near a threshold flip."""
        return replace(self, **{name: value.to(device=device) for name, value in self.tensors().items()})

    def narrow(self, latents: Tensor) -> Self:
        """The gate of some latents only, `Int64[Tensor, "n"]`."""
        return replace(self, **{name: value[latents] for name, value in self.tensors().items()})


@dataclass(frozen=True)
class ReluGate(Gate):
    """z = max(pre, 0)."""

    def __call__(self, pre: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Gate`."""
        return codes_from_dense(pre.clamp(min=0), context)

    def describe(self) -> dict[str, object]:
        """See `Gate`."""
        return {"gate": "relu"}


@dataclass(frozen=True)
class TopKGate(Gate):
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


@dataclass(frozen=True)
class AbsTopKGate(Gate):
    """The k pre-activations of each token that are farthest from 0, with their sign (arXiv 2510.00404)."""

    k: int
    """Latents kept per token."""

    def __post_init__(self) -> None:
        if self.k < 1:
            raise AdapterError(f"k = {self.k}: AbsTopK needs at least one latent per token")

    def __call__(self, pre: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Gate`."""
        chosen = codes_from_topk(pre.abs(), self.k, rectify=True, context=context)
        return chosen.with_values(pre[chosen.rows(), chosen.latents])

    def describe(self) -> dict[str, object]:
        """See `Gate`."""
        return {"gate": "abstopk", "k": self.k}


@dataclass(frozen=True, eq=False)
class JumpReluGate(Gate):
    """z = max(pre, 0) where pre exceeds a threshold of the latent's own, else 0."""

    threshold: Tensor
    """`Float[Tensor, "latent"]`; a negative one acts as 0."""

    def __call__(self, pre: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Gate`."""
        exact = _exact(pre)
        active = exact > self.threshold.to(exact).clamp(min=0)
        return codes_from_dense(pre.where(active, pre.new_zeros(())), context)

    def describe(self) -> dict[str, object]:
        """See `Gate`."""
        return {"gate": "jumprelu"}


@dataclass(frozen=True)
class ThresholdGate(Gate):
    """z = pre where pre exceeds one threshold for all latents, else 0: the calibrated sparsity mode."""

    threshold: float
    """In units of the pre-activation; never below 0."""

    def __post_init__(self) -> None:
        if math.isnan(self.threshold):
            raise AdapterError("threshold is NaN: no latent could ever be active")

    def __call__(self, pre: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Gate`."""
        return codes_from_dense(pre.where(_exact(pre) > max(self.threshold, 0.0), pre.new_zeros(())), context)

    def describe(self) -> dict[str, object]:
        """See `Gate`."""
        return {"gate": "threshold", "threshold": self.threshold}


@dataclass(frozen=True, eq=False)
class GatedGate(Gate):
    """z = 1[a + b_gate > 0] max(exp(r_mag) a + b_mag, 0) with a = W_enc (x - b_pre), that is b_enc = 0.

    Source: "Improving Dictionary Learning with Gated Sparse Autoencoders", arXiv 2404.16014, eq. 4 to 6.
    """

    b_gate: Tensor
    """`Float[Tensor, "latent"]`: decides what is active."""
    r_mag: Tensor
    """`Float[Tensor, "latent"]`: logarithm of the rescaling of the magnitude."""
    b_mag: Tensor
    """`Float[Tensor, "latent"]`: bias of the magnitude."""

    def __call__(self, pre: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Gate`."""
        exact = _exact(pre)
        magnitude = (self.r_mag.to(exact).exp() * exact + self.b_mag.to(exact)).clamp(min=0)
        active = exact + self.b_gate.to(exact) > 0
        return codes_from_dense((magnitude * active).to(pre.dtype), context)

    def describe(self) -> dict[str, object]:
        """See `Gate`."""
        return {"gate": "gated"}


def _exact(pre: Tensor) -> Tensor:
    """At least float32, for comparisons: in bfloat16 latents near their threshold flip."""
    return pre if pre.dtype == torch.float64 else pre.float()
