"""RouteSAE's official checkpoints (GitHub swei2001/RouteSAEs): bare state dicts in `.pt`, named for what they are.

| model | name | keys |
| --- | --- | --- |
| RouteSAE | `sum_hard_K64_...` | `router.weight` [site, d], and `sae.` before those of TopK |
| TopK, MLSAE, Random | `L12_K64_...`, `ML_K64_...`, `RDM_K64_...` | see below |
| Vanilla (ReLU) | `L12_VL0.01_...` | `pre_bias`, `latent_bias`, `encoder.weight` [latent, d], `decoder.weight` |
| JumpReLU | `L12_JL0.01_...` | those and `threshold` |
| Gated | `L12_GL0.01_...` | `gate_bias`, `mag_bias`, `r_mag` in place of `latent_bias` |
| Crosscoder | `Cross_CL0.01_...` | `latent_bias`, `encoder.I.weight`, `decoder.I.weight`; no bias of the decoder |

What stands in neither has to be given: architecture, k, pooling, site or layers. `L` counts hidden states, so that
`L12` is what block 11 gives. Every token is standardised (unbiased standard deviation plus 1e-6; undone exactly here,
and without the 1e-6 in that code). TopK keeps the k largest whatever their sign.

RouteSAE and the crosscoder have hidden_states[n // 4] to [3 n // 4] of an n-layer model. The code trains MLSAE on
hidden_states[3] to [11] and Random on [1] to [16], whatever the model; both numbers are for 16 layers. A Random
checkpoint is one TopK SAE: with `site` it reads that site; without, every token takes one of the sites by chance, see
`latentbench.adapters.route_tokens`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._crosscoder import Crosscoder, CrosscoderWeights
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._gates import Gate, GatedGate, ReluGate
from latentbench.adapters._routesae import RouteSae, Routing, routed_sites
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._names import Facts, card_of, jump_gate, keys_of, only_file, topk_gate
from latentbench.adapters.formats._sites import Place, settle
from latentbench.adapters.formats._tensors import read_pt, require
from latentbench.adapters.formats.mlsae import one_of_sites
from latentbench.errors import AdapterError, unknown_name
from latentbench.lm import Site

__all__ = ["FORMAT", "RouteSaePtFormat"]

_LINEAR = {"encoder.weight", "decoder.weight"}
_TOPK = _LINEAR | {"pre_bias", "latent_bias"}
_KEYS: dict[str, set[str]] = {
    "routesae": {"router.weight"} | {f"sae.{key}" for key in _TOPK},
    "gated": _LINEAR | {"pre_bias", "gate_bias", "mag_bias", "r_mag"},
    "jumprelu": _TOPK | {"threshold"},
    "plain": _TOPK,
}
_ARCHITECTURES = {
    "routesae": "routesae",
    "routesae-soft": "routesae",
    "gated": "gated",
    "jumprelu": "jumprelu",
    "crosscoder": "crosscoder",
    "topk": "plain",
    "relu": "plain",
    "mlsae": "plain",
    "random": "plain",
}
"""Architectures that can be asked for, and which keys they have."""
_NAMES = (
    ("routesae", r"(?P<pooling>sum|mean)_(?P<routing>hard|soft)_K(?P<k>\d+)_(?P<rest>.+)"),
    ("topk", r"L(?P<layer>\d+)_K(?P<k>\d+)_(?P<rest>.+)"),
    ("relu", r"L(?P<layer>\d+)_VL[\d.e-]+_(?P<rest>.+)"),
    ("gated", r"L(?P<layer>\d+)_GL[\d.e-]+_(?P<rest>.+)"),
    ("jumprelu", r"L(?P<layer>\d+)_JL[\d.e-]+_(?P<rest>.+)"),
    ("crosscoder", r"Cross_CL[\d.e-]+_(?P<rest>.+)"),
    ("mlsae", r"ML_K(?P<k>\d+)_(?P<rest>.+)"),
    ("random", r"RDM_K(?P<k>\d+)_(?P<rest>.+)"),
)
_STANDARDISE = InputTransform("standardise", 1e-6)
_MLSAE_ENTRIES, _RANDOM_ENTRIES = range(3, 12), range(1, 17)
"""Entries of hidden_states that the published code has, whatever the model."""


class _Named(NamedTuple):
    """What the name of a file says."""

    architecture: str | None = None
    k: int | None = None
    layer: int | None = None
    pooling: str | None = None
    routing: str | None = None
    lm: str = ""
    latents: int | None = None


class RouteSaePtFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`; exactly the keys of one of the models, so that other formats' files are not taken."""
        file = only_file(path, "*.pt")
        kind = _kind(keys_of(file))
        if file is None or kind is None:
            return None
        named = _named(file).architecture
        what = "TopK, Vanilla, MLSAE or Random" if kind == "plain" else kind
        return f"{file.name} with the keys of RouteSAE's {what}" + (f", named for {named}" if named else "")

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`; what the name does not say is taken from the options."""
        file = only_file(path, "*.pt") or path
        tensors = read_pt(file)
        named = _named(file)
        architecture = _architecture(file, tensors, named, options)
        loaders = {
            "routesae": _routesae,
            "routesae-soft": _routesae,
            "crosscoder": _crosscoder,
            "random": _random,
        }
        loader = loaders.get(architecture, _single)
        return loader(_Asked(file, tensors, architecture, named, options))


FORMAT: Format = RouteSaePtFormat()


class _Asked(NamedTuple):
    """A checkpoint with all that is known of it."""

    file: Path
    tensors: dict[str, Tensor]
    architecture: str
    named: _Named
    options: LoadOptions


def _kind(keys: set[str]) -> str | None:
    """Which model's keys these are: of `_KEYS`, "crosscoder", or None."""
    kind = next((name for name, wanted in _KEYS.items() if keys == wanted), None)
    if kind is not None:
        return kind
    sites = len({key for key in keys if re.fullmatch(r"encoder\.\d+\.weight", key)})
    wanted = {f"{side}.{site}.weight" for side in ("encoder", "decoder") for site in range(sites)}
    return "crosscoder" if sites and keys == wanted | {"latent_bias"} else None


def _named(file: Path) -> _Named:
    for architecture, pattern in _NAMES:
        match = re.fullmatch(pattern, file.stem)
        if match is None:
            continue
        held = match.groupdict()
        # The rest is the language model, the folder of the data, and the number of latents.
        rest = re.fullmatch(r"(.+)_[^_]+_(\d+)", held["rest"])
        return _Named(
            "routesae-soft" if held.get("routing") == "soft" else architecture,
            int(held["k"]) if held.get("k") else None,
            int(held["layer"]) if held.get("layer") else None,
            held.get("pooling"),
            held.get("routing"),
            rest[1] if rest else "",
            int(rest[2]) if rest else None,
        )
    return _Named()


def _architecture(file: Path, tensors: dict[str, Tensor], named: _Named, options: LoadOptions) -> str:
    """The architecture: name, option and keys must agree, and tell."""
    kind, asked = _kind(set(tensors)), options.architecture
    if asked is not None and asked not in _ARCHITECTURES:
        raise unknown_name("architecture", asked, _ARCHITECTURES)
    if kind is None:
        raise AdapterError(
            f"{file.name}: keys are {', '.join(sorted(tensors))}, and those of a RouteSAE model are expected"
        )
    if named.architecture is not None and asked is not None and named.architecture != asked:
        raise AdapterError(
            f"{file.name}: its name is that of {named.architecture}, and {asked} was asked for"
        )
    said = named.architecture or asked
    fitting = [name for name, keys in _ARCHITECTURES.items() if keys == kind]
    if said is None and len(fitting) > 1:
        raise AdapterError(
            f"{file.name}: its keys fit several architectures and its name tells none: give architecture, one of "
            f"{', '.join(fitting)}"
        )
    if said is not None and said not in fitting:
        raise AdapterError(
            f"{file.name}: it is {'named' if named.architecture else 'asked for as'} {said}, and its keys are those of "
            f"{' or '.join(fitting)}"
        )
    return said or fitting[0]


def _sizes(asked: _Asked, latents: int) -> None:
    if asked.named.latents is not None and asked.named.latents != latents:
        raise AdapterError(
            f"{asked.file.name}: key encoder.weight has {latents} latents, and {asked.named.latents} are expected from "
            "the file's name: it was renamed, or is of another run"
        )


def _weights(asked: _Asked, prefix: str = "") -> SaeWeights:
    """Those of the models with one encoder; the gated one has no bias of its encoder."""
    tensors, file = asked.tensors, asked.file.name
    by_latent = "mag_bias" if asked.architecture == "gated" else "latent_bias"
    require(tensors, {f"{prefix}pre_bias": (None,), f"{prefix}{by_latent}": (None,)}, file=file)
    width, latents = len(tensors[f"{prefix}pre_bias"]), len(tensors[f"{prefix}{by_latent}"])
    require(
        tensors,
        {f"{prefix}encoder.weight": (latents, width), f"{prefix}decoder.weight": (width, latents)},
        file=file,
    )
    _sizes(asked, latents)
    pre = tensors[f"{prefix}pre_bias"]
    return SaeWeights(
        tensors[f"{prefix}encoder.weight"],
        torch.zeros(latents) if asked.architecture == "gated" else tensors[f"{prefix}latent_bias"],
        tensors[f"{prefix}decoder.weight"].T.contiguous(),
        pre,
        pre,
    )


def _gate(asked: _Asked, latents: int) -> Gate:
    tensors, file = asked.tensors, asked.file.name
    if asked.architecture == "relu":
        return ReluGate()
    if asked.architecture == "jumprelu":
        require(tensors, {"threshold": (latents,)}, file=file)
        return jump_gate(tensors["threshold"], file=file)
    if asked.architecture == "gated":
        require(tensors, dict.fromkeys(("gate_bias", "r_mag", "mag_bias"), (latents,)), file=file)
        return GatedGate(tensors["gate_bias"], tensors["r_mag"], tensors["mag_bias"])
    return topk_gate(
        asked.named.k, asked.options.k, rectify=False, file=file, where="its name has no K and a number"
    )


def _entry(entry: int) -> Site:
    """Where entry i of hidden_states is: what block i - 1 gives."""
    return Site("resid_post", entry - 1)


def _single(asked: _Asked, sites: list[Site] | None = None) -> Dictionary:
    """An SAE that reads one site: of its name, asked for, or one of several."""
    weights = _weights(asked)
    gate = _gate(asked, len(weights.w_enc))
    if asked.architecture == "mlsae":
        sites = [_entry(entry) for entry in _MLSAE_ENTRIES]
    several = sites is not None
    site = one_of_sites(sites, asked.options.site, file=asked.file.name) if several else _site(asked)
    card = card_of(
        asked.file,
        Facts(
            name=asked.file.stem,
            family=asked.architecture if asked.architecture != "random" else "topk",
            place=Place(site, site),
            lm=asked.named.lm,
            options={"sites": [str(one) for one in sites]} if sites is not None else None,
        ),
        weights.w_enc.shape,
        gate,
        _STANDARDISE,
    )
    return SparseAutoencoder(card, weights, gate, _STANDARDISE)


def _site(asked: _Asked) -> Site:
    layer, n_layers = asked.named.layer, asked.options.n_layers
    if layer is not None and (layer < 1 or (n_layers is not None and layer >= n_layers)):
        raise AdapterError(
            f"{asked.file.name}: L{layer} in its name is hidden state {layer}, and one of 1 to "
            f"{n_layers - 1 if n_layers is not None else 'the last but one'} is expected: the last is taken after the "
            "model's final norm, which is no site"
        )
    found = None if layer is None else Place(_entry(layer), _entry(layer))
    said = "its name has no L and a number" if layer is None else f"L{layer} in its name counts hidden states"
    return settle(found, asked.options.site, transcoder=False, file=asked.file.name, said=said).reads


def _routed(asked: _Asked, number: int, key: str) -> tuple[Site, ...]:
    """The routed sites: of the number of layers, which the number of sites tells only sometimes."""
    n_layers, file = asked.options.n_layers, asked.file.name
    fitting: dict[tuple[Site, ...], list[int]] = {}
    for candidate in range(4, 4 * number + 4):
        sites = routed_sites(candidate)
        if len(sites) == number:
            fitting.setdefault(sites, []).append(candidate)
    if n_layers is not None:
        sites = routed_sites(n_layers)
        if len(sites) != number:
            raise AdapterError(
                f"{file}: key {key} has {number} sites, and {len(sites)} are expected for a model of {n_layers} "
                "layers: it belongs to another model"
            )
        return sites
    if len(fitting) == 1:
        return next(iter(fitting))
    counts = sorted(count for held in fitting.values() for count in held)
    raise AdapterError(
        f"{file}: key {key} has {number} sites, which fit models of {', '.join(map(str, counts)) or 'no number of'} "
        "layers, and one number is expected: give n_layers, or the language model"
    )


def _routesae(asked: _Asked) -> Dictionary:
    require(asked.tensors, {"router.weight": (None, None)}, file=asked.file.name)
    weights = _weights(asked, "sae.")
    width = weights.w_enc.shape[1]
    require(asked.tensors, {"router.weight": (None, width)}, file=asked.file.name)
    router = asked.tensors["router.weight"]
    sites = _routed(asked, len(router), "router.weight")
    pooling, said = asked.options.pooling, asked.named.pooling
    if said is not None and pooling is not None and said != pooling:
        raise AdapterError(f"{asked.file.name}: its name says pooling {said}, and {pooling} was asked for")
    chosen = said or pooling
    if chosen not in ("sum", "mean"):
        raise AdapterError(
            f"{asked.file.name}: pooling is not told (its name does not start with sum_ or mean_), and 'sum' or "
            "'mean' is expected: give pooling"
        )
    routing: Routing = "soft" if asked.architecture == "routesae-soft" else "hard"
    return _with_router(asked, weights, router, sites, "mean" if chosen == "mean" else "sum", routing)


def _random(asked: _Asked) -> Dictionary:
    n_layers = asked.options.n_layers
    if n_layers is not None and n_layers < _RANDOM_ENTRIES[-1]:
        raise AdapterError(
            f"{asked.file.name}: the published code takes hidden states 1 to {_RANDOM_ENTRIES[-1]} by chance, and the "
            f"model has {n_layers} layers: it belongs to another model"
        )
    sites = [_entry(entry) for entry in _RANDOM_ENTRIES]
    if asked.options.site is not None:
        return _single(asked, sites)
    weights = _weights(asked)
    # No weight of the checkpoint: a fixed direction that spreads tokens evenly over the sites.
    direction = torch.randn(weights.w_enc.shape[1], generator=torch.Generator().manual_seed(0))
    router = (direction / direction.norm()).expand(len(sites), -1).clone()
    return _with_router(asked, weights, router, tuple(sites), "sum", "random")


def _with_router(
    asked: _Asked,
    weights: SaeWeights,
    router: Tensor,
    sites: tuple[Site, ...],
    pooling: Literal["sum", "mean"],
    routing: Routing,
) -> RouteSae:
    gate = _gate(asked, len(weights.w_enc))
    splice: Literal["paper", "code", "corrected"] = "corrected"
    if asked.options.mode in ("paper", "code"):
        splice = "paper" if asked.options.mode == "paper" else "code"
    inner = card_of(
        asked.file,
        Facts(
            name=asked.file.stem,
            family="routesae",
            place=Place(sites[0], sites[0]),
            lm=asked.named.lm,
            options={"pooling": pooling, "routing": routing, "splice": splice},
        ),
        weights.w_enc.shape,
        gate,
        _STANDARDISE,
    )
    names = tuple(map(str, sites))
    card = inner.model_copy(update={"reads": names, "writes": names})
    sae = SparseAutoencoder(inner, weights, gate, _STANDARDISE)
    return RouteSae(card, router, sae, pooling, splice, routing)


def _crosscoder(asked: _Asked) -> Dictionary:
    tensors, file = asked.tensors, asked.file.name
    number = sum(key.startswith("encoder.") for key in tensors)
    require(tensors, {"latent_bias": (None,), "encoder.0.weight": (None, None)}, file=file)
    latents = len(tensors["latent_bias"])
    require(tensors, {"encoder.0.weight": (latents, None)}, file=file)
    width = tensors["encoder.0.weight"].shape[1]
    for index in range(number):
        require(
            tensors,
            {f"encoder.{index}.weight": (latents, width), f"decoder.{index}.weight": (width, latents)},
            file=file,
        )
    _sizes(asked, latents)
    sites = tuple(map(str, _routed(asked, number, "encoder.I.weight")))
    weights = CrosscoderWeights(
        torch.stack([tensors[f"encoder.{index}.weight"] for index in range(number)]),
        tensors["latent_bias"],
        torch.stack([tensors[f"decoder.{index}.weight"].T for index in range(number)]),
        torch.zeros(number, width),
        None,
    )
    gate = ReluGate()
    inner: DictionaryCard = card_of(
        asked.file,
        Facts(
            name=asked.file.stem,
            family="crosscoder",
            place=Place(Site.parse(sites[0]), Site.parse(sites[0])),
            lm=asked.named.lm,
        ),
        (latents, width),
        gate,
        _STANDARDISE,
    )
    return Crosscoder(inner.model_copy(update={"reads": sites, "writes": sites}), weights, gate, _STANDARDISE)
