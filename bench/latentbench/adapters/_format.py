"""What a checkpoint format is, and what can be told it beside the path."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from latentbench.adapters._dictionary import Dictionary

__all__ = ["Format", "LoadOptions"]


class LoadOptions(NamedTuple):
    """Overrides handed to a checkpoint format."""

    mode: str | None = None
    """"paper", "code" or "corrected", for families whose paper and code part; None keeps what the file
    says."""
    site: str | None = None
    """The site, where the checkpoint does not say it; for MLSAE, which of its sites. One that contradicts the
    checkpoint is refused."""
    k: int | None = None
    """Active latents per token of a TopK family, where the checkpoint does not hold it."""
    architecture: str | None = None
    """Family, where the tensors can't tell, such as "topk" or "mlsae"."""
    pooling: str | None = None
    """"sum" or "mean" over sites, for RouteSAE where the file name does not tell."""
    n_layers: int | None = None
    """Layers of the language model, where the sites can't be derived otherwise."""
    prefix: int | None = None
    """The first so many latents of a matryoshka dictionary only; the end of one of its groups."""


class Format(Protocol):
    """A checkpoint format: one file in `latentbench.adapters.formats`, one entry point."""

    def recognise(self, path: Path) -> str | None:
        """Why `path` is a checkpoint of this format, in words, or None if it isn't."""
        ...

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """Load it on the CPU in float32."""
        ...
