"""Which activation a trainee reads of every token."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from latentbench.adapters import route_tokens
from latentbench.train._view import BlockView

__all__ = ["OneSite", "RandomSite", "Reader", "Routed", "SideBySide", "TurnByTurn"]


class Reader(nn.Module):
    """Chooses inputs from a block."""

    def forward(self, view: BlockView, batch: Tensor, turn: int) -> Tensor:
        """The inputs of a batch, `Float[Tensor, "token d"]`.

        Args:
            view: the block.
            batch: `Int64[Tensor, "token"]`, tokens of the block.
            turn: number of the step; "turn by turn" goes through the sites with it.
        """
        raise NotImplementedError


class OneSite(Reader):
    """One of the sites."""

    def __init__(self, site: int) -> None:
        """Read this site, as an index into the block."""
        super().__init__()
        self.site = site

    def forward(self, view: BlockView, batch: Tensor, turn: int) -> Tensor:
        """See `Reader`."""
        return view.at(self.site, batch)


class TurnByTurn(Reader):
    """One site a step, one after the other (MLSAE); out of training mode the last one, as it is exported."""

    def forward(self, view: BlockView, batch: Tensor, turn: int) -> Tensor:
        """See `Reader`."""
        if not self.training:
            return view.at(view.n_sites - 1, batch)
        # A stride near the golden section spreads neighbouring steps over the depth of the model.
        stride = max(1, round(view.n_sites * 0.618))
        while math.gcd(stride, view.n_sites) > 1:
            stride += 1
        return view.at(turn * stride % view.n_sites, batch)


class SideBySide(Reader):
    """Several sites concatenated (crosscoder)."""

    def __init__(self, sites: tuple[int, ...]) -> None:
        """Read these sites, as indices into the block."""
        super().__init__()
        self.sites = sites

    def forward(self, view: BlockView, batch: Tensor, turn: int) -> Tensor:
        """See `Reader`."""
        return torch.cat([view.at(site, batch) for site in self.sites], dim=1)


class RandomSite(Reader):
    """Every token from a site that a fixed hash of it gives; see `latentbench.adapters.route_tokens`."""

    def __init__(self, n_sites: int, d: int, generator: torch.Generator) -> None:
        """Draw the projection that the hash is taken of."""
        super().__init__()
        drawn = _router(n_sites, d, generator)
        self.router = nn.Parameter(drawn / drawn.norm(dim=1, keepdim=True), requires_grad=False)

    def forward(self, view: BlockView, batch: Tensor, turn: int) -> Tensor:
        """See `Reader`."""
        first = view.at(0, batch)
        route, _ = route_tokens(first.expand(view.n_sites, -1, -1), self.router, "sum", "random")
        return view.routed(route, batch)


class Routed(Reader):
    """RouteSAE's router: the pooled sites choose one for each token, scaled by its probability."""

    def __init__(
        self,
        n_sites: int,
        d: int,
        generator: torch.Generator,
        pooling: Literal["sum", "mean"],
        routing: Literal["hard", "soft"],
    ) -> None:
        """Draw the router, `Float[Tensor, "site d"]`."""
        super().__init__()
        self.pooling: Literal["sum", "mean"] = pooling
        self.routing: Literal["hard", "soft"] = routing
        self.router = nn.Parameter(_router(n_sites, d, generator))

    def forward(self, view: BlockView, batch: Tensor, turn: int) -> Tensor:
        """See `Reader`."""
        pooled = view.pooled(self.pooling, batch)
        if self.routing == "soft":
            weights = torch.softmax(pooled @ self.router.T, dim=1)
            return torch.einsum("ts,std->td", weights, view.stacked(batch))
        # Pooling one site that already is the pool gives it back.
        route, probability = route_tokens(pooled[None], self.router, "sum", "hard")
        return view.routed(route, batch) * probability[:, None]


def _router(n_sites: int, d: int, generator: torch.Generator) -> Tensor:
    bound = 1 / math.sqrt(d)
    return torch.empty(n_sites, d).uniform_(-bound, bound, generator=generator)
