"""Multi-layer SAEs (GitHub tim-lawson/mlsae): a folder with `config.json` and `model.safetensors`, as the hub has it.

Tensors: `encoder.weight` [latent, d], `decoder.weight` [d, latent], `pre_encoder_bias` [d]; no bias of the encoder.
In the `-tfm` repositories they are prefixed `autoencoder.` and lie beside the language model, which is left alone.
Each token is standardised (unbiased standard deviation plus 1e-5, undone without it), then the k largest latents are
kept and rectified. With `lens`, every layer has a matrix before the encoder and one after the decoder, folded here.

One SAE serves all its layers; which of them is to be read is chosen with `site`. Layer i is what block i gives. The
plain repositories do not name their layers in every version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._names import Facts, card_of, first_named, keys_of, topk_gate, whole
from latentbench.adapters.formats._sites import Place
from latentbench.adapters.formats._tensors import Shape, in_float32, read_json, require
from latentbench.errors import AdapterError
from latentbench.lm import Site

__all__ = ["FORMAT", "MlsaeFormat", "one_of_sites"]

_CONFIG, _WEIGHTS, _PREFIX = "config.json", "model.safetensors", "autoencoder."


class MlsaeFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`."""
        folder = path if path.is_dir() else path.parent
        if not path.is_dir() and path.name not in (_CONFIG, _WEIGHTS):
            return None
        if "pre_encoder_bias" not in {key.removeprefix(_PREFIX) for key in keys_of(folder / _WEIGHTS)}:
            return None
        return f"{_WEIGHTS} with encoder, decoder and pre_encoder_bias: MLSAE"

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`; `site` chooses the layer, unless it was trained on one only."""
        folder = path if path.is_dir() else path.parent
        config = read_json(folder / _CONFIG)
        if config.get("tuned_lens"):
            raise AdapterError(
                f"{_CONFIG}: key tuned_lens is true, and false is expected: its inputs go through a tuned lens of the "
                "language model first, which the checkpoint does not hold"
            )
        tensors = _read(folder / _WEIGHTS)
        layers = _layers(config, options)
        site = one_of_sites(layers, options.site, file=_CONFIG)
        weights = _weights(config, tensors, _index(layers, site))
        gate = topk_gate(
            whole(config, "k", file=_CONFIG) if "k" in config else None,
            options.k,
            rectify=True,
            file=_CONFIG,
            where="the config has none",
        )
        standardised = bool(config.get("standardize", True))
        transform = InputTransform("layer_norm", 1e-5) if standardised else InputTransform("none")
        card = card_of(
            folder / _WEIGHTS,
            Facts(
                name=folder.name,
                family="mlsae",
                place=Place(site, site),
                lm=_lm(config, folder),
                options={"sites": [str(one) for one in layers]}
                if layers and not config.get("lens")
                else None,
            ),
            weights.w_enc.shape,
            gate,
            transform,
        )
        return SparseAutoencoder(_plain(card), weights, gate, transform)


FORMAT: Format = MlsaeFormat()


def one_of_sites(known: list[Site] | None, asked: str | None, *, file: str) -> Site:
    """The site that one SAE of many layers is to read.

    Args:
        known: its sites; None where the checkpoint does not tell.
        asked: `LoadOptions.site`.
        file: for messages.

    Raises:
        AdapterError: none was asked for and there are several, or the one asked for is not among them.
    """
    wanted = None if asked is None else Site.parse(asked)
    if wanted is None and known is not None and len(known) == 1:
        return known[0]
    names = "a site after a block" if known is None else ", ".join(map(str, known))
    if wanted is None:
        raise AdapterError(
            f"{file}: one SAE serves several layers, and one of them is expected: give site, {names}"
            + (", such as site=resid_post.3" if known is None else "")
        )
    if wanted.kind != "resid_post" or (known is not None and wanted not in known):
        raise AdapterError(f"{file}: key site was asked for as {wanted}, and {names} is expected")
    return wanted


def _plain(card: DictionaryCard) -> DictionaryCard:
    """A card that lists no sites where there is only one."""
    if len(card.options.get("sites", ())) != 1:
        return card
    return card.model_copy(
        update={"options": {key: value for key, value in card.options.items() if key != "sites"}}
    )


def _read(file: Path) -> dict[str, Tensor]:
    """The tensors of the SAE alone: the language model beside it may be large."""
    found: dict[str, Tensor] = {}
    try:
        with safe_open(file, framework="pt") as opened:
            keys = list(opened.keys())  # it is no mapping
            inner = any(key.startswith(_PREFIX) for key in keys)
            for key in keys:
                if not inner or key.startswith(_PREFIX):
                    found[key.removeprefix(_PREFIX)] = in_float32(opened.get_tensor(key))
    except (SafetensorError, OSError) as error:
        raise AdapterError(
            f"{file.name} can't be read as safetensors ({error}): it is truncated or something else; get it again"
        ) from error
    return found


def _layers(config: dict[str, Any], options: LoadOptions) -> list[Site] | None:
    named = config.get("layers")
    if isinstance(named, list):
        return [Site("resid_post", int(layer)) for layer in named]
    if "layers" in config and options.n_layers is not None:  # null: all of them
        return [Site("resid_post", layer) for layer in range(options.n_layers)]
    return None


def _index(layers: list[Site] | None, site: Site) -> int | None:
    return None if layers is None else layers.index(site)


def _weights(config: dict[str, Any], tensors: dict[str, Tensor], index: int | None) -> SaeWeights:
    require(tensors, {"pre_encoder_bias": (config.get("n_inputs"),), "encoder.weight": None}, file=_WEIGHTS)
    pre = tensors["pre_encoder_bias"]
    width, latents = len(pre), config.get("n_latents")
    if latents is None and config.get("expansion_factor") is not None:
        latents = width * whole(config, "expansion_factor", file=_CONFIG)
    require(tensors, {"encoder.weight": (latents, width)}, file=_WEIGHTS)
    shapes: dict[str, Shape] = {"decoder.weight": (width, len(tensors["encoder.weight"]))}
    if config.get("lens"):
        if index is None:
            raise AdapterError(
                f"{_CONFIG}: key lens is true and layers {config.get('layers')!r}, and a list of layers is expected: "
                "each has a matrix of its own"
            )
        shapes |= dict.fromkeys(
            (f"encoder_lens.{index}.weight", f"decoder_lens.{index}.weight"), (width, width)
        )
    require(tensors, shapes, file=_WEIGHTS)
    w_enc, w_dec = tensors["encoder.weight"], tensors["decoder.weight"].T.contiguous()
    if not config.get("lens"):
        return SaeWeights(w_enc, torch.zeros(len(w_enc)), w_dec, pre, pre)
    # W (E x - b) = (W E) x - W b, and D (W_dec z + b) = (D W_dec) z + D b.
    before, after = tensors[f"encoder_lens.{index}.weight"], tensors[f"decoder_lens.{index}.weight"]
    return SaeWeights(w_enc @ before, -(w_enc @ pre), w_dec @ after.T, after @ pre, None)


def _lm(config: dict[str, Any], folder: Path) -> str:
    if config.get("model_name"):
        return str(config["model_name"])
    named = first_named(folder, r"(?:mlsae|sae)-(.+)-x\d+-k\d+")
    return named[1] if named else ""
