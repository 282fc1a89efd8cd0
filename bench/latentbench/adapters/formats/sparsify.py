"""EleutherAI's sparsify: a folder with `cfg.json` and `sae.safetensors`, named for its hook point.

Keys: `encoder.weight` [latent, d], `encoder.bias` [latent], `W_dec` [latent, d] (a row for each latent: not that of
an nn.Linear), `b_dec` [d], and `W_skip` [d, d] of skip transcoders. The decoder's bias is subtracted from the input
of an autoencoder, whatever `normalize_decoder` says, and not from that of a transcoder. Source: eai-sparsify 1.3.3;
`signed` is of the versions before 1.0, which rank by size and keep the sign.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._gates import AbsTopKGate, TopKGate
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._sites import Place, block_input, mlp_of, parse_site, settle
from latentbench.adapters.formats._tensors import Shape, read_json, read_tensors, require
from latentbench.errors import AdapterError
from latentbench.identity import sha256_file
from latentbench.lm import Site

__all__ = ["FORMAT", "SparsifyFormat"]

_CONFIG, _WEIGHTS = "cfg.json", "sae.safetensors"


class SparsifyFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`."""
        folder = path if path.is_dir() else path.parent
        if (
            (folder / _CONFIG).is_file()
            and (folder / _WEIGHTS).is_file()
            and (path.is_dir() or path.name in (_WEIGHTS, _CONFIG))
        ):
            return f"a folder with {_CONFIG} and {_WEIGHTS}, as sparsify writes it"
        return None

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`; `site` is for folders that are not named for their hook point."""
        folder = path if path.is_dir() else path.parent
        config = read_json(folder / _CONFIG)
        weights = _weights(folder, config)
        transcoder = bool(config.get("transcode"))
        hook = folder.parent.name if re.fullmatch(r"seed\d+", folder.name) else folder.name
        place = settle(
            _place(hook, transcoder=transcoder),
            options.site,
            transcoder=transcoder,
            file=_WEIGHTS,
            said=f"folder {hook!r}",
        )
        gate = _gate(config, options)
        latents, width = weights.w_enc.shape
        card = DictionaryCard(
            name=folder.name,
            family="transcoder" if transcoder else str(gate.describe()["gate"]),
            reads=(str(place.reads),),
            writes=(str(place.writes),),
            d_model=width,
            n_latents=latents,
            nominal_l0=float(gate.k),
            options=gate.describe(),
            lm=_lm(folder),
            source=folder.name,
            sha256=sha256_file(folder / _WEIGHTS),
        )
        return SparseAutoencoder(card, weights, gate, InputTransform("none"))


FORMAT: Format = SparsifyFormat()


def _weights(folder: Path, config: dict[str, Any]) -> SaeWeights:
    tensors = read_tensors(folder / _WEIGHTS)
    width = _number(config, "d_in", None)
    named = int(config.get("num_latents") or 0)
    latents = named or width * _number(config, "expansion_factor", 32)
    skip = bool(config.get("skip_connection"))
    shapes: dict[str, Shape] = {
        "encoder.weight": (latents, width),
        "encoder.bias": (latents,),
        "W_dec": (latents, width),
        "b_dec": (width,),
    }
    if skip:
        shapes["W_skip"] = (width, width)
    elif "W_skip" in tensors:
        raise AdapterError(
            f"{_WEIGHTS}: key W_skip is found, and {_CONFIG} has skip_connection false, so none is expected: the "
            "config belongs to other weights"
        )
    require(tensors, shapes, file=_WEIGHTS)
    if skip and not config.get("transcode"):
        raise AdapterError(
            f"{_CONFIG}: key skip_connection is true and transcode false: an autoencoder with a path around its "
            "latents reconstructs without them; transcode true is expected"
        )
    return SaeWeights(
        tensors["encoder.weight"],
        tensors["encoder.bias"],
        tensors["W_dec"],
        tensors["b_dec"],
        None if config.get("transcode") else tensors["b_dec"],
        tensors["W_skip"] if skip else None,
    )


def _gate(config: dict[str, Any], options: LoadOptions) -> AbsTopKGate | TopKGate:
    activation = config.get("activation", "topk")
    if activation != "topk":
        raise AdapterError(
            f"{_CONFIG}: key activation is {activation!r}, and 'topk' is expected: groupmax takes the largest latent "
            "of each group, which is no gate here"
        )
    k = _number(config, "k", options.k)
    return AbsTopKGate(k) if config.get("signed") else TopKGate(k, rectify=True)


def _number(config: dict[str, Any], key: str, default: int | None) -> int:
    found = config.get(key, default)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise AdapterError(f"{_CONFIG}: key {key} is {found!r}, and a whole number of 1 or more is expected")
    return found


def _place(hook: str, *, transcoder: bool) -> Place | None:
    """Where a hook point is; names are those below the model, such as `layers.3.mlp`, `h.3` or `embed_tokens`."""
    name = re.sub(r"^(?:model|transformer|gpt_neox)\.", "", hook)
    name = re.sub(r"^(?:h|layers)[._](\d+)", r"layers.\1", name)
    site = Site("embed") if name in ("embed_tokens", "embed_in") else parse_site(name)
    if site is None or not transcoder:
        return None if site is None else Place(site, site)
    if site.layer is not None and site.kind == "mlp_out":
        return mlp_of(site.layer)
    if site.layer is not None and site.kind == "resid_post":
        return Place(block_input(site.layer), site)
    return None  # the input of an attention or an embedding is no site


def _lm(folder: Path) -> str:
    """The language model of a run: sparsify writes it beside the folders of the hook points."""
    for parent in list(folder.parents)[:2]:
        if (parent / "config.json").is_file():
            named = read_json(parent / "config.json").get("model")
            return named if isinstance(named, str) else ""
    return ""
