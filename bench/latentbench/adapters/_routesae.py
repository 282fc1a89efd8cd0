"""RouteSAE: one shared TopK SAE and a router that picks a layer for every token.

Source: "Route Sparse Autoencoder to Interpret Large Language Models", arXiv 2503.08200v3, equations 4 to 12,
and the code at GitHub swei2001/RouteSAEs, which adds the per-token standardisation, the latent bias and
signed TopK that the equations leave out. Where the two differ, `splice` names the choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, Self

import torch
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._codes import Codes
from latentbench.adapters._dictionary import Dictionary, Reconstruction, Written
from latentbench.adapters._gates import Gate
from latentbench.adapters._sae import SparseAutoencoder, encode_in_blocks, with_gate_card
from latentbench.errors import AdapterError
from latentbench.lm import Site

__all__ = ["Pooling", "RouteSae", "Routing", "SpliceMode", "route_tokens", "routed_sites", "soft_weights"]

Pooling = Literal["sum", "mean"]
Routing = Literal["hard", "soft", "random"]
SpliceMode = Literal["paper", "code", "corrected"]


def routed_sites(n_layers: int) -> tuple[Site, ...]:
    """The sites RouteSAE routes over: Hugging Face `hidden_states[n//4 : 3n//4 + 1]`; entry i is block i - 1.

    Raises:
        AdapterError: fewer than 4 layers (the paper's code refuses those too).
    """
    if n_layers < 4:
        raise AdapterError(f"RouteSAE needs a model of at least 4 layers; this one has {n_layers}")
    return tuple(Site("resid_post", entry - 1) for entry in range(n_layers // 4, n_layers * 3 // 4 + 1))


def route_tokens(
    stacked: Tensor, router: Tensor, pooling: Pooling, routing: Routing = "hard"
) -> tuple[Tensor, Tensor]:
    """The site that every token is read from.

    "hard" is equations 5 to 8: pool over sites, router logits, softmax, arg max. "random" is the paper's
    control, every site with equal weight and none scaled: here a fixed hash of the token's activation at the
    first site (a random projection, wrapped), so that a token takes the same route in every batch and run.

    Args:
        stacked: `Float[Tensor, "site token d"]`, standardised.
        router: `Float[Tensor, "site d"]`; for "random" only row 0 is used, a unit vector.
        pooling: "sum" (the paper) or "mean" over sites.
        routing: see above; "soft" chooses no site, see `soft_weights`.

    Returns:
        The chosen site of each token, `Int64[Tensor, "token"]`, and the probability its input is scaled by,
        `Float[Tensor, "token"]`, through which gradients reach the router (1 for "random").
    """
    if routing == "random":
        # The projection of a standardised token has a spread of about 1; seven turns of it wrap to uniform.
        turns = (stacked[0] @ router[0] * 7.0).remainder(1.0)
        route = (turns * stacked.shape[0]).long().clamp(max=stacked.shape[0] - 1)
        return route, torch.ones_like(turns)
    best, route = soft_weights(stacked, router, pooling).max(dim=-1)
    return route, best


def soft_weights(stacked: Tensor, router: Tensor, pooling: Pooling) -> Tensor:
    """Probability of every site, `Float[Tensor, "token site"]` (equations 5 to 7); see `route_tokens`."""
    pooled = stacked.sum(dim=0) if pooling == "sum" else stacked.mean(dim=0)
    return torch.softmax(pooled @ router.T, dim=-1)


class RouteSae(Dictionary):
    """A shared SAE behind a router.

    Encoding scales the routed, standardised activation by the route's probability p (equation 9). What a
    spliced pass does with p is where text and code part: `paper` encodes p x and writes the reconstruction of
    p x as it is; `code` encodes x without p; `corrected` encodes p x and divides the reconstruction by p, so
    that a perfect SAE reproduces x.

    Soft routing (equation 14) encodes the mean of the sites weighted by their probabilities. It can be encoded and
    counted, but belongs to no site, so it can't be decoded into the model; the paper's code refuses that as well.
    """

    def __init__(
        self,
        card: DictionaryCard,
        router: Tensor,
        sae: SparseAutoencoder,
        pooling: Pooling = "sum",
        splice: SpliceMode = "corrected",
        routing: Routing = "hard",
    ) -> None:
        """Put a RouteSAE together.

        Args:
            card: its card; reads are the routed sites in router order.
            router: `Float[Tensor, "site d"]`.
            sae: the shared SAE, with the input transform "standardise".
            pooling: how the router pools sites.
            splice: see the class.
            routing: see `route_tokens` and the class.

        Raises:
            AdapterError: router and card disagree, or the router holds NaN.
        """
        if tuple(router.shape) != (len(card.reads), card.d_model):
            raise AdapterError(
                f"router of {card.name!r} is {tuple(router.shape)}, but the card names {len(card.reads)} "
                f"sites of width {card.d_model}"
            )
        if not bool(torch.isfinite(router).all()):
            raise AdapterError(
                f"router of {card.name!r} holds NaN or infinite numbers: the checkpoint is damaged"
            )
        if sae.transform.kind != "standardise":
            raise AdapterError(
                f"the SAE of {card.name!r} has the input transform {sae.transform.kind!r}, and a router compares "
                "layers of different scale: 'standardise' is wanted"
            )
        self.card = card
        self.router = router
        self.sae = sae
        self.pooling: Pooling = pooling
        self.splice: SpliceMode = splice
        self.routing: Routing = routing

    @property
    def device(self) -> torch.device:
        """See `Dictionary`."""
        return self.sae.device

    @property
    def dtype(self) -> torch.dtype:
        """See `Dictionary`."""
        return self.sae.dtype

    @property
    def pools(self) -> tuple[Site, ...]:
        """Sites that the router sees when it steers: those that it routes over."""
        return self.reads

    def route(self, acts: Mapping[Site, Tensor]) -> tuple[Tensor, Tensor]:
        """Routed site (index into `reads`) and its probability for every token.

        Args:
            acts: `Float[Tensor, "token d"]` at every site of `pools`.
        """
        stacked = torch.stack([self.sae.transform.apply(acts[site]).acts for site in self.reads])
        return route_tokens(stacked, self.router, self.pooling, self.routing)

    def _soft_input(self, acts: Mapping[Site, Tensor]) -> Tensor:
        stacked = torch.stack([self.sae.transform.apply(acts[site]).acts for site in self.reads])
        weights = soft_weights(stacked, self.router, self.pooling)
        return torch.einsum("ts,std->td", weights, stacked)

    def needs_a_site(self) -> None:
        """Check that tokens have a site to be written at.

        Raises:
            AdapterError: routing is soft.
        """
        if self.routing == "soft":
            raise AdapterError(
                f"{self.card.name!r} was trained with soft routing, which reads a mean of all sites and so has no "
                "site to be spliced or steered at; only hard and random routing have"
            )

    def encode(self, acts: Mapping[Site, Tensor] | Mapping[str, Tensor]) -> Codes:
        """See `Dictionary.encode`."""
        given = self.located(acts)

        def encode(some: slice) -> Codes:
            return self._encode_block({site: value[some] for site, value in given.items()})

        return encode_in_blocks(self.card, self.dtype, len(given[self.reads[0]]), encode)

    def _encode_block(self, acts: dict[Site, Tensor]) -> Codes:
        placed = self.placed(acts)
        if self.routing == "soft":
            return self.sae.encode_transformed(self._soft_input(placed), {})
        route, probability = self.route(placed)
        chosen = torch.stack([placed[site] for site in self.reads])[
            route, torch.arange(len(route), device=route.device)
        ]
        return self._encode(chosen, {"route": route, "route_probability": probability}, scale=True)

    def encode_at(self, site: Site, acts: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Dictionary.encode_at`; route and probability stay those of the clean pass."""
        self.needs_a_site()
        kept = self._kept(context)

        def encode(some: slice) -> Codes:
            placed = acts[some].to(device=self.device, dtype=self.dtype)
            its = {name: value[some] for name, value in kept.items()}
            return self._encode(placed, its, scale=self.splice != "code")

        return encode_in_blocks(self.card, self.dtype, len(acts), encode)

    @staticmethod
    def _kept(context: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: context[name] for name in ("route", "route_probability")}

    def _encode(self, acts: Tensor, context: Mapping[str, Tensor], *, scale: bool) -> Codes:
        transformed = self.sae.transform.apply(acts)
        inputs = transformed.acts * context["route_probability"][:, None] if scale else transformed.acts
        return self.sae.encode_transformed(inputs, {**transformed.context, **context})

    def decode(self, codes: Codes) -> dict[Site, Written]:
        """See `Dictionary.decode`: each token is written only at its routed site.

        Raises:
            AdapterError: routing is soft.
        """
        self.needs_a_site()
        predicted = self.sae.decode_input(codes)
        if self.splice == "corrected":
            predicted = predicted / codes.context["route_probability"][:, None].to(predicted.dtype)
        raw = self.sae.transform.undo(predicted, codes.context)
        written: dict[Site, Written] = {}
        for index, site in enumerate(self.reads):
            rows = (codes.context["route"] == index).nonzero()[:, 0]
            if len(rows):
                written[site] = Written(rows, raw[rows])
        return written

    def write_vectors(
        self, latents: Sequence[int], context: Mapping[str, Tensor] | None = None
    ) -> dict[Site, Tensor]:
        """See `Dictionary.write_vectors`: one direction at every routed site, over p if `corrected`."""
        if context is not None and self.splice == "corrected":
            context = {**context, "std": context["std"] / context["route_probability"][:, None]}
        rows = self.sae.write_vectors(latents, context)[self.sae.site]
        return dict.fromkeys(self.writes, rows)

    def raw_scale(self, site: Site, acts: Tensor) -> Tensor:
        """See `Dictionary.raw_scale`."""
        self.needs_a_site()
        return self.sae.raw_scale(site, acts)

    def routed(self, codes: Codes) -> Tensor | None:
        """The routed site of every token; None if routing is soft."""
        return codes.context.get("route")

    def reconstructions(self, acts: Mapping[Site, Tensor], codes: Codes) -> dict[str, Reconstruction]:
        """See `Dictionary.reconstructions`; "input" compares with p x, "raw" with the routed x itself.

        "raw" is what a splice writes: under `code` that is the reconstruction of x without p. Soft routing has
        "input" alone.
        """
        predicted = self.sae.decode_input(codes)
        if self.routing == "soft":
            return {"input": Reconstruction(self._soft_input(self.gather(acts)), predicted)}
        stacked = torch.stack([acts[site].to(device=self.device, dtype=self.dtype) for site in self.reads])
        route = codes.context["route"]
        raw = stacked[route, torch.arange(len(route), device=route.device)]
        probability = codes.context["route_probability"][:, None]
        unscaled = predicted / probability if self.splice == "corrected" else predicted
        if self.splice == "code":
            unscaled = self.sae.decode_input(self.encode_at(self.reads[0], raw, codes.context))
        return {
            "raw": Reconstruction(raw, self.sae.transform.undo(unscaled, codes.context)),
            "input": Reconstruction(self.sae.transform.apply(raw).acts * probability, predicted),
        }

    def relative_values(self, acts: Mapping[Site, Tensor], codes: Codes) -> Tensor:
        """See `Dictionary.relative_values`: the input is standardised, so only sqrt(d) enters."""
        norms: Tensor = self.sae.weights.w_dec.norm(dim=1)
        return codes.values * norms[codes.latents] / math.sqrt(self.card.d_model)

    def with_gate(self, gate: Gate) -> RouteSae:
        """The same RouteSAE under another gate; the card's options say so."""
        sae = self.sae.with_gate(gate)
        card = with_gate_card(self.card, self.sae.gate, sae.gate)
        return RouteSae(card, self.router, sae, self.pooling, self.splice, self.routing)

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """See `Dictionary.to`."""
        router = self.router.to(device=device, dtype=dtype)
        sae = self.sae.to(device=device, dtype=dtype)
        return type(self)(self.card, router, sae, self.pooling, self.splice, self.routing)
