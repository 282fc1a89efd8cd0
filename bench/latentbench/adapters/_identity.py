"""The identity control: every coordinate of an activation as a latent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._codes import Codes, codes_from_dense
from latentbench.adapters._dictionary import Dictionary, Reconstruction, Written
from latentbench.identity import sha256_json
from latentbench.lm import Site

__all__ = ["IdentityDictionary"]


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
        rows = unit[torch.as_tensor(list(latents), dtype=torch.int64, device=self.device)]
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
