"""Loading a dictionary by zoo name, path, SAELens release or control."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import torch

from latentbench.adapters._controls import CONTROL_SCHEMES, Calibration, load_control
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._overrides import with_k, with_prefix, with_threshold
from latentbench.adapters._sae import SparseAutoencoder
from latentbench.errors import AdapterError, UserError, unknown_name
from latentbench.lm import DTYPES, LM
from latentbench.registry import FORMATS

__all__ = [
    "Recognised",
    "check_fits",
    "load_dictionary",
    "recognise",
    "zoo_folder",
    "zoo_names",
]


class Recognised(NamedTuple):
    """A format that takes a path for one of its own."""

    format: str
    """Its name in the registry."""
    reason: str
    """What gave the path away, in words."""


def load_dictionary(  # noqa: PLR0913 - each is a choice of its own
    source: str,
    *,
    k: int | None = None,
    threshold: float | None = None,
    mode: str | None = None,
    options: LoadOptions | None = None,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    lm: LM | None = None,
    calibration: Calibration | None = None,
) -> Dictionary:
    """Load a dictionary.

    Args:
        source: `zoo:NAME`; a path to a checkpoint (the format is recognised, see `recognise`); `release/id` of
            SAELens; a control such as `identity:SITE` or `random-decoder:SOURCE`, see `load_control`.
        k: keep the k largest latents per token instead of what the file says.
        threshold: gate all latents at one threshold instead (the calibrated mode). Not together with `k`.
        mode: preset of the places where paper and code part: "paper", "code" or "corrected" (the default of
            our own checkpoints).
        options: what a checkpoint does not say of itself, and which part of it to take; `k`, `mode` and `lm` are
            filled in from the other arguments.
        device: where to put the weights.
        dtype: "float32", "bfloat16", "float16" or "float64".
        lm: the model it will be used with; if given, sites and width are checked against it.
        calibration: activations that controls such as `pca:SITE:RANK` are fitted on.

    Raises:
        UserError: the source can't be found, recognised or loaded, or does not fit the model.
    """
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    if mode not in (None, "paper", "code", "corrected"):
        raise unknown_name("mode", str(mode), ["paper", "code", "corrected"])
    asked = options or LoadOptions()
    if asked.pooling not in (None, "sum", "mean"):
        raise unknown_name("pooling", asked.pooling, ["sum", "mean"])
    asked = asked._replace(
        mode=mode or asked.mode,
        k=k if k is not None else asked.k,
        n_layers=lm.n_layers if lm is not None else asked.n_layers,
    )
    dictionary = _load(source, asked, lm, calibration)
    if asked.prefix is not None:
        dictionary = with_prefix(dictionary, asked.prefix)
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
    if isinstance(dictionary, SparseAutoencoder) and dictionary.is_transcoder:
        out, site = dictionary.weights.w_dec.shape[1], dictionary.writes[0]
        if out != lm.d_model and site.kind != "attn_z":
            raise AdapterError(
                f"transcoder {card.name!r} writes activations of width {out}, but those of {lm.name} at {site} have "
                f"width {lm.d_model}: it belongs to another model or site"
            )


def zoo_folder() -> Path:
    """The folder of the dictionaries that ship with the package."""
    return Path(__file__).parent.parent / "zoo"


def zoo_names() -> list[str]:
    """Names of the shipped dictionaries, to be loaded as `zoo:NAME`."""
    return sorted(path.stem for path in zoo_folder().glob("*.safetensors"))


def recognise(path: Path) -> list[Recognised]:
    """The formats that take a path for a checkpoint of their own, with the reason; usually one or none."""
    found: list[Recognised] = []
    for name in FORMATS.names():
        checkpoint: Format = FORMATS.load(name)
        reason = checkpoint.recognise(path)
        if reason is not None:
            found.append(Recognised(name, reason))
    return found


def _load(source: str, options: LoadOptions, lm: LM | None, calibration: Calibration | None) -> Dictionary:
    scheme, _, rest = source.partition(":")
    if scheme == "zoo":
        if rest not in zoo_names():
            raise unknown_name("zoo dictionary", rest, zoo_names())
        return _relabel(_recognised(zoo_folder() / f"{rest}.safetensors", options), source)
    if rest and scheme in CONTROL_SCHEMES:
        return load_control(
            scheme, rest, lm, lambda inner: _load(inner, options, lm, calibration), calibration
        )
    path = Path(source)
    if path.exists():
        return _relabel(_recognised(path, options), path.name)
    if re.fullmatch(r"[\w.-]+/[\w./-]+", source) and not source.startswith("."):
        from latentbench.adapters.formats.saelens import load_release

        return load_release(source, options)
    raise unknown_name(
        "dictionary",
        source,
        [f"zoo:{name}" for name in zoo_names()],
        hint=f"Or give a path that exists, a SAELens release/id, or a control ({', '.join(CONTROL_SCHEMES)}).",
    )


def _recognised(path: Path, options: LoadOptions) -> Dictionary:
    found = recognise(path)
    if len(found) > 1:
        reasons = "; ".join(f"{one.format}: {one.reason}" for one in found)
        raise AdapterError(
            f"{path.name!r} fits {len(found)} formats ({reasons}): which one is right would be a guess; move the "
            "checkpoint to a folder of its own, or remove the format that you don't need"
        )
    if not found:
        held = f"it holds {_listing(path)}" if path.is_dir() else "it is a file"
        raise AdapterError(
            f"{str(path)!r} is no checkpoint of a format known here ({', '.join(FORMATS.names())}): {held}"
        )
    checkpoint: Format = FORMATS.load(found[0].format)
    try:
        dictionary = checkpoint.load(path, options)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        # Formats check what they know to go wrong; anything else that a file can hold must not end in a traceback.
        raise AdapterError(
            f"{path.name} holds something that the format {found[0].format} can't be read with "
            f"({type(error).__name__}: {error}): it is damaged, or of a version that is not known here"
        ) from error
    _check_k(dictionary, path)
    return dictionary


def _check_k(dictionary: Dictionary, path: Path) -> None:
    k = dictionary.card.options.get("k")
    if isinstance(k, int) and k > dictionary.card.n_latents:
        raise AdapterError(
            f"{path.name}: key k is {k}, and at most {dictionary.card.n_latents} is expected, the number of latents in "
            "the weights: config and weights don't belong together"
        )


def _listing(path: Path) -> str:
    names = sorted(entry.name for entry in path.iterdir())
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") if names else "nothing"


def _relabel(dictionary: Dictionary, source: str) -> Dictionary:
    dictionary.card = dictionary.card.model_copy(update={"source": source})
    return dictionary
