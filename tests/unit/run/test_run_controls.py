"""Every control goes through every task on a toy model, and its scores say what a control's must."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from latentbench.adapters import (
    CONTROL_SCHEMES,
    Calibration,
    Dictionary,
    InputTransform,
    ReluGate,
    TopKGate,
    load_control,
)
from latentbench.data import Corpus, Document
from latentbench.identity import sha256_text
from latentbench.lm import Site
from latentbench.run import (
    DictionarySpec,
    Plan,
    Suite,
    Task,
    TaskSpec,
    TokenPolicy,
    execute,
    load_suite,
    stream_acts,
)
from latentbench.run._plan import _cell, _Ground
from latentbench.store import RunRecord
from latentbench.testing import random_routesae, random_sae, toy_lm, toy_tokenizer
from latentbench_tasks.core.task import CoreConfig, CoreTask
from latentbench_tasks.feature_count.task import FeatureCountConfig, FeatureCountTask
from latentbench_tasks.interpretability.task import InterpretabilityConfig, InterpretabilityTask
from latentbench_tasks.steering.task import SteeringConfig, SteeringTask

POLICY = TokenPolicy(context=24, batch_rows=8)
BUDGET = 1_500
WORDS = {
    "Sport": "game team coach league score match",
    "Technology": "we took the old road and saw a small house by the river",
}


class WordJudge:
    """Texts with the same words are similar."""

    role = "similarity"

    def identity(self) -> dict[str, Any]:
        return {"name": "words"}

    def embed(self, texts: list[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), 32), np.float32)
        for row, text in enumerate(texts):
            for word in text.split() or [""]:
                vectors[row, int(sha256_text(word)[:8], 16) % 32] += 1
        unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


@cache
def corpus(split: str) -> Corpus:
    rng = np.random.default_rng(len(split))
    documents: dict[str, Document] = {}
    for kind in ("Sport", "Technology"):
        for _ in range(80):
            text = " ".join(rng.choice([*WORDS[kind].split(), *WORDS["Technology"].split()], 20))
            documents[text] = Document(
                sha256_text(text), text, "97_news_class", labels={"97_news_class": kind}, excerpts=True
            )
    found = [list(documents.values())[place] for place in rng.permutation(len(documents))]
    return Corpus(name="toy", split=split, sha256=sha256_text(split), documents=found, pool=found)


def tasks() -> list[Task]:
    return [
        CoreTask(CoreConfig(budget_tokens=300, calibration_tokens=400)),
        FeatureCountTask(
            FeatureCountConfig(budget_tokens=BUDGET, thresholds=(7.5, 15.0), headline=7.5, browsable=5)
        ),
        InterpretabilityTask(
            InterpretabilityConfig(
                budget_tokens=BUDGET, latents=6, min_documents=8, contexts=3, context_tokens=8
            )
        ),
        SteeringTask(
            SteeringConfig.model_validate(
                {
                    "concepts": ("sport",),
                    "prompts": 4,
                    "select_documents": 6,
                    "select_context": 20,
                    "factors": (0.5, 8.0),
                    "max_new_tokens": 4,
                    "batch_rows": 8,
                    "scorer_documents": 60,
                    "neutral_texts": 20,
                    "window_words": (6, 12),
                }
            )
        ),
    ]


@cache
def model() -> Any:
    torch.set_num_threads(1)
    return toy_lm(tokenizer=toy_tokenizer())


def calibration() -> Calibration:
    def acts(sites: Sequence[Site]) -> Iterable[Mapping[Site, Tensor]]:
        return stream_acts(corpus("calibrate"), model(), POLICY, sites, 400)

    return Calibration(acts, lambda: {"corpus": corpus("calibrate").sha256})


def real(name: str) -> Dictionary:
    routed = random_routesae(["resid_post.0", "resid_post.1", "resid_post.2"])
    single = random_sae(transform=InputTransform("standardise"), gate=TopKGate(4, rectify=False))
    sparse = random_sae(transform=InputTransform("standardise"), gate=ReluGate(), n_latents=24)
    return {"routed": routed, "single": single, "relu": sparse}[name]


def control(source: str) -> Dictionary:
    scheme, _, rest = source.partition(":")
    assert scheme in CONTROL_SCHEMES
    return load_control(scheme, rest, model(), real, calibration())


SOURCES = [
    "identity:resid_post.1",
    "mean:resid_post.1",
    "pca:resid_post.1:12:4",
    "random-directions:resid_post.1:48:4",
    *(
        f"{scheme}:{of}"
        for scheme in ("random-codes", "permuted-decoder", "random-decoder", "untrained")
        for of in ("single", "routed")
    ),
    "untrained:relu",
]


def plan_of(dictionaries: Sequence[Dictionary]) -> Plan:
    suite = Suite(
        name="toy",
        lm="toy",
        target_l0=4,
        dictionaries=(DictionarySpec(source="a"),),
        tasks=(TaskSpec(name="core"),),
    )
    ground = _Ground(suite, model(), corpus("test"), POLICY)
    cells = [
        _cell(
            ground,
            DictionarySpec(source="x"),
            dictionary,
            task,
            WordJudge() if task.judge_role else None,
            0,
        )
        for dictionary in dictionaries
        for task in tasks()
    ]
    return Plan(suite, model(), ground.corpus, corpus, POLICY, cells)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, RunRecord]]:
    """Records by source and task, of the controls and of what they are made from."""
    names = [*SOURCES, "single", "routed"]
    dictionaries = [real(name) if name in ("single", "routed") else control(name) for name in names]
    found = execute(plan_of(dictionaries), Path(tmp_path_factory.mktemp("controls")))
    by_task: list[dict[str, RunRecord]] = []
    for start in range(0, len(found), 4):
        by_task.append({str(record.cell.task["name"]): record for record in found[start : start + 4]})
    return dict(zip(names, by_task, strict=True))


def value(record: RunRecord, name: str) -> float | None:
    return next(metric.value for metric in record.metrics if metric.name == name)


@pytest.mark.parametrize("source", SOURCES)
def test_a_control_runs_through_every_task(source: str, records: dict[str, dict[str, RunRecord]]) -> None:
    found = records[source]
    assert list(found) == ["core", "feature_count", "interpretability", "steering"]
    for name, record in found.items():
        assert record.status == "ok", (name, record.error)
        card = record.labels["card"]
        assert isinstance(card, dict)
        assert card["control"] is True
        assert record.metrics
    if not source.startswith("mean"):
        assert value(found["feature_count"], "active")
        assert found["steering"].counts["generations"] > 0
        assert found["interpretability"].counts["latents_drawn"] > 0


def test_the_mean_explains_nothing_and_has_nothing_to_judge(
    records: dict[str, dict[str, RunRecord]],
) -> None:
    found = records["mean:resid_post.1"]
    core = found["core"]
    assert value(core, "l0") == 0
    assert value(core, "explained_variance") == pytest.approx(0, abs=0.1)
    assert value(core, "ce_recovered_mean") == pytest.approx(0, abs=1e-3)
    assert value(core, "dead_latents") is None
    assert value(found["feature_count"], "features_at_7.5") == 0
    assert value(found["feature_count"], "active") == 0
    assert found["interpretability"].counts["latents_drawn"] == 0
    assert found["steering"].counts["generations"] == 0


def test_each_control_keeps_what_it_says(records: dict[str, dict[str, RunRecord]]) -> None:
    for of in ("single", "routed"):
        l0 = value(records[of]["core"], "l0")
        for scheme in ("random-codes", "permuted-decoder", "random-decoder", "untrained"):
            assert value(records[f"{scheme}:{of}"]["core"], "l0") == pytest.approx(l0)
        for scheme in ("permuted-decoder", "random-decoder"):
            same = [records[name]["feature_count"] for name in (of, f"{scheme}:{of}")]
            assert value(same[0], "features_at_7.5") == value(same[1], "features_at_7.5")
            assert value(same[0], "active") == value(same[1], "active")
    assert value(records["identity:resid_post.1"]["core"], "explained_variance") == pytest.approx(1)
    pca = value(records["pca:resid_post.1:12:4"]["core"], "explained_variance")
    drawn = value(records["random-directions:resid_post.1:48:4"]["core"], "explained_variance")
    assert pca is not None
    assert drawn is not None
    assert 0.3 < pca < 1
    assert drawn < pca


def test_the_suite_of_controls_names_every_scheme() -> None:
    suite = load_suite("controls")
    schemes = {spec.source.partition(":")[0] for spec in suite.dictionaries}
    assert set(CONTROL_SCHEMES) <= schemes
