"""Export to Neuronpedia: what is refused, the command, and what real tasks store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bundle_cells import measure
from leaderboard_records import DICTIONARIES, cell_of
from neuronpedia_host import Host
from neuronpedia_results import MODEL, ROUTED, TERMS, TOPK, add, context, core_row, exported, latent, loaded

from latentbench.cli._main import _run
from latentbench.errors import UserError
from latentbench.judging import make_judge
from latentbench.store import ResultsFolder
from latentbench_tasks.autointerp.metrics import balanced_accuracy
from latentbench_tasks.autointerp.task import AutointerpConfig, AutointerpTask
from latentbench_tasks.core.task import CoreConfig, CoreTask
from latentbench_tasks.feature_count.task import FeatureCountConfig, FeatureCountTask


@pytest.fixture
def results(tmp_path: Path) -> ResultsFolder:
    return ResultsFolder.create(tmp_path / "results")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"source_set": None}, "name one with --source-set"),
    ({"source_set": "a b"}, "--source-set 'a b' can't be an id"),
    ({"source_set": "a__b"}, "can't be an id"),
    ({"source_set": "../x"}, "can't be an id"),
    ({"model_id": "meta/llama"}, "--model-id 'meta/llama' can't be an id"),
    ({"model_id": "config"}, "can't be an id"),
    ({"dictionaries": ("x",)}, "no dictionary 'x' in the results; there are: "),
    ({"dictionaries": (ROUTED.name,)}, "nothing here can be exported to Neuronpedia: RouteSAE: a source of"),
    ({"dictionaries": (DICTIONARIES[3].name,)}, "no cell holds items of its latents (`feature_count` and"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_is_missing_or_wrong_is_said(
    results: ResultsFolder, options: dict[str, Any], message: str
) -> None:
    for made in (TOPK, ROUTED):
        add(results, made, "core", [core_row(10, {1: 2})])
    add(results, DICTIONARIES[3], "core", [])
    with pytest.raises(UserError) as caught:
        exported(results, **options)
    assert message in str(caught.value)


def test_a_model_s_name_that_can_be_no_id_and_two_models(
    results: ResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(results, TOPK, "core", [core_row(10, {1: 2})])
    monkeypatch.setitem(cell_of.__globals__["LM"], "name", "lab/Größe 1")
    add(results, DICTIONARIES[3], "core", [core_row(10, {1: 2})])
    with pytest.raises(UserError, match=r"'lab/Größe 1', can't be an id .* with --model-id"):
        exported(results)
    with pytest.raises(UserError, match="names one language model, and the dictionaries are of 2"):
        exported(results, model_id="x")
    made = exported(results, model_id="x", dictionaries=(DICTIONARIES[3].name,))
    assert [one.source for one in made.exported] == ["x/21-lab-res-2k"]


def test_real_tasks_and_what_they_store(tmp_path: Path) -> None:
    tasks = (
        CoreTask(CoreConfig(budget_tokens=400, calibration_tokens=100)),
        FeatureCountTask(FeatureCountConfig(budget_tokens=700, thresholds=(0.5,), headline=0.5)),
        AutointerpTask(
            AutointerpConfig(budget_tokens=700, latents=5, min_documents=4, contexts=2, context_tokens=6)
        ),
    )
    records = measure(tmp_path / "r", tasks, make_judge("chance"), {"random SAE": 0})
    results = ResultsFolder(tmp_path / "r")
    public = exported(results, model_id="toy")
    assert public.exported[0].activations == 0  # nobody said that the toy corpus is free
    made = exported(results, model_id="toy", local_texts=True)
    host = loaded(made, tmp_path / "out", model="toy")
    core = next(cell for cell in results.cells() if any(True for _ in cell.items("items", "core")))
    rows = list(core.items("items", "core"))
    tokens = sum(row["tokens"] for row in rows)
    features = {row["index"]: row for row in host.rows("Neuron")}
    shares = [row["frac_nonzero"] for row in features.values()]
    l0 = next(record.metric("l0") for record in records if record.cell.task["name"] == "core")
    assert l0 is not None
    assert sum(shares) == pytest.approx(l0.value)
    assert all(share * tokens == pytest.approx(round(share * tokens)) for share in shares)
    activations = host.rows("Activation")
    assert len(activations) == made.exported[0].activations > 20
    for row in activations:
        assert len(row["tokens"]) == len(row["values"])
        assert row["values"][row["qualifyingTokenIndex"]] > 0
        assert (
            row["maxValue"] <= features[row["index"]]["maxActApprox"] * 1.05
        )  # strengths around peaks have two digits
    _scores_are_the_task_s(results, host, records[2].counts["latents_explained"])


def _scores_are_the_task_s(results: ResultsFolder, host: Host, explained: int) -> None:
    cell = next(cell for cell in results.cells() if list(cell.items("judgements")))
    explanations = host.rows("Explanation")
    assert len(explanations) == explained > 0
    indices = {row["id"]: row["index"] for row in explanations}
    scores = [
        row
        for row in host.rows("ExplanationScore")
        if row["explanationScoreTypeName"].startswith("latentbench_detection")
    ]
    assert scores
    for row in scores:
        answers = [
            (truth, given, float(given))
            for one in cell.items("judgements", "detection")
            if str(one["latent"]) == indices[row["explanationId"]]
            for truth, given in zip(one["truth"], one["verdict"], strict=True)
        ]
        assert row["value"] == balanced_accuracy(answers)


def test_the_command(results: ResultsFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(results, TOPK, "core", [core_row(10, {1: 2})])
    add(
        results,
        TOPK,
        "feature_count",
        [latent(3, context("aa", [0.0, 5.0]), context("bb", [0.0, 1.0], TERMS))],
    )
    add(results, ROUTED, "core", [core_row(10, {1: 2})])
    out = tmp_path / "out"
    command = ["export", "neuronpedia", str(results.path)]
    assert _run([*command, "--out", str(out), "--source-set", "lab-res-2k"]) == 0
    said = capsys.readouterr()
    assert f"{MODEL}/21-lab-res-2k: {TOPK.name}: 2 latents, 1 contexts, 0 explanations" in said.out
    assert "1 latents without a density: the host will show its default, 0" in said.out
    assert "1 contexts left out: without a text that may be shown" in said.out
    assert f"Left out {ROUTED.name}: a source of Neuronpedia is one layer" in said.err
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    Host(MODEL).load(out)
    again = tmp_path / "again"
    assert _run([*command, "--out", str(again), "--source-set", "lab-res-2k"]) == 0
    assert {path.relative_to(again): path.read_bytes() for path in again.rglob("*") if path.is_file()} == {
        path.relative_to(out): data for path, data in before.items()
    }
    capsys.readouterr()

    def refuse(given: list[str]) -> str:
        assert _run(given) == 2
        return capsys.readouterr().err

    assert "nothing is overwritten" in refuse([*command, "--out", str(out), "--source-set", "other"])
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert "name what to write with --out" in refuse([*command, "--source-set", "x"])
    assert "name one with --source-set" in refuse([*command, "--out", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()
    csv = ["export", "csv", str(results.path), "--source-set", "x"]
    assert "--local-texts are for neuronpedia, not for csv" in refuse(csv)
