"""From the records of a batch's rows to the edits of its forward passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from latentbench.adapters import Dictionary
from latentbench.errors import UserError
from latentbench.interventions._adds import AddDense, AddLatents
from latentbench.interventions._bind import BoundIntervention
from latentbench.interventions._where import RowsWhere
from latentbench.lm import Edit, Site

__all__ = ["intervention_edits"]

Members = dict[int, BoundIntervention]
"""Interventions of one kind, by row."""


def intervention_edits(rows: Sequence[Sequence[BoundIntervention]], *, skip_first: int = 1) -> list[Edit]:
    """Edits for a batch whose rows carry interventions of their own.

    Rows that do the same kind of thing with the same dictionary (or dense vectors at the same site) share an edit,
    whatever their latents and amounts are. A row pays only for the encoders of its own dictionaries.

    Args:
        rows: the interventions of each row, in the order in which they act; an empty row stays as it is.
        skip_first: tokens at the start of every row that nothing changes (the attention sink).
    """
    for bound in (bound for row in rows for bound in row):
        if bound.intervention.operator != "add" or not bound.intervention.keep_error:
            raise UserError(
                f"operator {bound.intervention.operator!r} (keep_error as given) is not built yet"
            )
    edits: list[Edit] = []
    for turn in range(max((len(row) for row in rows), default=0)):
        groups: dict[tuple[object, ...], Members] = {}
        for index, row in enumerate(rows):
            if turn < len(row):
                groups.setdefault(_kind(row[turn]), {})[index] = row[turn]
        for members in groups.values():
            edits += _edits_of(members, len(rows), skip_first)
    return edits


def _kind(bound: BoundIntervention) -> tuple[object, ...]:
    """What interventions must agree on to share an edit."""
    record = bound.intervention
    if record.vector is not None:
        return ("dense", record.vector.site, id(bound.dictionary))
    return ("latents", id(bound.dictionary), record.mode)


def _edits_of(members: Members, n_rows: int, skip_first: int) -> list[Edit]:
    first = next(iter(members.values()))
    where = RowsWhere.of(n_rows, {row: bound.intervention for row, bound in members.items()}, skip_first)
    if first.vector is not None:
        vectors = torch.zeros((n_rows, len(first.vector)))
        for row, bound in members.items():
            vectors[row] = bound.intervention.values[0] * bound.vector
        return [AddDense(first.sites[0], vectors, where)]
    assert first.acting is not None
    return [
        AddLatents(site, first.acting, vectors, where)
        for site, vectors in _summed(first.acting, members, n_rows).items()
    ]


def _summed(
    dictionary: Dictionary, members: Mapping[int, BoundIntervention], n_rows: int
) -> dict[Site, Tensor]:
    """Amounts times directions of each row's latents, `Float[Tensor, "row d"]` by site."""
    flat = [
        (row, latent, value)
        for row, bound in members.items()
        for latent, value in zip(bound.intervention.latents, bound.intervention.values, strict=True)
    ]
    written = dictionary.write_vectors([latent for _, latent, _ in flat])
    device = dictionary.device
    index = torch.tensor([row for row, _, _ in flat], device=device)
    found: dict[Site, Tensor] = {}
    for site, vectors in written.items():
        values = torch.tensor([value for _, _, value in flat], device=device, dtype=vectors.dtype)
        found[site] = vectors.new_zeros((n_rows, vectors.shape[1])).index_add(
            0, index, values[:, None] * vectors
        )
    return found
