"""Which tokens of a batch an edit changes when every row may say something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.interventions._record import Intervention
from latentbench.lm import EditView

__all__ = ["RowsWhere"]


@dataclass(frozen=True, eq=False)
class RowsWhere:
    """Positions and phases of each row of a batch."""

    acts: Tensor
    """`Bool[Tensor, "row"]`: whether the row is changed at all."""
    first: Tensor
    """`Int64[Tensor, "row"]`: first real token that may be changed."""
    last: Tensor
    """`Bool[Tensor, "row"]`: of the prompt, only its last token."""
    prefill: Tensor
    """`Bool[Tensor, "row"]`: whether prompt tokens count."""
    decode: Tensor
    """`Bool[Tensor, "row"]`: whether generated tokens count."""

    @classmethod
    def of(cls, n_rows: int, records: Mapping[int, Intervention], skip_first: int) -> RowsWhere:
        """What the records of some rows say; the other rows stay as they are.

        Args:
            n_rows: rows of the batch.
            records: by row.
            skip_first: tokens at the start of every row that nothing changes.
        """
        acts, last, prefill, decode = (torch.zeros(n_rows, dtype=torch.bool) for _ in range(4))
        first = torch.zeros(n_rows, dtype=torch.int64)
        for row, record in records.items():
            acts[row] = True
            last[row] = record.positions == "last"
            prefill[row] = "prefill" in record.phase_set
            decode[row] = "decode" in record.phase_set
            least = 1 if record.positions == "no_bos" else record.first_token or 0
            first[row] = max(skip_first, least)
        return cls(acts, first, last, prefill, decode)

    def to(self, device: torch.device) -> RowsWhere:
        """The same elsewhere."""
        return RowsWhere(*(value.to(device) for value in self._parts()))

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.acts, self.first, self.last, self.prefill, self.decode

    def selected(self, view: EditView) -> Tensor:
        """`Bool[Tensor, "row pos"]`: the tokens of this pass that are changed."""
        parts = (view.take(value).to(view.real.device)[:, None] for value in self._parts())
        acts, first, last, prefill, decode = parts
        prompt = prefill & (~last | view.prompt_last())
        phase = torch.where(view.generated, decode, prompt)
        return view.real & acts & (view.positions >= first) & phase
