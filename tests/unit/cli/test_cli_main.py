"""Finding commands, and turning errors into one line and an exit code."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import click
import pytest

from latentbench.cli import _main
from latentbench.errors import StoreError, UserError


def command(error: BaseException | None = None, code: int | None = None) -> click.Command:
    @click.command()
    def broken() -> None:
        if error is not None:
            raise error
        if code is not None:
            click.get_current_context().exit(code)

    return broken


def run(monkeypatch: pytest.MonkeyPatch, found: click.Command) -> int:
    monkeypatch.setattr(_main._LazyGroup, "get_command", lambda *_: found)
    return _main._run(["status"])


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UserError("no such\n  thing: do that"), 2, "error: no such thing: do that\n"),
        (StoreError("the folder is\nbroken"), 1, "failed: the folder is broken\n"),
        (click.ClickException("wrong option"), 1, "Error: wrong option\n"),
        (click.Abort(), 130, "interrupted\n"),
    ],
)
def test_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    text: str,
) -> None:
    assert run(monkeypatch, command(error)) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", text)


def test_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, command(KeyboardInterrupt())) == 130


@pytest.mark.parametrize("code", [0, 1, 3])
def test_commands_choose_their_exit_code(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    assert run(monkeypatch, command(code=code)) == code


def test_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        run(monkeypatch, command(ZeroDivisionError()))


def test_main_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as caught:
        _main.main(["no-such-command"])
    assert caught.value.code == 2


def test_unknown_command_suggests(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main._run(["asets", "ls"]) == 2
    assert "unknown command 'asets': did you mean 'assets'" in capsys.readouterr().err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main._run(["--help"]) == 0
    text = capsys.readouterr().out
    for name in ("run", "plan", "status", "show", "train", "assets", "ls", "describe", "leaderboard"):
        assert f"\n  {name} " in text


@pytest.mark.parametrize("name", _main.cli.list_commands(click.Context(_main.cli)))
def test_every_listed_command_exists(name: str) -> None:
    """The table names modules that are there, with a help text of their own."""
    found = _main.cli.get_command(click.Context(_main.cli), name)
    assert found is not None
    assert found.name == name
    assert found.help


def test_entry_point_of_another_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = {"extra": EntryPoint("extra", "json:dumps", "latentbench.commands")}
    monkeypatch.setattr("latentbench.registry._entries", lambda group: entries)
    assert _main._run(["--help"]) == 0
    assert "From the package an unknown distribution." in capsys.readouterr().out
    assert _main._run(["extra"]) == 2
    assert "'extra' is not a click command but function" in capsys.readouterr().err


def test_reader_that_goes_away() -> None:
    """`latentbench ls | head -1` ends quietly."""
    script = f"{sys.executable} -m latentbench.cli ls | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "TASKS\n"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
