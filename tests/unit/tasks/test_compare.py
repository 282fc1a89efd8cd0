"""`latentbench compare`: families by name pattern, ratios of counts with their documents, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from latentbench.errors import UserError
from latentbench.stats import seeds_difference, seeds_ratio
from latentbench.store import CellIdentity, Metric, ResultsFolder, RunRecord
from latentbench_tasks._compare import LogErrors, compare
from latentbench_tasks.cli import compare as command
from latentbench_tasks.feature_count.metrics import Rule, kept_latents, pack_latents, read_events
from latentbench_tasks.feature_count.paired import document_log_error

CONFIG: dict[str, Any] = {"thresholds": [8.0, 10.0], "headline": 10.0}
RULE = Rule(5, 32, 2, one_per_document=True)
NAMES = ["Wide 0", "Wide 1", "Wide 2", "Narrow 0", "Narrow 1"]
LOSSES = [0.1, 0.12, 0.13, 0.2, 0.24]


def rows(latents: int, seed: int) -> list[dict[str, Any]]:
    """40 documents of 12 tokens; each of the first `latents` latents fires on four of them in a few documents."""
    rng = np.random.default_rng(seed)
    made = []
    for document in range(40):
        firing = [latent for latent in range(latents) if rng.random() < 0.09]
        columns = [sorted(rng.choice(12, size=4, replace=False).tolist()) for _ in firing]
        made.append(
            {
                "kind": "row",
                "id": f"d{document}:0",
                "document": f"d{document}",
                "start_token": 0,
                "tokens": 12,
                "n_latents": 64,
                "classes": list(range(12)),
                "latents": firing,
                "columns": columns,
                "strengths": [[9.0 + 3 * (latent % 3)] * 4 for latent in firing],
                "active": pack_latents(np.array(firing, dtype=np.int64), 64),
            }
        )
    return made


def metric(name: str, value: float | None, unit: str) -> Metric:
    reason = None if value is not None else "nothing to count"
    return Metric(
        name=name, value=value, n=40, resampling_unit="document", unit=unit, direction="higher", reason=reason,
        headline=name == "features_at_10",
    )  # fmt: skip


def finished(identity: CellIdentity, name: str, metrics: list[Metric]) -> RunRecord:
    return RunRecord(
        key=identity.key(),
        measurement_key=identity.measurement_key(),
        status="ok",
        cell=identity,
        labels={"dictionary": name},
        metrics=metrics,
        started="2026-01-02T03:04:05+00:00",
        finished="2026-01-02T03:05:05+00:00",
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = ResultsFolder.create(tmp_path_factory.mktemp("results"))
    for seed, (name, loss) in enumerate(zip(NAMES, LOSSES, strict=True)):
        items = rows(40 if name.startswith("Wide") else 20, seed)
        kept = float(len(kept_latents(read_events(items, 8.0), 10.0, RULE)))
        identity = CellIdentity(
            lm={"name": "toy"},
            dictionary={"sha256": name},
            task={"name": "feature_count", "version": "2", "config": CONFIG},
            corpus={"name": "texts", "split": "test"},
            token_policy={"skip_first": 1},
            sparsity={"mode": "native", "target_l0": 64},
            seed=0,
        )
        metrics = [metric("features_at_10", kept, "latents"), metric("loss", loss, "nats")]
        metrics += [metric("never", None, "latents")]
        with folder.cell(identity.key()).writer(identity) as writer:
            writer.append(items)
            writer.finish(finished(identity, name, metrics))
    return folder.path


def counts(results: Path, pattern: str) -> list[float]:
    found = [r for r in ResultsFolder(results).records() if str(r.labels["dictionary"]).startswith(pattern)]
    values = [r.metrics[0].value for r in sorted(found, key=lambda r: str(r.labels["dictionary"]))]
    return [value for value in values if value is not None]


def test_counts_are_compared_as_a_ratio_and_the_rest_as_a_difference(results: Path) -> None:
    wide, narrow = counts(results, "Wide"), counts(results, "Narrow")
    assert min(wide) > max(narrow) > 0
    found = {one.metric: one for one in compare(results, "Wide*", "Narrow*", ["features*", "loss", "never"])}
    assert set(found) == {"features_at_10", "loss"}
    assert (found["features_at_10"].first, found["features_at_10"].second) == (wide, narrow)
    assert found["features_at_10"].estimate == seeds_ratio(wide, narrow).estimate
    assert found["loss"].estimate == seeds_difference(LOSSES[:3], LOSSES[3:]).estimate
    assert found["loss"].scale == "difference"


def test_controls_are_no_training_runs(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path / "r")
    for cell in ResultsFolder(tmp_path / "r").cells():
        record = cell.record()
        assert record is not None
        if record.labels["dictionary"] == NAMES[0]:
            labels = {**record.labels, "control": True}
            (cell.path / "run.json").write_text(record.model_copy(update={"labels": labels}).to_json())
    (one,) = compare(tmp_path / "r", "Wide*", "Narrow*")
    assert one.first == counts(results, "Wide")[1:]
    (one,) = compare(tmp_path / "r", NAMES[0], "Narrow*")
    assert one.first == counts(results, "Wide")[:1]


def test_without_patterns_the_headline_metrics_are_compared(results: Path) -> None:
    assert [one.metric for one in compare(results, "Wide*", "Narrow*")] == ["features_at_10"]


def test_documents_widen_the_interval_of_a_count_whose_items_are_there(results: Path) -> None:
    errors: dict[str, LogErrors] = {"feature_count": document_log_error}
    (bare,) = compare(results, "Wide*", "Narrow*")
    (found,) = compare(results, "Wide*", "Narrow*", log_errors=errors)
    assert found.document_error is not None
    assert 0 < found.document_error < 0.5
    assert bare.document_error is None
    assert bare.estimate.high is not None
    assert found.estimate.high is not None
    assert found.estimate.high > bare.estimate.high
    assert found.estimate.method.endswith("and documents")


def test_items_that_are_gone_leave_the_seeds(results: Path, tmp_path: Path) -> None:
    for run in (results / "runs").rglob("run.json"):
        there = tmp_path / run.parent.relative_to(results)
        there.mkdir(parents=True)
        for name in ("run.json", "cell.json"):
            (there / name).write_bytes((run.parent / name).read_bytes())
    for file in results.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (found,) = compare(tmp_path, "Wide*", "Narrow*", log_errors={"feature_count": document_log_error})
    assert found.document_error is None
    assert found.estimate.low is not None


@pytest.mark.parametrize(
    ("first", "second", "metrics", "message"),
    [
        ("wide*", "Narrow*", (), "unknown dictionary or pattern 'wide\\*'"),
        ("*", "Narrow*", (), "'Narrow 0' is in both families"),
        ("Wide*", "Narrow*", ("lost",), "have no lost in common"),
    ],
)
def test_what_can_t_be_compared_is_refused(
    results: Path, first: str, second: str, metrics: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        compare(results, first, second, metrics)


def test_the_command_prints_a_table_or_json(results: Path) -> None:
    shown = CliRunner().invoke(command, [str(results), "Wide*", "Narrow*"], catch_exceptions=False)
    assert "features_at_10" in shown.output
    assert "3, 2" in shown.output
    printed = CliRunner().invoke(
        command, [str(results), "Wide*", "Narrow*", "--json"], catch_exceptions=False
    )
    (one,) = json.loads(printed.output)
    assert one["low"] < one["value"] < one["high"]
    assert one["detectable"] > 1
    assert one["seeds"] == 2
