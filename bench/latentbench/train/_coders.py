"""Encoders and decoders under training: TopK, ReLU, Gated and JumpReLU, as RouteSAE's study defines them.

Source: GitHub swei2001/RouteSAEs; there none of them has an auxiliary loss, and the L1 penalty is on the mean
of |z| over all latents.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from latentbench.adapters import codes_from_topk, decode_rows

__all__ = ["Coder", "GatedCoder", "JumpReluCoder", "Pass", "ReluCoder", "TopKCoder"]


class Pass(NamedTuple):
    """What a coder makes of a batch."""

    predicted: Tensor
    """`Float[Tensor, "token d"]`, the reconstruction of its input."""
    active: Tensor
    """`Float[Tensor, "token"]`, active latents of each token."""
    penalty: Tensor | None
    """What the penalty's weight multiplies, a mean over tokens; None for TopK."""


class Coder(nn.Module):
    """Weights that all kinds share: z = gate(W_enc (x - b_pre) + b_enc), xhat = W_dec z + b_pre."""

    def __init__(
        self, d: int, latents: int, generator: torch.Generator, *, parts: int = 1, pre_bias: bool = True
    ) -> None:
        """Fresh weights: Kaiming-uniform encoder, decoder its normalised copy, zero biases.

        Args:
            d: width of the activations of one site.
            latents: width of the dictionary.
            generator: draws the encoder.
            parts: sites whose activations stand side by side in an input (crosscoder); each has decoder rows
                of its own, and each of them unit norm.
            pre_bias: False leaves b_pre out (RouteSAE's crosscoder has none).
        """
        super().__init__()
        bound = 1 / math.sqrt(d)  # nn.Linear's default, which the official code keeps
        encoder = torch.empty(latents, parts * d).uniform_(-bound, bound, generator=generator)
        self.parts = parts
        self.w_enc = nn.Parameter(encoder)
        self.w_dec = nn.Parameter(encoder.clone())
        self.b_enc = nn.Parameter(torch.zeros(latents))
        self.b_pre = nn.Parameter(torch.zeros(parts * d), requires_grad=pre_bias)
        self.normalise_decoder()

    def pre_activations(self, inputs: Tensor) -> Tensor:
        """`Float[Tensor, "token latent"]` of `Float[Tensor, "token d"]`."""
        return nn.functional.linear(inputs - self.b_pre, self.w_enc, self.b_enc)

    def reconstruct(self, dense: Tensor) -> Tensor:
        """`Float[Tensor, "token d"]` of `Float[Tensor, "token latent"]`."""
        return dense @ self.w_dec + self.b_pre

    @torch.no_grad()
    def normalise_decoder(self) -> None:
        """Set every decoder row to unit norm, at each site for itself."""
        by_site = self.w_dec.view(self.w_dec.shape[0], self.parts, -1)
        by_site.div_(by_site.norm(dim=2, keepdim=True))


class TopKCoder(Coder):
    """The k largest pre-activations, with their sign."""

    def __init__(self, d: int, latents: int, generator: torch.Generator, *, k: int) -> None:
        """See `Coder`; k latents are kept per token."""
        super().__init__(d, latents, generator)
        self.k = k

    def forward(self, inputs: Tensor) -> Pass:
        """One batch, through the sparse decode."""
        codes = codes_from_topk(self.pre_activations(inputs), self.k, rectify=False)
        return Pass(decode_rows(codes, self.w_dec, self.b_pre), codes.counts(), None)


class ReluCoder(Coder):
    """z = max(pre, 0), with L1."""

    def forward(self, inputs: Tensor) -> Pass:
        """One batch."""
        dense = self.pre_activations(inputs).relu()
        return Pass(self.reconstruct(dense), (dense > 0).sum(dim=1), dense.mean())


class GatedCoder(Coder):
    """z = 1[a + b_gate > 0] max(exp(r_mag) a + b_mag, 0) with a = W_enc (x - b_pre), with L1.

    Without the auxiliary loss of the Gated SAE paper (arXiv 2404.16014) nothing trains b_gate, as in RouteSAE's
    study: it stays 0, and sparsity comes from b_mag.
    """

    def __init__(self, d: int, latents: int, generator: torch.Generator) -> None:
        """See `Coder`."""
        super().__init__(d, latents, generator)
        self.b_enc.requires_grad = False
        self.b_gate = nn.Parameter(torch.zeros(latents), requires_grad=False)
        self.r_mag = nn.Parameter(torch.zeros(latents))
        self.b_mag = nn.Parameter(torch.zeros(latents))

    def forward(self, inputs: Tensor) -> Pass:
        """One batch."""
        raw = self.pre_activations(inputs)
        magnitude = (self.r_mag.exp() * raw + self.b_mag).relu()
        dense = magnitude * (raw + self.b_gate > 0)
        return Pass(self.reconstruct(dense), (dense > 0).sum(dim=1), dense.mean())


class JumpReluCoder(Coder):
    """z = pre where pre > threshold, with L0; thresholds learn through a rectangle (arXiv 2407.14435)."""

    def __init__(
        self, d: int, latents: int, generator: torch.Generator, *, threshold: float, bandwidth: float
    ) -> None:
        """See `Coder`; `threshold` is the first one, `bandwidth` the width of the rectangle."""
        super().__init__(d, latents, generator)
        self.bandwidth = bandwidth
        self.threshold = nn.Parameter(torch.full((latents,), threshold))

    def forward(self, inputs: Tensor) -> Pass:
        """One batch."""
        pre = self.pre_activations(inputs)
        dense, active = _JumpRelu.apply(pre, self.threshold, self.bandwidth)  # type: ignore[no-untyped-call]
        per_token = active.sum(dim=1)
        return Pass(self.reconstruct(dense), per_token.detach(), per_token.mean())


class _JumpRelu(torch.autograd.Function):
    """JumpReLU and its step function, with the straight-through gradients of arXiv 2407.14435, eq. 11 and 12."""

    @staticmethod
    def forward(ctx: Any, pre: Tensor, threshold: Tensor, bandwidth: float) -> tuple[Tensor, Tensor]:
        above = pre > threshold.clamp(min=0)
        ctx.save_for_backward(pre, threshold, above)
        ctx.bandwidth = bandwidth
        return pre * above, above.to(pre.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, None]:
        pre, threshold, above = ctx.saved_tensors
        of_dense, of_active = grads
        inside = (pre - threshold).abs() < ctx.bandwidth / 2
        slope = -(threshold * of_dense + of_active) * inside / ctx.bandwidth
        return of_dense * above, slope.sum(dim=0), None
