"""Judged cells: a second judge measures nothing again, the unanswered is asked again, a dead judge stops first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import toy_plan
from fake_server import FakeServer, Reply

from latentbench.cli._main import _run
from latentbench.errors import UserError
from latentbench.judging import make_judge
from latentbench.run import Plan, execute
from latentbench.run._plan import _cell, _Ground, _judges
from latentbench.store import ResultsFolder, RunRecord
from latentbench.testing import toy_lm, toy_tokenizer
from latentbench_tasks.core.task import CoreConfig, CoreTask
from latentbench_tasks.monosemanticity.task import MonosemanticityConfig, MonosemanticityTask

CONFIG = MonosemanticityConfig(
    budget_tokens=700, latents=6, min_documents=4, contexts=2, context_tokens=6, shown=2, mixed=2
)


def plan(judge: Any) -> Plan:
    """Monosemanticity of the toy plan's first dictionary."""
    base = toy_plan.toy_plan()
    first = base.cells[0].dictionary
    ground = _Ground(base.suite, base.lm, base.corpus, base.policy)
    cell = _cell(ground, base.suite.dictionaries[0], first, MonosemanticityTask(CONFIG), judge, 0)
    return Plan(base.suite, base.lm, base.corpus, base.load_split, base.policy, [cell])


def openai(server: FakeServer, folder: Path, **options: Any) -> Any:
    given = {
        "url": server.url,
        "cache": folder / "replies.sqlite",
        "ledger": folder / "ledger.jsonl",
        **options,
    }
    return make_judge("openai:judge-1", given)


def good(_body: dict[str, Any], _number: int) -> Reply:
    return {"content": json.dumps({"explanation": "x", "category": "low_level", "score": 4})}


def run(judge: Any, out: Path) -> tuple[RunRecord, int]:
    """The record, and how often the language model ran."""
    made, forwards = plan(judge), []
    forward = made.lm.forward

    def counted(*arguments: Any, **options: Any) -> Any:
        forwards.append(1)
        return forward(*arguments, **options)

    made.lm.forward = counted  # type: ignore[method-assign]
    (record,) = execute(made, out)
    return record, len(forwards)


def test_a_second_judge_measures_nothing_again(tmp_path: Path) -> None:
    first, forwards = run(make_judge("chance"), tmp_path / "r")
    assert forwards
    with FakeServer(good) as server:
        second, forwards = run(openai(server, tmp_path), tmp_path / "r")
        assert len(server.bodies) == 8
    assert not forwards
    assert first.measurement_key == second.measurement_key
    assert first.key != second.key
    cells = [ResultsFolder(tmp_path / "r").cell(one.key).path for one in (first, second)]
    for name in ("items.jsonl", "texts.jsonl"):
        assert sorted((cells[0] / name).read_text().splitlines()) == sorted(
            (cells[1] / name).read_text().splitlines()
        )
    asked = [
        [one["question"] for one in ResultsFolder(tmp_path / "r").cell(r.key).items("judgements")]
        for r in (first, second)
    ]
    assert sorted(asked[0]) == sorted(asked[1])  # the mixed sets are the same, too
    metric = second.metric("score")
    assert metric is not None
    assert metric.value == 4.0
    assert ResultsFolder(tmp_path / "r").verify() == []


def test_what_was_not_answered_is_asked_again_and_nothing_else(tmp_path: Path) -> None:
    def half(body: dict[str, Any], number: int) -> Reply:
        return good(body, number) if number % 2 else {"status": 503}

    with FakeServer(half) as server:
        record, _ = run(openai(server, tmp_path, attempts=1, concurrency=1), tmp_path / "r")
        assert len(server.bodies) == 8
    assert record.counts["unscored: transport_error"] == 4
    metric = record.metric("score")
    assert metric is not None
    assert metric.value is None
    with FakeServer(good) as server:
        # The same judge, whose address is another port in this test: its replies come from the cache of the cell.
        again = openai(server, tmp_path, attempts=1, concurrency=1)
        again.identity = openai(server, tmp_path).identity
        key_before = record.key
        folder = ResultsFolder(tmp_path / "r").cell(key_before)
        made = plan(again)
        moved = made.cells[0]
        object.__setattr__(moved, "identity", folder.identity())
        object.__setattr__(moved, "key", key_before)
        (mended,) = execute(made, tmp_path / "r")
        assert len(server.bodies) == 4
        assert mended.key == key_before
        assert "unscored: transport_error" not in mended.counts
        assert mended.counts["judgements"] == 8
        execute(made, tmp_path / "r")
        assert len(server.bodies) == 4
    metric = mended.metric("score")
    assert metric is not None
    assert metric.value == 4.0
    assert ResultsFolder(tmp_path / "r").verify() == []


def test_a_judge_that_is_not_there_stops_the_run_before_it_begins(tmp_path: Path) -> None:
    with FakeServer(good, models=["another"]) as server:
        with pytest.raises(UserError, match="has no model 'judge-1'"):
            execute(plan(openai(server, tmp_path)), tmp_path / "r")
        assert not list((tmp_path / "r").rglob("items.jsonl"))


def test_a_judge_that_no_task_needs_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latentbench.run._plan.make_judge", lambda *_: pytest.fail("made"))
    suite = toy_plan.toy_plan().suite
    assert _judges(suite, [CoreTask(CoreConfig())]) == {"core": None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--judge", "openai:m", "--judge-url", "https://example.invalid/v1"], "no key for"),
        (["--judge", "openai"], "needs a model"),
        (["--judge", "openai:m", "--judge-url", "http://127.0.0.1:1/v1"], "no judge answers at"),
        (["--judge", "openai:m", "--judge-option", "max_cost=1"], "write JUDGE.KEY=VALUE"),
        (["--judge", "openai:m", "--judge-option", "openai.max_cots=1"], "did you mean 'max_cost'"),
        (["--judge-option", "openai.max_cost=1"], "no judge of this suite"),
        (["--judge", "human:none.csv"], "can't be read"),
        (["--judge", "embed"], "needs a judge of the role 'rubric'"),
    ],
)
def test_wrong_judges_exit_with_2_and_a_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    for name in ("LATENTBENCH_JUDGE_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    lm = toy_lm()
    lm.model.save_pretrained(tmp_path / "lm")
    toy_tokenizer().save_pretrained(tmp_path / "lm")
    lines = [
        json.dumps({"text": f"{n} some words and more of them. " * 12, "source": "toy"}) for n in range(200)
    ]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    suite = tmp_path / "suite.toml"
    suite.write_text(
        f'name = "s"\nlm = "{tmp_path / "lm"}"\ncorpus = "{tmp_path / "texts.jsonl"}"\ntarget_l0 = 4\n'
        '[[dictionaries]]\nsource = "identity:resid_post.1"\n[[tasks]]\nname = "monosemanticity"\n',
        encoding="utf-8",
    )
    assert _run(["run", str(suite), "--out", str(tmp_path / "out"), *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
