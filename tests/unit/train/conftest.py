"""A toy model, a corpus in memory and a small recipe, shared by the tests of training."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from latentbench.data import Corpus, Document
from latentbench.identity import sha256_json, sha256_text
from latentbench.lm import LM
from latentbench.testing import toy_lm, toy_tokenizer
from latentbench.train import Recipe, TraineeSpec

torch.set_num_threads(1)  # toy tensors: threads would only wait for each other
WORDS = [
    "we",
    "took",
    "the",
    "old",
    "road",
    "and",
    "saw",
    "a",
    "small",
    "house",
    "by",
    "the",
    "river",
    "where",
    "it",
    "runs",
    "north",
    "to",
    "meet",
    "lakes",
]


def corpus_of(split: str, count: int) -> Corpus:
    """Documents of 20 words each; another split, other documents."""
    rng = np.random.default_rng(len(split))
    texts = [" ".join(rng.choice(WORDS, 20)) for _ in range(count)]
    documents = [Document(sha256=sha256_text(text), text=text, source="toy") for text in dict.fromkeys(texts)]
    sha256 = sha256_json([document.sha256 for document in documents])
    return Corpus(name="toy", split=split, sha256=sha256, documents=documents, pool=documents)


@cache
def toy() -> LM:
    return toy_lm(n_layers=6, tokenizer=toy_tokenizer())


@pytest.fixture(scope="session")
def lm() -> LM:
    return toy()


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return corpus_of("train", 80)


@pytest.fixture(scope="session")
def held_out() -> Corpus:
    return corpus_of("calibrate", 12)


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    return Recipe(
        name="toy",
        lm="toy",
        tokens=4096,
        context=32,
        rows=4,
        block_tokens=512,
        batch_tokens=64,
        latents=32,
        k=4,
        lr=5e-3,
        normalise_every=3,
        held_out_tokens=300,
        trainees=(
            TraineeSpec(name="one-layer", kind="topk"),
            TraineeSpec(name="routed", kind="routesae"),
            TraineeSpec(name="control", kind="random"),
        ),
    )
