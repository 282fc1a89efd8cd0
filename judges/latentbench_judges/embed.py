"""The offline judge: sentence embeddings of contexts, on the CPU, without a network.

Role "similarity": `embed` gives unit vectors. The model is all-MiniLM-L6-v2 (asset `minilm`), mean-pooled over
tokens and normalised, as its own configuration says. Vectors are kept on disk by text and model, so that
dictionaries which share contexts, and later runs, do not embed a text twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latentbench.data import asset_path, cache_root
from latentbench.identity import sha256_file, sha256_text
from latentbench.store import ResponseCache

__all__ = ["EmbedJudge"]

Floats = NDArray[np.float32]


class EmbedJudge:
    """See the module."""

    name = "embed"
    """Registered name."""
    role = "similarity"
    """What it can be asked."""
    max_tokens = 128
    """Tokens of a text that are read."""
    batch = 64
    """Texts in one forward pass."""

    def __init__(self, folder: Path | None = None, cache: Path | None = None) -> None:
        """A judge on the MiniLM asset, or on another sentence-transformers folder.

        Args:
            folder: a model folder with `config.json`, tokenizer and `model.safetensors`; None takes the asset.
            cache: SQLite file for vectors; None takes one in the project's cache folder.

        Raises:
            AssetError: the asset has not been pulled.
        """
        self._folder = folder or asset_path("minilm")
        self._cache = cache or cache_root() / "embeddings.sqlite"
        self._sha256 = sha256_file(self._folder / "model.safetensors")
        self._loaded: tuple[Any, Any] | None = None

    def identity(self) -> dict[str, Any]:
        """Everything that can change a vector."""
        return {
            "name": self.name,
            "model_sha256": self._sha256,
            "pooling": "mean",
            "max_tokens": self.max_tokens,
        }

    def embed(self, texts: list[str]) -> Floats:
        """Unit vectors, `Float[ndarray, "text dim"]`, in the order of the texts."""
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        requests = [{**self.identity(), "text_sha256": sha256_text(text)} for text in texts]
        with ResponseCache(self._cache) as cache:
            found = cache.get_vectors(requests)
            missing = sorted(
                (place for place, vector in enumerate(found) if vector is None), key=lambda p: len(texts[p])
            )
            for start in range(0, len(missing), self.batch):  # sorted by length: little padding
                part = missing[start : start + self.batch]
                vectors = self._encode([texts[place] for place in part])
                cache.put_vectors([requests[place] for place in part], vectors)
                for place, vector in zip(part, vectors, strict=True):
                    found[place] = vector
        return (
            np.stack([vector for vector in found if vector is not None])
            if found
            else np.empty((0, 0), np.float32)
        )

    def _encode(self, texts: list[str]) -> Floats:
        import torch
        from torch.nn import functional

        model, tokenizer = self._model()
        with torch.no_grad():
            batch = tokenizer(
                texts, padding=True, truncation=True, max_length=self.max_tokens, return_tensors="pt"
            )
            hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None].to(hidden.dtype)
            pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
            vectors: Floats = functional.normalize(pooled, dim=1).numpy()
        return vectors

    def _model(self) -> tuple[Any, Any]:
        if self._loaded is None:
            from transformers import AutoModel, AutoTokenizer

            model = AutoModel.from_pretrained(self._folder, local_files_only=True)
            tokenizer = AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
            self._loaded = (model.eval(), tokenizer)
        return self._loaded
