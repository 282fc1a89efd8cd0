"""Crosscoders: one code for a token's activations at several sites, and a decoder for each of them.

Source: "Sparse Crosscoders for Cross-Layer Features and Model Diffing", Transformer Circuits Thread, October 2024;
RouteSAE's study (arXiv 2503.08200) trains one over its routed layers as a baseline.
"""

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
from latentbench.adapters._gates import Gate, GatedGate
from latentbench.adapters._sae import check_finite, check_gate, encode_in_blocks, with_gate_card
from latentbench.adapters._transforms import InputTransform
from latentbench.errors import AdapterError
from latentbench.lm import Site

__all__ = ["Crosscoder", "CrosscoderWeights"]


@dataclass(frozen=True, eq=False)
class CrosscoderWeights:
    """An encoder and a decoder for each site, a row for each latent."""

    w_enc: Tensor
    """`Float[Tensor, "site latent d"]`."""
    b_enc: Tensor
    """`Float[Tensor, "latent"]`, one for all sites."""
    w_dec: Tensor
    """`Float[Tensor, "site latent d"]`."""
    b_dec: Tensor
    """`Float[Tensor, "site d"]`, added after decoding."""
    b_pre: Tensor | None = None
    """`Float[Tensor, "site d"]`, subtracted before encoding; None where there is no pre-bias."""

    def __post_init__(self) -> None:
        if self.w_enc.dim() != 3:
            raise AdapterError(
                f"weight w_enc of a crosscoder has shape {tuple(self.w_enc.shape)}; [site, latent, d] is wanted"
            )
        sites, latents, width = self.w_enc.shape
        wanted = {
            "b_enc": (latents,),
            "w_dec": (sites, latents, width),
            "b_dec": (sites, width),
            "b_pre": (sites, width),
        }
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if field.name in wanted and tuple(value.shape) != wanted[field.name]:
                raise AdapterError(
                    f"weight {field.name} has shape {tuple(value.shape)}, but w_enc {tuple(self.w_enc.shape)} "
                    f"asks for {wanted[field.name]}: the checkpoint is transposed or belongs to another format"
                )
            check_finite(field.name, value)

    def pre_activations(self, acts: Tensor) -> Tensor:
        """Sum of the sites' encoders: `Float[Tensor, "token site d"]` -> `Float[Tensor, "token latent"]`."""
        inputs = (acts if self.b_pre is None else acts - self.b_pre).unbind(1)
        # Site by site: one product over all of them needs a copy of the encoders with the sites side by side.
        summed = functional.linear(inputs[0], self.w_enc[0], self.b_enc)
        for at_site, w_enc in zip(inputs[1:], self.w_enc[1:], strict=True):
            summed = torch.addmm(summed, at_site, w_enc.T)
        return summed

    def to(self, device: torch.device | str | None, dtype: torch.dtype | None) -> CrosscoderWeights:
        """The same weights elsewhere or in another type."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {
            name: value.to(device=device, dtype=dtype) for name, value in held.items() if value is not None
        }
        return replace(self, **moved)


class Crosscoder(Dictionary):
    """Reads all its sites at once, has one code per token, and writes every site.

    Reconstructions of the sites stand side by side where one number is asked for: error and variance are those of
    the concatenated activation.
    """

    def __init__(
        self, card: DictionaryCard, weights: CrosscoderWeights, gate: Gate, transform: InputTransform
    ) -> None:
        """Put a crosscoder together.

        Args:
            card: its card; reads and writes are its sites, in the order of the weights.
            weights: encoders and decoders.
            gate: how pre-activations become codes.
            transform: what is done to the activation of every site first, and undone last.

        Raises:
            AdapterError: the card and the weights disagree.
        """
        if tuple(weights.w_enc.shape) != (len(card.reads), card.n_latents, card.d_model):
            raise AdapterError(
                f"card of {card.name!r} says {len(card.reads)} sites, {card.n_latents} latents of width "
                f"{card.d_model}, but the weights are {tuple(weights.w_enc.shape)}"
            )
        if card.reads != card.writes:
            raise AdapterError(
                f"card of {card.name!r} reads {', '.join(card.reads)} but writes {', '.join(card.writes)}: a "
                "crosscoder writes the sites that it reads, in the same order"
            )
        if isinstance(gate.core, GatedGate):
            raise AdapterError(f"{card.name!r}: a crosscoder with a gated encoder is not known")
        check_gate(gate, card)
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

    def encode(self, acts: Mapping[Site, Tensor] | Mapping[str, Tensor]) -> Codes:
        """See `Dictionary.encode`; the context holds each site's statistics, `Float[Tensor, "token site"]`."""
        given = self.located(acts)

        def encode(some: slice) -> Codes:
            return self._encode_block({site: value[some] for site, value in given.items()})

        return encode_in_blocks(self.card, self.dtype, len(given[self.reads[0]]), encode)

    def _encode_block(self, acts: dict[Site, Tensor]) -> Codes:
        placed = self.placed(acts)
        done = [self.transform.apply(placed[site]) for site in self.reads]
        context = {name: torch.cat([one.context[name] for one in done], dim=1) for name in done[0].context}
        inputs = torch.stack([one.acts for one in done], dim=1)
        return self.gate(self.weights.pre_activations(inputs), context)

    def encode_at(self, site: Site, acts: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """Refused: a code needs the activations of all sites.

        Raises:
            AdapterError: always.
        """
        raise AdapterError(
            f"{self.card.name!r} is a crosscoder: its code is that of {len(self.reads)} sites together and "
            f"can't be taken from {site} alone"
        )

    def decode(self, codes: Codes) -> dict[Site, Written]:
        """See `Dictionary.decode`."""
        return {
            site: Written(None, self.transform.undo(self._decoded(codes, index), self._at(codes, index)))
            for index, site in enumerate(self.writes)
        }

    def _decoded(self, codes: Codes, index: int) -> Tensor:
        return decode_rows(codes, self.weights.w_dec[index], self.weights.b_dec[index])

    def _at(self, codes: Codes, index: int) -> dict[str, Tensor]:
        return {name: value[:, index : index + 1] for name, value in codes.context.items()}

    def write_vectors(
        self, latents: Sequence[int], context: Mapping[str, Tensor] | None = None
    ) -> dict[Site, Tensor]:
        """See `Dictionary.write_vectors`: another direction at every site."""
        rows = self.weights.w_dec[:, torch.as_tensor(list(latents), dtype=torch.int64, device=self.device)]
        found: dict[Site, Tensor] = {}
        for index, site in enumerate(self.writes):
            at_site = rows[index]
            if context is not None and self.transform.kind == "none":
                at_site = at_site[None]
            elif context is not None:
                at_site = context["std"][:, index, None, None].to(at_site) * at_site
            found[site] = at_site
        return found

    def raw_scale(self, site: Site, acts: Tensor) -> Tensor:
        """See `Dictionary.raw_scale`."""
        if self.transform.kind == "none":
            return acts.new_ones((*acts.shape[:-1], 1))
        return self.transform.apply(acts).context["std"]

    def routed(self, codes: Codes) -> Tensor | None:
        """None: every token is written at every site."""
        return None

    def reconstructions(self, acts: Mapping[Site, Tensor], codes: Codes) -> dict[str, Reconstruction]:
        """See `Dictionary.reconstructions`; the sites side by side, `Float[Tensor, "token site*d"]`."""
        raw = [acts[site].to(device=self.device, dtype=self.dtype) for site in self.reads]
        inputs = [self.transform.apply(one).acts for one in raw]
        predicted = [self._decoded(codes, index) for index in range(len(raw))]
        undone = [self.transform.undo(one, self._at(codes, index)) for index, one in enumerate(predicted)]
        return {
            "raw": Reconstruction(torch.cat(raw, dim=1), torch.cat(undone, dim=1)),
            "input": Reconstruction(torch.cat(inputs, dim=1), torch.cat(predicted, dim=1)),
        }

    def relative_values(self, acts: Mapping[Site, Tensor], codes: Codes) -> Tensor:
        """See `Dictionary.relative_values`; norms are those of the sites side by side."""
        scaled: Tensor = codes.values * self.weights.w_dec.square().sum(dim=(0, 2)).sqrt()[codes.latents]
        if self.transform.kind in ("standardise", "layer_norm"):
            return scaled / math.sqrt(self.card.d_model * len(self.reads))
        squares = torch.zeros(codes.n_tokens, device=self.device, dtype=self.dtype)
        for site in self.reads:
            inputs = self.transform.apply(acts[site].to(device=self.device, dtype=self.dtype)).acts
            squares += (inputs - inputs.mean(dim=1, keepdim=True)).square().sum(dim=1)
        return scaled / squares.sqrt().clamp(min=torch.finfo(squares.dtype).tiny)[codes.rows()]

    def with_gate(self, gate: Gate) -> Crosscoder:
        """The same crosscoder under another gate; the card's options say so."""
        gate = self.gate.around(gate)
        return Crosscoder(with_gate_card(self.card, self.gate, gate), self.weights, gate, self.transform)

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """See `Dictionary.to`."""
        return type(self)(self.card, self.weights.to(device, dtype), self.gate.to(device), self.transform)
