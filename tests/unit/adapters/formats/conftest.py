"""What the tests of foreign checkpoint formats share: inputs, straight-line gates, and the comparison."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from latentbench.adapters import Dictionary

Agree = Callable[..., None]
SHAPES = [(12, 40), (16, 16), (20, 9)]


@pytest.fixture(params=SHAPES, ids=["wide", "square", "narrow"])
def shape(request: pytest.FixtureRequest) -> tuple[int, int]:
    """Width and latents: more latents than dimensions, as many, and fewer."""
    found: tuple[int, int] = request.param
    return found


@pytest.fixture
def agree() -> Agree:
    """Compares a dictionary, in float64, with codes and reconstructions that were worked out by hand."""

    def compare(
        ours: Dictionary,
        acts: Tensor,
        codes: Tensor,
        recovered: Tensor | list[Tensor],
        tolerance: float = 1e-10,
    ) -> None:
        assert ours.dtype == torch.float32
        assert ours.device.type == "cpu"
        exact = ours.to(dtype=torch.float64)
        several = isinstance(recovered, list)
        inputs = {site: acts[:, index] if several else acts for index, site in enumerate(ours.reads)}
        found = exact.encode(inputs)
        torch.testing.assert_close(found.dense(), codes, rtol=tolerance, atol=tolerance)
        assert found.nnz > 0
        assert int(found.counts().min()) == 0, "a token without latents is among them"
        written = exact.decode(found)
        for index, site in enumerate(ours.writes):
            values = recovered[index] if isinstance(recovered, list) else recovered
            torch.testing.assert_close(written[site].values, values, rtol=tolerance, atol=tolerance)

    return compare


@pytest.fixture
def keep_largest() -> Callable[..., Tensor]:
    """Per token, the k largest of a score, and zero elsewhere; token by token, with Python's own sort."""

    def kept(values: Tensor, k: int, score: Tensor | None = None) -> Tensor:
        ranked = values if score is None else score
        out = torch.zeros_like(values)
        for token in range(len(values)):
            order = sorted(range(values.shape[1]), key=lambda latent: -float(ranked[token, latent]))
            for latent in order[:k]:
                out[token, latent] = values[token, latent]
        return out

    return kept
