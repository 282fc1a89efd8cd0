"""`check_task`: the built-in tasks pass, and what a task may get wrong is found by its own check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict

import latentbench_tasks.core.task as core
from latentbench.adapters import Codes
from latentbench.registry import Registry
from latentbench.run import CellSetup, Item, Summary, Task, TaskConfig, WatchedBatch, Watcher
from latentbench.stats import Units
from latentbench.store import Metric
from latentbench.testing import (
    TASK_CHECKS,
    CheckResult,
    _task_numbers,
    _task_subject,
    assert_task,
    check_task,
    parametrize_task_checks,
    toy_corpus,
)
from latentbench_tasks.autointerp.task import AutointerpConfig, AutointerpTask
from latentbench_tasks.core.task import CoreConfig, CoreTask
from latentbench_tasks.feature_count.task import FeatureCountConfig, FeatureCountTask
from latentbench_tasks.interpretability.task import InterpretabilityConfig, InterpretabilityTask
from latentbench_tasks.monosemanticity.task import MonosemanticityConfig, MonosemanticityTask


def small_core() -> CoreTask:
    return CoreTask(CoreConfig(budget_tokens=300, calibration_tokens=100))


def failures(task: Task) -> dict[str, CheckResult]:
    return {result.name: result for result in check_task(task) if result.passed is False}


@pytest.mark.parametrize(
    "task",
    [
        FeatureCountTask(FeatureCountConfig(budget_tokens=400)),
        InterpretabilityTask(
            InterpretabilityConfig(budget_tokens=900, latents=12, min_documents=6, contexts=3)
        ),
        MonosemanticityTask(
            MonosemanticityConfig(
                budget_tokens=900, latents=12, min_documents=6, contexts=3, shown=4, mixed=5
            )
        ),
        AutointerpTask(
            AutointerpConfig(budget_tokens=900, latents=12, min_documents=6, contexts=3, simulations=2)
        ),
    ],
    ids=lambda task: task.name,
)
def test_built_in_tasks_pass(task: Task) -> None:
    results = check_task(task)
    assert tuple(result.name for result in results) == TASK_CHECKS
    assert [result for result in results if result.state != "passed"] == []


@parametrize_task_checks(small_core)
def test_core(check: Callable[[], None]) -> None:
    check()


class _Watcher(Watcher):
    budget_tokens = 200

    def watch(self, batch: WatchedBatch, codes: Codes) -> list[Item]:
        rows = batch.token_rows().cpu()[codes.rows().cpu()].bincount(minlength=len(batch.rows)).tolist()
        return [{"kind": "core", "row": place, "active": active} for place, active in enumerate(rows)]


class Plain(Task):
    """A sound task that counts active latents; its card is core's, so it borrows the name and version."""

    name: ClassVar[str] = "core"
    version: ClassVar[str] = CoreTask.version

    def watcher(self, setup: CellSetup) -> Watcher | None:
        return _Watcher()

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        active = [item["active"] for item in items if item["kind"] == "core"]
        return Summary([self.metric(float(sum(active)) if active else None)], [], {"rows": len(active)})

    def metric(self, value: float | None, name: str = "l0") -> Metric:
        return Metric(
            name=name,
            value=value,
            n=1,
            resampling_unit="none",
            unit="latents/token",
            direction="none",
            reason=None if value is not None else "nothing was watched",
        )


class LooseConfig(TaskConfig):
    model_config = ConfigDict(extra="ignore")


class Loose(Plain):
    Config: ClassVar[type[TaskConfig]] = LooseConfig


class NoConfig(Plain):
    Config: ClassVar[Any] = BaseModel


class OtherVersion(Plain):
    version: ClassVar[str] = "99"


class WantsAJudge(Plain):
    judge_role: ClassVar[str | None] = "similarity"


class Raises(Plain):
    def watcher(self, setup: CellSetup) -> Watcher | None:
        raise RuntimeError("broken\nin two lines")


class Undeclared(Plain):
    def metric(self, value: float | None, name: str = "l0") -> Metric:
        return super().metric(value, "surprise").model_copy(update={"direction": "higher"})


class OtherUnit(Plain):
    def metric(self, value: float | None, name: str = "l0") -> Metric:
        return super().metric(value).model_copy(update={"unit": "nats"})


class NoMetric(Plain):
    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        return Summary([], [], {})


class ByBatch(Plain):
    def watcher(self, setup: CellSetup) -> Watcher | None:
        class Means(_Watcher):
            def watch(self, batch: WatchedBatch, codes: Codes) -> list[Item]:
                mean = codes.nnz / len(batch.rows) ** 2
                return [{"kind": "core", "row": place, "active": mean} for place in range(len(batch.rows))]

        return Means()


class Random(Plain):
    def metric(self, value: float | None, name: str = "l0") -> Metric:
        return super().metric(None if value is None else float(np.random.default_rng().random()))


class ScoresNothing(Plain):
    def metric(self, value: float | None, name: str = "l0") -> Metric:
        return super().metric(value or 0.0)


class FailsOnNothing(Plain):
    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        return Summary([self.metric(float(items[0]["active"]))], [], {})


class Forgets(Plain):
    def measure(self, setup: CellSetup, items: list[Item]) -> Any:
        yield {"kind": "note", "number": len(items)}


@pytest.fixture(autouse=True)
def _cores_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """The card that is found beside the module of these tasks is core's."""
    own, cores = _task_subject.card_path, Path(core.__file__).with_name("card.toml")
    monkeypatch.setattr(
        _task_subject, "card_path", lambda task: cores if isinstance(task, Plain) else own(task)
    )


def test_the_plain_task_is_sound() -> None:
    results = {result.name: result.state for result in check_task(Plain(TaskConfig()))}
    other = {name: state for name, state in results.items() if state != "passed"}
    assert other == {"light metrics": "skipped", "recomputed": "skipped"}  # it is registered nowhere


def test_units_that_give_other_numbers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> Units:
        return Units(("a", "b"), np.ones((2, 1)), {"l0": lambda totals: totals[:, 0] + 1e6})

    def state() -> str:
        (result,) = [one for one in check_task(small_core()) if one.name == "units"]
        return result.state

    assert state() == "passed"
    monkeypatch.setattr("latentbench_tasks.core.metrics.units", wrong)
    assert state() == "failed"


@pytest.mark.parametrize(("keeps", "state"), [(True, "passed"), (False, "failed")])
def test_what_is_published_must_give_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch, keeps: bool, state: str
) -> None:
    class Entries(Registry):
        def names(self) -> list[str]:
            return ["core"]

        def load(self, name: str) -> Any:
            return lambda items, config: items if keeps else items[1:]

    monkeypatch.setattr(
        _task_numbers, "PUBLISHED", Entries("latentbench.published", "published form of task")
    )
    (found,) = [one for one in check_task(small_core()) if one.name == "recomputed"]
    assert found.state == state
    assert "as they are published" in found.found


@pytest.mark.parametrize(
    ("task", "check", "found"),
    [
        (Loose(LooseConfig()), "declarations", "a misspelt option is not noticed"),
        (NoConfig(TaskConfig()), "declarations", "not a TaskConfig"),
        (OtherVersion(TaskConfig()), "card", "the class '99'"),
        (WantsAJudge(TaskConfig()), "card", "judge_role = None, the class 'similarity'"),
        (Raises(TaskConfig()), "run", "RuntimeError: broken in two lines"),
        (Undeclared(TaskConfig()), "metrics", "'surprise' is not in card.toml"),
        (OtherUnit(TaskConfig()), "metrics", "is nats, none; card.toml says latents/token, none"),
        (NoMetric(TaskConfig()), "metrics", "summarise gave no metric"),
        (ByBatch(TaskConfig()), "batch invariance", "with 4 rows in a batch"),
        (Random(TaskConfig()), "summary", "gives other numbers"),
        (ScoresNothing(TaskConfig()), "no items", "has a value without any item"),
        (FailsOnNothing(TaskConfig()), "no items", "IndexError"),
        (Forgets(TaskConfig()), "resume", "1 more, first a 'note'"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Task) else None,
)
def test_broken(task: Task, check: str, found: str) -> None:
    failed = failures(task)
    assert check in failed, failed
    assert found in failed[check].found


def test_assert() -> None:
    with pytest.raises(AssertionError, match="the class '99'"):
        assert_task(OtherVersion(TaskConfig()))
    assert_task(OtherVersion(TaskConfig()), expected_failures={"card": "borrowed"})


def test_toy_corpus_has_other_texts_in_every_split() -> None:
    test, select = toy_corpus("test"), toy_corpus("select")
    assert not {d.sha256 for d in test.documents} & {d.sha256 for d in select.documents}
    assert toy_corpus("test").sha256 == test.sha256 != select.sha256
