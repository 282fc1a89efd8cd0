"""The workflow of the leaderboard: its commands exist, and those that need no pull request hold here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from latentbench.cli._main import cli

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / "leaderboard.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    assert "${{ secrets" not in text
    found: dict[str, Any] = workflow["jobs"]
    return found


@pytest.fixture(scope="module")
def steps(jobs: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = jobs["check"]["steps"]
    return found


def run_as_the_workflow(
    steps: list[dict[str, Any]], name: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    (script,) = [step["run"] for step in steps if step.get("name", "").startswith(name)]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=environment.pop("folder", ROOT), env={**os.environ, "PATH": path, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done


def test_every_command_and_option_exists(steps: list[dict[str, Any]]) -> None:
    lines = [line for step in steps for line in step.get("run", "").splitlines() if "latentbench " in line]
    commands = [re.findall(r"\blatentbench (.*)", line)[0].split() for line in lines]
    assert len(commands) >= 6
    for words in commands:
        command: click.Command | None = cli
        context = click.Context(cli)
        while isinstance(command, click.Group):
            command = command.get_command(context, words.pop(0))
        assert command is not None
        known = {option for one in command.params for option in one.opts + one.secondary_opts}
        assert {word for word in words if word.startswith("--")} <= known


def test_nothing_but_publishing_may_write_and_that_on_pushes_alone(jobs: dict[str, Any]) -> None:
    assert set(jobs) == {"check", "publish"}
    assert "permissions" not in jobs["check"]
    assert jobs["publish"]["if"] == "github.event_name == 'push' && vars.PUBLISH_SITE == 'true'"
    assert not [step for step in jobs["publish"]["steps"] if "run" in step]


def test_our_own_results_pass_as_the_workflow_checks_them(steps: list[dict[str, Any]]) -> None:
    done = run_as_the_workflow(steps, "Our own results")
    assert done.stdout.count("its items were left out") == 202


def test_our_own_sites_are_built_as_the_workflow_does(steps: list[dict[str, Any]], tmp_path: Path) -> None:
    results = tmp_path / "leaderboard" / "results"
    results.parent.mkdir()
    results.symlink_to(ROOT / "leaderboard" / "results")
    run_as_the_workflow(steps, "Site", folder=str(tmp_path), RUNNER_TEMP=str(tmp_path / "runner"))
    front = unescape((tmp_path / "site" / "index.html").read_text(encoding="utf-8"))
    for study in results.iterdir():
        title = (study / "README.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert f'href="{study.name}/index.html"><bdi>{title}</bdi>' in front
        board = (tmp_path / "site" / study.name / "index.html").read_text(encoding="utf-8")
        assert f"<bdi>{title}</bdi>" in unescape(board)
    assert "checked" in (tmp_path / "site" / "zoo-smollm2" / "index.html").read_text(encoding="utf-8")
