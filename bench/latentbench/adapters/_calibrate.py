"""One global threshold that gives a dictionary its target L0: the calibrated mode of fixed sparsity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._load import with_k, with_threshold
from latentbench.errors import UserError
from latentbench.lm import Site

__all__ = ["calibrate"]


def calibrate(
    dictionary: Dictionary, batches: Iterable[Mapping[Site, Tensor]], target_l0: float
) -> Dictionary:
    """The dictionary gated at the threshold where its mean L0 on a calibration sample is `target_l0`.

    Args:
        dictionary: one whose gate can be replaced.
        batches: activations of calibration tokens, `Float[Tensor, "token d"]` at every read site.
        target_l0: wanted mean number of active latents per token.

    Raises:
        UserError: the sample is empty, or fewer latents than that ever have a positive pre-activation.
    """
    everything = with_k(dictionary, dictionary.card.n_latents)
    tokens = 0
    positive: list[Tensor] = []
    for acts in batches:
        codes = everything.encode(acts)
        tokens += codes.n_tokens
        positive.append(codes.values[codes.values > 0].float().cpu())
    values = torch.cat(positive) if positive else torch.empty(0)
    wanted = round(target_l0 * tokens)
    if not 1 <= wanted <= len(values):
        raise UserError(
            f"dictionary {dictionary.card.name!r} can't be calibrated to L0 {target_l0:g}: on {tokens} "
            f"calibration tokens only {len(values)} pre-activations are positive, {wanted} are needed"
        )
    ordered = values.sort(descending=True).values
    # Halfway to the next value, so that rounding can't move an activation across.
    below = float(ordered[wanted]) if wanted < len(ordered) else 0.0
    return with_threshold(dictionary, (float(ordered[wanted - 1]) + below) / 2)
