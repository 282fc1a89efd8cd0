"""Edits that say what they add to the activation, row by row."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from latentbench.adapters import RouteSae, clean_route
from latentbench.errors import UserError
from latentbench.interventions._where import RowsWhere
from latentbench.lm import Edit, EditView, Site

__all__ = ["RowsEdit", "SumOfChanges"]


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
        return _added(hidden, self.change(hidden, view))

    def selected(self, hidden: Tensor, view: EditView) -> Tensor:
        """`Bool[Tensor, "row pos"]`: the tokens to change.

        Raises:
            UserError: the batch has another number of rows than the interventions were made for.
        """
        if view.rows is None and len(hidden) != len(self.where.acts):
            raise UserError(
                f"interventions of {len(self.where.acts)} rows in a batch of {len(hidden)}: give one list for each "
                "row, empty for a row that stays as it is"
            )
        chosen = self.where.selected(view)
        if self.router is not None:
            route = clean_route(view, self.router)[0]
            chosen = chosen & (route == self.router.reads.index(self.site))
        return chosen


@dataclass(frozen=True, eq=False)
class SumOfChanges(Edit):
    """Several changes at one site, each computed on the activation as it arrives, added up."""

    site: Site
    parts: tuple[RowsEdit, ...]
    """What is added; all at this site."""

    @property
    def observes(self) -> tuple[Site, ...]:  # type: ignore[override]
        """What any part observes."""
        return tuple(sorted({site for part in self.parts for site in part.observes}))

    def apply(self, hidden: Tensor, view: EditView) -> Tensor:
        """See `Edit.apply`."""
        return _added(hidden, reduce(torch.add, (part.change(hidden, view) for part in self.parts)))


def _added(hidden: Tensor, change: Tensor) -> Tensor:
    """The sum, computed in the wider of both types; where the change is 0 the activation stays bit for bit."""
    wide = torch.promote_types(hidden.dtype, change.dtype)
    return (hidden.to(wide) + change.to(device=hidden.device, dtype=wide)).to(hidden.dtype)
