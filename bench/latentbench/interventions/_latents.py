"""Edits of latents' activations that depend on what these are: set, min-clamp, scale, ablate, and replacing splices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.adapters import (
    Codes,
    Dictionary,
    RouteSae,
    observed_sites,
    passing_codes,
    unit_scale,
    unit_sites,
)
from latentbench.interventions._record import Intervention, Operator
from latentbench.interventions._rows import RowsEdit
from latentbench.interventions._where import RowsWhere
from latentbench.lm import EditView, Site

__all__ = ["ChangeLatents", "LatentPlan"]

_OPERATORS: tuple[Operator, ...] = ("add", "set", "min_clamp", "scale", "ablate")


@dataclass(frozen=True, eq=False)
class LatentPlan:
    """What happens to which latents in every row of a batch; shared by the sites of a dictionary."""

    latents: Tensor
    """`Int64[Tensor, "u"]`: every latent that any row changes, once."""
    operators: Tensor
    """`Int64[Tensor, "row u"]`: index into the operators, -1 where a row leaves a latent alone."""
    amounts: Tensor
    """`Float[Tensor, "row u"]` in the dictionary's units."""
    replaces: Tensor
    """`Bool[Tensor, "row"]`: drop what the dictionary does not reconstruct."""

    @classmethod
    def of(cls, records: Mapping[int, Intervention], n_rows: int, dictionary: Dictionary) -> LatentPlan:
        """The plan of some rows' records, all on latents of one dictionary."""
        latents = sorted({latent for record in records.values() for latent in record.latents})
        column = {latent: index for index, latent in enumerate(latents)}
        operators = torch.full((n_rows, len(latents)), -1, dtype=torch.int64)
        amounts = torch.zeros((n_rows, len(latents)), dtype=torch.float64)
        replaces = torch.zeros(n_rows, dtype=torch.bool)
        for row, record in records.items():
            columns = [column[latent] for latent in record.latents]
            operators[row, columns] = _OPERATORS.index(record.operator)
            amounts[row, columns] = torch.tensor(record.values or (0.0,), dtype=torch.float64)
            replaces[row] = not record.keep_error
        device = dictionary.device
        return cls(
            torch.tensor(latents, dtype=torch.int64, device=device),
            operators.to(device),
            amounts.to(device=device, dtype=dictionary.dtype),
            replaces.to(device),
        )

    def difference(self, codes: Codes, rows: Tensor) -> Tensor:
        """How much each latent changes by, `Float[Tensor, "token u"]`.

        Args:
            codes: of some tokens.
            rows: `Int64[Tensor, "token"]`, the row of each.
        """
        before = self._activations(codes)
        operators, amounts = self.operators[rows], self.amounts[rows].to(before)
        after = before
        outcomes = (
            before + amounts,
            amounts,
            torch.maximum(before, amounts),
            before * amounts,
            torch.zeros_like(before),
        )
        for index, outcome in enumerate(outcomes):
            after = torch.where(operators == index, outcome, after)
        return after - before

    def _activations(self, codes: Codes) -> Tensor:
        """The plan's latents of each token, `Float[Tensor, "token u"]`; 0 where inactive."""
        column = self.latents.new_full((codes.n_latents,), -1)
        column[self.latents] = torch.arange(len(self.latents), device=column.device)
        columns = column[codes.latents]
        wanted = columns >= 0
        found = codes.values.new_zeros((codes.n_tokens, len(self.latents)))
        return found.index_put((codes.rows()[wanted], columns[wanted]), codes.values[wanted])


@dataclass(frozen=True, eq=False)
class ChangeLatents(RowsEdit):
    """Encode each row's chosen tokens, change their codes, and write the difference or the reconstruction."""

    site: Site
    dictionary: Dictionary
    """Whose latents."""
    plan: LatentPlan
    """What happens to them."""
    vectors: Tensor
    """`Float[Tensor, "u d"]`: what one unit of each of the plan's latents writes here, in the dictionary's space."""
    where: RowsWhere
    """See `RowsEdit`."""

    @property
    def router(self) -> RouteSae | None:  # type: ignore[override]
        """The dictionary if it is routed."""
        return self.dictionary if isinstance(self.dictionary, RouteSae) else None

    @property
    def observes(self) -> tuple[Site, ...]:  # type: ignore[override]
        """Sites that codes or scales are taken from."""
        return tuple({*observed_sites(self.dictionary), *unit_sites(self.dictionary, self.site)})

    def change(self, hidden: Tensor, view: EditView) -> Tensor:
        """See `RowsEdit.change`."""
        index = self.selected(hidden, view).flatten().nonzero()[:, 0]
        if not len(index):
            return torch.zeros_like(hidden)
        flat = hidden.flatten(0, 1)
        codes = self._codes(flat[index], view, index)
        rows = index // hidden.shape[1]
        rows = (rows if view.rows is None else view.rows[rows]).to(codes.latents.device)
        scale = unit_scale(self.dictionary, self.site, hidden, view).flatten(0, 1)[index]
        changes = scale * (self.plan.difference(codes, rows) @ self.vectors).to(scale.device)
        replaced = self.plan.replaces[rows].nonzero()[:, 0]
        if len(replaced):
            decoded = self.dictionary.decode(codes.select(replaced))[self.site].values
            here = replaced.to(flat.device)
            wide = torch.promote_types(flat.dtype, decoded.dtype)
            error = flat[index[here]].to(wide) - decoded.to(device=flat.device, dtype=wide)
            changes = changes.to(wide).index_add(0, here, error, alpha=-1)
        full = changes.new_zeros((len(flat), changes.shape[1]))
        return full.index_copy(0, index, changes).view_as(hidden)

    def _codes(self, current: Tensor, view: EditView, index: Tensor) -> Codes:
        if self.router is not None or not observed_sites(self.dictionary):
            return passing_codes(self.dictionary, self.site, current, view, index)
        # The unedited model's codes are the same at every site that they are written at.
        name = f"codes:{id(self.plan)}"
        if name not in view.memo:
            view.memo[name] = passing_codes(self.dictionary, self.site, current, view, index)
        codes: Codes = view.memo[name]
        return codes
