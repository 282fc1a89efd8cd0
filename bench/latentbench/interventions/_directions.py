"""Edits of the activation's component along directions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from latentbench.adapters import RouteSae
from latentbench.interventions._record import Intervention
from latentbench.interventions._rows import RowsEdit
from latentbench.interventions._where import RowsWhere
from latentbench.lm import EditView, Site

__all__ = ["AlongDirections", "Directions"]


class Directions(NamedTuple):
    """What happens along which directions in every row of a batch."""

    vectors: Tensor
    """`Float[Tensor, "row m d"]`, each of norm 1, or 0 where a row has fewer than m; orthogonal for `project_out`."""
    amounts: Tensor
    """`Float[Tensor, "row m"]`: the amounts of `subspace_clamp`, 0 for `project_out`."""
    rectified: Tensor
    """`Bool[Tensor, "row"]`: whether only a positive component is taken away, as `subspace_clamp` does."""

    @classmethod
    def of(
        cls, records: Mapping[int, Intervention], vectors: Mapping[int, Tensor], n_rows: int
    ) -> Directions:
        """The directions of some rows' records; the other rows have none.

        Args:
            records: by row.
            vectors: `Float[Tensor, "m d"]` by row: the dense vector, or the decoder rows of the latents.
            n_rows: rows of the batch.
        """
        ready = {
            row: _orthonormal(vectors[row]) if record.operator == "project_out" else _normed(vectors[row])
            for row, record in records.items()
        }
        some = next(iter(ready.values()))
        most = max(len(one) for one in ready.values())
        made = cls(
            some.new_zeros((n_rows, most, some.shape[1])),
            some.new_zeros((n_rows, most)),
            torch.zeros(n_rows, dtype=torch.bool, device=some.device),
        )
        for row, record in records.items():
            made.vectors[row, : len(ready[row])] = ready[row]
            made.amounts[row, : len(record.values)] = some.new_tensor(record.values)
            made.rectified[row] = record.operator == "subspace_clamp"
        return made

    def to(self, device: torch.device) -> Directions:
        """The same elsewhere."""
        return Directions(*(part.to(device) for part in self))


@dataclass(frozen=True, eq=False)
class AlongDirections(RowsEdit):
    """`project_out` and `subspace_clamp`: change h by the sum over directions v of (a - f(h.v)) v.

    f is the identity for the first, where a is 0, and ReLU for the second.
    """

    site: Site
    directions: Directions
    """The v and a of every row."""
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
        vectors, amounts, rectified = (view.take(part) for part in self.directions.to(hidden.device))
        wide = torch.promote_types(hidden.dtype, vectors.dtype)
        vectors = vectors.to(wide)
        along = hidden.to(wide) @ vectors.mT
        taken = torch.where(rectified[:, None, None], along.relu(), along)
        moved = (amounts.to(wide)[:, None] - taken) @ vectors
        return torch.where(self.selected(hidden, view)[..., None], moved, 0)


def _normed(vectors: Tensor) -> Tensor:
    normed: Tensor = torch.nn.functional.normalize(vectors, dim=1, eps=torch.finfo(vectors.dtype).tiny)
    return normed


def _orthonormal(vectors: Tensor) -> Tensor:
    """A basis of what the vectors span, `Float[Tensor, "rank d"]`; a single one stays itself."""
    if len(vectors) == 1:
        return _normed(vectors)
    _, sizes, basis = torch.linalg.svd(_normed(vectors).double(), full_matrices=False)
    found: Tensor = basis[sizes > 1e-6 * sizes[0]].to(vectors.dtype)
    return found
