"""Provenance holds what is needed, no secret, and imports nothing heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from latentbench.identity import canonical_json
from latentbench.store import _provenance, provenance, redact

SECRET = "sk-abcdefghijklmnop1234"


def test_provenance_is_json_and_names_code_machine_and_libraries() -> None:
    found: Any = provenance(["/usr/bin/latentbench", "run", "suite.toml"], {})
    canonical_json(found)
    assert found["argv"] == ["latentbench", "run", "suite.toml"]
    assert found["libraries"]["numpy"] == version("numpy")
    assert found["python"]["version"] == sys.version.split()[0]
    assert found["cpu"]["count"] == os.cpu_count()
    assert found["package"]["name"] == "latentbench"


@pytest.mark.parametrize(
    "argv",
    [
        ["--api-key", SECRET],
        [f"--api-key={SECRET}"],
        ["--hf-token", "x" * 12],
        ["--judge-password=hunter2"],
        ["OPENAI_API_KEY=hunter2secret"],
        ["--note", SECRET],
        ["--note", "hf_abcdefghijkl"],
        ["--header", "Authorization: Bearer abc.def"],
        ["--judge-url", "https://me:hunter2@host/v1"],
        ["--judge-url", "https://host/v1?api_key=hunter2&x=1"],
        ["--note", "prefix-hunter2secret"],
    ],
)
def test_secrets_are_blotted_out(argv: list[str]) -> None:
    clean = redact(["prog", "run", *argv], {"MY_API_KEY": "hunter2secret", "SHELL": "/bin/bash"})
    text = " ".join(clean)
    assert "REDACTED" in text
    for secret in (SECRET, "x" * 12, "hunter2", "hf_abc", "abc.def"):
        assert secret not in text
    assert clean[:2] == ["prog", "run"]


def test_harmless_arguments_stay() -> None:
    argv = [
        "prog",
        "--max-tokens",
        "64",
        "--budget-tokens=1000",
        "--keys",
        "3",
        "--seed",
        "1",
        "--hf-token",
        "--json",
    ]
    assert redact(argv, {}) == argv
    assert redact(["prog", "--out", str(Path("~/results").expanduser())], {}) == [
        "prog",
        "--out",
        "~/results",
    ]


def test_the_commit_is_the_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        version = "1.2.3"
        text: str | None = '{"url": "https://host/x", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}'

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return self.text

    monkeypatch.setattr(_provenance, "distribution", lambda name: Installed())
    expected = {"name": "latentbench", "version": "1.2.3", "commit": "c0ffee", "editable": False}
    assert provenance([], {})["package"] == expected
    Installed.text = '{"url": "file:///home/someone/code", "dir_info": {"editable": true}}'
    assert provenance([], {})["package"] == expected | {"commit": None, "editable": True}
    Installed.text = None
    assert provenance([], {})["package"] == expected | {"commit": None}


def test_stats_and_store_import_without_heavy_libraries() -> None:
    code = (
        "import sys, latentbench.stats, latentbench.store as s; s.provenance();"
        "bad = {'torch', 'transformers', 'sae_lens', 'pandas', 'sklearn', 'scipy.stats'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)


def test_full_paths_are_cut_to_their_names() -> None:
    argv = ["prog", "run", "/data/suites/mine.toml", "--out=/scratch/results", "there/mine.toml"]
    assert redact(argv, {}) == ["prog", "run", "mine.toml", "--out=results", "there/mine.toml"]
