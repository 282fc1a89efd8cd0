"""What a judge of each role offers. A task names the role it needs; any judge that has these methods will do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from latentbench_judges._answer import Answer
from latentbench_judges._question import Question

__all__ = ["RubricJudge", "SimilarityJudge"]


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


@runtime_checkable
class RubricJudge(Protocol):
    """Role "rubric": answers questions of a rubric."""

    role: str
    """"rubric"."""

    def identity(self) -> dict[str, Any]:
        """Everything that can change a verdict but the rubric, as JSON for cache keys."""
        ...

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """One answer to each question, in any order; what went wrong is a status, not an exception."""
        ...
