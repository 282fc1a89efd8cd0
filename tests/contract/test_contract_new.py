"""What `latentbench new` writes installs without a network, is found, and passes its own kit and the linters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from latentbench.cli._main import _run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
KINDS = ("adapter", "task", "judge")
NAME = "made-up"


class Installed(NamedTuple):
    """Three generated packages, and an environment that sees them installed."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """Standard output of a command that has to succeed."""
        done = subprocess.run(
            command, cwd=cwd or self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def latentbench(self, *arguments: str) -> Any:
        """What the command prints as JSON."""
        return json.loads(self.run(sys.executable, "-m", "latentbench.cli", *arguments, "--json"))


def install(package: Path, site: Path) -> None:
    command = (
        f"{sys.executable} -m pip install --quiet --no-deps --no-build-isolation --no-index "
        f"--disable-pip-version-check --upgrade --target {site} {package}"
    )
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("new")
    for kind in KINDS:
        assert _run(["new", kind, f"{NAME}-{kind}", "--out", str(folder / kind)]) == 0
        install(folder / kind, folder / "site")
    return Installed(folder, with_site(folder / "site"))


def with_site(site: Path) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.parametrize("kind", KINDS)
def test_listed_and_described(installed: Installed, kind: str) -> None:
    listed = "format" if kind == "adapter" else kind
    name = f"{NAME}-{kind}"
    rows = {row["name"]: row for row in installed.latentbench("ls", f"{listed}s")}
    assert rows[name]["origin"] == f"latentbench-{name}"
    assert rows[name]["title"]
    assert not rows[name]["title"].startswith("(")
    assert installed.latentbench("describe", listed, name)["name"] == name


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_tests_pass(installed: Installed, kind: str) -> None:
    out = installed.run(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        cwd=installed.folder / kind,
    )
    last = out.strip().splitlines()[-1]
    # A judge's kit skips the checks of other roles; nothing else is skipped, and nothing fails.
    skipped = r"(, 6 skipped)" if kind == "judge" else ""
    assert re.fullmatch(rf"\d+ passed{skipped}( in .*)?", last), last


def test_a_checkpoint_is_described_and_examined(installed: Installed) -> None:
    checkpoint = installed.folder / "checkpoint"
    checkpoint.mkdir()
    module = f"test_latentbench_{NAME.replace('-', '_')}_adapter"
    write = f"import {module} as test, pathlib; test.write_checkpoint(pathlib.Path({str(checkpoint)!r}))"
    installed.run(sys.executable, "-c", write, cwd=installed.folder / "adapter" / "tests")
    found = installed.latentbench("describe", "dict", str(checkpoint))
    assert found["format"] == f"{NAME}-adapter"
    assert found["recognised by"].startswith("weights.safetensors with a config.json")
    assert (found["sites"], found["latents"], found["options"]["k"]) == (["resid_post.1"], 16, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_linters_find_nothing(installed: Installed, kind: str) -> None:
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    package = installed.folder / kind
    rules = ["--select", ",".join(lint["select"]), "--ignore", ",".join(lint["ignore"]), "--no-cache"]
    convention = ["--config", 'lint.pydocstyle.convention = "google"', "--per-file-ignores", "tests/**:D"]
    ruff = (sys.executable, "-m", "ruff")
    installed.run(*ruff, "check", *rules, *convention, ".", cwd=package)
    installed.run(*ruff, "format", "--check", "--no-cache", ".", cwd=package)
    cache = installed.folder / "mypy"
    installed.run(sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), ".", cwd=package)


def blocks(text: str) -> dict[str, str]:
    """The fenced blocks of a text that begin with a comment naming their file, by that name."""
    found = re.findall(r"^```\w+\n# ([\w./-]+\.\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return {name: body.lstrip("\n") for name, body in found}


def test_the_readmes_adapter_is_what_new_writes(tmp_path: Path) -> None:
    """Its three files installed and tested as they stand in the README."""
    shown = blocks(README.read_text(encoding="utf-8"))
    assert _run(["new", "adapter", "mine", "--out", str(tmp_path / "new")]) == 0
    for name in ("pyproject.toml", "latentbench_mine.py", "tests/test_latentbench_mine.py"):
        assert shown[name] == (tmp_path / "new" / name).read_text(encoding="utf-8"), name
        target = tmp_path / "readme" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(shown[name], encoding="utf-8")
    install(tmp_path / "readme", tmp_path / "site")
    package = Installed(tmp_path / "readme", with_site(tmp_path / "site"))
    out = package.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    assert re.fullmatch(r"\d+ passed( in .*)?", out.strip().splitlines()[-1])
