"""What formats without a config beside the weights have in common: names of files and folders, and the card."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._gates import AbsTopKGate, Gate, JumpReluGate, TopKGate
from latentbench.adapters._sae import SaeWeights
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._sites import Place
from latentbench.adapters.formats._tensors import tensor_keys
from latentbench.errors import AdapterError
from latentbench.identity import sha256_file

__all__ = [
    "Facts",
    "card_of",
    "first_named",
    "folded",
    "jump_gate",
    "keys_of",
    "names_above",
    "only_file",
    "topk_gate",
    "whole",
]


def names_above(path: Path) -> list[str]:
    """Names of a file and of the folders that it lies in, nearest first; links keep their own names."""
    whole_path = path.absolute()
    return [whole_path.name, *(parent.name for parent in whole_path.parents)]


def first_named(path: Path, pattern: str) -> re.Match[str] | None:
    """The match of a pattern in the nearest name that has one, see `names_above`."""
    found = (re.search(pattern, name) for name in names_above(path))
    return next((match for match in found if match is not None), None)


def only_file(path: Path, *patterns: str) -> Path | None:
    """The file that a path stands for: itself, or the only one in the folder with a name of a pattern."""
    if not path.is_dir():
        return path if path.is_file() and any(path.match(pattern) for pattern in patterns) else None
    held = sorted({file for pattern in patterns for file in path.glob(pattern) if file.is_file()})
    return held[0] if len(held) == 1 else None


def keys_of(file: Path | None) -> set[str]:
    """Names of a checkpoint's tensors; none where there is no file, or one that can't be read as it should."""
    if file is None or not file.is_file():
        return set()
    try:
        return {key.removeprefix("_orig_mod.") for key in tensor_keys(file)}
    except AdapterError:
        return set()  # whoever loads it is told; here the question is only whose file it is


def whole(config: dict[str, Any], key: str, *, file: str) -> int:
    """A whole number of 1 or more from a config.

    Raises:
        AdapterError: it is missing or something else.
    """
    found = config.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise AdapterError(
            f"{file}: key {key} is {found!r}, and a whole number of 1 or more is expected"
            + (": the key is missing" if key not in config else "")
        )
    return found


def topk_gate(said: int | None, asked: int | None, *, rectify: bool, file: str, where: str) -> TopKGate:
    """TopK with the k that a checkpoint names, else the one that was asked for.

    Raises:
        AdapterError: there is neither.
    """
    k = said if said is not None else asked
    if k is None:
        raise AdapterError(
            f"{file}: key k is not told ({where}), and a number of latents is expected: give k"
        )
    return TopKGate(k, rectify=rectify)


def jump_gate(threshold: Tensor, *, file: str, key: str = "threshold") -> JumpReluGate:
    """JumpReLU of a family that compares the pre-activation itself with the threshold, without a ReLU before.

    Raises:
        AdapterError: a threshold is negative, under which such a family has negative codes.
    """
    below = int((threshold < 0).sum())
    if below:
        raise AdapterError(
            f"{file}: key {key} is negative for {below} of {threshold.numel()} latents, and 0 or more is expected: "
            "the code it was written by has negative codes there, which no gate here gives"
        )
    return JumpReluGate(threshold)


def folded(weights: SaeWeights, scale_in: float, scale_out: float) -> SaeWeights:
    """Weights for raw activations from weights for activations times a constant, at the input and the output.

    Codes stay the same: W_enc (s x - b_pre) + b_enc is (s W_enc) (x - b_pre / s) + b_enc.
    """
    return SaeWeights(
        weights.w_enc * scale_in,
        weights.b_enc,
        weights.w_dec / scale_out,
        weights.b_dec / scale_out,
        None if weights.b_pre is None else weights.b_pre / scale_in,
        None if weights.skip is None else weights.skip * (scale_in / scale_out),
    )


class Facts(NamedTuple):
    """What a checkpoint says of itself beside its weights."""

    name: str
    """Display name."""
    family: str
    """See `DictionaryCard.family`."""
    place: Place
    """Where it reads and writes."""
    lm: str = ""
    """The language model, if known."""
    nominal_l0: float | None = None
    """Active latents per token where the gate does not say."""
    options: dict[str, Any] | None = None
    """What else changes the forward pass, or belongs on the card."""


def card_of(
    file: Path,
    facts: Facts,
    shape: tuple[int, ...] | torch.Size,
    gate: Gate,
    transform: InputTransform | None = None,
) -> DictionaryCard:
    """The card of a foreign SAE.

    Args:
        file: its weights.
        facts: see there.
        shape: of the encoder, [latent, d].
        gate: its gate.
        transform: what is done to its input; None for nothing.
    """
    done = transform or InputTransform("none")
    return DictionaryCard(
        name=facts.name,
        family=facts.family,
        reads=(str(facts.place.reads),),
        writes=(str(facts.place.writes),),
        d_model=shape[1],
        n_latents=shape[0],
        nominal_l0=float(gate.k) if isinstance(gate, TopKGate | AbsTopKGate) else facts.nominal_l0,
        normalisation=done.kind,
        options={
            **gate.describe(),
            **({} if done.kind == "none" else {"eps": done.eps}),
            **(facts.options or {}),
        },
        lm=facts.lm,
        source=facts.name,
        sha256=sha256_file(file),
    )
