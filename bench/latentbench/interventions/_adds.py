"""Edits that add a direction per row: of latents in their dictionary's units, or dense."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.adapters import Dictionary, RouteSae, unit_scale, unit_sites
from latentbench.interventions._rows import RowsEdit
from latentbench.interventions._where import RowsWhere
from latentbench.lm import EditView, Site

__all__ = ["AddDense", "AddLatents"]


@dataclass(frozen=True, eq=False)
class AddDense(RowsEdit):
    """Add a vector to each row's chosen tokens."""

    site: Site
    vectors: Tensor
    """`Float[Tensor, "row d"]`, amounts included."""
    where: RowsWhere
    """See `RowsEdit`."""
    router: RouteSae | None = None
    """See `RowsEdit`."""

    @property
    def observes(self) -> tuple[Site, ...]:  # type: ignore[override]
        """The router's sites."""
        return () if self.router is None else self.router.pools

    def change(self, hidden: Tensor, view: EditView) -> Tensor:
        """See `RowsEdit.change`."""
        vectors = view.take(self.vectors).to(hidden.device)[:, None]
        return torch.where(self.selected(hidden, view)[..., None], vectors, 0)


@dataclass(frozen=True, eq=False)
class AddLatents(RowsEdit):
    """Add to each row's chosen tokens what `decode` changes by when its latents change by their amounts."""

    site: Site
    dictionary: Dictionary
    """Whose latents."""
    vectors: Tensor
    """`Float[Tensor, "row d"]` in the dictionary's space, amounts included."""
    where: RowsWhere
    """See `RowsEdit`."""

    @property
    def router(self) -> RouteSae | None:  # type: ignore[override]
        """The dictionary if it is routed."""
        return self.dictionary if isinstance(self.dictionary, RouteSae) else None

    @property
    def observes(self) -> tuple[Site, ...]:  # type: ignore[override]
        """See `unit_sites`."""
        return unit_sites(self.dictionary, self.site)

    def change(self, hidden: Tensor, view: EditView) -> Tensor:
        """See `RowsEdit.change`."""
        chosen = self.selected(hidden, view)
        vectors = view.take(self.vectors).to(hidden.device)[:, None]
        scale = unit_scale(self.dictionary, self.site, hidden, view)
        return torch.where(chosen[..., None], scale * vectors, 0)
