"""The device under test: CUDA, unless LATENTBENCH_TEST_DEVICE names another to try these tests out on.

A missing device is a failure, not a skip: whoever asks for these tests wants to know.
"""

from __future__ import annotations

import os

import pytest
import torch

from latentbench.lm import LM, TokenBatch
from latentbench.testing import toy_lm, toy_tokenizer


def on_device(device: torch.device, dtype: torch.dtype = torch.float32) -> LM:
    """The toy model on a device; the same weights in every type."""
    lm = toy_lm(n_layers=6, tokenizer=toy_tokenizer())
    lm.model.to(device=device, dtype=dtype)
    return lm


@pytest.fixture(scope="session")
def device() -> torch.device:
    found = torch.device(os.environ.get("LATENTBENCH_TEST_DEVICE", "cuda"))
    if found.type == "cuda" and not torch.cuda.is_available():
        pytest.fail("PyTorch sees no CUDA device: tests marked gpu need one")
    return found


@pytest.fixture(scope="session")
def lm(device: torch.device) -> LM:
    return on_device(device)


@pytest.fixture(scope="session")
def cpu_lm() -> LM:
    return on_device(torch.device("cpu"))


@pytest.fixture(scope="session")
def half_lm(device: torch.device) -> LM:
    return on_device(device, torch.bfloat16)


@pytest.fixture(scope="session")
def rows() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(2, 48, (length,), generator=generator).tolist() for length in (24, 15, 31)]


@pytest.fixture(scope="session")
def tokens(lm: LM, rows: list[list[int]]) -> TokenBatch:
    return lm.batch(rows)
