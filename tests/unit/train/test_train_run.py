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
from latentbench.train import Recipe, TraineeSpec, TrainingReport, TrainOptions, train

NAMES = ("one-layer", "routed", "control")
EVERY_BLOCK = TrainOptions(checkpoint_blocks=1)
PENALISED = ("relu", "gated", "jumprelu", "crosscoder")


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
        train(lm, corpus, held_out, recipe, tmp_path, options=EVERY_BLOCK, progress=stop_at_the_fourth)
    assert (tmp_path / "training.json").is_file()
    resumed: list[int] = []
    train(
        lm,
        corpus,
        held_out,
        recipe,
        tmp_path,
        options=EVERY_BLOCK,
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
        train(lm, corpus, held_out, recipe, tmp_path, options=EVERY_BLOCK, progress=stop)
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
        train(lm, corpus, held_out, greedy, tmp_path / "new", options=EVERY_BLOCK)
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


def test_a_dictionary_does_not_depend_on_its_company(
    whole: TrainingReport,
    lm: LM,
    corpus: Corpus,
    held_out: Corpus,
    recipe: Recipe,
    folder: Path,
    tmp_path: Path,
) -> None:
    report = train(lm, corpus, held_out, recipe, tmp_path, options=TrainOptions(only="rout*"))
    assert [file.name for file in report.files] == ["routed.safetensors"]
    for name in ("routed.safetensors", "routed.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_a_single_layer_dictionary_learns_from_the_site_it_names(
    lm: LM, corpus: Corpus, held_out: Corpus, recipe: Recipe, tmp_path: Path
) -> None:
    specs = [TraineeSpec(name=f"at-{site}", kind="topk", site=site) for site in (0, 1, -1)]
    several = recipe.model_copy(update={"trainees": tuple(specs)})
    report = train(lm, corpus, held_out, several, tmp_path)
    sites = routed_sites(lm.n_layers)
    reads = [read_card(tmp_path / f"{spec.name}.json").reads for spec in specs]
    assert reads == [(str(sites[0]),), (str(sites[1]),), (str(sites[-1]),)]
    assert len(set(report.held_out.values())) == 3
    own, foreign = (load_dictionary(str(tmp_path / f"at-{name}.safetensors")) for name in (0, -1))
    rows = token_rows(held_out, lm, context=recipe.context, budget_tokens=recipe.held_out_tokens)
    batch = lm.batch([row.ids for row in rows])
    acts = lm.forward(batch, capture=[sites[0]], logits=False).acts[sites[0]][batch.measured()]
    errors = []
    for dictionary in (own, foreign):
        assert isinstance(dictionary, SparseAutoencoder)
        moved = SparseAutoencoder(own.card, dictionary.weights, dictionary.gate, dictionary.transform)
        codes = moved.encode({sites[0]: acts})
        errors.append(float((moved.decode(codes)[sites[0]].values - acts).square().mean()))
    assert errors[0] < errors[1]
    wrong = recipe.model_copy(update={"trainees": (TraineeSpec(name="a", kind="topk", site=99),)})
    with pytest.raises(UserError, match="site = 99, but this model has"):
        train(lm, corpus, held_out, wrong, tmp_path / "wrong")


def test_what_is_there_is_not_trained_again(
    whole: TrainingReport, lm: LM, corpus: Corpus, held_out: Corpus, recipe: Recipe, folder: Path
) -> None:
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    again = train(lm, corpus, held_out, recipe, folder)
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert again.speed is None
    assert again.held_out == whole.held_out


def test_a_result_of_another_recipe_is_not_taken_for_this_one(
    whole: TrainingReport, lm: LM, corpus: Corpus, held_out: Corpus, recipe: Recipe, folder: Path
) -> None:
    with pytest.raises(UserError, match="'one-layer' that another recipe made"):
        train(lm, corpus, held_out, recipe.model_copy(update={"lr": 1e-4}), folder)


def test_a_pattern_that_fits_nothing_names_the_dictionaries(
    lm: LM, corpus: Corpus, held_out: Corpus, recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="it has one-layer, routed, control"):
        train(lm, corpus, held_out, recipe, tmp_path, options=TrainOptions(only="topk"))


def test_speeds_are_measured(whole: TrainingReport) -> None:
    assert whole.speed is not None
    assert whole.speed.lm is not None
    assert 0 < whole.speed.both < whole.speed.training


@pytest.fixture(scope="module")
def families(
    lm: LM, corpus: Corpus, held_out: Corpus, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Recipe, TrainingReport]:
    """One dictionary of every family but those of `whole`, from a cache."""
    specs = [
        {"name": "relu", "kind": "relu", "penalty": 0.5, "penalty_gain": 0.05},
        {"name": "gated", "kind": "gated", "penalty": 0.5, "penalty_gain": 0.05},
        {"name": "jumprelu", "kind": "jumprelu", "penalty": 0.01, "threshold": 0.5, "bandwidth": 1.0},
        {"name": "mlsae", "kind": "mlsae", "sites_per_batch": 2},
        {"name": "crosscoder", "kind": "crosscoder", "n_sites": 2, "penalty": 0.5, "penalty_gain": 0.05},
        {"name": "mean-pooled", "kind": "routesae", "pooling": "mean"},
        {"name": "soft", "kind": "routesae", "routing": "soft"},
    ]
    trainees = tuple(TraineeSpec.model_validate(spec) for spec in specs)
    wide = recipe.model_copy(update={"trainees": trainees, "tokens": 6000, "repeats": 2})
    out = tmp_path_factory.mktemp("families")
    options = TrainOptions(cache=tmp_path_factory.mktemp("cache"))
    return out, wide, train(lm, corpus, held_out, wide, out, options=options)


def test_every_family_becomes_a_dictionary_that_measures_as_its_card_says(
    families: tuple[Path, Recipe, TrainingReport], lm: LM, held_out: Corpus
) -> None:
    folder, recipe, report = families
    rows = token_rows(held_out, lm, context=recipe.context, budget_tokens=recipe.held_out_tokens)
    tokens = lm.batch([row.ids for row in rows])
    measured = tokens.measured()
    for name in report.held_out:
        dictionary = load_dictionary(str(folder / f"{name}.safetensors"), lm=lm)
        clean = lm.forward(tokens, capture=dictionary.reads, logits=False).acts
        acts = {site: value[measured] for site, value in clean.items()}
        codes = dictionary.encode(acts)
        stated = dictionary.card.training["held_out"]
        assert codes.nnz / codes.n_tokens == pytest.approx(stated["l0"], rel=0.05), name
        pair = dictionary.reconstructions(acts, codes)["input"]
        width = lm.d_model
        wrong = (pair.prediction - pair.target).unflatten(1, (-1, width)).square().sum(dim=2)
        size = pair.target.unflatten(1, (-1, width)).square().sum(dim=2)
        assert float((wrong / size).mean()) == pytest.approx(stated["normalised_mse"], rel=0.05), name


def test_penalised_families_are_steered_to_the_target(
    families: tuple[Path, Recipe, TrainingReport],
) -> None:
    folder, recipe, _ = families
    for name in PENALISED:
        training = read_card(folder / f"{name}.json").training
        curve = training["curve"]
        assert curve[-1]["l0"] == pytest.approx(recipe.k, rel=0.5), name
        assert all("penalty" in point for point in curve)
        assert [point["tokens"] for point in curve] == sorted(point["tokens"] for point in curve)


def test_curves_fall_and_end_at_the_card_s_error(
    families: tuple[Path, Recipe, TrainingReport], whole: TrainingReport, folder: Path
) -> None:
    for file in whole.files:
        training = read_card(file.with_suffix(".json")).training
        errors = [point["normalised_mse"] for point in training["curve"]]
        assert errors[-1] == training["held_out"]["normalised_mse"] < errors[0]
