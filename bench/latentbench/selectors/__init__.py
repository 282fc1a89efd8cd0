"""Selectors: which of the latents that are active on an example influence its output.

All see the same thing: examples spliced through a dictionary (`splice`), and give scores of each example's active
latents. `ExactAblation` is what the others estimate.
"""

from latentbench.selectors._example import Example, Target, TargetKind, TargetTokens
from latentbench.selectors._selector import LatentScores, Selector, TokenSet, count_to_choose
from latentbench.selectors._spliced import Cost, Spliced, splice
from latentbench.selectors.ablation import ExactAblation
from latentbench.selectors.activation import MeanActivation
from latentbench.selectors.control import RandomActive, matched_by_activation
from latentbench.selectors.gradient import Attribution, GradSae, IntegratedGradients

__all__ = [
    "Attribution",
    "Cost",
    "ExactAblation",
    "Example",
    "GradSae",
    "IntegratedGradients",
    "LatentScores",
    "MeanActivation",
    "RandomActive",
    "Selector",
    "Spliced",
    "Target",
    "TargetKind",
    "TargetTokens",
    "TokenSet",
    "count_to_choose",
    "matched_by_activation",
    "splice",
]
