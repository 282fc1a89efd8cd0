"""`ls`, `describe` and `assets`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from latentbench.cli import _listing
from latentbench.cli._main import _run
from latentbench.data import _cache
from latentbench.registry import FORMATS, JUDGES, TASKS


@pytest.fixture(autouse=True)
def _no_extra_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LATENTBENCH_CATALOGUE", raising=False)


def output(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert _run(arguments) == code
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    return json.loads(output(capsys, *arguments, "--json", code=code))


def test_every_registered_thing_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = as_json(capsys, "ls")
    assert list(listed) == ["tasks", "judges", "formats", "suites", "dictionaries", "controls", "assets"]
    for plural, registry in (("tasks", TASKS), ("judges", JUDGES), ("formats", FORMATS)):
        assert [row["name"] for row in listed[plural]] == registry.names()
        for row in listed[plural]:
            assert row["title"], row
            assert not row["title"].startswith("("), row
    assert {row["name"] for row in listed["suites"]} >= {"demo"}
    assert listed["dictionaries"]
    assert {row["name"] for row in listed["assets"]} >= {"minilm", "probe-texts", "smollm2-135m-q4"}


def test_the_listed_controls_are_those_that_load(capsys: pytest.CaptureFixture[str]) -> None:
    from latentbench.adapters import CONTROL_SCHEMES

    listed = as_json(capsys, "ls", "controls")
    assert sorted(row["name"].partition(":")[0] for row in listed) == sorted(CONTROL_SCHEMES)
    assert "principal components" in output(capsys, "describe", "control", "pca").lower()


def test_text_shows_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "ls")
    for heading in ("TASKS", "JUDGES", "FORMATS", "SUITES", "DICTIONARIES", "CONTROLS", "ASSETS"):
        assert f"{heading}\n" in text
    assert output(capsys, "ls", "asset") == output(capsys, "ls", "assets")


@pytest.mark.parametrize("name", TASKS.names())
def test_every_task_card_describes_its_metrics(capsys: pytest.CaptureFixture[str], name: str) -> None:
    card = as_json(capsys, "describe", "task", name)
    assert card["metric"]
    for metric in card["metric"].values():
        assert {"title", "unit", "direction", "definition"} <= set(metric)
        assert metric["direction"] in {"higher", "lower", "none"}
    text = output(capsys, "describe", "task", name)
    for metric in card["metric"]:
        assert f"  {metric}: " in text


def test_options_of_a_task_are_shown_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, "describe", "task", "core", "--options")["defaults"]["budget_tokens"] == 4096
    assert "defaults" not in as_json(capsys, "describe", "task", "core")
    text = output(capsys, "describe", "task", "steering", "--options")
    assert "methods: contrast" in text.split("options and their defaults")[1]


def test_every_listed_thing_can_be_described(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in _listing.KINDS:
        for row in kind.rows():
            assert as_json(capsys, "describe", kind.singular, row["name"])["name"] == row["name"]
            assert output(capsys, "describe", kind.singular, row["name"]).startswith(f"{kind.singular} ")


def test_alias_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, "describe", "asset", "smollm2-135m")["name"] == "smollm2-135m-q4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ls", "taks"), "unknown kind of thing 'taks': did you mean 'task'"),
        (("describe", "task", "stering"), "unknown task 'stering': did you mean 'steering'"),
        (("describe", "asset", "mini"), "unknown asset 'mini': did you mean 'minilm'?"),
        (("assets", "path", "minlm"), "unknown asset 'minlm': did you mean 'minilm'?"),
        (("assets", "pull"), "no asset was named"),
    ],
)
def test_wrong_names(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    assert _run(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


def test_one_broken_package_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib.metadata import EntryPoint

    entries = {
        "gone": EntryPoint("gone", "no_such_package.task:Task", "latentbench.tasks"),
        "plain": EntryPoint("plain", "json.decoder:Task", "latentbench.tasks"),
    }
    monkeypatch.setattr("latentbench.registry._entries", lambda group: entries)
    rows = as_json(capsys, "ls", "tasks")
    assert [row["name"] for row in rows] == ["gone", "plain"]
    assert "not installed any more" in rows[0]["title"]
    assert "card.toml can't be read" in rows[1]["title"]


class TestAssets:
    """The commands that look into the cache, on an empty and on a damaged one."""

    def test_empty_cache(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        rows = as_json(capsys, "assets", "ls", "--cache-dir", str(tmp_path))
        assert {row["state"] for row in rows} == {"missing"}
        assert as_json(capsys, "assets", "verify", "--cache-dir", str(tmp_path)) == []
        (row,) = as_json(capsys, "assets", "verify", "minilm", "--cache-dir", str(tmp_path), code=1)
        assert row["state"] == "missing"
        assert _run(["assets", "path", "minilm", "--cache-dir", str(tmp_path)]) == 2
        assert f"run 'latentbench assets pull minilm --cache-dir {tmp_path}'" in capsys.readouterr().err

    def test_damaged(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        from latentbench.data.assets import asset_spec

        folder = _cache.asset_folder(asset_spec("minilm"), tmp_path)
        (folder / "files").mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        (row,) = as_json(capsys, "assets", "verify", "--cache-dir", str(tmp_path), code=1)
        assert (row["name"], row["state"]) == ("minilm", "damaged")
        assert "1_Pooling/config.json can't be read" in row["detail"]

    def test_environment_names_the_cache(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LATENTBENCH_CACHE", str(tmp_path / "elsewhere"))
        rows = as_json(capsys, "assets", "ls")
        assert all(row["path"].startswith(str(tmp_path / "elsewhere")) for row in rows)
        text = output(capsys, "assets", "ls")
        assert "smollm2-135m-hub" in text
        assert "271 MB" in text
