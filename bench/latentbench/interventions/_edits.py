"""From the records of a batch's rows to the edits of its forward passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor

from latentbench.adapters import Dictionary, RouteSae
from latentbench.errors import UserError
from latentbench.interventions._adds import AddDense, AddLatents
from latentbench.interventions._bind import BoundIntervention
from latentbench.interventions._directions import AlongDirections, Directions
from latentbench.interventions._latents import ChangeLatents, LatentPlan
from latentbench.interventions._record import Conflict, Intervention
from latentbench.interventions._rows import RowsEdit, SumOfChanges
from latentbench.interventions._where import RowsWhere
from latentbench.lm import Edit, Site

__all__ = ["intervention_edits"]

Members = dict[int, BoundIntervention]
"""Interventions of one kind, by row."""


def intervention_edits(
    rows: Sequence[Sequence[BoundIntervention]],
    *,
    skip_first: int = 1,
    device: torch.device | str = "cpu",
) -> list[Edit]:
    """Edits for a batch whose rows carry interventions of their own.

    Rows that do the same kind of thing with the same dictionary (or with dense vectors at the same site) share an
    edit, whatever their latents, amounts, positions and phases are. Encoders see only the tokens that need them.

    Args:
        rows: the interventions of each row, in the order in which they act; an empty row stays as it is.
        skip_first: tokens at the start of every row that nothing changes (the attention sink).
        device: where the language model is, so that what is small is moved there once.

    Raises:
        UserError: records of one row meet at a site and their `conflict` forbids it, or they disagree on it.
    """
    policies = [_policy(row, index) for index, row in enumerate(rows)]
    in_turn = [() if policy == "sum" else row for row, policy in zip(rows, policies, strict=True)]
    summed = [row if policy == "sum" else () for row, policy in zip(rows, policies, strict=True)]
    parts: dict[Site, list[RowsEdit]] = {}
    for edit in _in_turn(summed, skip_first, torch.device(device)):
        parts.setdefault(edit.site, []).append(edit)
    return [
        *_in_turn(in_turn, skip_first, torch.device(device)),
        *(SumOfChanges(site, tuple(found)) for site, found in parts.items()),
    ]


def _policy(row: Sequence[BoundIntervention], index: int) -> Conflict:
    """What happens where the interventions of a row meet."""
    meeting = [(one, other) for one, other in combinations(row, 2) if _meet(one, other)]
    policies = {bound.intervention.conflict for pair in meeting for bound in pair}
    if not policies:
        return "sequence"
    where = ", ".join(map(str, sorted({site for one, other in meeting for site in _shared(one, other)})))
    if len(policies) > 1 or "error" in policies:
        raise UserError(
            f"interventions of row {index} meet at {where}, and their conflict is "
            f"{' and '.join(map(repr, sorted(policies)))}: "
            + ("say the same in all of them" if len(policies) > 1 else "allow it by 'sequence' or 'sum'")
        )
    policy = policies.pop()
    if policy == "sum":
        for one, other in meeting:
            if not (one.intervention.keep_error or other.intervention.keep_error):
                raise UserError(
                    f"two interventions of row {index} replace the activation at {where} (keep_error=False), and "
                    "replacements can't be summed: use conflict='sequence', or keep the error"
                )
    return policy


def _meet(one: BoundIntervention, other: BoundIntervention) -> bool:
    return bool(_shared(one, other)) and bool(one.intervention.phase_set & other.intervention.phase_set)


def _shared(one: BoundIntervention, other: BoundIntervention) -> set[Site]:
    return {*one.sites} & {*other.sites}


def _in_turn(
    rows: Sequence[Sequence[BoundIntervention]], skip_first: int, device: torch.device
) -> list[RowsEdit]:
    """The first intervention of every row, then the second of every row that has one, and so on."""
    edits: list[RowsEdit] = []
    for turn in range(max((len(row) for row in rows), default=0)):
        groups: dict[tuple[object, ...], Members] = {}
        for index, row in enumerate(rows):
            if turn < len(row):
                groups.setdefault(_kind(row[turn]), {})[index] = row[turn]
        for members in groups.values():
            records = {row: bound.intervention for row, bound in members.items()}
            where = RowsWhere.of(len(rows), records, skip_first).to(device)
            edits += _edits_of(members, records, where)
    return edits


def _kind(bound: BoundIntervention) -> tuple[object, ...]:
    """What interventions must agree on to share an edit."""
    record = bound.intervention
    doing = "adds" if record.adds else "along" if record.along_directions else "codes"
    named = record.vector.site if record.vector is not None else record.mode
    return doing, record.vector is not None, named, id(bound.dictionary)


def _edits_of(members: Members, records: Mapping[int, Intervention], where: RowsWhere) -> list[RowsEdit]:
    some = next(iter(members.values()))
    n_rows, device = len(where.acts), where.acts.device
    acting = some.acting
    router = acting if isinstance(acting, RouteSae) else None
    if some.intervention.vector is not None:
        dense = {row: bound.vector for row, bound in members.items() if bound.vector is not None}
        (site,) = some.sites
        if some.intervention.along_directions:
            single = {row: vector[None] for row, vector in dense.items()}
            return [AlongDirections(site, Directions.of(records, single, n_rows).to(device), where, router)]
        return [AddDense(site, _dense(dense, records, n_rows).to(device), where, router)]
    assert acting is not None
    if some.intervention.adds:
        sums = _summed(acting, records, n_rows)
        return [AddLatents(site, acting, vectors.to(device), where) for site, vectors in sums.items()]
    if some.intervention.along_directions:
        return [
            AlongDirections(site, Directions.of(records, vectors, n_rows).to(device), where, router)
            for site, vectors in _decoder_rows(acting, records).items()
        ]
    plan = LatentPlan.of(records, n_rows, acting)
    written = acting.write_vectors(plan.latents.tolist())
    return [ChangeLatents(site, acting, plan, vectors, where) for site, vectors in written.items()]


def _dense(vectors: Mapping[int, Tensor], records: Mapping[int, Intervention], n_rows: int) -> Tensor:
    """Amount times vector of each row, `Float[Tensor, "row d"]`."""
    some = next(iter(vectors.values()))
    full = some.new_zeros((n_rows, len(some)))
    for row, vector in vectors.items():
        full[row] = records[row].values[0] * vector
    return full


def _summed(dictionary: Dictionary, records: Mapping[int, Intervention], n_rows: int) -> dict[Site, Tensor]:
    """Amounts times directions of each row's latents, `Float[Tensor, "row d"]` by site."""
    latents = [latent for record in records.values() for latent in record.latents]
    amounts = [value for record in records.values() for value in record.values]
    owners = [row for row, record in records.items() for _ in record.latents]
    index = torch.tensor(owners, device=dictionary.device)
    found: dict[Site, Tensor] = {}
    for site, vectors in dictionary.write_vectors(latents).items():
        sized = vectors.new_tensor(amounts)[:, None] * vectors
        found[site] = vectors.new_zeros((n_rows, vectors.shape[1])).index_add(0, index, sized)
    return found


def _decoder_rows(
    dictionary: Dictionary, records: Mapping[int, Intervention]
) -> dict[Site, dict[int, Tensor]]:
    """Directions of each row's latents, `Float[Tensor, "latent d"]` by site and row."""
    found: dict[Site, dict[int, Tensor]] = {}
    for row, record in records.items():
        for site, vectors in dictionary.write_vectors(record.latents).items():
            found.setdefault(site, {})[row] = vectors
    return found
