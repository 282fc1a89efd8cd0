"""What a judge of each role offers. A task names the role it needs; any judge that has these methods will do."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["SimilarityJudge"]


@runtime_checkable
class SimilarityJudge(Protocol):
    """Role "similarity": says how alike texts are, by vectors."""

    role: str
    """"similarity"."""

    def identity(self) -> dict[str, Any]:
        """Everything that can change a vector, as JSON for cache keys."""
        ...

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Unit vectors of texts in their order, `Float[ndarray, "text dim"]`; equal texts get equal vectors."""
        ...
