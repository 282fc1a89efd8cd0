"""SAELens' own trainers on our stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from latentbench.adapters import SparseAutoencoder, load_dictionary
from latentbench.adapters.formats.native import read_card
from latentbench.data import Corpus
from latentbench.errors import UserError
from latentbench.lm import LM, Site
from latentbench.train import ActivationStream, Recipe, TraineeSpec, TrainingReport, TrainOptions, train

pytest.importorskip("sae_lens")
SPECS: list[dict[str, Any]] = [
    {"kind": "saelens-standard", "penalty": 0.5, "penalty_gain": 0.05},
    {"kind": "saelens-gated", "penalty": 0.5, "penalty_gain": 0.05},
    {"kind": "saelens-topk"},
    {"kind": "saelens-batchtopk"},
    {"kind": "saelens-jumprelu", "penalty": 0.1, "penalty_gain": 0.05, "threshold": 0.1, "bandwidth": 0.5},
    {"kind": "saelens-matryoshka", "groups": [8, 16]},
]
NAMES = [str(spec["kind"]) for spec in SPECS]
LAST = Site("resid_post", 3)


@pytest.fixture(scope="module")
def theirs(recipe: Recipe) -> Recipe:
    trainees = tuple(TraineeSpec.model_validate({"name": spec["kind"], **spec}) for spec in SPECS)
    return recipe.model_copy(update={"trainees": trainees, "repeats": 2})


@pytest.fixture(scope="module")
def trained(
    lm: LM, corpus: Corpus, held_out: Corpus, theirs: Recipe, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, TrainingReport]:
    folder = tmp_path_factory.mktemp("saelens")
    options = TrainOptions(cache=tmp_path_factory.mktemp("cache"))
    return folder, train(lm, corpus, held_out, theirs, folder, options=options)


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_and_its_card_says_how_well(trained: tuple[Path, TrainingReport], name: str) -> None:
    folder, report = trained
    card = read_card(folder / f"{name}.json")
    curve = card.training["curve"]
    assert curve[-1]["normalised_mse"] < 0.9 * curve[0]["normalised_mse"]
    assert report.held_out[name] == curve[-1]["normalised_mse"]
    assert card.training["kind"] == name
    assert card.reads == (str(LAST),)


@pytest.mark.parametrize("name", NAMES)
def test_the_saved_dictionary_measures_as_its_card_says(
    trained: tuple[Path, TrainingReport], lm: LM, held_out: Corpus, theirs: Recipe, name: str
) -> None:
    folder, _ = trained
    dictionary = load_dictionary(str(folder / f"{name}.safetensors"), lm=lm)
    stream = ActivationStream(lm, held_out, (LAST,), theirs, theirs.held_out_tokens)
    wrong = active = tokens = 0.0
    for block in stream.blocks():
        raw = block.raw(0)
        codes = dictionary.encode({LAST: raw})
        error = (dictionary.decode(codes)[LAST].values - raw).square().sum(dim=1)
        wrong += float((error / (raw - raw.mean(dim=1, keepdim=True)).square().sum(dim=1)).sum())
        active += codes.nnz
        tokens += block.n_tokens
    stated = dictionary.card.training["held_out"]
    assert wrong / tokens == pytest.approx(stated["normalised_mse"], rel=0.03)
    assert active / tokens == pytest.approx(stated["l0"], rel=0.05)


@pytest.mark.parametrize("name", ["saelens-standard", "saelens-gated", "saelens-jumprelu"])
def test_penalties_are_steered(trained: tuple[Path, TrainingReport], theirs: Recipe, name: str) -> None:
    curve = read_card(trained[0] / f"{name}.json").training["curve"]
    far = [abs(point["l0"] - theirs.k) for point in (curve[0], curve[-1])]
    assert far[1] < far[0] or far[1] < 1.5
    if name == "saelens-jumprelu":  # its penalty is around the target, its thresholds are set
        assert far[1] < 0.5
        return
    assert curve[0]["penalty"] != curve[-1]["penalty"]


def test_a_matryoshka_s_groups_are_on_its_card(trained: tuple[Path, TrainingReport]) -> None:
    card = read_card(trained[0] / "saelens-matryoshka.json")
    assert card.options["groups"] == [8, 16, 32]
    assert card.family == "matryoshka"


def test_the_seed_decides_and_nothing_is_left_behind(
    lm: LM, corpus: Corpus, held_out: Corpus, theirs: Recipe, tmp_path: Path
) -> None:
    before = torch.get_rng_state()
    for name in ("one", "two"):
        train(lm, corpus, held_out, theirs, tmp_path / name, options=TrainOptions(only="saelens-topk"))
    assert torch.equal(torch.get_rng_state(), before)
    one, two = (load_dictionary(str(tmp_path / name / "saelens-topk.safetensors")) for name in ("one", "two"))
    assert isinstance(one, SparseAutoencoder)
    assert isinstance(two, SparseAutoencoder)
    assert torch.equal(one.weights.w_dec, two.weights.w_dec)


def test_a_schedule_that_saelens_lacks_is_refused(
    lm: LM, corpus: Corpus, held_out: Corpus, theirs: Recipe, tmp_path: Path
) -> None:
    odd = theirs.model_copy(update={"schedule": "as-run-2025"})
    with pytest.raises(UserError, match="no schedule 'as-run-2025'"):
        train(lm, corpus, held_out, odd, tmp_path, options=TrainOptions(only="saelens-topk"))
