"""Every judge that answers rubrics keeps what `check_judge` asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer, Reply

from latentbench.judging import make_judge
from latentbench.testing import ToyJudge, check_judge, toy_lm, toy_tokenizer
from latentbench_judges import load_rubric
from latentbench_judges.human import write_sheet


def states(judge: Any) -> dict[str, str]:
    """What came of each check of the role; none may fail."""
    results = check_judge(judge)
    assert not [str(result) for result in results if result.passed is False]
    return {result.name: result.found for result in results if result.passed}


def reply(body: dict[str, Any], _number: int) -> Reply:
    """An answer of the asked form."""
    name = body["response_format"]["json_schema"]["name"]
    rubric, shown = load_rubric(name), body["messages"][1]["content"]
    items = max(map(int, re.findall(r"^(\d+)\. ", shown.split("<data-")[-1], re.MULTILINE)), default=0)
    fields: dict[str, Any] = dict(rubric.example)
    if rubric.kind == "flags":
        fields[rubric.verdict] = [1] * items
    elif rubric.kind == "ratings":
        fields[rubric.verdict] = [{"n": n, "value": n % 11} for n in range(1, items + 1)]
    return {"content": json.dumps(fields)}


def openai(server: FakeServer, folder: Path) -> Any:
    given = {"url": server.url, "cache": folder / "replies.sqlite", "ledger": folder / "ledger.jsonl"}
    return make_judge("openai:judge-1", given)


def test_chance_and_a_panel_of_it() -> None:
    assert states(make_judge("chance"))["menu"] == "9 verdicts are on their menus"
    panel = make_judge("panel", {"members": ["chance", "offline"]})
    panel.members = {"a": make_judge("chance"), "b": make_judge("chance")}
    assert states(panel)["statuses"] == "9 ok"


def test_a_server(tmp_path: Path) -> None:
    with FakeServer(reply) as server:
        assert states(openai(server, tmp_path))["statuses"] == "9 ok"
        assert len(server.bodies) == 18  # nine and nine hostile ones: what was answered is kept


@pytest.mark.parametrize(
    "behave",
    [
        lambda _body, _number: {"content": "no verdict"},
        lambda _body, _number: {"status": 503},
        lambda body, number: reply(body, number) if number % 2 else {"content": None, "refusal": "no"},
    ],
)
def test_a_server_that_fails(tmp_path: Path, behave: Callable[[dict[str, Any], int], Reply]) -> None:
    with FakeServer(behave) as server:
        judge = openai(server, tmp_path)
        judge.options = judge.options.model_copy(update={"attempts": 1})
        states(judge)


def test_replies_and_a_sheet(tmp_path: Path) -> None:
    questions = make_judge("chance").examples()
    path = tmp_path / "judgements.jsonl"
    with FakeServer(reply) as server:
        answers = [one.as_item("answer") for one in openai(server, tmp_path).answers(questions)]
    path.write_text("".join(f"{json.dumps(one)}\n" for one in answers), encoding="utf-8")
    assert states(make_judge(f"replay:{path}"))["statuses"] == "9 ok"
    sheet = tmp_path / "sheet.csv"
    write_sheet([one for one in questions if one.rubric.kind == "choice"], sheet)
    assert states(make_judge(f"human:{sheet}"))["statuses"] == "9 missing"


def test_a_local_model(tmp_path: Path) -> None:
    judge = make_judge("hf:toy", {"words": 2, "cache": tmp_path / "r.sqlite"})
    lm = toy_lm("llama", tokenizer=toy_tokenizer())
    lm.config.max_position_embeddings = 1 << 16
    judge.__dict__["lm"] = lm
    assert states(judge)["statuses"] == "9 ok"


def test_the_offline_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = make_judge("offline")
    monkeypatch.setattr(judge, "_embed", ToyJudge())
    assert states(judge)["statuses"] == "4 missing, 5 ok"


@pytest.mark.slow
def test_the_offline_judge_with_its_weights() -> None:
    assert states(make_judge("offline"))["menu"] == "5 verdicts are on their menus"
