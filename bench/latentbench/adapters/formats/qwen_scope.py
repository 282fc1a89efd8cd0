"""Qwen Scope: one `layerN.sae.pt` file for each layer of a repository named SAE-Res-MODEL-W32K-L0_50.

Keys: `W_enc` [latent, d] and `W_dec` [d, latent], which is SAELens' orientation turned round, `b_enc` [latent],
`b_dec` [d]. The k largest of the pre-activations, rectified, and no pre-bias, as SAELens 6.54.12 reads them. k stands
only in the repository's name.
"""

from __future__ import annotations

import re
from pathlib import Path

from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._names import Facts, card_of, first_named, keys_of, only_file, topk_gate
from latentbench.adapters.formats._sites import Place, settle
from latentbench.adapters.formats._tensors import read_pt, require
from latentbench.errors import AdapterError
from latentbench.lm import Site

__all__ = ["FORMAT", "QwenScopeFormat"]

_FILES = "layer*.sae.pt"
_REPOSITORY = r"SAE-Res-(.+)-W(\d+)K-L0_(\d+)"


class QwenScopeFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`; a folder of several layers is not one checkpoint."""
        file = only_file(path, _FILES)
        if file is None or not {"W_enc", "W_dec", "b_enc", "b_dec"} & keys_of(file):
            return None
        return f"{file.name} with W_enc, W_dec, b_enc and b_dec: Qwen Scope"

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`; `k` is needed where no folder above is named like the repository."""
        file = only_file(path, _FILES) or path
        tensors = read_pt(file)
        require(tensors, {"b_enc": (None,), "b_dec": (None,)}, file=file.name)
        latents, width = len(tensors["b_enc"]), len(tensors["b_dec"])
        require(tensors, {"W_enc": (latents, width), "W_dec": (width, latents)}, file=file.name)
        named = first_named(file, _REPOSITORY)
        if named and int(named[2]) * 1024 != latents:
            raise AdapterError(
                f"{file.name}: key W_enc has {latents} latents, and {int(named[2]) * 1024} are expected from the "
                f"folder's name {named[0]}: it belongs to another repository"
            )
        layer = re.fullmatch(r"layer(\d+)\.sae", file.stem)
        site = Site("resid_post", int(layer[1])) if layer else None
        place = settle(
            Place(site, site) if site else None,
            options.site,
            transcoder=False,
            file=file.name,
            said="the layer in its name",
        )
        gate = topk_gate(
            int(named[3]) if named else None,
            options.k,
            rectify=True,
            file=file.name,
            where="it stands in the repository's name, SAE-Res-MODEL-W32K-L0_K, and no folder above has such a one",
        )
        weights = SaeWeights(
            tensors["W_enc"], tensors["b_enc"], tensors["W_dec"].T.contiguous(), tensors["b_dec"], None
        )
        card = card_of(
            file,
            Facts(
                name=f"{named[0]}, layer {layer[1]}" if named and layer else file.stem,
                family="topk",
                place=place,
                lm=f"Qwen/{named[1]}" if named else "",
            ),
            weights.w_enc.shape,
            gate,
        )
        return SparseAutoencoder(card, weights, gate, InputTransform("none"))


FORMAT: Format = QwenScopeFormat()
