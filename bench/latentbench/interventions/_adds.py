"""Edits that add a direction per row: of latents in their dictionary's units, or dense."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.adapters import Dictionary, RouteSae, clean_route, unit_scale, unit_sites
from latentbench.errors import UserError
from latentbench.interventions._where import RowsWhere
from latentbench.lm import Edit, EditView, Site

__all__ = ["AddDense", "AddLatents", "RowsEdit", "added"]


class RowsEdit(Edit):
    """An edit that says what it adds to the activation, row by row."""

    where: RowsWhere
    """Which tokens."""
    router: RouteSae | None = None
    """Only tokens that this dictionary routes to the site; None for all."""

    @abstractmethod
    def change(self, hidden: Tensor, view: EditView) -> Tensor:
        """What is added, `Float[Tensor, "row pos d"]` in any type; 0 where nothing is to change.

        Args:
            hidden: `Float[Tensor, "row pos d"]`, the activation.
            view: which tokens these are.
        """

    def apply(self, hidden: Tensor, view: EditView) -> Tensor:
        """See `Edit.apply`."""
        return added(hidden, self.change(hidden, view))

    def selected(self, hidden: Tensor, view: EditView) -> Tensor:
        """`Bool[Tensor, "row pos"]`: the tokens to change.

        Raises:
            UserError: the batch has another number of rows than the interventions were made for.
        """
        if len(hidden) != len(self.where.acts):
            raise UserError(
                f"interventions of {len(self.where.acts)} rows in a batch of {len(hidden)}: give one list for each "
                "row, empty for a row that stays as it is"
            )
        chosen = self.where.selected(view)
        if self.router is not None:
            route = clean_route(view, self.router)[0]
            chosen = chosen & (route == self.router.reads.index(self.site))
        return chosen


def added(hidden: Tensor, change: Tensor) -> Tensor:
    """The sum, computed in the wider of both types; where the change is 0 the activation is the same bit for bit."""
    wide = torch.promote_types(hidden.dtype, change.dtype)
    return (hidden.to(wide) + change.to(device=hidden.device, dtype=wide)).to(hidden.dtype)


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
        vectors = self.vectors.to(hidden.device)[:, None]
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
        vectors = self.vectors.to(hidden.device)[:, None]
        scale = unit_scale(self.dictionary, self.site, hidden, view)
        return torch.where(chosen[..., None], scale * vectors, 0)
