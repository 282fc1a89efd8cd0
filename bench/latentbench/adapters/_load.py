"""Loading a dictionary by zoo name, path, SAELens release or control."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from latentbench.adapters._controls import IdentityDictionary, random_decoder
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._gates import ThresholdGate, TopKGate
from latentbench.adapters._routesae import RouteSae
from latentbench.adapters._sae import SparseAutoencoder
from latentbench.errors import AdapterError, UserError, unknown_name
from latentbench.lm import DTYPES, LM, Site
from latentbench.registry import FORMATS

__all__ = [
    "Format",
    "LoadOptions",
    "check_fits",
    "load_dictionary",
    "with_k",
    "with_threshold",
    "zoo_folder",
    "zoo_names",
]


class LoadOptions(NamedTuple):
    """Overrides handed to a checkpoint format."""

    mode: str | None = None
    """"paper", "code" or "corrected", for families whose paper and code part; None keeps what the file
    says."""


class Format(Protocol):
    """A checkpoint format: one file in `latentbench.adapters.formats`, one entry point."""

    def recognise(self, path: Path) -> str | None:
        """Why `path` is a checkpoint of this format, in words, or None if it isn't."""
        ...

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """Load it on the CPU in float32."""
        ...


def load_dictionary(
    source: str,
    *,
    k: int | None = None,
    threshold: float | None = None,
    mode: str | None = None,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    lm: LM | None = None,
) -> Dictionary:
    """Load a dictionary.

    Args:
        source: `zoo:NAME`; a path to a checkpoint (the format is recognised); `release/id` of SAELens;
            `identity:SITE` or `identity:SITE:WIDTH`; `random-decoder:SOURCE`.
        k: keep the k largest latents per token instead of what the file says.
        threshold: gate all latents at one threshold instead (the calibrated mode). Not together with `k`.
        mode: preset of the places where paper and code part: "paper", "code" or "corrected" (the default of
            our own checkpoints).
        device: where to put the weights.
        dtype: "float32", "bfloat16", "float16" or "float64".
        lm: the model it will be used with; if given, sites and width are checked against it.

    Raises:
        UserError: the source can't be found, recognised or loaded, or does not fit the model.
    """
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    if mode not in (None, "paper", "code", "corrected"):
        raise unknown_name("mode", str(mode), ["paper", "code", "corrected"])
    dictionary = _load(source, LoadOptions(mode), lm)
    if k is not None and threshold is not None:
        raise UserError(
            f"both k = {k} and threshold = {threshold} were given: they are two ways to set the sparsity"
        )
    if k is not None:
        dictionary = with_k(dictionary, k)
    if threshold is not None:
        dictionary = with_threshold(dictionary, threshold)
    if lm is not None:
        check_fits(dictionary, lm)
    return dictionary.to(device=device, dtype=DTYPES[dtype])


def check_fits(dictionary: Dictionary, lm: LM) -> None:
    """Check that a model has the sites of a dictionary, in its width.

    Raises:
        AdapterError: the widths differ. UserError: a site does not exist in the model.
    """
    card = dictionary.card
    for site in {*dictionary.reads, *dictionary.writes}:
        lm.site(site)
    if card.d_model != lm.d_model and not any(site.kind == "attn_z" for site in dictionary.reads):
        made_for = f" It was made for {card.lm}." if card.lm else ""
        raise AdapterError(
            f"dictionary {card.name!r} has width {card.d_model}, but {lm.name} has width {lm.d_model}: it "
            f"belongs to another model.{made_for}"
        )


def with_k(dictionary: Dictionary, k: int) -> Dictionary:
    """The same dictionary with the k largest latents per token (`topk` mode of fixed sparsity).

    Raises:
        AdapterError: the family has no gate to replace.
    """
    if isinstance(dictionary, (SparseAutoencoder, RouteSae)):
        sae = dictionary if isinstance(dictionary, SparseAutoencoder) else dictionary.sae
        signed = isinstance(sae.gate, TopKGate) and not sae.gate.rectify
        return dictionary.with_gate(TopKGate(k, rectify=not signed))
    raise AdapterError(f"{dictionary.card.name!r} is a {dictionary.card.family}: its sparsity can't be set")


def with_threshold(dictionary: Dictionary, threshold: float) -> Dictionary:
    """The same dictionary with one threshold for all latents (`calibrated` mode of fixed sparsity).

    Raises:
        AdapterError: the family has no gate to replace.
    """
    if isinstance(dictionary, (SparseAutoencoder, RouteSae)):
        return dictionary.with_gate(ThresholdGate(threshold))
    raise AdapterError(f"{dictionary.card.name!r} is a {dictionary.card.family}: its sparsity can't be set")


def zoo_folder() -> Path:
    """The folder of the dictionaries that ship with the package."""
    return Path(__file__).parent.parent / "zoo"


def zoo_names() -> list[str]:
    """Names of the shipped dictionaries, to be loaded as `zoo:NAME`."""
    return sorted(path.stem for path in zoo_folder().glob("*.safetensors"))


def _load(source: str, options: LoadOptions, lm: LM | None) -> Dictionary:
    scheme, _, rest = source.partition(":")
    if scheme == "zoo":
        if rest not in zoo_names():
            raise unknown_name("zoo dictionary", rest, zoo_names())
        return _relabel(_recognised(zoo_folder() / f"{rest}.safetensors", options), source)
    if scheme == "random-decoder":
        return random_decoder(_load(rest, options, lm))
    if scheme == "identity":
        return _identity(rest, lm)
    path = Path(source)
    if path.exists():
        return _relabel(_recognised(path, options), path.name)
    if re.fullmatch(r"[\w.-]+/[\w./-]+", source) and not source.startswith("."):
        from latentbench.adapters.formats.saelens import load_release

        return load_release(source)
    raise unknown_name(
        "dictionary",
        source,
        [f"zoo:{name}" for name in zoo_names()],
        hint="Or give a path that exists, a SAELens release/id, identity:SITE or random-decoder:SOURCE.",
    )


def _recognised(path: Path, options: LoadOptions) -> Dictionary:
    tried: list[str] = []
    for name in FORMATS.names():
        checkpoint: Format = FORMATS.load(name)
        if checkpoint.recognise(path) is not None:
            return checkpoint.load(path, options)
        tried.append(name)
    held = f"it holds {_listing(path)}" if path.is_dir() else "it is a file"
    raise AdapterError(f"{str(path)!r} is no checkpoint of a format known here ({', '.join(tried)}): {held}")


def _listing(path: Path) -> str:
    names = sorted(entry.name for entry in path.iterdir())
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") if names else "nothing"


def _relabel(dictionary: Dictionary, source: str) -> Dictionary:
    dictionary.card = dictionary.card.model_copy(update={"source": source})
    return dictionary


def _identity(rest: str, lm: LM | None) -> IdentityDictionary:
    name, _, width = rest.partition(":")
    if not width and lm is None:
        raise UserError(f"identity:{rest} needs a width: load it with lm=..., or write identity:{name}:576")
    if width and not width.isdigit():
        raise UserError(f"identity:{rest}: {width!r} is not a width; write identity:{name}:576")
    site = lm.site(name) if lm is not None else Site.parse(name)
    d_model = int(width) if width else lm.d_model if lm is not None else 0
    return IdentityDictionary(site, d_model, torch.device("cpu"), torch.float32)
