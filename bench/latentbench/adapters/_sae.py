"""Single-site sparse autoencoders: affine encoder, a gate, linear decoder, on transformed input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._codes import Codes, decode_rows
from latentbench.adapters._dictionary import Dictionary, Reconstruction, Written
from latentbench.adapters._gates import Gate, JumpReluGate
from latentbench.adapters._transforms import InputTransform
from latentbench.errors import AdapterError
from latentbench.lm import Site

__all__ = ["SaeWeights", "SparseAutoencoder"]


@dataclass(frozen=True, eq=False)
class SaeWeights:
    """Weights of an affine encoder and a linear decoder, in one orientation: a row for each latent."""

    w_enc: Tensor
    """`Float[Tensor, "latent d"]`."""
    b_enc: Tensor
    """`Float[Tensor, "latent"]`."""
    w_dec: Tensor
    """`Float[Tensor, "latent d"]`."""
    b_dec: Tensor
    """`Float[Tensor, "d"]`, added after decoding."""
    b_pre: Tensor | None
    """`Float[Tensor, "d"]`, subtracted before encoding; None where the family has no pre-bias."""

    def __post_init__(self) -> None:
        latents, width = self.w_enc.shape
        wanted = {"b_enc": (latents,), "w_dec": (latents, width), "b_dec": (width,), "b_pre": (width,)}
        for name, shape in wanted.items():
            value = getattr(self, name)
            if value is not None and tuple(value.shape) != shape:
                raise AdapterError(
                    f"weight {name} has shape {tuple(value.shape)}, but w_enc {tuple(self.w_enc.shape)} "
                    f"asks for {shape}: the checkpoint is transposed or belongs to another format"
                )
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not bool(torch.isfinite(value).all()):
                bad = int((~torch.isfinite(value)).sum())
                raise AdapterError(
                    f"weight {field.name} holds {bad} NaN or infinite numbers: the checkpoint is damaged "
                    "or its training diverged; it can't be measured"
                )

    def pre_activations(self, acts: Tensor) -> Tensor:
        """Affine encoder: `Float[Tensor, "token d"]` -> `Float[Tensor, "token latent"]`."""
        # (x - b_pre) W' + b = x W' + (b - W b_pre): one matrix product and no copy of x.
        bias = self.b_enc if self.b_pre is None else self.b_enc - self.w_enc @ self.b_pre
        return functional.linear(acts, self.w_enc, bias)

    def to(self, device: torch.device | str | None, dtype: torch.dtype | None) -> SaeWeights:
        """The same weights elsewhere or in another type."""

        def moved(weight: Tensor) -> Tensor:
            return weight.to(device=device, dtype=dtype)

        return SaeWeights(
            w_enc=moved(self.w_enc),
            b_enc=moved(self.b_enc),
            w_dec=moved(self.w_dec),
            b_dec=moved(self.b_dec),
            b_pre=None if self.b_pre is None else moved(self.b_pre),
        )


class SparseAutoencoder(Dictionary):
    """A single-site SAE: x -> transform -> W_enc (x - b_pre) + b_enc -> gate -> W_dec z + b_dec -> undone.

    ReLU, TopK, JumpReLU and threshold families differ only in their gate.
    """

    def __init__(
        self, card: DictionaryCard, weights: SaeWeights, gate: Gate, transform: InputTransform
    ) -> None:
        """Put an SAE together.

        Args:
            card: its card; reads and writes must be one and the same site.
            weights: encoder and decoder.
            gate: how pre-activations become codes.
            transform: what is done to the input first and undone last.

        Raises:
            AdapterError: the card and the weights disagree, or the weights hold NaN.
        """
        if tuple(weights.w_enc.shape) != (card.n_latents, card.d_model):
            raise AdapterError(
                f"card of {card.name!r} says {card.n_latents} latents of width {card.d_model}, but the "
                f"weights are {tuple(weights.w_enc.shape)}"
            )
        self.card = card
        self.weights = weights
        self.gate = gate
        self.transform = transform

    @property
    def device(self) -> torch.device:
        """See `Dictionary`."""
        return self.weights.w_dec.device

    @property
    def dtype(self) -> torch.dtype:
        """See `Dictionary`."""
        return self.weights.w_dec.dtype

    @property
    def site(self) -> Site:
        """The one site it reads and writes."""
        return self.reads[0]

    def encode(self, acts: Mapping[Site, Tensor] | Mapping[str, Tensor]) -> Codes:
        """See `Dictionary.encode`."""
        return self.encode_at(self.site, self.gather(acts)[self.site], {})

    def encode_at(self, site: Site, acts: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Dictionary.encode_at`; the statistics are always those of the activation given."""
        transformed = self.transform.apply(acts.to(device=self.device, dtype=self.dtype))
        return self.gate(self.weights.pre_activations(transformed.acts), transformed.context)

    def decode(self, codes: Codes) -> dict[Site, Written]:
        """See `Dictionary.decode`."""
        return {self.site: Written(None, self.transform.undo(self.decode_input(codes), codes.context))}

    def decode_input(self, codes: Codes) -> Tensor:
        """Reconstruction in the space after the input transform, `Float[Tensor, "token d"]`."""
        return decode_rows(codes, self.weights.w_dec, self.weights.b_dec)

    def write_vectors(
        self, latents: Sequence[int], context: Mapping[str, Tensor] | None = None
    ) -> dict[Site, Tensor]:
        """See `Dictionary.write_vectors`."""
        rows = self.weights.w_dec[torch.as_tensor(list(latents), device=self.device)]
        if context is not None:
            rows = rows[None] if self.transform.kind == "none" else context["std"].to(rows)[:, :, None] * rows
        return {self.site: rows}

    def raw_scale(self, site: Site, acts: Tensor) -> Tensor:
        """See `Dictionary.raw_scale`."""
        if self.transform.kind == "none":
            return acts.new_ones((*acts.shape[:-1], 1))
        return self.transform.apply(acts).context["std"]

    def routed(self, codes: Codes) -> Tensor | None:
        """None: every token is written at the one site."""
        return None

    def reconstructions(self, acts: Mapping[Site, Tensor], codes: Codes) -> dict[str, Reconstruction]:
        """See `Dictionary.reconstructions`."""
        raw = acts[self.site].to(device=self.device, dtype=self.dtype)
        predicted = self.decode_input(codes)
        return {
            "raw": Reconstruction(raw, self.transform.undo(predicted, codes.context)),
            "input": Reconstruction(self.transform.apply(raw).acts, predicted),
        }

    def relative_values(self, acts: Mapping[Site, Tensor], codes: Codes) -> Tensor:
        """See `Dictionary.relative_values`."""
        scaled: Tensor = codes.values * self.weights.w_dec.norm(dim=1)[codes.latents]
        if self.transform.kind in ("standardise", "layer_norm"):
            return scaled / math.sqrt(self.card.d_model)
        inputs = self.transform.apply(acts[self.site].to(device=self.device, dtype=self.dtype)).acts
        norms: Tensor = (inputs - inputs.mean(dim=1, keepdim=True)).norm(dim=1)
        return scaled / norms.clamp(min=torch.finfo(norms.dtype).tiny)[codes.rows()]

    def with_gate(self, gate: Gate) -> SparseAutoencoder:
        """The same SAE under another gate; the card's options say so."""
        kept = {name: value for name, value in self.card.options.items() if name not in self.gate.describe()}
        options = {**kept, **gate.describe()}
        card = self.card.model_copy(update={"options": options})
        return SparseAutoencoder(card, self.weights, gate, self.transform)

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """See `Dictionary.to`."""
        gate = self.gate
        if isinstance(gate, JumpReluGate):  # thresholds stay in float32, see the gate
            gate = replace(gate, threshold=gate.threshold.to(device=device))
        return type(self)(self.card, self.weights.to(device, dtype), gate, self.transform)
