"""llamascopium (GitHub OpenMOSS/Language-Model-SAEs, v2): `config.json` and `sae_weights.safetensors` or `.pt`.

Tensors: `W_E` [d, latent], `b_E`, `W_D` [latent, d], `b_D`, `activation_function.log_jumprelu_threshold` [latent], and
one number for each hook point, `dataset_average_activation_norm.HOOK`. A `.pt` file holds them under `sae`. Crosscoders
have a first axis for their hook points, and a bias of the encoder for each, which add up.

By default (`sparsity_include_decoder_norm`) the gate sees pre-activation times decoder norm. A crosscoder does so
site by site, so that only with ReLU is there one code for all sites; its other activation functions are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._crosscoder import Crosscoder, CrosscoderWeights
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._gates import ReluGate
from latentbench.adapters._sae import SaeWeights
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._names import keys_of, whole
from latentbench.adapters.formats._openmoss import Source, build, dataset_scale
from latentbench.adapters.formats._sites import parse_site
from latentbench.adapters.formats._tensors import Shape, read_json, read_weights, require
from latentbench.errors import AdapterError
from latentbench.identity import sha256_file

__all__ = ["FORMAT", "LlamascopiumFormat"]

_CONFIG = "config.json"
_STEMS = ("sae_weights", "checkpoints/pruned", "checkpoints/final")
_WEIGHTS = tuple(f"{stem}{suffix}" for stem in _STEMS for suffix in (".safetensors", ".pt"))
_NORM = "dataset_average_activation_norm."
_LOG_THRESHOLD = "activation_function.log_jumprelu_threshold"


class LlamascopiumFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`."""
        found = _files(path)
        if found is None or not {"W_E", "b_E", "W_D"} & {_plain(key) for key in keys_of(found[1])}:
            return None
        return f"{_CONFIG} and {found[1].name} with W_E, b_E and W_D: llamascopium"

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`; `k` is needed for BatchTopK, which has no threshold in this format."""
        found = _files(path)
        if found is None:
            raise AdapterError(f"{path.name} holds no {_CONFIG} and none of {', '.join(_WEIGHTS)}")
        folder, file = found
        config = read_json(folder / _CONFIG)
        tensors = {_plain(key): value for key, value in read_weights(file).items()}
        kind = config.get("sae_type", "sae")
        if kind == "crosscoder":
            return _crosscoder(folder, file, config, tensors)
        if kind != "sae":
            raise AdapterError(
                f"{_CONFIG}: key sae_type is {kind!r}, and 'sae' or 'crosscoder' is expected: its other kinds "
                "(clt, lorsa, molt) are not one affine encoder and decoder, and can't be loaded"
            )
        read = str(config.get("hook_point_in"))
        written = str(config.get("hook_point_out") or read)
        source = Source(
            config=config,
            config_file=_CONFIG,
            weights_file=file,
            name=folder.name,
            norms=(_norm(tensors, read), _norm(tensors, written)),
            lm="",
        )
        weights, thresholds = _weights(config, tensors, file.name)
        return build(source, weights, thresholds, options)


FORMAT: Format = LlamascopiumFormat()


def _files(path: Path) -> tuple[Path, Path] | None:
    """Folder and weights for a path to the folder or to one of its files."""
    if path.is_dir() or path.name == _CONFIG:
        folder = path if path.is_dir() else path.parent
        held = [folder / name for name in _WEIGHTS if (folder / name).is_file()]
        return (folder, held[0]) if held and (folder / _CONFIG).is_file() else None
    for folder in (path.parent, path.parent.parent):
        if (folder / _CONFIG).is_file() and any(path == folder / name for name in _WEIGHTS):
            return folder, path
    return None


def _plain(key: str) -> str:
    return key.removeprefix("sae.")


def _norm(tensors: dict[str, Tensor], hook: str) -> float | None:
    held = tensors.get(_NORM + hook)
    return None if held is None else float(held)


def _latents(config: dict[str, Any]) -> int:
    factor = config.get("expansion_factor")
    if not isinstance(factor, int | float) or isinstance(factor, bool) or factor <= 0:
        raise AdapterError(
            f"{_CONFIG}: key expansion_factor is {factor!r}, and a positive number is expected"
        )
    return int(whole(config, "d_model", file=_CONFIG) * factor)


def _weights(
    config: dict[str, Any], tensors: dict[str, Tensor], file: str
) -> tuple[SaeWeights, Tensor | None]:
    width, latents = whole(config, "d_model", file=_CONFIG), _latents(config)
    shapes: dict[str, Shape] = {"W_E": (width, latents), "b_E": (latents,), "W_D": (latents, width)}
    biased = bool(config.get("use_decoder_bias", True))
    if biased:
        shapes["b_D"] = (width,)
    jump = str(config.get("act_fn", "relu")).lower() == "jumprelu"
    if jump:
        shapes[_LOG_THRESHOLD] = (latents,)
    require(tensors, shapes, file=file)
    weights = SaeWeights(
        tensors["W_E"].T.contiguous(),
        tensors["b_E"],
        tensors["W_D"],
        tensors["b_D"] if biased else torch.zeros(width),
        None,
    )
    return weights, tensors[_LOG_THRESHOLD].exp() if jump else None


def _crosscoder(folder: Path, file: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Crosscoder:
    hooks = config.get("hook_points")
    sites = [parse_site(str(hook)) for hook in hooks] if isinstance(hooks, list) else []
    if not sites or None in sites:
        raise AdapterError(
            f"{_CONFIG}: key hook_points is {hooks!r}, and a list of sites of the language model is expected"
        )
    activation = str(config.get("act_fn", "relu")).lower()
    if activation != "relu":
        raise AdapterError(
            f"{_CONFIG}: key act_fn is {activation!r}, and 'relu' is expected for a crosscoder: any other is applied "
            "to pre-activation times decoder norm site by site, so that a latent is active at some sites only, and a "
            "crosscoder here has one code for all"
        )
    width, latents, heads = whole(config, "d_model", file=_CONFIG), _latents(config), len(sites)
    require(
        tensors,
        {
            "W_E": (heads, width, latents),
            "b_E": (heads, latents),
            "W_D": (heads, latents, width),
            "b_D": (heads, width),
        },
        file=file.name,
    )
    scales, transform = _site_scales(config, tensors, [str(hook) for hook in hooks or []], width)
    weights = CrosscoderWeights(
        tensors["W_E"].transpose(1, 2) * scales[:, None, None],
        tensors["b_E"].sum(dim=0),
        tensors["W_D"] / scales[:, None, None],
        tensors["b_D"] / scales[:, None],
        None,
    )
    names = tuple(map(str, sites))
    gate = ReluGate()
    card = DictionaryCard(
        name=folder.name,
        family="crosscoder",
        reads=names,
        writes=names,
        d_model=width,
        n_latents=latents,
        normalisation=transform.kind,
        options={**gate.describe(), "eps": transform.eps} if transform.kind != "none" else gate.describe(),
        source=folder.name,
        sha256=sha256_file(file),
    )
    return Crosscoder(card, weights, gate, transform)


def _site_scales(
    config: dict[str, Any], tensors: dict[str, Tensor], hooks: list[str], width: int
) -> tuple[Tensor, InputTransform]:
    """What the activations of every site are multiplied by, and what is done to each token."""
    kind = config.get("norm_activation", "dataset-wise")
    if kind == "dataset-wise":
        found = [dataset_scale(_norm(tensors, hook), width, hook, file=_CONFIG) for hook in hooks]
        return torch.tensor(found), InputTransform("none")
    if kind in ("inference", "token-wise"):
        token = InputTransform("constant_norm", 0.0)
        return torch.ones(len(hooks)), token if kind == "token-wise" else InputTransform("none")
    raise AdapterError(
        f"{_CONFIG}: key norm_activation is {kind!r}, and 'inference', 'token-wise' or 'dataset-wise' is expected: "
        "'batch-wise' depends on what else is in the batch"
    )
