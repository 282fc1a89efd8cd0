"""`new`: which files it writes, and which names it refuses. That they work is tests/contract's matter."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from latentbench.cli._main import _run


@pytest.mark.parametrize(
    ("kind", "group", "value"),
    [
        ("adapter", "latentbench.formats", "latentbench_two_words:FORMAT"),
        ("task", "latentbench.tasks", "latentbench_two_words.task:TwoWordsTask"),
        ("judge", "latentbench.judges", "latentbench_two_words:TwoWordsJudge"),
    ],
)
def test_written(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    group: str,
    value: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run(["new", kind, "two-words"]) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "latentbench-two-words"
    written = sorted(str(path.relative_to(tmp_path)) for path in folder.rglob("*") if path.is_file())
    assert sorted(out.split("\n\nNext:")[0].splitlines()) == written
    assert "pip install -e 'latentbench-two-words[test]'" in out
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "latentbench-two-words"
    wanted = {group: {"two-words": value}}
    if kind == "task":  # its recomputation, for checks of bundles
        wanted["latentbench.metrics"] = {"two-words": "latentbench_two_words.metrics:recompute"}
    assert project["entry-points"] == wanted
    for path in folder.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert "{{" not in text
            assert text.endswith("\n")


def test_folder_and_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert _run(["new", "judge", "mine", "--out", str(tmp_path / "here" / "deep"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["module"] == "latentbench_mine"
    assert all(Path(path).is_file() for path in found["files"])


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("mine", encoding="utf-8")
    for out, message in ((tmp_path, "nothing is overwritten"), (note, "is a file")):
        assert _run(["new", "task", "mine", "--out", str(out)]) == 2
        assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


@pytest.mark.parametrize("name", ["Mine", "9lives", "a b", "a/b", "a--b", "-a", "a-", "", "é", "a" * 25])
def test_names_that_name_no_package(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    assert _run(["new", "adapter", "--out", str(tmp_path / "x"), "--", name]) == 2
    err = capsys.readouterr().err
    assert "can't name a package" in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "name"), [("adapter", "native"), ("task", "core"), ("judge", "embed")])
def test_names_that_are_taken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, name: str
) -> None:
    assert _run(["new", kind, name, "--out", str(tmp_path / "x")]) == 2
    assert f"called {name!r} is there already, from latentbench" in capsys.readouterr().err
