"""Selectors: which of the latents that are active on an example influence its output.

Three kinds, by what they look at:

* one example (`Selector`): examples spliced through a dictionary (`splice`), scores of each example's active latents.
  `ExactAblation` is what the others estimate.
* labelled texts (`LabelledSelector`): activations pooled by text (`pool_codes`), scores of all latents.
* the model alone: `OutputScore`, `DeltaConfidence` and `InputScore` ask what a latent does after a neutral prompt.
"""

from latentbench.selectors._example import Example, Target, TargetKind, TargetTokens
from latentbench.selectors._pooled import LabelledSelector, pool_codes
from latentbench.selectors._selector import LatentScores, Selector, TokenSet, count_to_choose
from latentbench.selectors._spliced import Cost, Spliced, splice
from latentbench.selectors.ablation import ExactAblation
from latentbench.selectors.activation import MeanActivation
from latentbench.selectors.auroc import Auroc
from latentbench.selectors.confidence import DeltaConfidence
from latentbench.selectors.contrast import MeanDifference
from latentbench.selectors.control import RandomActive, matched_by_activation
from latentbench.selectors.correlation import OutcomeCorrelation
from latentbench.selectors.gradient import Attribution, GradSae, IntegratedGradients
from latentbench.selectors.input_score import InputScore
from latentbench.selectors.output_score import OutputScore
from latentbench.selectors.target_atoms import TargetAtoms
from latentbench.selectors.vocabulary import VocabularyProjection, promoted_tokens

__all__ = [
    "Attribution",
    "Auroc",
    "Cost",
    "DeltaConfidence",
    "ExactAblation",
    "Example",
    "GradSae",
    "InputScore",
    "IntegratedGradients",
    "LabelledSelector",
    "LatentScores",
    "MeanActivation",
    "MeanDifference",
    "OutcomeCorrelation",
    "OutputScore",
    "RandomActive",
    "Selector",
    "Spliced",
    "Target",
    "TargetAtoms",
    "TargetKind",
    "TargetTokens",
    "TokenSet",
    "VocabularyProjection",
    "count_to_choose",
    "matched_by_activation",
    "pool_codes",
    "promoted_tokens",
    "splice",
]
