"""What a suite costs, told from its file alone."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from latentbench.cli import cli
from latentbench.errors import UserError
from latentbench.judging import judge_price
from latentbench.run import estimate, load_suite, shipped_suites
from latentbench.run._suite import checked_suite


@pytest.mark.parametrize("name", sorted(shipped_suites()))
def test_every_shipped_suite_can_be_estimated_without_a_model(name: str) -> None:
    suite = load_suite(name)
    found = estimate(suite)
    assert len(found.cells) == len(suite.dictionaries) * len(suite.tasks) * len(suite.seeds)
    assert all(cost.tokens > 0 for _, _, _, cost in found.cells)


def test_the_paper_suites_tell_memory_and_dollars_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LATENTBENCH_JUDGE_KEY", "LATENTBENCH_JUDGE_KEY_FILE", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    shown = CliRunner().invoke(cli, ["plan", "paper-routesae", "--estimate"])
    assert shown.exit_code == 0, shown.output
    assert "360 judge calls" in shown.output
    assert "dollars)" in shown.output
    assert "4.6 GiB as float32" in shown.output
    as_json = CliRunner().invoke(cli, ["plan", "paper-gradsae", "--estimate", "--json"])
    content = json.loads(as_json.output)
    assert content["model_bytes"] == 9.24e9 * 2
    assert {cell["task"] for cell in content["cells"]} == {"perturbation", "local_steering"}
    half = CliRunner().invoke(
        cli, ["plan", "paper-routesae", "--estimate", "--json", "--judge-option", "openai.batch=true"]
    )
    full = CliRunner().invoke(cli, ["plan", "paper-routesae", "--estimate", "--json"])
    dollars = [sum(cell["dollars"] or 0 for cell in json.loads(one.output)["cells"]) for one in (half, full)]
    assert dollars[0] == pytest.approx(dollars[1] / 2)


def test_prices_of_judges() -> None:
    dated, plain = judge_price("openai:gpt-4o-2024-11-20"), judge_price("openai:gpt-4o")
    assert dated == plain
    assert plain.input > 0
    assert judge_price("openai:a-model-of-ours") is None
    assert judge_price("offline") is None
    with pytest.raises(UserError, match="needs a model"):
        judge_price("openai")


def test_what_the_suite_gets_wrong_is_said() -> None:
    suite = {"name": "x", "lm": "nowhere", "judge": None, "dictionaries": [{"source": "a"}]}
    with pytest.raises(UserError, match="needs a judge of the role 'rubric'"):
        estimate(checked_suite({**suite, "tasks": [{"name": "monosemanticity"}]}, "suite x"))
    free = estimate(checked_suite({**suite, "tasks": [{"name": "core"}]}, "suite x"))
    assert free.model_bytes is None
