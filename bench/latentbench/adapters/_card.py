"""What a dictionary says of itself."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["DictionaryCard"]


class DictionaryCard(BaseModel):
    """Identity and shape of a dictionary, as stored beside its weights and in every run record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Short display name."""
    family: str
    """"topk", "relu", "jumprelu", "routesae", "identity", ..."""
    reads: tuple[str, ...]
    """Sites that encoding takes activations from."""
    writes: tuple[str, ...]
    """Sites that decoding reconstructs."""
    d_model: int
    """Width of the activations."""
    n_latents: int
    """Number of latents."""
    nominal_l0: float | None = None
    """Active latents per token that the dictionary was built for; None where only a measurement can tell."""
    normalisation: str = "none"
    """Input transform: "none", "standardise", "layer_norm" or "constant_norm"."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Every choice that changes the forward pass (gate, signed, aggregation, routing, splice, overrides)."""
    lm: str = ""
    """Language model it was trained on, if known."""
    source: str = ""
    """Where it came from: the argument of `load_dictionary`, never a path of some machine."""
    sha256: str = ""
    """Checksum of the weights."""
    control: bool = False
    """A control (identity, random directions): measured like the rest, never ranked."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Recipe, tokens seen, data and held-out error, for dictionaries trained by this project."""

    def identity(self) -> dict[str, Any]:
        """What can change the numbers of this dictionary, as JSON for cache keys."""
        return {
            "family": self.family,
            "reads": list(self.reads),
            "writes": list(self.writes),
            "n_latents": self.n_latents,
            "normalisation": self.normalisation,
            "options": self.options,
            "sha256": self.sha256,
        }
