"""Toy models, built once for all tests of the language model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import hypothesis
import pytest
import torch

from latentbench.lm import LM, TokenBatch
from latentbench.testing import FAMILIES, toy_lm

hypothesis.settings.register_profile("no-deadline", deadline=None)  # the first call of an operator is slow
hypothesis.settings.load_profile("no-deadline")
torch.set_num_threads(1)  # toy tensors: threads would only wait for each other
LENGTHS = (12, 9, 14)


@cache
def _toy(family: str, dtype: torch.dtype) -> LM:
    return toy_lm(family, dtype=dtype)


def _precise(family: str) -> torch.dtype:
    """float64, except for the one family that takes left padding only in float32 (eager attention)."""
    return torch.float32 if family == "gemma2" else torch.float64


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lm(family: str) -> LM:
    return _toy(family, _precise(family))


@pytest.fixture
def llama() -> LM:
    return _toy("llama", torch.float64)


@pytest.fixture(scope="session")
def rows() -> list[list[int]]:
    """Prompts of three lengths, longer than the toy models' attention windows."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(2, 48, (length,), generator=generator).tolist() for length in LENGTHS]


@pytest.fixture
def tokens(lm: LM, rows: list[list[int]]) -> TokenBatch:
    return lm.batch(rows)


@pytest.fixture(scope="session")
def draw() -> Callable[..., torch.Tensor]:
    """Standard normal numbers of a shape from a seed, float64."""

    def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    return drawn
