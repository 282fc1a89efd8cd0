"""What can steer: ways to choose latents of a dictionary, and baselines without one. No torch.

A method names where the direction comes from; how much of it is added is chosen for all in the same way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from latentbench.errors import nearest

__all__ = ["METHODS", "Method", "known_methods", "usable_factors"]

Kind = Literal["labelled", "rank", "random", "direction", "prompt"]


class Method(NamedTuple):
    """One source of directions."""

    kind: Kind
    """"labelled": latents by their activations on labelled texts, out of all. "rank": latents by what they do, out of
    the candidates. "random": nothing is chosen. "direction": a direction of the residual stream, no dictionary.
    "prompt": words."""
    title: str
    """Name to show."""


METHODS: dict[str, Method] = {
    "contrast": Method("labelled", "contrast of activations"),
    "mean_difference": Method("labelled", "difference of mean activations"),
    "auroc": Method("labelled", "AUROC of activations (SAE-A of AxBench)"),
    "output_score": Method("rank", "highest output score (Arad et al.)"),
    "output_score_low": Method("rank", "lowest output score"),
    "gradsae": Method("rank", "highest gradient x activation (GradSAE)"),
    "gradsae_low": Method("rank", "lowest gradient x activation"),
    "random_candidate": Method("rank", "a random one of the candidates"),
    "random_latent": Method("random", "a random latent"),
    "random_direction": Method("random", "a random direction of the same norm"),
    "diffmean": Method("direction", "difference of mean activations of the residual stream (DiffMean)"),
    "pca": Method("direction", "first principal component of texts with the concept"),
    "probe": Method("direction", "weights of a logistic probe"),
    "wrong_layer": Method("direction", "DiffMean's direction, added at another layer"),
    "prompting": Method("prompt", "the concept named in the prompt"),
}
"""By name; "rank" methods choose among the latents of highest contrast, so that they differ by their ranking alone."""


def known_methods(names: Sequence[str]) -> list[Method]:
    """The methods of these names.

    Raises:
        ValueError: none is named, one is unknown, or one is named twice.
    """
    if not names:
        raise ValueError("methods is empty: name at least one of " + ", ".join(METHODS))
    for name in names:
        if name not in METHODS:
            close = nearest(name, METHODS)
            raise ValueError(
                f"method {name!r} is unknown"
                + (f"; did you mean {close[0]!r}?" if close else "")
                + f" Known: {', '.join(METHODS)}"
            )
    if len(set(names)) < len(names):
        raise ValueError(f"methods {list(names)} name one twice")
    return [METHODS[name] for name in names]


def usable_factors(factors: Sequence[float]) -> bool:
    """Whether factors are finite, positive and ascending, and differ in the six digits that ids of texts give them."""
    return (
        bool(factors)
        and all(math.isfinite(factor) and factor > 0 for factor in factors)
        and all(one < other and f"{one:g}" != f"{other:g}" for one, other in itertools.pairwise(factors))
    )
