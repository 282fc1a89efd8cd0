"""Gemma Scope: `params.npz` in folders that tell the rest, `gemma-scope-2b-pt-res/layer_20/width_16k/average_l0_71`.

Arrays: `W_enc` [d, latent], `W_dec` [latent, d], `b_enc`, `b_dec`, `threshold` [latent] (in some files in small
letters). JumpReLU, no pre-bias (arXiv 2408.05147, section 2). The site is named by the repository: `res`, `mlp` (what
the MLP adds to the residual stream) or `att` (the heads' outputs side by side, before they are mixed).

SAEs of the `embedding` folder were trained on embeddings before Gemma multiplies them by sqrt(d); here they read the
residual stream before block 0, so their encoder is divided by sqrt(d), and the decoder and its bias are multiplied.
Transcoders read the MLP's norm before it is multiplied by its weights, which is no site here.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from torch import Tensor

from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._gates import JumpReluGate
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._names import (
    Facts,
    card_of,
    first_named,
    folded,
    keys_of,
    names_above,
    only_file,
)
from latentbench.adapters.formats._sites import Place, settle
from latentbench.adapters.formats._tensors import read_npz, require
from latentbench.errors import AdapterError
from latentbench.lm import Site

__all__ = ["FORMAT", "GemmaScopeFormat"]

_KEYS = ("W_enc", "W_dec", "b_enc", "b_dec", "threshold")
_KINDS = {"res": "resid_post", "mlp": "mlp_out", "att": "attn_z"}
_REPOSITORY = r"gemma-scope-(\d+b)-(pt|it)-(res|mlp|att|transcoders)(?![a-z])"


class GemmaScopeFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`."""
        file = only_file(path, "*.npz")
        keys = keys_of(file)
        if file is None or not set(_KEYS) & {_capital(key) for key in keys}:
            return None
        return f"{file.name} with {', '.join(_KEYS)}: Gemma Scope"

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`; `site` is needed where no folder above is named like the repository."""
        file = only_file(path, "*.npz") or path
        tensors = {_capital(key): value for key, value in read_npz(file).items()}
        require(tensors, {"b_enc": (None,), "b_dec": (None,)}, file=file.name)
        latents, width = len(tensors["b_enc"]), len(tensors["b_dec"])
        require(
            tensors,
            {"W_enc": (width, latents), "W_dec": (latents, width), "threshold": (latents,)},
            file=file.name,
        )
        _check_width(file, latents)
        _check_scale(file, tensors)
        repository = first_named(file, _REPOSITORY)
        transcoder = bool(repository and repository[3] == "transcoders")
        place = _settled(file, repository, options.site, transcoder=transcoder)
        weights = SaeWeights(
            tensors["W_enc"].T.contiguous(), tensors["b_enc"], tensors["W_dec"], tensors["b_dec"], None
        )
        embedding = _of_embeddings(file)
        if embedding:
            weights = folded(weights, 1 / math.sqrt(width), 1 / math.sqrt(width))
        gate = JumpReluGate(tensors["threshold"])
        l0 = first_named(file, r"^average_l0_(\d+)$")
        card = card_of(
            file,
            Facts(
                name=_name(file, repository),
                family="transcoder" if place.reads != place.writes else "jumprelu",
                place=place,
                lm=f"google/gemma-2-{repository[1]}{'-it' if repository[2] == 'it' else ''}"
                if repository
                else "",
                nominal_l0=float(l0[1]) if l0 else None,
                options={"embeddings": "unscaled in training"} if embedding else None,
            ),
            weights.w_enc.shape,
            gate,
        )
        return SparseAutoencoder(card, weights, gate, InputTransform("none"))


FORMAT: Format = GemmaScopeFormat()


def _capital(key: str) -> str:
    return f"W_{key[2:]}" if key.startswith("w_") else key


def _of_embeddings(file: Path) -> bool:
    return "embedding" in names_above(file)[1:4]  # embedding/width_4k/average_l0_6


def _check_width(file: Path, latents: int) -> None:
    """Widths in folder names are rounded thousands of powers of two: 16k, 65k, 131k, 1m."""
    named = first_named(file, r"^width_(\d+)([km])$")
    if named is None:
        return
    about = int(named[1]) * (1000 if named[2] == "k" else 1_000_000)
    exact = 2 ** round(math.log2(about))
    if exact != latents:
        raise AdapterError(
            f"{file.name}: key W_enc has {latents} latents, and {exact} are expected from the folder's name "
            f"{named[0]}: it belongs to another folder"
        )


def _check_scale(file: Path, tensors: dict[str, Tensor]) -> None:
    scale = tensors.get("scaling_factor")
    if scale is not None and not bool((scale == 1).all()):
        raise AdapterError(
            f"{file.name}: key scaling_factor is not 1 everywhere, and nothing says how it is used; a file without it, "
            "or with ones, is expected"
        )


def _settled(file: Path, repository: re.Match[str] | None, asked: str | None, *, transcoder: bool) -> Place:
    numbered = first_named(file, r"^layer_(\d+)$")
    layer = int(numbered[1]) if numbered else None
    kind = _KINDS.get(repository[3]) if repository else None
    found: Place | None = None
    if _of_embeddings(file) and kind in (None, "resid_post"):
        found = Place(Site("embed"), Site("embed"))
    elif kind is not None and layer is not None:
        found = Place(Site(kind, layer), Site(kind, layer))
    said = f"folders above name {repository[0] if repository else 'no repository'} and layer {layer}"
    if transcoder:
        said += "; it reads ln2.hook_normalized, before the norm's weights, which is no site here"
    place = settle(found, asked, transcoder=transcoder, file=file.name, said=said)
    if found is None and layer is not None and place.reads.layer != layer:
        raise AdapterError(
            f"{file.name}: key site was asked for as {place}, and layer {layer} is expected from the folder's name"
        )
    return place


def _name(file: Path, repository: re.Match[str] | None) -> str:
    """Repository and folders, as Gemma Scope's ids are written."""
    above = names_above(file)[1:]
    if repository is None:
        return above[0]
    kept = next(index for index, name in enumerate(above) if repository[0] in name)
    inner = [
        name for name in above[:kept] if re.match(r"layer_|width_|average_l0_|canonical|embedding", name)
    ]
    return "/".join([repository[0], *reversed(inner)])
