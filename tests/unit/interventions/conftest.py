"""A toy model, and a dictionary of every kind, shared by the tests of interventions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from latentbench.adapters import (
    Crosscoder,
    CrosscoderWeights,
    Dictionary,
    DictionaryCard,
    InputTransform,
    JumpReluGate,
    ReluGate,
    SparseAutoencoder,
    TopKGate,
)
from latentbench.interventions import BoundIntervention, Intervention, bind, dictionary_sha256, vector_payload
from latentbench.lm import LM, EditView, Site, TokenBatch
from latentbench.testing import random_routesae, random_sae, random_weights, toy_lm

torch.set_num_threads(1)  # toy tensors: threads would only wait for each other
F64 = torch.float64
SITE = Site("resid_post", 2)
ROUTED = [Site("resid_post", layer) for layer in range(1, 5)]


def _drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def _crosscoder(transform: InputTransform) -> Crosscoder:
    sites = ("resid_post.1", "resid_post.3")
    card = DictionaryCard(
        name="toy crosscoder",
        family="crosscoder",
        reads=sites,
        writes=sites,
        d_model=16,
        n_latents=48,
        normalisation=transform.kind,
        source="test",
        sha256="0" * 64,
    )
    weights = CrosscoderWeights(
        w_enc=_drawn(2, 48, 16, seed=1) / 4,
        b_enc=_drawn(48, seed=2) / 4,
        w_dec=_drawn(2, 48, 16, seed=3) / 4,
        b_dec=_drawn(2, 16, seed=4) / 4,
    )
    return Crosscoder(card, weights, ReluGate(), transform)


def _transcoder() -> SparseAutoencoder:
    card = DictionaryCard(
        name="toy transcoder",
        family="topk",
        reads=("mlp_in.2",),
        writes=("mlp_out.2",),
        d_model=16,
        n_latents=48,
        source="test",
        sha256="1" * 64,
    )
    weights = random_weights(16, 48, seed=5, dtype=F64)
    return SparseAutoencoder(card, weights, TopKGate(6, rectify=True), InputTransform("none"))


_STANDARDISED = InputTransform("standardise", 1e-6)
DICTIONARIES: dict[str, Callable[[], Dictionary]] = {
    "topk": lambda: random_sae(site=SITE, gate=TopKGate(6, rectify=True), dtype=F64),
    "jumprelu": lambda: random_sae(
        site=SITE, gate=JumpReluGate(torch.full((48,), 0.3, dtype=F64)), dtype=F64, seed=3
    ),
    "standardised": lambda: random_sae(site=SITE, transform=_STANDARDISED, dtype=F64, seed=4),
    "layer_norm": lambda: random_sae(site=SITE, transform=InputTransform("layer_norm", 1e-5), dtype=F64),
    "routesae": lambda: random_routesae(ROUTED, dtype=F64),
    "routesae_paper": lambda: random_routesae(ROUTED, splice="paper", dtype=F64),
    "routesae_code": lambda: random_routesae(ROUTED, splice="code", dtype=F64),
    "random_routing": lambda: random_routesae(ROUTED, routing="random", dtype=F64),
    "crosscoder": lambda: _crosscoder(InputTransform("none")),
    "crosscoder_standardised": lambda: _crosscoder(_STANDARDISED),
    "transcoder": _transcoder,
}


@pytest.fixture(params=list(DICTIONARIES))
def dictionary(request: pytest.FixtureRequest) -> Dictionary:
    """One of every kind."""
    return DICTIONARIES[request.param]()


@pytest.fixture
def made() -> Callable[[str], Dictionary]:
    """Makes the dictionary of a kind."""
    return lambda name: DICTIONARIES[name]()


@pytest.fixture(scope="session")
def lm() -> LM:
    return toy_lm("llama", n_layers=6, dtype=F64)


@pytest.fixture(scope="session")
def rows() -> list[list[int]]:
    """Prompts of four lengths."""
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(2, 48, (length,), generator=generator).tolist() for length in (11, 7, 9, 4)]


@pytest.fixture(scope="session")
def tokens(lm: LM, rows: list[list[int]]) -> TokenBatch:
    return lm.batch(rows)


@pytest.fixture(scope="session")
def clean(lm: LM, tokens: TokenBatch) -> dict[Site, Tensor]:
    """`Float[Tensor, "row pos d"]` of the unedited model."""
    sites = [Site("resid_post", layer) for layer in range(6)] + [Site("mlp_in", 2), Site("mlp_out", 2)]
    return lm.forward(tokens, capture=sites).acts


@pytest.fixture
def view(tokens: TokenBatch, clean: dict[Site, Tensor]) -> EditView:
    """The prompt's pass over `tokens`."""
    return EditView(tokens.real, tokens.positions, torch.zeros_like(tokens.real), 0, clean, {})


@pytest.fixture(scope="session")
def draw() -> Callable[..., Tensor]:
    """Standard normal numbers of a shape from a seed, float64."""

    def drawn(*shape: int, seed: int = 0) -> Tensor:
        return _drawn(*shape, seed=seed)

    return drawn


@pytest.fixture
def latent(lm: LM) -> Callable[..., BoundIntervention]:
    """`latent(dictionary, latents, operator="set", ...)`: a bound intervention on latents."""

    def made(dictionary: Dictionary, latents: list[int], **record: object) -> BoundIntervention:
        fields = {"latents": latents, "dictionary": dictionary_sha256(dictionary), **record}
        return bind(Intervention.model_validate(fields), dictionary, lm=lm)

    return made


@pytest.fixture
def dense() -> Callable[..., BoundIntervention]:
    """`dense(site, vector, operator="add", ...)`: a bound intervention along a vector."""

    def made(site: Site, vector: Tensor, **record: object) -> BoundIntervention:
        fields = {"vector": vector_payload(site, vector), **record}
        return bind(Intervention.model_validate(fields), vector=vector)

    return made
