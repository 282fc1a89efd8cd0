"""One global threshold that gives a dictionary its target L0: the calibrated mode of fixed sparsity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._overrides import with_k, with_threshold
from latentbench.errors import UserError
from latentbench.lm import Site

__all__ = ["calibrate"]

_TIMES_TARGET, _AT_LEAST = 16, 1024
"""Pre-activations that are looked at for each token: this many times the target, and this many at least."""
_HELD = 2**24
"""Pre-activations that are held in all; beyond that the smaller half of them is dropped."""


def calibrate(
    dictionary: Dictionary, batches: Iterable[Mapping[Site, Tensor]], target_l0: float
) -> Dictionary:
    """The dictionary gated at the threshold where its mean L0 on a calibration sample is `target_l0`.

    Args:
        dictionary: one whose gate can be replaced.
        batches: activations of calibration tokens, `Float[Tensor, "token d"]` at every read site.
        target_l0: wanted mean number of active latents per token.

    Raises:
        UserError: the sample is empty or too large, or fewer latents than that ever have a positive pre-activation.
        AdapterError: the dictionary has no gate that a threshold could stand in for.
    """
    with_threshold(dictionary, 0.0)  # refuses before any work is done
    most = min(dictionary.card.n_latents, max(_AT_LEAST, math.ceil(_TIMES_TARGET * target_l0)))
    everything = with_k(dictionary, most)
    tokens = 0
    held = _Largest()
    cut = 0.0
    for acts in batches:
        codes = everything.encode(acts)
        tokens += codes.n_tokens
        above = codes.values.clamp(min=0)
        held.add(above[above > 0].float().cpu())
        if most < dictionary.card.n_latents:
            # Of a token that has this many positive ones, smaller ones were left out.
            smallest = torch.full((codes.n_tokens,), torch.inf, device=above.device, dtype=above.dtype)
            smallest.scatter_reduce_(0, codes.rows(), above, "amin")
            full = smallest[codes.counts() >= most]
            cut = max(cut, float(full.max()) if len(full) else 0.0)
    wanted = round(target_l0 * tokens)
    if not 1 <= wanted <= held.seen:
        raise UserError(
            f"dictionary {dictionary.card.name!r} can't be calibrated to L0 {target_l0:g}: on {tokens} "
            f"calibration tokens only {held.seen} pre-activations are positive, {wanted} are needed"
        )
    values = held.values()
    if held.dropped and wanted >= _HELD // 2:
        raise UserError(
            f"dictionary {dictionary.card.name!r} can't be calibrated to L0 {target_l0:g} on {tokens} tokens: that "
            f"takes the {wanted} largest pre-activations, and {_HELD // 2} are held; use fewer calibration tokens"
        )
    # Halfway to the next value, so that rounding can't move an activation across.
    more = wanted < len(values)
    ordered = np.partition(values, [-wanted - 1, -wanted] if more else [-wanted])
    below = float(ordered[-wanted - 1]) if more else 0.0
    threshold = (float(ordered[-wanted]) + below) / 2
    if threshold < cut:
        raise UserError(
            f"dictionary {dictionary.card.name!r} can't be calibrated to L0 {target_l0:g}: some tokens would have "
            f"more than {most} active latents, {_TIMES_TARGET} times the target; set the sparsity by k instead"
        )
    calibrated = with_threshold(dictionary, threshold)
    calibrated.card = calibrated.card.model_copy(update={"nominal_l0": float(target_l0)})
    return calibrated


class _Largest:
    """The largest of many numbers: at least the `_HELD // 2` largest of all that were given."""

    def __init__(self) -> None:
        self.seen = 0
        """How many were given."""
        self.dropped = False
        """Whether the smaller ones among them are no longer held."""
        self._parts: list[NDArray[np.float32]] = []
        self._held = 0

    def add(self, values: Tensor) -> None:
        """Take `Float32[Tensor, "n"]` in."""
        self.seen += len(values)
        self._held += len(values)
        self._parts.append(values.numpy())
        if self._held > _HELD:
            kept = _HELD // 2
            self._parts = [np.partition(self.values(), -kept)[-kept:].copy()]
            self._held, self.dropped = kept, True

    def values(self) -> NDArray[np.float32]:
        """Those that are held, in no order."""
        return np.concatenate(self._parts) if self._parts else np.empty(0, np.float32)
