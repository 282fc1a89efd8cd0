"""`check_task`: does a task keep what the runner, the store and the leaderboard rely on?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from latentbench.adapters import Dictionary
from latentbench.data import Corpus, Document
from latentbench.identity import canonical_json, sha256_json, sha256_text
from latentbench.judging import make_judge as _made
from latentbench.lm import LM
from latentbench.run import (
    Judge,
    Shared,
    Task,
    TaskConfig,
)
from latentbench.run._events import silent
from latentbench.run._execute import _setup
from latentbench.stats import generator
from latentbench.testing._fitted import fitted_sae
from latentbench.testing._judge import ToyJudge
from latentbench.testing._results import Check, CheckResult, Finding, assert_passed, parametrised, run_checks
from latentbench.testing._task_numbers import batches, empty, light, recomputed, shared_units, summaries
from latentbench.testing._task_subject import ROWS, TaskSubject
from latentbench.testing._toy_lm import toy_lm
from latentbench.testing._toy_tokenizer import toy_tokenizer

if TYPE_CHECKING:
    import pytest

__all__ = ["TASK_CHECKS", "assert_task", "check_task", "parametrize_task_checks", "toy_corpus"]

_DIRECTIONS = {"higher", "lower", "none"}


def toy_corpus(split: str = "test", documents: int = 30) -> Corpus:
    """A corpus of made-up sentences, other ones in every split; excerpts of every second may be published."""
    rng = generator(f"testing/toy-corpus/{split}")
    words = ["red", "blue", "green", "dog", "cat", "sun.", "moon,", "seven", "walks", "sings"]
    texts = [" ".join(rng.choice(words, size=int(n))) for n in rng.integers(4, 14, size=documents)]
    made = [
        Document(sha256=sha256_text(text), text=text, source="toy", excerpts=place % 2 == 0)
        for place, text in enumerate(dict.fromkeys(texts))
    ]
    return Corpus(
        name="toy", sha256=sha256_json([d.sha256 for d in made]), split=split, documents=made, pool=made
    )


def check_task(
    task: Task,
    *,
    judge: Judge | None = None,
    lm: LM | None = None,
    dictionary: Dictionary | None = None,
    load_split: Callable[[str], Corpus] = toy_corpus,
    expected_failures: Mapping[str, str] | None = None,
) -> list[CheckResult]:
    """Check a task by running it on a toy model; nothing is raised for a check that fails.

    Args:
        task: an instance, with options small enough for a few hundred tokens.
        judge: for tasks that need one; None takes `ToyJudge` for the role "similarity" and the judge
            "chance" for "rubric".
        lm: None takes a toy model with a character tokenizer.
        dictionary: None takes an SAE trained on that model for a moment.
        load_split: the corpus, by split.
        expected_failures: reason by name of a check that is known to fail.

    Returns:
        One result for each of `TASK_CHECKS`, in their order.
    """
    lm = lm if lm is not None else toy_lm(tokenizer=toy_tokenizer())
    dictionary = dictionary if dictionary is not None else fitted_sae(lm, "resid_post.1")
    with TemporaryDirectory() as folder:
        subject = TaskSubject(task, judge or _toy_judge(task), lm, dictionary, load_split, Path(folder))
        return run_checks(_CHECKS, subject, expected_failures)


def assert_task(
    task: Task, *, judge: Judge | None = None, expected_failures: Mapping[str, str] | None = None
) -> None:
    """`check_task` for a test.

    Raises:
        AssertionError: names every check that failed, what it found and what to do.
    """
    assert_passed(check_task(task, judge=judge, expected_failures=expected_failures))


def parametrize_task_checks(
    make: Callable[[], Task],
    make_judge: Callable[[], Judge] | None = None,
    *,
    expected_failures: Mapping[str, str] | None = None,
) -> pytest.MarkDecorator:
    """A decorator that makes one pytest case of each check; the case calls its argument `check`.

    Args:
        make: the task; called once, when the first case runs.
        make_judge: its judge; see `check_task`.
        expected_failures: see `check_task`.
    """
    return parametrised(
        _CHECKS,
        lambda: check_task(
            make(), judge=make_judge() if make_judge else None, expected_failures=expected_failures
        ),
    )


def _declarations(subject: TaskSubject) -> Finding:
    task = subject.task
    if not (task.name and task.version):
        return Finding(False, f"name is {task.name!r} and version {task.version!r}", "Fill in both.")
    config: type = task.Config  # what a task of somebody else holds there, whatever its type says
    if not issubclass(config, TaskConfig):
        return Finding(False, "Config is not a TaskConfig", "Derive it, so that it is frozen and strict.")
    try:
        task.Config.model_validate({"no_such_option": 1})
    except ValidationError:
        pass
    else:
        return Finding(False, "a misspelt option is not noticed", "Derive Config from TaskConfig.")
    task.Config()  # raises where an option has no default
    canonical_json(task.config.model_dump(mode="json"))
    if task.tokens() < 0 or task.judge_calls() < 0:
        return Finding(False, f"tokens {task.tokens()}, judge calls {task.judge_calls()}: a cost below 0")
    options = ", ".join(task.Config.model_fields) or "none"
    return Finding(True, f"version {task.version}; options: {options}")


def _toy_judge(task: Task) -> Judge:
    judge: Judge = _made("chance") if task.judge_role == "rubric" else ToyJudge()
    return judge


def _card(subject: TaskSubject) -> Finding:
    card, task = subject.card(), subject.task
    for key, wanted in (("name", task.name), ("version", task.version)):
        if card.get(key) != wanted:
            return Finding(False, f"card.toml says {key} = {card.get(key)!r}, the class {wanted!r}")
    if card.get("judge_role") != task.judge_role:
        return Finding(
            False, f"card.toml says judge_role = {card.get('judge_role')!r}, the class {task.judge_role!r}"
        )
    missing = [key for key in ("title", "summary", "resampling_unit", "metric") if not card.get(key)]
    if missing:
        return Finding(False, f"card.toml lacks {', '.join(missing)}")
    for name, metric in card["metric"].items():
        lacking = [key for key in ("title", "unit", "direction", "definition") if key not in metric]
        if lacking or metric["direction"] not in _DIRECTIONS:
            return Finding(
                False, f"metric {name!r} of card.toml lacks {', '.join(lacking) or 'a known direction'}"
            )
    return Finding(True, f"{len(card['metric'])} metrics are described")


def _runs(subject: TaskSubject) -> Finding:
    run = subject.run()
    if run.record.error is not None:
        return Finding(
            False, f"failed with {run.record.error.type}: {' '.join(run.record.error.message.split())}"
        )
    return Finding(
        True, f"{len(run.items)} items, {len(run.judgements)} judgements, {len(run.record.metrics)} metrics"
    )


def _items(subject: TaskSubject) -> Finding:
    made = {item["kind"] for item in subject.run().items if item["kind"] != "text"}
    declared = subject.card().get("items")
    if declared is None:
        return Finding(
            None, f"card.toml does not say of which kinds its items are: {', '.join(sorted(made))}"
        )
    foreign = sorted(made - set(declared))
    if foreign:
        return Finding(False, f"items of the kind {foreign[0]!r} are not in card.toml", "Add it to `items`.")
    return Finding(True, f"items are of the kinds that card.toml names: {', '.join(sorted(made))}")


def _metrics(subject: TaskSubject) -> Finding:
    declared = subject.card()["metric"]
    metrics = subject.run().record.metrics
    if not metrics:
        return Finding(False, "summarise gave no metric")
    for metric in metrics:
        base = _declared(metric.name, declared)
        if base is None and metric.direction == "none":
            continue  # only shown, never ranked
        if base is None:
            return Finding(
                False, f"metric {metric.name!r} is not in card.toml", f"Add [metric.{metric.name}]."
            )
        card = declared[base]
        if base == metric.name and (card["unit"], card["direction"]) != (metric.unit, metric.direction):
            found = f"metric {metric.name!r} is {metric.unit}, {metric.direction}; card.toml says {card['unit']}, "
            return Finding(False, found + card["direction"])
    return Finding(
        True, f"of {len(metrics)} metrics all that are ranked are declared, with units and directions"
    )


def _declared(name: str, declared: Mapping[str, Any]) -> str | None:
    """The declared metric a name belongs to: itself, or one that it continues (`loss_ablated`)."""
    if name in declared:
        return name
    return next((base for base in declared if name.startswith(f"{base}_")), None)


def _resume(subject: TaskSubject) -> Finding:
    plan, cell = subject.plan(ROWS)
    run = subject.run()
    setup = _setup(plan, cell, subject.folder / "again", Shared(), silent)
    known = {(item["kind"], item["id"]) for item in run.items}
    fresh = [
        item
        for item in subject.task.measure(setup, list(run.items))
        if item["kind"] != "text" and (item["kind"], item.get("id", sha256_json(item)[:16])) not in known
    ]
    if fresh:
        found = f"measuring again with all items stored gives {len(fresh)} more, first a {fresh[0]['kind']!r}"
        return Finding(False, found, "Give items an `id` that follows from what they measure.")
    return Finding(True, "measuring again with all items stored adds none")


_CHECKS: Sequence[Check[TaskSubject]] = (
    Check("declarations", "Name, version and options are part of every cell's key.", _declarations),
    Check("card", "Lists and boards read card.toml without importing the task.", _card),
    Check("run", "A suite runs the task like this.", _runs, ("declarations",)),
    Check(
        "metrics", "A number without unit and direction can't be shown or ranked.", _metrics, ("card", "run")
    ),
    Check(
        "items",
        "Items of other kinds are refused in a bundle: no number follows from them.",
        _items,
        ("card", "run"),
    ),
    Check("batch invariance", "Batch size must not change a score.", batches, ("run",)),
    Check(
        "summary",
        "Anybody must be able to compute a published number again from its items.",
        summaries,
        ("run",),
    ),
    Check(
        "recomputed",
        "`latentbench leaderboard check` computes summaries of stored cells where no task is made.",
        recomputed,
        ("run",),
    ),
    Check("units", "Rows on the same units are ranked and compared as pairs.", shared_units, ("run",)),
    Check("no items", "A cell may find nothing to measure; that is no score, not 0.", empty, ("run",)),
    Check("resume", "After a crash the step runs again with what it had stored.", _resume, ("run",)),
    Check("light metrics", "The leaderboard computes summaries again where there is no torch.", light),
)
TASK_CHECKS = tuple(check.name for check in _CHECKS)
"""Names of the checks of `check_task`, in their order."""
