"""What latents are ranked for: a prompt, its answer, and the number of the model's output that they influence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from latentbench.errors import UserError

__all__ = [
    "Example",
    "Margins",
    "Target",
    "TargetKind",
    "TargetTokens",
    "margins",
    "target_values",
    "target_weights",
]

TargetKind = Literal["probability", "log_probability", "logit"]
TargetTokens = Literal["first", "answer"]


@dataclass(frozen=True)
class Example:
    """A prompt with the answer whose probability is looked at."""

    prompt: tuple[int, ...]
    """Token ids of the prompt."""
    answer: tuple[int, ...]
    """Token ids of the answer; at least one."""

    def __post_init__(self) -> None:
        if not self.prompt or not self.answer:
            raise UserError(
                f"an example needs a prompt and an answer, and this one has {len(self.prompt)} and "
                f"{len(self.answer)} tokens"
            )


@dataclass(frozen=True)
class Target:
    """The scalar of the output that influence is measured on."""

    kind: TargetKind = "probability"
    """Of the target tokens: the product of their probabilities, the sum of their log-probabilities or of their
    logits."""
    tokens: TargetTokens = "first"
    """The first token of the answer, or all of it, each after the ones before."""

    def wanted(self, example: Example) -> tuple[int, ...]:
        """The target tokens of an example."""
        return example.answer[:1] if self.tokens == "first" else example.answer

    def row(self, example: Example) -> tuple[int, ...]:
        """The tokens that are run: prompt and answer, without the last target token."""
        return (*example.prompt, *self.wanted(example)[:-1])


class Margins(NamedTuple):
    """The target tokens of a batch against all others. p = sigmoid(margin)."""

    margin: Tensor
    """`Float[Tensor, "target"]`: logit of the target token minus the log-sum-exp of all other logits."""
    logit: Tensor
    """`Float[Tensor, "target"]`: logit of the target token."""
    row: Tensor
    """`Int64[Tensor, "target"]`: the row that it belongs to."""
    n_rows: int
    """Rows of the batch."""


def margins(logits: Tensor, wanted: Sequence[Sequence[int]]) -> Margins:
    """Margins of the target tokens, at least in float32.

    Args:
        logits: `Float[Tensor, "row pos vocab"]`; the last positions of every row predict its target tokens.
        wanted: target tokens of each row.
    """
    rows: list[int] = []
    columns: list[int] = []
    tokens: list[int] = []
    for row, targets in enumerate(wanted):
        rows += [row] * len(targets)
        columns += range(logits.shape[1] - len(targets), logits.shape[1])
        tokens += targets
    row_index, token = torch.tensor(rows, device=logits.device), torch.tensor(tokens, device=logits.device)
    here = logits[row_index, torch.tensor(columns, device=logits.device)]
    here = here.to(torch.promote_types(here.dtype, torch.float32))
    own = here.gather(1, token[:, None])[:, 0]
    others = here.scatter(1, token[:, None], -torch.inf).logsumexp(dim=1)
    return Margins(own - others, own, row_index, len(wanted))


def target_values(found: Margins, kind: str) -> Tensor:
    """`Float64[Tensor, "row"]`: the target of each row."""
    each = found.logit if kind == "logit" else functional.logsigmoid(found.margin.double())
    total = each.new_zeros(found.n_rows, dtype=torch.float64).index_add(0, found.row, each.double())
    return total.exp() if kind == "probability" else total


def target_weights(found: Margins, kind: str) -> Tensor:
    """`Float64[Tensor, "target"]`: derivative of the row's target by each margin; by each logit for "logit".

    Backpropagating the margins and weighting them here keeps gradients alive where p (1 - p) would underflow in the
    model's own type: p = sigmoid(m) has derivative p (1 - p), and 1 - p is sigmoid(-m), with no difference of near
    numbers.
    """
    if kind == "logit":
        return torch.ones_like(found.margin, dtype=torch.float64)
    weights = torch.sigmoid(-found.margin.detach().double())
    if kind == "log_probability":
        return weights
    return weights * target_values(found, "probability").detach()[found.row]
