"""Dictionaries of a language model: the protocol, native families, RouteSAE, controls and loading."""

from latentbench.adapters._calibrate import calibrate
from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._codes import Codes, codes_from_dense, codes_from_topk, decode_rows
from latentbench.adapters._controls import IdentityDictionary, random_decoder
from latentbench.adapters._dictionary import Dictionary, Reconstruction, Written
from latentbench.adapters._gates import Gate, JumpReluGate, ReluGate, ThresholdGate, TopKGate
from latentbench.adapters._load import (
    Format,
    LoadOptions,
    check_fits,
    load_dictionary,
    with_k,
    with_threshold,
    zoo_folder,
    zoo_names,
)
from latentbench.adapters._routesae import Pooling, RouteSae, Routing, SpliceMode, route_tokens, routed_sites
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._splice import SteerLatent, splice_edits, steering_edits, written_masks
from latentbench.adapters._transforms import InputTransform, Transformed

__all__ = [
    "Codes",
    "Dictionary",
    "DictionaryCard",
    "Format",
    "Gate",
    "IdentityDictionary",
    "InputTransform",
    "JumpReluGate",
    "LoadOptions",
    "Pooling",
    "Reconstruction",
    "ReluGate",
    "RouteSae",
    "Routing",
    "SaeWeights",
    "SparseAutoencoder",
    "SpliceMode",
    "SteerLatent",
    "ThresholdGate",
    "TopKGate",
    "Transformed",
    "Written",
    "calibrate",
    "check_fits",
    "codes_from_dense",
    "codes_from_topk",
    "decode_rows",
    "load_dictionary",
    "random_decoder",
    "route_tokens",
    "routed_sites",
    "splice_edits",
    "steering_edits",
    "with_k",
    "with_threshold",
    "written_masks",
    "zoo_folder",
    "zoo_names",
]
