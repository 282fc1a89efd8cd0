"""Edits: what a forward pass changes at a site, per row and per token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor
from torch.nn import functional

from latentbench.errors import UserError
from latentbench.lm._sites import Site

__all__ = ["BOTH_PHASES", "AddVector", "Edit", "EditView", "MapActivation", "Phase"]

Phase = Literal["prefill", "decode"]
BOTH_PHASES: frozenset[Phase] = frozenset({"prefill", "decode"})
"""Prompt tokens and generated tokens."""


@dataclass(frozen=True)
class EditView:
    """What an edit may know about the tokens that pass through the model right now."""

    real: Tensor
    """`Bool[Tensor, "row pos"]`: False on padding."""
    positions: Tensor
    """`Int64[Tensor, "row pos"]`: index within the row's real tokens, prompt included."""
    generated: Tensor
    """`Bool[Tensor, "row pos"]`: True for tokens the model generated, False for prompt tokens."""
    start: int
    """Column of the padded sequence at which this chunk begins: 0 unless a KV cache holds the columns
    before."""
    observed: Mapping[Site, Tensor]
    """Activations of the shadow pass, `Float[Tensor, "row pos d"]`, at the sites that edits asked to
    observe."""
    memo: dict[str, Any]
    """Scratch space shared by the edits of one forward pass, empty at its start."""
    prompt_goes_on: bool = False
    """Whether prompt tokens follow behind this chunk."""
    rows: Tensor | None = None
    """`Int64[Tensor, "row"]`, ascending: which rows of the batch these are. None while all of them are here; rows that
    have ended may leave a batch that is generated."""

    def take(self, per_row: Tensor) -> Tensor:
        """The rows that are here, out of a tensor with one row for each of the batch, or one for all of them.

        Raises:
            UserError: it has another number of rows.
        """
        if self.rows is not None:
            return per_row if len(per_row) == 1 else per_row[self.rows.to(per_row.device)]
        if len(per_row) not in (1, len(self.real)):
            raise UserError(
                f"an edit speaks of {len(per_row)} rows, but the batch has {len(self.real)}: give it one for each"
            )
        return per_row

    def selected(self, phases: frozenset[Phase], skip_first: int, where: Tensor | None) -> Tensor:
        """`Bool[Tensor, "row pos"]`: the positions that an edit with these settings changes."""
        chosen = self.real & (self.positions >= skip_first)
        if "decode" not in phases:
            chosen = chosen & ~self.generated
        if "prefill" not in phases:
            chosen = chosen & self.generated
        if where is not None:  # it does not speak of generated tokens
            there = self.columns(self.take(where)[..., None], fill=1.0)[..., 0]
            chosen = chosen & there.to(chosen.device)
        return chosen

    def prompt_last(self) -> Tensor:
        """`Bool[Tensor, "row pos"]`: each row's last prompt token, where this chunk holds it."""
        last = self.real & ~self.generated
        last[:, -1] &= not self.prompt_goes_on
        last[:, :-1] &= self.generated[:, 1:] | ~self.real[:, 1:]
        return last

    def columns(self, prompt: Tensor, fill: float) -> Tensor:
        """The columns of this chunk out of a tensor over the padded prompt, `fill` on generated tokens.

        Args:
            prompt: `Tensor[row, pos, ...]` with one trailing dimension.
            fill: value where the prompt has no column.
        """
        columns = self.real.shape[1]
        here = prompt[:, self.start : self.start + columns]
        missing = columns - here.shape[1]
        return functional.pad(here, (0, 0, 0, missing), value=fill) if missing else here


class Edit(ABC):
    """A change of the activation at one site."""

    site: Site
    observes: tuple[Site, ...] = ()
    """Sites of the unedited model that the edit reads. Any makes the LM run a shadow pass before every
    pass."""

    @abstractmethod
    def apply(self, hidden: Tensor, view: EditView) -> Tensor:
        """Return the edited activation.

        Args:
            hidden: `Float[Tensor, "row pos d"]`; not to be changed in place.
            view: which tokens these are. Rows may have left the batch since the pass before, so whatever the edit holds
                for each row goes through `view.take`.
        """


@dataclass(frozen=True, eq=False)
class AddVector(Edit):
    """Add a vector to the activation: one for all rows, one for each row or one for each prompt token."""

    site: Site
    vectors: Tensor
    """`Float[Tensor, "d"]`, `Float[Tensor, "row d"]` or, over the padded prompt, `Float[Tensor, "row pos
    d"]`; the last leaves generated tokens as they are."""
    where: Tensor | None = None
    """`Bool[Tensor, "row pos"]` over the padded prompt; None means every position. Generated tokens always
    count."""
    skip_first: int = 1
    """Leave out this many tokens at the start of every row (the attention sink)."""
    phases: frozenset[Phase] = BOTH_PHASES
    """Whether prompt tokens, generated tokens or both are changed."""

    def apply(self, hidden: Tensor, view: EditView) -> Tensor:
        """See `Edit.apply`."""
        chosen = view.selected(self.phases, self.skip_first, self.where)
        vectors = self.vectors.to(device=hidden.device, dtype=hidden.dtype)
        if vectors.dim() == 2:
            vectors = view.take(vectors)[:, None, :]
        elif vectors.dim() == 3:
            vectors = view.columns(view.take(vectors), fill=0.0)
        return hidden + vectors * chosen[..., None].to(hidden.dtype)


@dataclass(frozen=True, eq=False)
class MapActivation(Edit):
    """Replace the activation of the selected tokens by a function of it."""

    site: Site
    function: Callable[[Tensor, Tensor], Tensor]
    """Called with the selected activations `Float[Tensor, "n d"]` and their flat index `Int64[Tensor, "n"]`
    (row * pos_count + pos; rows keep their number when others leave the batch); returns `Float[Tensor, "n d"]`."""
    where: Tensor | None = None
    """As in `AddVector`."""
    skip_first: int = 1
    """As in `AddVector`."""
    phases: frozenset[Phase] = field(default=BOTH_PHASES)
    """As in `AddVector`."""

    def apply(self, hidden: Tensor, view: EditView) -> Tensor:
        """See `Edit.apply`."""
        chosen = view.selected(self.phases, self.skip_first, self.where).flatten()
        index = chosen.nonzero()[:, 0]
        flat = hidden.flatten(0, 1)
        named = index
        if view.rows is not None:
            columns = hidden.shape[1]
            named = view.rows[index // columns] * columns + index % columns
        replaced = self.function(flat[index], named).to(flat.dtype)
        return flat.index_copy(0, index, replaced).view_as(hidden)
