"""Fidelity of influence: its metrics against plain definitions, and the whole task on a toy model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from latentbench.adapters import InputTransform
from latentbench.data import Corpus, fact_sheets
from latentbench.errors import UserError
from latentbench.lm import LM
from latentbench.run import CellSetup, Item, Shared, TokenPolicy
from latentbench.selectors import ExactAblation, OutputScore, Target, splice
from latentbench.stats import generator
from latentbench.testing import random_sae, toy_lm, toy_tokenizer
from latentbench_tasks._questions import asked_questions, prompt_text
from latentbench_tasks.influence_fidelity.metrics import (
    explained_curve,
    spearman,
    summarise,
    top_overlap,
    units,
)
from latentbench_tasks.influence_fidelity.task import InfluenceFidelityConfig, InfluenceFidelityTask, _spread

torch.set_num_threads(1)  # toy tensors: threads would only wait for each other


def test_spearman_is_scipy_s_with_ties() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        first, second = rng.integers(0, 6, 15), rng.normal(size=15)
        assert spearman(first, second) == pytest.approx(spearmanr(first, second).statistic)
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1, 2], [1, 2]) is None


def test_overlap_is_between_the_largest_of_both() -> None:
    exact = np.arange(30.0)
    assert top_overlap(exact, exact) == 1.0
    assert top_overlap(-exact, exact) == 0.0
    shifted = np.roll(exact, 5)  # the largest ten move by five
    assert top_overlap(shifted, exact) == 0.5
    assert top_overlap(exact[:19], exact[:19]) is None


def test_the_curve_of_the_exact_ranking_is_the_highest_and_none_falls() -> None:
    rng = np.random.default_rng(1)
    exact = rng.normal(size=40)
    best = explained_curve(exact, exact)
    assert best is not None
    assert best[-1] == pytest.approx(1.0)
    for _ in range(10):
        other = explained_curve(rng.normal(size=40), exact)
        assert other is not None
        assert np.all(np.diff(other) >= 0)
        assert np.all(other <= best + 1e-12)
    assert explained_curve([1.0, 2.0], [-1.0, 0.0]) is None


def example(number: int, context: str, noise: float) -> Item:
    rng = np.random.default_rng(number)
    exact = rng.normal(size=30)
    scores = {
        "gradsae": (exact + noise * rng.normal(size=30)).tolist(),
        "random": rng.normal(size=30).tolist(),
    }
    passes = {"gradsae": [0.3, 0.3], "random": [0.0, 0.0]}
    shared: dict[str, Any] = {
        "kind": "example",
        "id": str(number),
        "context": context,
        "correct": number % 2 == 0,
    }
    return {**shared, "exact": exact.tolist(), "scores": scores, "passes": passes}


def test_summaries_are_means_over_examples_with_contexts_as_units() -> None:
    items = [example(number, f"c{number // 4}", noise=0.3) for number in range(40)]
    skipped: list[Item] = [{"kind": "skipped", "id": "x", "context": "c", "reason": "no latent is active"}]
    metrics, curves, counts = summarise([*items, *skipped], "gradsae", generator("t"))
    found = {metric.name: metric for metric in metrics}
    expected = np.mean([spearmanr(item["scores"]["gradsae"], item["exact"]).statistic for item in items])
    assert found["spearman_gradsae"].value == pytest.approx(expected)
    assert found["spearman_gradsae"].headline
    assert found["spearman_gradsae"].n == 10
    assert found["passes_gradsae"].value == pytest.approx(0.6)
    assert found["correct"].value == pytest.approx(0.5)
    assert counts == {"examples": 40, "contexts": 10, "skipped": 1, "skipped: no latent is active": 1}
    ordered = {curve.name: curve for curve in curves}
    ends = ordered["explained_gradsae"].points
    assert ends[-1].value == pytest.approx(1.0)
    random_points = ordered["explained_random"].points
    assert all((a.value or 0) > (b.value or 0) for a, b in zip(ends[:5], random_points[:5], strict=True))


def test_places_are_spread_over_the_whole_order() -> None:
    assert _spread(10, 4) == [0, 3, 6, 9]
    assert _spread(3, 0) == []
    assert len(_spread(100, 32)) == 32


def tall_lm() -> LM:
    """A toy model whose window holds a few-shot prompt, letter by letter."""
    return toy_lm("llama", tokenizer=toy_tokenizer())


def setup(lm: LM, out: Path) -> CellSetup:
    corpus = Corpus("toy", "test", "0" * 64, [], [])
    dictionary = random_sae(n_latents=32, transform=InputTransform("standardise"))
    return CellSetup(lm, dictionary, corpus, lambda _split: corpus, TokenPolicy(), 0, out, Shared())


def test_questions_end_where_the_answer_begins() -> None:
    lm = tall_lm()
    asked = asked_questions(lm, "fact-sheets", 7, seed=2)
    sheets = fact_sheets(2, seed=2)
    assert len({one.id for one in asked}) == 7
    assert [one.context for one in asked[:5]] == [sheets[0].id[:16]] * 5
    text = prompt_text(
        fact_sheets(1, seed=999, questions=2, attributes=1)[0], sheets[0], sheets[0].questions[0]
    )
    assert text.endswith("Answer:")
    assert sheets[0].context in text
    whole = lm.tokenize([f"{text} {sheets[0].questions[0].answers[0]}"], max_tokens=10**6)[0]
    assert [*asked[0].example.prompt, *asked[0].example.answer] == whole
    assert asked_questions(lm, "fact-sheets", 3, seed=2) == asked[:3]


def test_a_file_with_too_few_questions_is_refused(tmp_path: Path) -> None:
    qas = [{"question": "Who?", "answers": [{"text": "Ann"}]}]
    paragraphs = [{"context": f"Ann {n}.", "qas": qas} for n in range(3)]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), encoding="utf-8")
    assert len(asked_questions(tall_lm(), str(path), 2, seed=0)) == 2
    with pytest.raises(UserError, match="holds 2 questions beside those shown first, and 5 were asked for"):
        asked_questions(tall_lm(), str(path), 5, seed=0)


def test_the_task_measures_every_example_and_resumes(tmp_path: Path) -> None:
    lm = tall_lm()
    lm.config.max_position_embeddings = 4096  # rotary positions go on as far as one likes
    cell = setup(lm, tmp_path)
    task = InfluenceFidelityTask(InfluenceFidelityConfig(examples=4, latents=12, steps=2))
    items = list(task.measure(cell, []))
    assert [item["kind"] for item in items] == ["example"] * 4
    for item in items:
        assert len(item["latents"]) == len(item["exact"]) == 12
        assert item["active"] > 12
        assert set(item["scores"]) == {
            "activation",
            "gradsae",
            "gradsae_code",
            "attribution",
            "integrated_gradients",
            "vocabulary",
            "output_score",
            "delta_confidence",
            "random",
        }
        assert item["passes"]["vocabulary"] == [0.0, 0.0]
        assert min(item["scores"]["gradsae"]) >= 0
    again = list(task.measure(cell, items[:2]))
    assert again == items[2:]
    asked = asked_questions(lm, "fact-sheets", 1, seed=0)[0]
    spliced = splice(lm, cell.dictionary, [asked.example], Target("log_probability"), keep_error=True)
    exact = ExactAblation().effects(spliced, torch.tensor(items[0]["latents"]))
    assert items[0]["exact"] == pytest.approx(exact.tolist(), rel=1e-4, abs=1e-7)
    alone = OutputScore().scores(lm, cell.dictionary, torch.tensor(items[3]["latents"])).scores
    assert items[3]["scores"]["output_score"] == pytest.approx(alone.tolist(), rel=1e-4, abs=1e-7)
    summary = task.summarise(items, [], generator("t"))
    assert {metric.name for metric in summary.metrics} >= {"spearman_gradsae", "overlap_random", "correct"}
    by_unit = units(items, [], task.config.model_dump(mode="json"))
    found = {
        metric.name: float("nan") if metric.value is None else metric.value for metric in summary.metrics
    }
    assert by_unit is not None
    assert {name: found[name] for name in by_unit.values()} == pytest.approx(by_unit.values(), nan_ok=True)
    assert all(math.isfinite(metric.value) for metric in summary.metrics if metric.value is not None)


def test_an_example_beyond_the_window_is_counted(tmp_path: Path) -> None:
    lm = tall_lm()
    task = InfluenceFidelityTask(InfluenceFidelityConfig(examples=2))
    lm.config.max_position_embeddings = 100
    items = list(task.measure(setup(lm, tmp_path), []))
    assert [item["reason"] for item in items] == ["longer than the model's window"] * 2
    assert task.summarise(items, [], generator("t")).counts["skipped"] == 2
