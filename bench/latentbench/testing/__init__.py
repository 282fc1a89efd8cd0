"""Toy language models and synthetic dictionaries, for this project's tests and for those of its plug-ins."""

from latentbench.testing._synthetic import perfect_weights, random_routesae, random_sae, random_weights
from latentbench.testing._toy_lm import FAMILIES, toy_lm
from latentbench.testing._toy_tokenizer import TOY_VOCABULARY, toy_tokenizer

__all__ = [
    "FAMILIES",
    "TOY_VOCABULARY",
    "perfect_weights",
    "random_routesae",
    "random_sae",
    "random_weights",
    "toy_lm",
    "toy_tokenizer",
]
