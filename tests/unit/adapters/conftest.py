"""A toy model and its activations, shared by the tests of dictionaries."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import pytest
import torch
from torch import Tensor

from latentbench.lm import LM, Site, TokenBatch
from latentbench.testing import toy_lm

hypothesis.settings.register_profile("no-deadline", deadline=None)  # the first call of an operator is slow
hypothesis.settings.load_profile("no-deadline")
torch.set_num_threads(1)  # toy tensors: threads would only wait for each other


@pytest.fixture(scope="session")
def lm() -> LM:
    return toy_lm("llama", n_layers=6, dtype=torch.float64)


@pytest.fixture(scope="session")
def tokens(lm: LM) -> TokenBatch:
    generator = torch.Generator().manual_seed(11)
    return lm.batch([torch.randint(2, 48, (length,), generator=generator).tolist() for length in (15, 9, 12)])


@pytest.fixture(scope="session")
def clean(lm: LM, tokens: TokenBatch) -> dict[Site, Tensor]:
    """`Float[Tensor, "row pos d"]` at every block's output."""
    return lm.forward(tokens, capture=[Site("resid_post", layer) for layer in range(lm.n_layers)]).acts


@pytest.fixture(scope="session")
def measured(tokens: TokenBatch) -> Tensor:
    return tokens.measured()


@pytest.fixture(scope="session")
def acts(clean: dict[Site, Tensor], measured: Tensor) -> dict[Site, Tensor]:
    """`Float[Tensor, "token d"]` of the measured tokens."""
    return {site: value[measured] for site, value in clean.items()}


@pytest.fixture(scope="session")
def draw() -> Callable[..., Tensor]:
    """Standard normal numbers of a shape from a seed, float64."""

    def drawn(*shape: int, seed: int = 0) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    return drawn
