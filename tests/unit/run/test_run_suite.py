"""Suites: what is wrong is named in one line, and the command line exits with 2 before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from latentbench.cli._main import _run
from latentbench.errors import UserError
from latentbench.run import load_suite, make_plan, shipped_suites

GOOD = """
name = "t"
lm = "nowhere"
[[dictionaries]]
source = "zoo:nothing"
[[tasks]]
name = "core"
"""


def written(folder: Path, text: str) -> str:
    path = folder / "suite.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", sorted(shipped_suites()))
def test_shipped_suites_are_sound(name: str) -> None:
    suite = load_suite(name)
    assert suite.name == name
    assert suite.description


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("lm =", "lmm ="), "'lm'"),
        (("[[tasks]]", "[tokens]\ncontxt = 3\n[[tasks]]"), "'context'"),
        (('source = "zoo:nothing"', 'source = "x"\nsparsity = "dense"'), "sparsity"),
        (('name = "core"', 'name = "core"\n[[tasks]]\nname = "core"'), "named twice"),
        (("name = ", "name = = "), "is not TOML"),
        (('lm = "nowhere"', 'lm = "nowhere"\nseeds = []'), "seeds is empty"),
        (('lm = "nowhere"', 'lm = "nowhere"\ntarget_l0 = 0'), "target_l0"),
    ],
)
def test_a_wrong_suite_is_named(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_suite(written(tmp_path, GOOD.replace(*change, 1)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD, "unknown language model 'nowhere'"),
        (GOOD.replace('"core"', '"corre"'), "did you mean 'core'"),
        (GOOD.replace('"core"', '"core"\noptions = { budget_token = 3 }'), "did you mean 'budget_tokens'"),
        (GOOD.replace('"core"', '"core"\noptions = { budget_tokens = -3 }'), "greater than 0"),
        (
            GOOD.replace('"core"', '"interpretability"').replace("lm =", 'judge = "gpt"\nlm ='),
            "unknown judge 'gpt'",
        ),
    ],
)
def test_wrong_input_exits_with_2_in_one_line_and_writes_nothing(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert _run(["run", written(tmp_path, text), "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    assert not out.exists()


def test_a_judge_of_another_role_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Writer:
        role = "writing"

    monkeypatch.setattr("latentbench.judging.JUDGES.load", lambda _name: Writer)
    suite = load_suite(written(tmp_path, GOOD.replace('"core"', '"interpretability"')))
    with pytest.raises(UserError, match=r"'similarity', but the suite names 'embed' \(writing\)"):
        make_plan(suite)


def test_options_without_a_suite_need_all_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["run", "--lm", "smollm2-135m", "--out", str(tmp_path / "out")]) == 2
    assert "--dict and --task" in capsys.readouterr().err
