"""Gemma Scope 2: a folder with `config.json` and `params.safetensors`.

Tensors: `w_enc` [d, latent], `w_dec` [latent, d_out], `b_enc`, `b_dec`, `threshold` [latent], and for transcoders with
an affine connection `affine_skip_connection` [d, d_out], which adds x times it to the output. JumpReLU, no pre-bias.
The config names the sites by modules, such as `model.layers.17.output`. Of its other kinds, cross-layer transcoders
and crosscoders are refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._gates import JumpReluGate
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._names import Facts, card_of, keys_of, whole
from latentbench.adapters.formats._sites import Place, settle
from latentbench.adapters.formats._tensors import Shape, read_json, read_tensors, require
from latentbench.errors import AdapterError
from latentbench.lm import Site

__all__ = ["FORMAT", "GemmaScope2Format"]

_CONFIG, _WEIGHTS, _SKIP = "config.json", "params.safetensors", "affine_skip_connection"
_KEYS = {"w_enc", "w_dec", "b_enc", "b_dec", "threshold"}
_MODULES = {
    "output": "resid_post",
    "self_attn.o_proj.input": "attn_z",
    "pre_feedforward_layernorm.output": "mlp_in",
    "post_feedforward_layernorm.output": "mlp_out",
}


class GemmaScope2Format:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`."""
        folder = path if path.is_dir() else path.parent
        if not path.is_dir() and path.name not in (_CONFIG, _WEIGHTS):
            return None
        if not keys_of(folder / _WEIGHTS) & _KEYS:
            return None
        return f"{_WEIGHTS} with {', '.join(sorted(_KEYS))}: Gemma Scope 2"

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`."""
        folder = path if path.is_dir() else path.parent
        config = read_json(folder / _CONFIG)
        _refuse_others(config)
        tensors = read_tensors(folder / _WEIGHTS)
        weights = _weights(config, tensors)
        read, written = config.get("hf_hook_point_in"), config.get("hf_hook_point_out")
        transcoder = config.get("type") == "transcoder" or (written is not None and written != read)
        place = settle(
            _place(read, written if transcoder else read),
            options.site,
            transcoder=transcoder,
            file=_CONFIG,
            said=f"hf_hook_point_in is {read!r}, hf_hook_point_out {written!r}",
        )
        gate = JumpReluGate(tensors["threshold"])
        l0 = config.get("l0")
        family = "jumprelu"
        if transcoder:
            family = "transcoder" if weights.skip is None else "skip-transcoder"
        card = card_of(
            folder / _WEIGHTS,
            Facts(
                name=folder.name,
                family=family,
                place=place,
                lm=str(config.get("model_name") or ""),
                nominal_l0=float(l0) if isinstance(l0, int | float) else None,
            ),
            weights.w_enc.shape,
            gate,
        )
        return SparseAutoencoder(card, weights, gate, InputTransform("none"))


FORMAT: Format = GemmaScope2Format()


def _refuse_others(config: dict[str, Any]) -> None:
    if config.get("architecture") != "jump_relu":
        raise AdapterError(
            f"{_CONFIG}: key architecture is {config.get('architecture')!r}, and 'jump_relu' is expected"
        )
    if config.get("type", "sae") not in ("sae", "transcoder"):
        raise AdapterError(
            f"{_CONFIG}: key type is {config['type']!r}, and 'sae' or 'transcoder' is expected: dictionaries over "
            "several layers are in several files, or write layers other than they read, and can't be loaded"
        )


def _weights(config: dict[str, Any], tensors: dict[str, Tensor]) -> SaeWeights:
    require(tensors, {"b_enc": (None,), "b_dec": (None,)}, file=_WEIGHTS)
    latents = whole(config, "width", file=_CONFIG) if "width" in config else len(tensors["b_enc"])
    out = len(tensors["b_dec"])
    require(tensors, {"b_enc": (latents,), "w_enc": (None, latents)}, file=_WEIGHTS)
    # A transcoder may read another width than it writes.
    width = len(tensors["w_enc"]) if config.get("type") == "transcoder" else out
    shapes: dict[str, Shape] = {
        "w_enc": (width, latents),
        "w_dec": (latents, out),
        "threshold": (latents,),
    }
    affine = bool(config.get("affine_connection"))
    if affine:
        shapes[_SKIP] = (width, out)
    elif _SKIP in tensors:
        raise AdapterError(
            f"{_WEIGHTS}: key {_SKIP} is found, and {_CONFIG} has affine_connection false, so none is expected: the "
            "config belongs to other weights"
        )
    require(tensors, shapes, file=_WEIGHTS)
    return SaeWeights(
        tensors["w_enc"].T.contiguous(),
        tensors["b_enc"],
        tensors["w_dec"],
        tensors["b_dec"],
        None,
        tensors[_SKIP].T.contiguous() if affine else None,
    )


def _place(read: object, written: object) -> Place | None:
    sites = [_site(read), _site(written)]
    return None if sites[0] is None or sites[1] is None else Place(sites[0], sites[1])


def _site(module: object) -> Site | None:
    named = re.fullmatch(r"model\.(?:language_model\.)?layers\.(\d+)\.(.+)", str(module))
    kind = _MODULES.get(named[2]) if named else None
    return Site(kind, int(named[1])) if named and kind else None
