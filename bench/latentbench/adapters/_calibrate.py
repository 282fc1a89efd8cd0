"""One global threshold that gives a dictionary its target L0: the calibrated mode of fixed sparsity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._load import with_k, with_threshold
from latentbench.errors import UserError
from latentbench.lm import Site

__all__ = ["calibrate"]

_TIMES_TARGET, _AT_LEAST = 16, 1024
"""Pre-activations that are looked at for each token: this many times the target, and this many at least."""


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
    most = min(dictionary.card.n_latents, max(_AT_LEAST, math.ceil(_TIMES_TARGET * target_l0)))
    everything = with_k(dictionary, most)
    tokens = 0
    positive: list[Tensor] = []
    cut = 0.0
    for acts in batches:
        codes = everything.encode(acts)
        tokens += codes.n_tokens
        above = codes.values.clamp(min=0)
        positive.append(above[above > 0].float().cpu())
        if most < dictionary.card.n_latents:
            # Of a token that has this many positive ones, smaller ones were left out.
            smallest = torch.full((codes.n_tokens,), torch.inf, device=above.device, dtype=above.dtype)
            smallest.scatter_reduce_(0, codes.rows(), above, "amin")
            full = smallest[codes.counts() >= most]
            cut = max(cut, float(full.max()) if len(full) else 0.0)
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
    threshold = (float(ordered[wanted - 1]) + below) / 2
    if threshold < cut:
        raise UserError(
            f"dictionary {dictionary.card.name!r} can't be calibrated to L0 {target_l0:g}: some tokens would have "
            f"more than {most} active latents, {_TIMES_TARGET} times the target; set the sparsity by k instead"
        )
    calibrated = with_threshold(dictionary, threshold)
    calibrated.card = calibrated.card.model_copy(update={"nominal_l0": float(target_l0)})
    return calibrated
