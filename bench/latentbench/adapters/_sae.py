"""Sparse autoencoders and transcoders: affine encoder, a gate, linear decoder, on transformed input."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._codes import Codes, concat_codes, decode_rows
from latentbench.adapters._dictionary import Dictionary, Reconstruction, Written
from latentbench.adapters._gates import Gate, GatedGate
from latentbench.adapters._transforms import InputTransform
from latentbench.errors import AdapterError
from latentbench.lm import Site

__all__ = ["SaeWeights", "SparseAutoencoder", "encode_in_blocks", "with_gate_card"]

BLOCK_BYTES = 64 * 2**20
"""Most bytes of one block's pre-activations and inputs in float32; what is made of them comes to a few times that."""


@dataclass(frozen=True, eq=False)
class SaeWeights:
    """Weights of an affine encoder and a linear decoder, in one orientation: a row for each latent."""

    w_enc: Tensor
    """`Float[Tensor, "latent d"]`."""
    b_enc: Tensor
    """`Float[Tensor, "latent"]`."""
    w_dec: Tensor
    """`Float[Tensor, "latent d_out"]`; d_out is d but for transcoders between sites of two widths."""
    b_dec: Tensor
    """`Float[Tensor, "d_out"]`, added after decoding."""
    b_pre: Tensor | None
    """`Float[Tensor, "d"]`, subtracted before encoding; None where the family has no pre-bias."""
    skip: Tensor | None = None
    """`Float[Tensor, "d_out d"]`: a transcoder's linear path from its raw input to its output, if it has one."""

    def __post_init__(self) -> None:
        if self.w_enc.dim() != 2:
            raise AdapterError(
                f"weight w_enc has shape {tuple(self.w_enc.shape)}; [latent, d] is wanted: three dimensions are those "
                "of a crosscoder"
            )
        latents, width = self.w_enc.shape
        out = self.w_dec.shape[-1] if self.w_dec.dim() == 2 else width
        wanted = {
            "b_enc": (latents,),
            "w_dec": (latents, out),
            "b_dec": (out,),
            "b_pre": (width,),
            "skip": (out, width),
        }
        for name, shape in wanted.items():
            value = getattr(self, name)
            if value is not None and tuple(value.shape) != shape:
                raise AdapterError(
                    f"weight {name} has shape {tuple(value.shape)}, but w_enc {tuple(self.w_enc.shape)} "
                    f"asks for {shape}: the checkpoint is transposed or belongs to another format"
                )
        for field in fields(self):
            check_finite(field.name, getattr(self, field.name))

    def pre_activations(self, acts: Tensor) -> Tensor:
        """Affine encoder: `Float[Tensor, "token d"]` -> `Float[Tensor, "token latent"]`."""
        # Subtracted first: W x and W b_pre apart can be far larger than their difference, which rounding then eats.
        inputs = acts if self.b_pre is None else acts - self.b_pre
        return functional.linear(inputs, self.w_enc, self.b_enc)

    def to(self, device: torch.device | str | None, dtype: torch.dtype | None) -> SaeWeights:
        """The same weights elsewhere or in another type."""
        return self._mapped(lambda _name, weight: weight.to(device=device, dtype=dtype))

    def narrow(self, latents: Tensor) -> SaeWeights:
        """The weights of some latents only, `Int64[Tensor, "n"]`."""
        own = ("w_enc", "b_enc", "w_dec")
        return self._mapped(lambda name, weight: weight[latents] if name in own else weight)

    def _mapped(self, change: Callable[[str, Tensor], Tensor]) -> SaeWeights:
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(
            self, **{name: change(name, value) for name, value in held.items() if value is not None}
        )


def check_finite(name: str, weight: Tensor | None) -> None:
    """Refuse a weight with NaN or infinite numbers in it.

    Raises:
        AdapterError: it holds some.
    """
    if weight is None or not weight.numel():
        return
    # The extremes are NaN if any number is; a mask of the whole weight would take as much memory as it does.
    low, high = torch.aminmax(weight.detach())
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        bad = int((~torch.isfinite(weight)).sum())
        raise AdapterError(
            f"weight {name} holds {bad} NaN or infinite numbers: the checkpoint is damaged "
            "or its training diverged; it can't be measured"
        )


def check_gate(gate: Gate, card: DictionaryCard) -> None:
    """Refuse a gate whose tensors are not one number for each latent.

    Raises:
        AdapterError: a tensor has another shape, or NaN in it.
    """
    for name, value in gate.tensors().items():
        if tuple(value.shape) != (card.n_latents,):
            raise AdapterError(
                f"{name} of {card.name!r} has shape {tuple(value.shape)}, but its gate needs one number for each of "
                f"{card.n_latents} latents"
            )
        if bool(value.isnan().any()):
            raise AdapterError(f"{name} of {card.name!r} holds NaN: the checkpoint is damaged")


def encode_in_blocks(
    card: DictionaryCard, dtype: torch.dtype, tokens: int, encode: Callable[[slice], Codes]
) -> Codes:
    """Encode many tokens a block at a time, so that memory does not grow with their number but for the codes.

    Args:
        card: of the dictionary: its sites and sizes tell what one token takes.
        dtype: what it computes in.
        tokens: how many there are.
        encode: gives the codes of a slice of them.
    """
    numbers = card.n_latents + 2 * len(card.reads) * card.d_model
    block = max(1, BLOCK_BYTES // (numbers * max(4, dtype.itemsize)))  # gates compute in float32 at least
    starts = range(0, max(1, tokens), block)
    return concat_codes([encode(slice(first, first + block)) for first in starts])


class SparseAutoencoder(Dictionary):
    """One site in, one site out: x -> transform -> W_enc (x - b_pre) + b_enc -> gate -> W_dec z + b_dec -> undone.

    The families differ in their gate. Where the site written is another than the site read it is a transcoder:
    it predicts one activation from another, and nothing is undone, since the input's scale says nothing of the
    output's.
    """

    def __init__(
        self, card: DictionaryCard, weights: SaeWeights, gate: Gate, transform: InputTransform
    ) -> None:
        """Put an SAE together.

        Args:
            card: its card; it reads one site and writes one site.
            weights: encoder and decoder.
            gate: how pre-activations become codes.
            transform: what is done to the input first and undone last; only "none" for a transcoder.

        Raises:
            AdapterError: the card and the weights disagree, or the weights hold NaN.
        """
        if tuple(weights.w_enc.shape) != (card.n_latents, card.d_model):
            raise AdapterError(
                f"card of {card.name!r} says {card.n_latents} latents of width {card.d_model}, but the "
                f"weights are {tuple(weights.w_enc.shape)}"
            )
        if len(card.reads) != 1 or len(card.writes) != 1:
            raise AdapterError(
                f"card of {card.name!r} reads {', '.join(card.reads)} and writes {', '.join(card.writes)}: an "
                "SAE has one site each; several are a RouteSAE or a crosscoder"
            )
        check_gate(gate, card)
        self.card = card
        self.weights = weights
        self.gate = gate
        self.transform = transform
        if self.is_transcoder:
            if transform.kind != "none":
                raise AdapterError(
                    f"{card.name!r} is a transcoder with the input transform {transform.kind!r}: what it would "
                    "take to undo that at the output is not defined; only 'none' is"
                )
        elif weights.skip is not None or weights.w_dec.shape[1] != card.d_model:
            raise AdapterError(
                f"{card.name!r} reads and writes {card.reads[0]}, but has "
                + (
                    "a skip matrix"
                    if weights.skip is not None
                    else f"decoder rows of {weights.w_dec.shape[1]}"
                )
                + ": it is a transcoder, and its card must name the site that it writes"
            )

    @property
    def is_transcoder(self) -> bool:
        """Whether it writes another site than it reads."""
        return self.reads != self.writes

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
        """The one site it reads."""
        return self.reads[0]

    def encode(self, acts: Mapping[Site, Tensor] | Mapping[str, Tensor]) -> Codes:
        """See `Dictionary.encode`."""
        return self._encode(self.located(acts)[self.site])

    def encode_at(self, site: Site, acts: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Dictionary.encode_at`; the statistics are always those of the activation given.

        Raises:
            AdapterError: it is a transcoder, whose output can't be encoded.
        """
        if self.is_transcoder:
            raise AdapterError(
                f"{self.card.name!r} is a transcoder: it encodes {self.site}, not what it writes at {site}"
            )
        return self._encode(acts)

    def _encode(self, acts: Tensor) -> Codes:
        return encode_in_blocks(self.card, self.dtype, len(acts), lambda some: self._encode_block(acts[some]))

    def _encode_block(self, acts: Tensor) -> Codes:
        acts = acts.to(device=self.device, dtype=self.dtype)
        transformed = self.transform.apply(acts)
        context = dict(transformed.context)
        if self.weights.skip is not None:
            context["skip"] = functional.linear(acts, self.weights.skip)
        return self.encode_transformed(transformed.acts, context)

    def encode_transformed(self, inputs: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """Codes of inputs that the transform is done to already, `Float[Tensor, "token d"]`; all at once."""
        return self.gate(self.weights.pre_activations(inputs), context)

    def decode(self, codes: Codes) -> dict[Site, Written]:
        """See `Dictionary.decode`."""
        return {self.writes[0]: Written(None, self.transform.undo(self.decode_input(codes), codes.context))}

    def decode_input(self, codes: Codes) -> Tensor:
        """Reconstruction in the space after the input transform, `Float[Tensor, "token d_out"]`."""
        decoded = decode_rows(codes, self.weights.w_dec, self.weights.b_dec)
        return decoded if self.weights.skip is None else decoded + codes.context["skip"].to(decoded)

    def write_vectors(
        self, latents: Sequence[int], context: Mapping[str, Tensor] | None = None
    ) -> dict[Site, Tensor]:
        """See `Dictionary.write_vectors`."""
        rows = self.weights.w_dec[torch.as_tensor(list(latents), dtype=torch.int64, device=self.device)]
        if context is not None:
            rows = rows[None] if self.transform.kind == "none" else context["std"].to(rows)[:, :, None] * rows
        return {self.writes[0]: rows}

    def raw_scale(self, site: Site, acts: Tensor) -> Tensor:
        """See `Dictionary.raw_scale`."""
        if self.transform.kind == "none":
            return acts.new_ones((*acts.shape[:-1], 1))
        return self.transform.apply(acts).context["std"]

    def routed(self, codes: Codes) -> Tensor | None:
        """None: every token is written at the one site."""
        return None

    def reconstructions(self, acts: Mapping[Site, Tensor], codes: Codes) -> dict[str, Reconstruction]:
        """See `Dictionary.reconstructions`; a transcoder's target is the activation at the site it writes."""
        raw = self._written(acts)
        predicted = self.decode_input(codes)
        return {
            "raw": Reconstruction(raw, self.transform.undo(predicted, codes.context)),
            "input": Reconstruction(self.transform.apply(raw).acts, predicted),
        }

    def relative_values(self, acts: Mapping[Site, Tensor], codes: Codes) -> Tensor:
        """See `Dictionary.relative_values`; a transcoder's are relative to the activation that it predicts."""
        scaled: Tensor = codes.values * self.weights.w_dec.norm(dim=1)[codes.latents]
        if self.transform.kind in ("standardise", "layer_norm"):
            return scaled / math.sqrt(self.card.d_model)
        inputs = self.transform.apply(self._written(acts)).acts
        norms: Tensor = (inputs - inputs.mean(dim=1, keepdim=True)).norm(dim=1)
        return scaled / norms.clamp(min=torch.finfo(norms.dtype).tiny)[codes.rows()]

    def _written(self, acts: Mapping[Site, Tensor]) -> Tensor:
        site = self.writes[0]
        if site not in acts:
            raise AdapterError(
                f"{self.card.name!r} predicts {site}, but only {', '.join(map(str, acts))} was given: capture "
                "every site that the card's `writes` names too"
            )
        return acts[site].to(device=self.device, dtype=self.dtype)

    def with_gate(self, gate: Gate) -> SparseAutoencoder:
        """The same SAE under another gate; the card's options say so.

        A gated SAE is then ranked by its magnitudes exp(r_mag) a + b_mag, and b_gate no longer plays a part.
        """
        weights, old = self.weights, self.gate.core
        if isinstance(old, GatedGate) and not isinstance(gate.core, GatedGate):
            growth = old.r_mag.to(weights.w_enc).exp()
            weights = replace(
                weights, w_enc=weights.w_enc * growth[:, None], b_enc=old.b_mag.to(weights.w_enc)
            )
        gate = self.gate.around(gate)
        return SparseAutoencoder(with_gate_card(self.card, self.gate, gate), weights, gate, self.transform)

    def narrow(self, latents: Tensor, card: DictionaryCard) -> SparseAutoencoder:
        """The SAE of some latents only, `Int64[Tensor, "n"]`, under a card that says so."""
        return SparseAutoencoder(
            card, self.weights.narrow(latents), self.gate.narrow(latents), self.transform
        )

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """See `Dictionary.to`."""
        return type(self)(self.card, self.weights.to(device, dtype), self.gate.to(device), self.transform)


def with_gate_card(card: DictionaryCard, old: Gate, new: Gate) -> DictionaryCard:
    """A card that tells of another gate: its options, and the sparsity that it asks for."""
    gone = {*old.describe(), *new.describe()}
    options = {name: value for name, value in card.options.items() if name not in gone}
    k = new.describe().get("k")
    return card.model_copy(
        update={
            "options": {**options, **new.describe()},
            "nominal_l0": float(k) if isinstance(k, int) else None,
        }
    )
