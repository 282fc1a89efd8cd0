"""Controls: dictionaries whose scores are known to mean nothing, measured beside the real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._codes import Codes, codes_from_dense
from latentbench.adapters._dictionary import Dictionary, Reconstruction, Written
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.errors import AdapterError, UserError
from latentbench.identity import sha256_json
from latentbench.lm import LM, Site

__all__ = ["CONTROL_SCHEMES", "IdentityDictionary", "load_control", "random_decoder"]

CONTROL_SCHEMES = ("identity", "random-decoder")
"""What a source of a control begins with, before a colon."""


def load_control(scheme: str, rest: str, lm: LM | None, load: Callable[[str], Dictionary]) -> Dictionary:
    """A control by the two parts of its source.

    Args:
        scheme: one of `CONTROL_SCHEMES`.
        rest: what follows the colon.
        lm: the model it will be used with, if known.
        load: loads the dictionary that a control is made from.

    Raises:
        UserError: the rest does not fit the scheme.
    """
    if scheme == "identity":
        return _identity(rest, lm)
    return random_decoder(load(rest))


def _identity(rest: str, lm: LM | None) -> IdentityDictionary:
    name, _, width = rest.partition(":")
    if not width and lm is None:
        raise UserError(f"identity:{rest} needs a width: load it with lm=..., or write identity:{name}:576")
    if width and not width.isdigit():
        raise UserError(f"identity:{rest}: {width!r} is not a width; write identity:{name}:576")
    site = lm.site(name) if lm is not None else Site.parse(name)
    d_model = int(width) if width else lm.d_model if lm is not None else 0
    return IdentityDictionary(site, d_model, torch.device("cpu"), torch.float32)


class IdentityDictionary(Dictionary):
    """Each coordinate of the activation is a latent. Perfect reconstruction, no sparsity."""

    def __init__(self, site: Site, d_model: int, device: torch.device, dtype: torch.dtype) -> None:
        """The identity at one site of a model of width `d_model`."""
        self.card = DictionaryCard(
            name=f"identity {site}",
            family="identity",
            reads=(str(site),),
            writes=(str(site),),
            d_model=d_model,
            n_latents=d_model,
            nominal_l0=float(d_model),
            source=f"identity:{site}",
            sha256=sha256_json(["identity", d_model]),
            control=True,
        )
        self._device = device
        self._dtype = dtype

    @property
    def device(self) -> torch.device:
        """See `Dictionary`."""
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """See `Dictionary`."""
        return self._dtype

    def encode(self, acts: Mapping[Site, Tensor] | Mapping[str, Tensor]) -> Codes:
        """See `Dictionary.encode`."""
        return codes_from_dense(self.gather(acts)[self.reads[0]])

    def encode_at(self, site: Site, acts: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Dictionary.encode_at`."""
        return codes_from_dense(acts.to(device=self.device, dtype=self.dtype))

    def decode(self, codes: Codes) -> dict[Site, Written]:
        """See `Dictionary.decode`."""
        return {self.writes[0]: Written(None, codes.dense())}

    def write_vectors(
        self, latents: Sequence[int], context: Mapping[str, Tensor] | None = None
    ) -> dict[Site, Tensor]:
        """See `Dictionary.write_vectors`: unit vectors."""
        unit = torch.eye(self.card.d_model, device=self.device, dtype=self.dtype)
        rows = unit[torch.as_tensor(list(latents), device=self.device)]
        return {self.writes[0]: rows if context is None else rows[None]}

    def raw_scale(self, site: Site, acts: Tensor) -> Tensor:
        """See `Dictionary.raw_scale`."""
        return acts.new_ones((*acts.shape[:-1], 1))

    def routed(self, codes: Codes) -> Tensor | None:
        """None: there is one site."""
        return None

    def reconstructions(self, acts: Mapping[Site, Tensor], codes: Codes) -> dict[str, Reconstruction]:
        """See `Dictionary.reconstructions`."""
        pair = Reconstruction(acts[self.reads[0]].to(device=self.device, dtype=self.dtype), codes.dense())
        return {"raw": pair, "input": pair}

    def relative_values(self, acts: Mapping[Site, Tensor], codes: Codes) -> Tensor:
        """See `Dictionary.relative_values`."""
        inputs = acts[self.reads[0]].to(device=self.device, dtype=self.dtype)
        norms: Tensor = (inputs - inputs.mean(dim=1, keepdim=True)).norm(dim=1)
        return codes.values / norms.clamp(min=torch.finfo(norms.dtype).tiny)[codes.rows()]

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """See `Dictionary.to`."""
        moved = torch.device(device) if device is not None else self._device
        return type(self)(self.reads[0], self.card.d_model, moved, dtype or self._dtype)


def random_decoder(sae: Dictionary, seed: int = 0) -> SparseAutoencoder:
    """A copy of an SAE that keeps its encoder but writes random directions of the same norms.

    Its latents activate exactly as the original's, so whatever depends on the directions alone must fall to
    chance, and whatever does not is no evidence for the directions.

    Raises:
        AdapterError: the dictionary is not a single-site SAE.
    """
    if not isinstance(sae, SparseAutoencoder):
        raise AdapterError(
            f"random-decoder needs a single-site SAE; {sae.card.name!r} is a {sae.card.family}"
        )
    generator = torch.Generator().manual_seed(seed)
    old = sae.weights
    drawn = torch.randn(old.w_dec.shape, generator=generator).to(device=sae.device, dtype=sae.dtype)
    rows = drawn / drawn.norm(dim=1, keepdim=True) * old.w_dec.norm(dim=1, keepdim=True)
    weights = SaeWeights(old.w_enc, old.b_enc, rows, old.b_dec, old.b_pre)
    card = sae.card.model_copy(
        update={
            "name": f"{sae.card.name}, random decoder",
            "family": f"{sae.card.family}-random-decoder",
            "source": f"random-decoder:{sae.card.source}",
            "sha256": sha256_json(["random-decoder", sae.card.sha256, seed]),
            "control": True,
            "training": {},
        }
    )
    return SparseAutoencoder(card, weights, sae.gate, sae.transform)
