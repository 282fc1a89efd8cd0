"""Training on a toy model: it learns, can be interrupted, and its card tells the truth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from latentbench.adapters import RouteSae, SparseAutoencoder, load_dictionary, routed_sites
from latentbench.adapters.formats.native import read_card
from latentbench.data import Corpus, token_rows
from latentbench.errors import UserError
from latentbench.lm import LM, Site
from latentbench.train import Recipe, TrainingReport, train

NAMES = ("one-layer", "routed", "control")


class Interrupted(Exception):
    """Stands in for whatever stops a run."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def losses() -> list[dict[str, float]]:
    return []


@pytest.fixture(scope="module")
def whole(
    lm: LM, corpus: Corpus, held_out: Corpus, recipe: Recipe, folder: Path, losses: list[dict[str, float]]
) -> TrainingReport:
    """An uninterrupted run; the mean loss of each block goes into `losses`."""
    return train(
        lm, corpus, held_out, recipe, folder, progress=lambda _done, _total, mean: losses.append(mean)
    )


def read_all(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_training_lowers_every_loss(whole: TrainingReport, losses: list[dict[str, float]]) -> None:
    assert set(losses[0]) == set(NAMES)
    for name in NAMES:
        assert losses[-1][name] < 0.7 * losses[0][name]


def test_trains_on_exactly_the_tokens_asked_for(whole: TrainingReport, recipe: Recipe) -> None:
    assert whole.tokens == recipe.tokens


def test_leaves_only_weights_and_cards(whole: TrainingReport, folder: Path) -> None:
    wanted = sorted(f"{name}.{ending}" for name in NAMES for ending in ("json", "safetensors"))
    assert sorted(read_all(folder)) == wanted


def test_decoder_rows_have_unit_norm(whole: TrainingReport) -> None:
    for file in whole.files:
        dictionary = load_dictionary(str(file))
        sae = dictionary.sae if isinstance(dictionary, RouteSae) else dictionary
        assert isinstance(sae, SparseAutoencoder)
        norms = sae.weights.w_dec.norm(dim=1)
        torch.testing.assert_close(norms, torch.ones_like(norms), rtol=1e-3, atol=0)  # fp16 on disk


def test_an_interrupted_run_ends_with_the_same_bytes(
    whole: TrainingReport,
    lm: LM,
    corpus: Corpus,
    held_out: Corpus,
    recipe: Recipe,
    folder: Path,
    tmp_path: Path,
) -> None:
    seen: list[int] = []

    def stop_at_the_fourth(done: int, _total: int, _losses: dict[str, float]) -> None:
        seen.append(done)
        if len(seen) == 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(lm, corpus, held_out, recipe, tmp_path, checkpoint_blocks=1, progress=stop_at_the_fourth)
    assert (tmp_path / "training.json").is_file()
    resumed: list[int] = []
    train(
        lm,
        corpus,
        held_out,
        recipe,
        tmp_path,
        checkpoint_blocks=1,
        progress=lambda done, _total, _losses: resumed.append(done),
    )
    assert resumed[0] == seen[3]  # the fourth block's steps were lost with the interruption
    assert read_all(tmp_path) == read_all(folder)


def test_another_recipe_is_refused_in_the_folder_of_an_unfinished_run(
    lm: LM, corpus: Corpus, held_out: Corpus, recipe: Recipe, tmp_path: Path
) -> None:
    blocks: list[int] = []

    def stop(done: int, _total: int, _losses: dict[str, float]) -> None:
        blocks.append(done)
        if len(blocks) == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(lm, corpus, held_out, recipe, tmp_path, checkpoint_blocks=1, progress=stop)
    before = read_all(tmp_path)
    other = recipe.model_copy(update={"lr": 1e-4})
    with pytest.raises(UserError, match="unfinished run of another recipe"):
        train(lm, corpus, held_out, other, tmp_path)
    assert read_all(tmp_path) == before


def test_a_corpus_that_is_too_small_is_refused_before_anything_is_written(
    lm: LM, corpus: Corpus, held_out: Corpus, recipe: Recipe, tmp_path: Path
) -> None:
    greedy = recipe.model_copy(update={"tokens": 10_000_000})
    with pytest.raises(UserError, match=r"asks for 10,000,000 tokens.*held only"):
        train(lm, corpus, held_out, greedy, tmp_path / "new", checkpoint_blocks=1)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", NAMES)
def test_card_tells_what_was_done(
    whole: TrainingReport, corpus: Corpus, recipe: Recipe, folder: Path, name: str
) -> None:
    card = read_card(folder / f"{name}.json")
    assert card.training["tokens"] == recipe.tokens
    assert card.training["corpus"] == {"name": "toy", "split": "train", "sha256": corpus.sha256}
    assert card.training["held_out"]["split"] == "calibrate"
    assert card.training["recipe"]["lr"] == recipe.lr
    assert card.nominal_l0 == recipe.k
    json.dumps(card.training)


@pytest.mark.parametrize("name", NAMES)
def test_held_out_error_is_that_of_the_loaded_dictionary(
    whole: TrainingReport, lm: LM, held_out: Corpus, recipe: Recipe, folder: Path, name: str
) -> None:
    dictionary = load_dictionary(str(folder / f"{name}.safetensors"), lm=lm)
    rows = token_rows(held_out, lm, context=recipe.context, budget_tokens=recipe.held_out_tokens)
    tokens = lm.batch([row.ids for row in rows])
    measured = tokens.measured()
    clean = lm.forward(tokens, capture=dictionary.reads, logits=False).acts
    acts = {site: value[measured] for site, value in clean.items()}
    codes = dictionary.encode(acts)
    pair = dictionary.reconstructions(acts, codes)["input"]
    squares = (pair.prediction - pair.target).square().sum(dim=1) / pair.target.square().sum(dim=1)
    stated = read_card(folder / f"{name}.json").training["held_out"]
    assert stated["tokens"] == int(measured.sum())
    assert float(squares.mean()) == pytest.approx(stated["normalised_mse"], rel=0.02)
    assert stated["normalised_mse"] == pytest.approx(whole.held_out[name], abs=1e-5)


def test_sites_of_the_results(whole: TrainingReport, lm: LM, folder: Path) -> None:
    sites = routed_sites(lm.n_layers)
    read = {name: load_dictionary(str(folder / f"{name}.safetensors")).reads for name in NAMES}
    assert read == {"one-layer": sites[-1:], "routed": sites, "control": sites}
    assert sites == tuple(Site("resid_post", layer) for layer in range(0, 4))
