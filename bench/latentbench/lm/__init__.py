"""The language model under study: sites, capture, edits, resumed passes, generation."""

from latentbench.lm._begun import Begun
from latentbench.lm._edits import BOTH_PHASES, AddVector, Edit, EditView, MapActivation, Phase
from latentbench.lm._generate import Generation
from latentbench.lm._layouts import BlockLayout, Tap, find_layout
from latentbench.lm._lm import LM, Forward
from latentbench.lm._load import DTYPES, load_lm
from latentbench.lm._order import generation_batches
from latentbench.lm._sites import KINDS, Site
from latentbench.lm._tokens import TokenBatch, make_batch

__all__ = [
    "BOTH_PHASES",
    "DTYPES",
    "KINDS",
    "LM",
    "AddVector",
    "Begun",
    "BlockLayout",
    "Edit",
    "EditView",
    "Forward",
    "Generation",
    "MapActivation",
    "Phase",
    "Site",
    "Tap",
    "TokenBatch",
    "find_layout",
    "generation_batches",
    "load_lm",
    "make_batch",
]
