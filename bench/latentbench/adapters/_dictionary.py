"""The dictionary protocol: anything that encodes activations at some sites and writes them back at some."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._codes import Codes
from latentbench.errors import AdapterError
from latentbench.lm import Site

__all__ = ["Dictionary", "Reconstruction", "Written"]


class Written(NamedTuple):
    """What a dictionary writes at one site."""

    rows: Tensor | None
    """`Int64[Tensor, "n"]`: the tokens it writes there; None means every token."""
    values: Tensor
    """`Float[Tensor, "n d"]`: their reconstructed activations."""


class Reconstruction(NamedTuple):
    """A target and its prediction in one named space, as error metrics compare them."""

    target: Tensor
    """`Float[Tensor, "token d"]`."""
    prediction: Tensor
    """`Float[Tensor, "token d"]`."""


class Dictionary(ABC):
    """Encode, decode and the directions that latents write; immutable once built.

    Single-layer, routed and cross-layer dictionaries are the same kind of thing: they read activations from a
    mapping of sites and write to a mapping of sites.
    """

    card: DictionaryCard

    @property
    def reads(self) -> tuple[Site, ...]:
        """Sites that `encode` needs."""
        return tuple(Site.parse(name) for name in self.card.reads)

    @property
    def writes(self) -> tuple[Site, ...]:
        """Sites that `decode` gives."""
        return tuple(Site.parse(name) for name in self.card.writes)

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the weights are."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""

    @abstractmethod
    def encode(self, acts: Mapping[Site, Tensor] | Mapping[str, Tensor]) -> Codes:
        """Codes of a batch of tokens.

        Args:
            acts: `Float[Tensor, "token d"]` for every site that the card reads, on any device, in any dtype.

        Raises:
            AdapterError: a site is missing or has the wrong width.
        """

    @abstractmethod
    def decode(self, codes: Codes) -> dict[Site, Written]:
        """Reconstructed activations in raw units, by site."""

    @abstractmethod
    def encode_at(self, site: Site, acts: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """Codes of a current activation at one written site, under the clean pass's per-token state.

        A spliced pass needs this where earlier edits have changed what arrives at a later site.

        Args:
            site: one of `writes`.
            acts: `Float[Tensor, "token d"]`.
            context: the clean codes' context, for these tokens.
        """

    @abstractmethod
    def write_vectors(
        self, latents: Sequence[int], context: Mapping[str, Tensor] | None = None
    ) -> dict[Site, Tensor]:
        """The direction that one unit of each latent writes, by site.

        Returns:
            `Float[Tensor, "latent d"]` in the dictionary's own space; with a context,
            `Float[Tensor, "token latent d"]` in raw units: how `decode` changes with one more unit of the
            latent, which for standardised inputs is the token's own standard deviation times the direction.
            `token` is 1 where all tokens agree.
        """

    @abstractmethod
    def raw_scale(self, site: Site, acts: Tensor) -> Tensor:
        """Raw size of one unit in the dictionary's space at some activations, `Float[Tensor, "... 1"]`.

        Args:
            site: where they come from.
            acts: `Float[Tensor, "... d"]`.
        """

    @abstractmethod
    def routed(self, codes: Codes) -> Tensor | None:
        """`Int64[Tensor, "token"]`: index into `reads` of each token's site, or None without routing."""

    @abstractmethod
    def reconstructions(self, acts: Mapping[Site, Tensor], codes: Codes) -> dict[str, Reconstruction]:
        """What `codes` should give back and what they do, in each space that errors are reported in.

        Returns:
            "raw" (activations as the model has them) and "input" (after the input transform and, for routed
            dictionaries, the scaling by the route's probability: what training minimises).
        """

    @abstractmethod
    def relative_values(self, acts: Mapping[Site, Tensor], codes: Codes) -> Tensor:
        """Each active latent's contribution relative to its token, `Float[Tensor, "nnz"]`.

        value x norm of its decoder row / centred norm of the token's input. On standardised input with unit
        decoder rows this is value / sqrt(d), the scale on which RouteSAE's thresholds 10, 15 and 20 live at
        d = 2048 (arXiv 2503.08200, section 3.4).
        """

    @abstractmethod
    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same dictionary elsewhere or in another type; `self` is not changed."""

    def gather(self, acts: Mapping[Site, Tensor] | Mapping[str, Tensor]) -> dict[Site, Tensor]:
        """The activations of every read site, on this dictionary's device and in its type.

        Raises:
            AdapterError: a site is missing, an activation is not [token, d_model], or the sites have different tokens.
        """
        return self.placed(self.located(acts))

    def placed(self, acts: Mapping[Site, Tensor]) -> dict[Site, Tensor]:
        """The same activations on this dictionary's device and in its type."""
        return {site: value.to(device=self.device, dtype=self.dtype) for site, value in acts.items()}

    def located(self, acts: Mapping[Site, Tensor] | Mapping[str, Tensor]) -> dict[Site, Tensor]:
        """The activations of every read site, checked as `gather` does, as they are."""
        given = {Site.parse(name): value for name, value in acts.items()}
        found: dict[Site, Tensor] = {}
        for site in self.reads:
            if site not in given:
                raise AdapterError(
                    f"dictionary {self.card.name!r} reads {site}, but only "
                    f"{', '.join(map(str, given)) or 'nothing'} "
                    "was given: capture every site that the card's `reads` names"
                )
            value = given[site]
            if value.dim() != 2 or value.shape[1] != self.card.d_model:
                raise AdapterError(
                    f"activations at {site} have shape {tuple(value.shape)}, but dictionary "
                    f"{self.card.name!r} needs "
                    f"[token, {self.card.d_model}]: it was made for another model or site"
                )
            first = next(iter(found.values()), value)
            if len(value) != len(first):
                raise AdapterError(
                    f"activations at {site} are of {len(value)} tokens, but those at {self.reads[0]} of {len(first)}: "
                    "every site needs the same tokens"
                )
            found[site] = value
        return found
