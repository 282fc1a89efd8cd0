"""The workflow of the leaderboard: its commands exist, and those that need no pull request hold here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from latentbench.cli._main import cli

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def steps() -> list[dict[str, Any]]:
    text = (ROOT / ".github" / "workflows" / "leaderboard.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    assert "${{ secrets" not in text
    found: list[dict[str, Any]] = workflow["jobs"]["check"]["steps"]
    return found


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


def test_our_own_results_pass_as_the_workflow_checks_them(steps: list[dict[str, Any]]) -> None:
    (script,) = [step["run"] for step in steps if step.get("name", "").startswith("Our own results")]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert done.stdout.count("its items were left out") == 202
