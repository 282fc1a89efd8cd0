"""What must work without torch does, and starts quickly. Each case runs in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from latentbench.registry import TASKS

HEAVY = ("torch", "transformers", "sae_lens")


def loaded_by(code: str, *names: str) -> list[str]:
    """Which of these modules are imported once `code` has run."""
    probe = (
        f"import sys\n{code}\nprint('LOADED', *[n for n in {names!r} if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("LOADED"), done.stderr
    return last.split()[1:]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["ls"],
        ["ls", "tasks", "--json"],
        ["describe", "task", "steering"],
        ["describe", "asset", "minilm"],
        ["assets", "ls"],
        ["assets", "--help"],
        ["leaderboard", "--help"],
        ["doctor", "--help"],
        ["doctor", "dict", "--help"],
        ["new", "adapter", "--help"],
    ],
    ids=" ".join,
)
def test_listing_commands_import_nothing_heavy(arguments: list[str]) -> None:
    code = f"from latentbench.cli._main import _run\nassert _run({arguments!r}) == 0"
    assert loaded_by(code, *HEAVY, "pydantic", "numpy", "scipy", "sklearn", "huggingface_hub") == []


@pytest.mark.parametrize(
    "module",
    [
        "latentbench",
        "latentbench.data",
        "latentbench.errors",
        "latentbench.identity",
        "latentbench.registry",
        "latentbench.stats",
        "latentbench.store",
        "latentbench_judges",
        "latentbench_leaderboard",
        "latentbench_leaderboard.cli",
        "latentbench_tasks",
        *(
            f"latentbench_tasks.{name}.metrics"
            for name in TASKS.names()
            if TASKS.origin(name) == "latentbench"
        ),
    ],
)
def test_modules_without_torch(module: str) -> None:
    assert loaded_by(f"import {module}", *HEAVY) == []


def test_public_names_are_lazy_and_there() -> None:
    import latentbench

    assert loaded_by("import latentbench", *HEAVY, "pydantic", "numpy") == []
    for name in latentbench.__all__:
        assert getattr(latentbench, name) is not None
    assert callable(latentbench.run)
    assert latentbench.run is latentbench.run  # the second look finds the same thing as the first
    with pytest.raises(AttributeError, match="no attribute 'lod_lm'"):
        _ = latentbench.lod_lm


def test_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    import latentbench

    assert version("latentbench") == latentbench.__version__
