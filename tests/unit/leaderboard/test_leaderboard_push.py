"""`latentbench leaderboard push`, to a bare repository on this disk."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from leaderboard_records import DICTIONARIES, cell_of, finish, metric, record_of

from latentbench.cli._main import _run
from latentbench.errors import UserError
from latentbench.store import ResultsFolder
from latentbench_leaderboard.pushing import push

MADE = DICTIONARIES[0]
BUNDLE = "leaderboard/submissions/mine.zip"


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bare repository with one commit on its default branch."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "somebody@example.org")
    work, bare = tmp_path / "work", tmp_path / "bare.git"
    work.mkdir()
    git(work, "init", "--quiet", "--initial-branch", "main")
    (work / "README.md").write_text("board\n", encoding="utf-8")
    git(work, "add", "README.md")
    git(work, "commit", "--quiet", "-m", "first")
    git(tmp_path, "clone", "--quiet", "--bare", str(work), str(bare))
    return bare


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    results = ResultsFolder.create(tmp_path / "mine")
    finish(results, record_of(MADE, cell_of(MADE, "core", {}), [metric("l0", 64.0)]), [])
    return results.path


def test_a_bundle_is_one_commit_on_a_new_branch_and_is_not_pushed_twice(remote: Path, mine: Path) -> None:
    sent = push(mine, str(remote), "submission")
    assert sent.path == BUNDLE
    assert git(remote, "rev-parse", "submission") == sent.commit
    assert git(remote, "diff", "--name-only", "main", "submission") == BUNDLE
    assert push(mine, str(remote), "submission").commit == ""
    assert git(remote, "rev-list", "--count", "submission") == "2"
    other = cell_of(MADE, "core", {}, seed=1)
    finish(ResultsFolder(mine), record_of(MADE, other, [metric("l0", 64.0)]), [])
    assert push(mine, str(remote), "submission").commit
    assert git(remote, "rev-list", "--count", "submission") == "3"  # on top of what was there
    assert git(remote, "rev-list", "--count", "main") == "1"


def test_what_git_says_is_told(
    remote: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="git clone failed: "):
        push(mine, str(tmp_path / "nowhere"), "b")
    with pytest.raises(UserError, match="git check-ref-format failed: "):
        push(mine, str(remote), "--force")
    with pytest.raises(UserError, match="git clone failed: "):
        push(mine, f"--upload-pack=touch {tmp_path / 'owned'}", "b")
    assert not (tmp_path / "owned").exists()
    command = ["leaderboard", "push", str(mine), "--git", str(remote), "--branch", "b"]
    assert _run(command) == 0
    assert f"{BUNDLE} is on b (" in capsys.readouterr().out
    assert _run(command) == 0
    assert "nothing was pushed" in capsys.readouterr().out
