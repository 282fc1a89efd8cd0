"""Dictionaries of a language model: the protocol, native families, RouteSAE, controls and loading."""

from latentbench.adapters._calibrate import calibrate
from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._codes import Codes, codes_from_dense, codes_from_topk, concat_codes, decode_rows
from latentbench.adapters._controls import (
    CONTROL_SCHEMES,
    Calibration,
    IdentityDictionary,
    load_control,
    permuted_decoder,
    random_decoder,
    with_random_codes,
)
from latentbench.adapters._crosscoder import Crosscoder, CrosscoderWeights
from latentbench.adapters._dictionary import Dictionary, Reconstruction, Written
from latentbench.adapters._edit_latents import (
    ChangedTokens,
    EditLatents,
    LatentChange,
    changed_codes,
    clean_route,
    latent_edits,
    observed_sites,
    passing_codes,
)
from latentbench.adapters._fitted_controls import mean_control, pca_control, random_directions, untrained
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._gates import (
    AbsTopKGate,
    Gate,
    GatedGate,
    JumpReluGate,
    ReluGate,
    ThresholdGate,
    TopKGate,
)
from latentbench.adapters._load import (
    Recognised,
    check_fits,
    load_dictionary,
    recognise,
    zoo_folder,
    zoo_names,
)
from latentbench.adapters._overrides import with_k, with_prefix, with_threshold
from latentbench.adapters._random_codes import RandomCodesGate, random_codes
from latentbench.adapters._routesae import (
    Pooling,
    RouteSae,
    Routing,
    SpliceMode,
    route_tokens,
    routed_sites,
    soft_weights,
)
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._splice import (
    SteerLatent,
    splice_edits,
    steering_edits,
    steering_rows,
    written_masks,
)
from latentbench.adapters._transforms import InputTransform, Transformed
from latentbench.adapters._units import unit_scale, unit_sites

__all__ = [
    "CONTROL_SCHEMES",
    "AbsTopKGate",
    "Calibration",
    "ChangedTokens",
    "Codes",
    "Crosscoder",
    "CrosscoderWeights",
    "Dictionary",
    "DictionaryCard",
    "EditLatents",
    "Format",
    "Gate",
    "GatedGate",
    "IdentityDictionary",
    "InputTransform",
    "JumpReluGate",
    "LatentChange",
    "LoadOptions",
    "Pooling",
    "RandomCodesGate",
    "Recognised",
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
    "changed_codes",
    "check_fits",
    "clean_route",
    "codes_from_dense",
    "codes_from_topk",
    "concat_codes",
    "decode_rows",
    "latent_edits",
    "load_control",
    "load_dictionary",
    "mean_control",
    "observed_sites",
    "passing_codes",
    "pca_control",
    "permuted_decoder",
    "random_codes",
    "random_decoder",
    "random_directions",
    "recognise",
    "route_tokens",
    "routed_sites",
    "soft_weights",
    "splice_edits",
    "steering_edits",
    "steering_rows",
    "unit_scale",
    "unit_sites",
    "untrained",
    "with_k",
    "with_prefix",
    "with_random_codes",
    "with_threshold",
    "written_masks",
    "zoo_folder",
    "zoo_names",
]
