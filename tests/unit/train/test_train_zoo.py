"""The dictionaries that ship with the package."""

from __future__ import annotations

import pytest
import torch

from latentbench.adapters import Dictionary, RouteSae, load_dictionary, routed_sites, zoo_folder, zoo_names
from latentbench.adapters.formats.native import read_card
from latentbench.data import load_corpus, token_rows
from latentbench.identity import sha256_file
from latentbench.lm import LM, Site, load_lm
from latentbench.train import load_recipe

NAMES = zoo_names()


def random_acts(dictionary: Dictionary, tokens: int = 40) -> dict[Site, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    width = dictionary.card.d_model
    return {site: torch.randn((tokens, width), generator=generator) for site in dictionary.reads}


@pytest.fixture(scope="module")
def smollm2() -> LM:
    return load_lm("smollm2-135m-q4")


def kind(name: str) -> str:
    return str(read_card(zoo_folder() / f"{name}.json").training["kind"])


def test_the_zoo_holds_one_of_each_kind_that_is_small() -> None:
    assert sorted(map(kind, NAMES)) == ["gated", "jumprelu", "mlsae", "random", "relu", "routesae", "topk"]
    assert set(NAMES) == {unit.name for unit in load_recipe("zoo-smollm2").units()}


@pytest.mark.parametrize("name", NAMES)
def test_files_are_small_and_as_their_card_says(name: str) -> None:
    weights = zoo_folder() / f"{name}.safetensors"
    card = read_card(zoo_folder() / f"{name}.json")
    assert weights.stat().st_size < 6_000_000
    assert card.sha256 == sha256_file(weights)
    assert card.training["tokens"] >= 500_000
    assert (card.n_latents, card.d_model, card.nominal_l0) == (2304, 576, 64)
    routed = tuple(map(str, routed_sites(30)))
    assert card.reads == card.writes == (routed if kind(name) in ("routesae", "random") else routed[-1:])


@pytest.mark.parametrize(
    "name", [name for name in NAMES if kind(name) in ("topk", "routesae", "random", "mlsae")]
)
def test_every_token_has_64_latents(name: str) -> None:
    dictionary = load_dictionary(f"zoo:{name}")
    codes = dictionary.encode(random_acts(dictionary))
    assert bool((codes.counts() == 64).all())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_error_and_l0_on_real_activations_are_the_card_s(smollm2: LM, name: str) -> None:
    dictionary = load_dictionary(f"zoo:{name}", lm=smollm2)
    stated = dictionary.card.training["held_out"]
    corpus = load_corpus("probe-texts", split=stated["split"])
    context = dictionary.card.training["recipe"]["context"]
    rows = token_rows(corpus, smollm2, context=context, budget_tokens=stated["tokens"])
    total = tokens = active = 0.0
    for start in range(0, len(rows), 8):
        batch = smollm2.batch([row.ids for row in rows[start : start + 8]])
        measured = batch.measured()
        clean = smollm2.forward(batch, capture=dictionary.reads, logits=False).acts
        acts = {site: value[measured] for site, value in clean.items()}
        codes = dictionary.encode(acts)
        active += codes.nnz
        pair = dictionary.reconstructions(acts, codes)["input"]
        error = (pair.prediction - pair.target).square().sum(dim=1)
        total += float((error / pair.target.square().sum(dim=1)).sum())
        tokens += int(measured.sum())
    assert total / tokens == pytest.approx(stated["normalised_mse"], rel=0.1)
    assert active / tokens == pytest.approx(64, rel=0.05)


def test_the_random_control_routes_at_random() -> None:
    (control,) = [name for name in NAMES if "random" in name]
    dictionary = load_dictionary(f"zoo:{control}")
    assert isinstance(dictionary, RouteSae)
    assert dictionary.routing == "random"
