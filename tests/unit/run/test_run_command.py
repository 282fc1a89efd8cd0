"""`latentbench run`, `plan`, `status` and `show` from a suite file to exit codes, on a model and corpus in files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from latentbench.cli._main import _run
from latentbench.testing import toy_lm, toy_tokenizer
from latentbench_tasks.core.task import CoreTask

WORDS = ["we", "took", "the", "old", "road", "and", "saw", "a", "small", "house.", "then", "it", "rained!"]
SUITE = """
name = "toy"
lm = "{lm}"
corpus = "{corpus}"
target_l0 = 4
judge = "embed"
[tokens]
context = 32
batch_rows = 4
[[dictionaries]]
source = "identity:resid_post.1"
[[dictionaries]]
source = "identity:resid_post.2"
name = "later"
[[tasks]]
name = "core"
options = {{ budget_tokens = 300, calibration_tokens = 100 }}
[[tasks]]
name = "feature_count"
options = {{ budget_tokens = 300 }}
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a corpus and a suite that names them."""
    folder = tmp_path_factory.mktemp("world")
    lm = toy_lm()
    lm.model.save_pretrained(folder / "lm")
    toy_tokenizer().save_pretrained(folder / "lm")
    rng = np.random.default_rng(0)
    lines = [json.dumps({"text": " ".join(rng.choice(WORDS, 60)), "source": "toy"}) for _ in range(150)]
    (folder / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    suite = SUITE.format(lm=folder / "lm", corpus=folder / "texts.jsonl")
    (folder / "suite.toml").write_text(suite, encoding="utf-8")
    return folder


def changed(world: Path, folder: Path, old: str, new: str) -> str:
    """The suite's path after a change, which must apply."""
    text = (world / "suite.toml").read_text(encoding="utf-8")
    assert old in text
    (folder / "changed.toml").write_text(text.replace(old, new), encoding="utf-8")
    return str(folder / "changed.toml")


def test_a_suite_runs_is_told_of_and_is_not_run_twice(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite, out = str(world / "suite.toml"), str(tmp_path / "out")
    assert _run(["plan", suite, "--out", out, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["cells"]
    assert [(cell["task"], cell["stored"], cell["tokens"]) for cell in planned] == [
        ("core", False, 300),
        ("feature_count", False, 300),
    ] * 2
    assert not Path(out).exists()
    assert _run(["run", suite, "--out", out, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1] == {"records": [cell["key"] for cell in planned], "failed": []}
    assert _run(["run", suite, "--out", out, "--json"]) == 0
    again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(line.get("kind") == "cell_cached" for line in again) == 4
    assert not [line for line in again if line.get("kind") in ("progress", "cell_done")]
    assert _run(["plan", suite, "--out", out]) == 0
    assert "0 of 4 cells to do" in capsys.readouterr().out
    assert _run(["status", out, "--json"]) == 0
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"ok"}
    assert _run(["show", out]) == 0
    assert "later" in capsys.readouterr().out


def test_a_failed_cell_makes_the_exit_code_1(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("no number")

    out = str(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(CoreTask, "summarise", fail)
        assert _run(["run", str(world / "suite.toml"), "--out", out, "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["failed"]) == 2
    assert _run(["status", out]) == 1
    assert "no number" in capsys.readouterr().out
    assert _run(["run", str(world / "suite.toml"), "--out", out]) == 0
    assert _run(["status", out]) == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("resid_post.2", "resid_post.1", "names one dictionary twice"),
        ("identity:resid_post.2", "zoo:smollm2-topk", "unknown zoo dictionary"),
        ("identity:resid_post.2", "no such file", "unknown dictionary"),
        ("identity:resid_post.2", "identity:resid_post.9", "resid_post"),
        ("identity:resid_post.2", "identity:resid_post.2:17", "has width 17"),
        ("texts.jsonl", "text.jsonl", "unknown corpus"),
        ('name = "later"', 'sparsity = "topk"', "sparsity can't be set"),
        ("target_l0 = 4", 'target_l0 = 4\ndtype = "float3"', "float32"),
    ],
)
def test_wrong_names_exit_with_2_and_leave_nothing(
    world: Path, tmp_path: Path, old: str, new: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert _run(["run", changed(world, tmp_path, old, new), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_an_empty_corpus_exits_with_2(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    suite = changed(world, tmp_path, str(world / "texts.jsonl"), str(tmp_path / "empty.jsonl"))
    assert _run(["run", suite, "--out", str(tmp_path / "out")]) == 2
    assert "no document" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--task", "core", "--task", "core"], "named twice"),
        (["--task", "cor"], "did you mean 'core'"),
        (["--judge", "embd", "--task", "interpretability"], "did you mean 'embed'"),
        (["--device", "gpu"], "device"),
    ],
)
@pytest.mark.parametrize("with_suite", [True, False])
def test_options_are_checked_like_a_suite(
    with_suite: bool,
    extra: list[str],
    message: str,
    world: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone = ["--lm", str(world / "lm"), "--dict", "identity:resid_post.1", "--task", "feature_count"]
    chosen = [str(world / "suite.toml")] if with_suite else alone
    assert _run(["run", *chosen, *extra, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
