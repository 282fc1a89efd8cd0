"""BatchTopK of GitHub's bartbussmann: a folder with `sae.pt` and `config.json`, as its trainer saves checkpoints.

Keys: `W_enc` [d, latent], `W_dec` [latent, d], `b_enc` [latent], `b_dec` [d], and `jumprelu.log_threshold` [latent].
`sae_type` topk and batchtopk leave `b_enc` out, jumprelu has no pre-bias. `input_unit_norm` standardises each token
(unbiased standard deviation plus 1e-5, undone without it). BatchTopK stores no threshold. Versions with
`use_encoder_bias` in their config undo the standardisation wrongly, and are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._gates import Gate, JumpReluGate, ReluGate, TopKGate
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._names import Facts, card_of, keys_of, whole
from latentbench.adapters.formats._openmoss import batch_topk
from latentbench.adapters.formats._sites import Place, parse_site, settle
from latentbench.adapters.formats._tensors import Shape, read_json, read_pt, require
from latentbench.errors import AdapterError

__all__ = ["FORMAT", "BartBussmannFormat"]

_CONFIG, _WEIGHTS, _LOG_THRESHOLD = "config.json", "sae.pt", "jumprelu.log_threshold"
_FAMILIES = {"vanilla": "relu", "topk": "topk", "batchtopk": "batchtopk", "jumprelu": "jumprelu"}


class BartBussmannFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`."""
        folder = path if path.is_dir() else path.parent
        if not path.is_dir() and path.name not in (_CONFIG, _WEIGHTS):
            return None
        if not (folder / _CONFIG).is_file() or not keys_of(folder / _WEIGHTS):
            return None
        try:
            config = read_json(folder / _CONFIG)
        except AdapterError:
            return None  # no config of this format, whatever else it is
        if not {"sae_type", "act_size", "dict_size"} <= set(config):
            return None
        return (
            f"{_WEIGHTS}, and its {_CONFIG} names sae_type, act_size and dict_size: bartbussmann's BatchTopK"
        )

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`; `k` is needed for batchtopk, which stores no threshold."""
        folder = path if path.is_dir() else path.parent
        config = read_json(folder / _CONFIG)
        kind = str(config.get("sae_type"))
        if kind not in _FAMILIES:
            raise AdapterError(
                f"{_CONFIG}: key sae_type is {kind!r}, and one of {', '.join(_FAMILIES)} is expected"
            )
        if "use_encoder_bias" in config:
            raise AdapterError(
                f"{_CONFIG}: key use_encoder_bias is found, and none is expected: versions that had it add the "
                "standardised input where the mean belongs, so that what they reconstruct is not the activation"
            )
        tensors = read_pt(folder / _WEIGHTS)
        weights = _weights(config, kind, tensors)
        gate = _gate(config, kind, tensors, options)
        unit = bool(config.get("input_unit_norm", False))
        transform = InputTransform("layer_norm", 1e-5) if unit else InputTransform("none")
        hook = config.get("hook_point")
        site = parse_site(str(hook)) if hook else None
        place = settle(
            Place(site, site) if site else None,
            options.site,
            transcoder=False,
            file=_CONFIG,
            said=f"hook_point is {hook!r}",
        )
        card = card_of(
            folder / _WEIGHTS,
            Facts(
                name=folder.name,
                family=_FAMILIES[kind],
                place=place,
                lm=str(config.get("model_name") or ""),
                nominal_l0=float(whole(config, "top_k", file=_CONFIG)) if "topk" in kind else None,
            ),
            weights.w_enc.shape,
            gate,
            transform,
        )
        return SparseAutoencoder(card, weights, gate, transform)


FORMAT: Format = BartBussmannFormat()


def _weights(config: dict[str, Any], kind: str, tensors: dict[str, Tensor]) -> SaeWeights:
    width, latents = (whole(config, key, file=_CONFIG) for key in ("act_size", "dict_size"))
    shapes: dict[str, Shape] = {
        "W_enc": (width, latents),
        "W_dec": (latents, width),
        "b_enc": (latents,),
        "b_dec": (width,),
    }
    if kind == "jumprelu":
        shapes[_LOG_THRESHOLD] = (latents,)
    require(tensors, shapes, file=_WEIGHTS)
    return SaeWeights(
        tensors["W_enc"].T.contiguous(),
        torch.zeros(latents) if "topk" in kind else tensors["b_enc"],
        tensors["W_dec"],
        tensors["b_dec"],
        None if kind == "jumprelu" else tensors["b_dec"],
    )


def _gate(config: dict[str, Any], kind: str, tensors: dict[str, Tensor], options: LoadOptions) -> Gate:
    if kind == "vanilla":
        return ReluGate()
    if kind == "jumprelu":
        return JumpReluGate(tensors[_LOG_THRESHOLD].exp())
    if kind == "batchtopk":
        return batch_topk(config, "top_k", options, file=_CONFIG)
    return TopKGate(whole(config, "top_k", file=_CONFIG), rectify=True)
