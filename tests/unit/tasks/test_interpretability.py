"""The interpretability task: what the judge may see, planted latents, controls, shortages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from latentbench.run import CellSetup, Item, Shared
from latentbench.run._pass import Fed, run_pass
from latentbench.stats import generator
from latentbench_tasks.interpretability.metrics import auroc, score_latents, summarise
from latentbench_tasks.interpretability.task import InterpretabilityConfig, InterpretabilityTask

sys.path.insert(0, str(Path(__file__).parents[1] / "run"))
from toy_plan import POLICY, toy_corpus, toy_plan


@pytest.fixture(scope="module", params=[0, 2], ids=["single", "routed"])
def run(request: pytest.FixtureRequest) -> tuple[InterpretabilityTask, list[Item]]:
    plan = toy_plan()
    dictionary = plan.cells[request.param].dictionary
    setup = CellSetup(plan.lm, dictionary, plan.corpus, toy_corpus, POLICY, 0, Path("unused"), Shared())
    task = InterpretabilityTask(
        InterpretabilityConfig(budget_tokens=900, latents=12, min_documents=6, contexts=3)
    )
    watcher = task.watcher(setup)
    items: list[Item] = []
    errors: list[Exception] = []
    fed = Fed(dictionary, watcher, setup.rows(900), set(), items.extend, errors.append)
    run_pass(plan.lm, POLICY, [fed])
    assert not errors
    return task, [*items, *task.measure(setup, items)]


def test_no_document_is_on_two_sides_and_negatives_are_silent(
    run: tuple[InterpretabilityTask, list[Item]],
) -> None:
    _, items = run
    active: dict[int, set[str]] = {}
    for row in (item for item in items if item["kind"] == "row"):
        for latent in row["latents"]:
            active.setdefault(latent, set()).add(row["document"])
    latents = [item for item in items if item["kind"] == "latent"]
    assert latents
    for item in latents:
        contexts = [*item["positives"], *item["negatives"]]
        documents = [context["document"] for context in contexts]
        assert len(documents) == len(set(documents))
        assert {context["document"] for context in item["positives"]} <= active[item["latent"]]
        assert not {context["document"] for context in item["negatives"]} & active[item["latent"]]
        assert item["n_documents"] == len(active[item["latent"]]) >= 6


class TopicJudge:
    """Texts are unit vectors by the letter they hold most of."""

    role = "similarity"

    def identity(self) -> dict[str, Any]:
        return {"name": "topic"}

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        counts = np.array([[1.0 + text.count(letter) for letter in "abcdeglnorstu"] for text in texts])
        vectors: NDArray[np.float32] = (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(
            np.float32
        )
        return vectors


def test_judging_needs_the_texts_and_gives_a_verdict_a_latent(
    run: tuple[InterpretabilityTask, list[Item]],
) -> None:
    task, items = run
    latents = [item for item in items if item["kind"] == "latent"]
    judged = list(task.judge(items, TopicJudge(), generator("j")))
    assert [j["latent"] for j in judged] == [item["latent"] for item in latents]
    without = [item for item in items if item["kind"] != "text"]
    missing = list(task.judge(without, TopicJudge(), generator("j")))
    assert {j["status"] for j in missing} == {"unscored"}
    assert all("measure again" in j["reason"] for j in missing)
    summary = task.summarise(items, missing, generator("s"))
    assert summary.metrics[0].value is None
    assert summary.counts["unscored"] == len(latents)


def planted(strength: float, n: int = 60) -> tuple[list[dict[str, Any]], dict[str, NDArray[np.float32]]]:
    """Latents whose positive contexts share a direction of their own, to a degree."""
    rng = np.random.default_rng(1)
    vectors: dict[str, NDArray[np.float32]] = {}
    latents = []
    for latent in range(n):
        direction = rng.normal(size=32)
        item: dict[str, Any] = {"id": str(latent), "latent": latent, "positives": [], "negatives": []}
        for kind in ("positives", "negatives"):
            for place in range(20):
                vector = rng.normal(size=32) + (strength * direction if kind == "positives" else 0)
                name = f"{latent}{kind}{place}"
                vectors[name] = (vector / np.linalg.norm(vector)).astype(np.float32)
                split = "train" if place % 2 == 0 else "test"
                item[kind].append({"text": name, "document": name, "split": split})
        latents.append(item)
    return latents, vectors


def test_planted_latents_score_near_one_and_meaningless_ones_near_a_half() -> None:
    strong = list(score_latents(*planted(3.0), generator("strong")))
    none = list(score_latents(*planted(0.0), generator("none")))
    assert np.mean([j["score"] for j in strong]) > 0.99
    assert np.mean([j["balanced_accuracy"] for j in strong]) > 0.95
    assert np.mean([j["shuffled"] for j in strong]) == pytest.approx(
        0.5, abs=0.1
    )  # few latents, each far off either way
    assert np.mean([j["score"] for j in none]) == pytest.approx(0.5, abs=0.05)


def test_a_shortage_is_unscored_with_its_reason() -> None:
    latents, vectors = planted(1.0, n=3)
    latents[0]["negatives"] = latents[0]["negatives"][:3]
    first, *rest = score_latents(latents, vectors, generator("short"))
    assert first["status"] == "unscored"
    assert "documents without the latent" in first["reason"]
    assert {j["status"] for j in rest} == {"ok"}
    metrics, _, counts = summarise([], [first, *rest], generator("s"))
    assert counts["unscored"] == 1
    assert metrics[0].n == 2


def test_auroc_counts_ties_by_half() -> None:
    assert auroc(np.array([1.0, 2.0]), np.array([1.0, 0.0])) == pytest.approx(0.875)
    assert auroc(np.array([0.0]), np.array([1.0])) == 0
