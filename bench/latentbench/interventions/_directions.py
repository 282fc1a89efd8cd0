"""Edits of the activation's component along directions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.adapters import RouteSae
from latentbench.interventions._record import Intervention
from latentbench.interventions._rows import RowsEdit
from latentbench.interventions._where import RowsWhere
from latentbench.lm import EditView, Site

__all__ = ["AlongDirections", "directions_of"]


@dataclass(frozen=True, eq=False)
class AlongDirections(RowsEdit):
    """`project_out` and `subspace_clamp`: change h by the sum over v of (a - f(h.v)) v.

    f is the identity for the first, where a is 0 and the v are orthonormal, and ReLU for the second.
    """

    site: Site
    directions: Tensor
    """`Float[Tensor, "row m d"]`, each of norm 1, or 0 where a row has fewer than m."""
    amounts: Tensor
    """`Float[Tensor, "row m"]`: the a."""
    rectified: Tensor
    """`Bool[Tensor, "row"]`: whether f is ReLU."""
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
        wide = torch.promote_types(hidden.dtype, self.directions.dtype)
        directions = view.take(self.directions).to(device=hidden.device, dtype=wide)
        amounts = view.take(self.amounts).to(device=hidden.device, dtype=wide)[:, None]
        along = hidden.to(wide) @ directions.mT
        rectified = view.take(self.rectified).to(hidden.device)[:, None, None]
        moved = (amounts - torch.where(rectified, along.relu(), along)) @ directions
        return torch.where(self.selected(hidden, view)[..., None], moved, 0)


def directions_of(
    records: Mapping[int, Intervention], vectors: Mapping[int, Tensor], n_rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The `directions`, `amounts` and `rectified` of an `AlongDirections`.

    Args:
        records: by row.
        vectors: `Float[Tensor, "m d"]` by row: the vector, or the decoder rows of the latents.
        n_rows: rows of the batch.
    """
    ready = {
        row: _orthonormal(vectors[row]) if record.operator == "project_out" else _normed(vectors[row])
        for row, record in records.items()
    }
    some = next(iter(ready.values()))
    most = max(len(one) for one in ready.values())
    directions = some.new_zeros((n_rows, most, some.shape[1]))
    amounts = some.new_zeros((n_rows, most))
    rectified = torch.zeros(n_rows, dtype=torch.bool, device=some.device)
    for row, record in records.items():
        directions[row, : len(ready[row])] = ready[row]
        if record.operator == "subspace_clamp":
            rectified[row] = True
            amounts[row, : len(record.values)] = amounts.new_tensor(record.values)
    return directions, amounts, rectified


def _normed(vectors: Tensor) -> Tensor:
    norms: Tensor = vectors.norm(dim=1, keepdim=True)
    return vectors / norms.clamp(min=torch.finfo(vectors.dtype).tiny)


def _orthonormal(vectors: Tensor) -> Tensor:
    """A basis of what the vectors span, `Float[Tensor, "rank d"]`; a single one stays itself."""
    if len(vectors) == 1:
        return _normed(vectors)
    _, sizes, basis = torch.linalg.svd(_normed(vectors).double(), full_matrices=False)
    return basis[sizes > 1e-6 * sizes[0]].to(vectors.dtype)
