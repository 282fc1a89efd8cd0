"""RouteSAE as its official code steers with it (GitHub swei2001/RouteSAEs, `Applier.clamp` and `RouteHook`)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from latentbench.adapters import RouteSae, route_tokens
from latentbench.errors import UserError
from latentbench.lm import LM, Site

__all__ = ["OfficialRouting"]


class OfficialRouting(RouteSae):
    """The same weights, but the router pools the output of every block, and its probability is left out.

    The code takes Hugging Face's `hidden_states[1:]`, whose last entry has been through the final norm.
    """

    def __init__(self, trained: RouteSae, lm: LM) -> None:
        """Steer with a RouteSAE as the official code does.

        Raises:
            UserError: its routing is not the paper's.
        """
        if trained.routing != "hard":
            raise UserError(
                f"mode 'code' with {trained.routing} routing: the official code steers with hard routing alone; use "
                "mode 'corrected'"
            )
        super().__init__(trained.card, trained.router, trained.sae, trained.pooling, "code", "hard")
        self._pools = tuple(Site("resid_post", layer) for layer in range(lm.n_layers))
        self._final_norm: nn.Module = lm.final_norm

    @property
    def pools(self) -> tuple[Site, ...]:
        """The output of every block."""
        return self._pools

    def route(self, acts: Mapping[Site, Tensor]) -> tuple[Tensor, Tensor]:
        """See `RouteSae.route`."""
        last = acts[self._pools[-1]]
        normed = self._final_norm(last.to(next(self._final_norm.parameters())))
        pooled = [*(acts[site] for site in self._pools[:-1]), normed.to(last)]
        stacked = torch.stack([self.sae.transform.apply(one).acts for one in pooled])
        return route_tokens(stacked, self.router, self.pooling)
