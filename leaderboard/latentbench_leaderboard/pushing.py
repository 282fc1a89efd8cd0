"""Sending a bundle to a git repository: one commit on a branch, never by force."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from latentbench.errors import UserError
from latentbench_leaderboard.bundles import write_bundle

__all__ = ["Pushed", "push"]


class Pushed(NamedTuple):
    """What was sent."""

    commit: str
    """The commit; empty if the branch held the same bundle already."""
    path: str
    """Path of the bundle in the repository."""
    id: str
    """The bundle's id."""


def push(results: Path, remote: str, branch: str, folder: str = "leaderboard/submissions") -> Pushed:
    """Pack a results folder and push the bundle as one commit.

    Args:
        results: the results folder; the bundle is called after it.
        remote: repository, as git takes it.
        branch: branch to push to; made from the repository's default branch if it is not there.
        folder: folder in the repository.

    Raises:
        UserError: git fails, or there is nothing to submit.
    """
    with TemporaryDirectory(prefix="latentbench-push-") as place:
        clone = Path(place) / "clone"
        _git(Path(place), "clone", "--quiet", "--depth", "1", "--", remote, str(clone))
        _checkout(clone, branch)
        target = clone / folder / f"{results.resolve().name}.zip"
        target.unlink(missing_ok=True)
        report = write_bundle([results], target)
        name = target.relative_to(clone).as_posix()
        _git(clone, "add", "--", name)
        if not _git(clone, "status", "--porcelain", "--", name):
            return Pushed("", name, report.id)
        message = f"Submit {target.name}: {report.cells} cells, id {report.id[:16]}"
        _git(clone, "commit", "--quiet", "-m", message)
        _git(clone, "push", "--quiet", "origin", f"HEAD:refs/heads/{branch}")
        return Pushed(_git(clone, "rev-parse", "HEAD"), name, report.id)


def _checkout(clone: Path, branch: str) -> None:
    _git(clone, "check-ref-format", "--branch", branch)
    if _git(clone, "ls-remote", "--heads", "origin", f"refs/heads/{branch}"):
        _git(clone, "fetch", "--quiet", "--depth", "1", "origin", f"refs/heads/{branch}")
        _git(clone, "checkout", "--quiet", "-B", branch, "FETCH_HEAD")
    else:
        _git(clone, "checkout", "--quiet", "-B", branch)


def _git(folder: Path, *arguments: str) -> str:
    # Without a terminal, a question for a password would hang.
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise UserError("git is not installed; submit the bundle by hand (`latentbench submit`)") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"git {arguments[0]} failed: {last}")
    return done.stdout.strip()
