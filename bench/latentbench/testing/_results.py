"""Named checks and what they find: the common ground of the conformance kits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from latentbench.errors import unknown_name

if TYPE_CHECKING:
    import pytest

__all__ = ["Check", "CheckResult", "Finding", "assert_passed", "parametrised", "run_checks"]

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)


class Finding(NamedTuple):
    """What one check saw."""

    passed: bool | None
    """None where the check can't be made here."""
    found: str
    """What was measured, in one line."""
    instead: str = ""
    """What to do about it."""
    cause: str = ""
    """The likely cause in two or three words ("wrong site"), where it can be told."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one named check."""

    name: str
    """Name of the check ("batch invariance")."""
    passed: bool | None
    """None where it was not made; `found` says why."""
    found: str
    """What was measured, in one line."""
    why: str
    """Why it matters."""
    instead: str = ""
    """What to do, for a failed check."""
    cause: str = ""
    """The likely cause in two or three words ("wrong site"), where it can be told."""

    @property
    def state(self) -> Literal["passed", "failed", "skipped"]:
        """The outcome in a word."""
        return "skipped" if self.passed is None else "passed" if self.passed else "failed"

    def __str__(self) -> str:
        text = f"{self.name}: {self.found}."
        if self.passed is False:
            text += f" {self.why}"
            text += f" Likely cause: {self.cause}." if self.cause else ""
            text += f" {self.instead}" if self.instead else ""
        return text


class Check(NamedTuple, Generic[S_contra]):
    """One named check of a subject."""

    name: str
    """Shown, and used to name expected failures."""
    why: str
    """Why it matters: a sentence."""
    run: Callable[[S_contra], Finding]
    """Looks at the subject. Whatever it raises is a failure of the check."""
    needs: tuple[str, ...] = ()
    """Checks that must not have failed for this one to mean anything."""


def run_checks(
    checks: Sequence[Check[S]], subject: S, expected_failures: Mapping[str, str] | None = None
) -> list[CheckResult]:
    """Run checks in their order.

    Args:
        checks: what to check.
        subject: on what.
        expected_failures: reason by name of a check. If it fails it counts as skipped, with the reason; if it
            passes it counts as failed, because the reason no longer holds.

    Raises:
        UserError: an expected failure names no check.
    """
    expected = dict(expected_failures or {})
    for name in expected:
        if name not in [check.name for check in checks]:
            raise unknown_name("check", name, [check.name for check in checks])
    results: list[CheckResult] = []
    bad: dict[str, str] = {}  # the check that failed first, by every check that is of no use for it
    for check in checks:
        missing = [name for name in check.needs if name in bad]
        if missing:
            finding = Finding(None, f"not made, because {bad[missing[0]]!r} failed")
        else:
            finding = _attempt(check, subject)
        if finding.passed is False or missing:
            bad[check.name] = bad[missing[0]] if missing else check.name
        if check.name in expected:
            finding = _as_expected(finding, expected[check.name])
        results.append(
            CheckResult(check.name, finding.passed, finding.found, check.why, finding.instead, finding.cause)
        )
    return results


def assert_passed(results: Sequence[CheckResult]) -> None:
    """Raise if a check failed.

    Raises:
        AssertionError: names every failed check, what it found, why it matters and what to do.
    """
    failed = [result for result in results if result.passed is False]
    if failed:
        lines = "\n".join(f"  {result}" for result in failed)
        raise AssertionError(f"{len(failed)} of {len(results)} checks failed:\n{lines}")


def parametrised(checks: Sequence[Check[S]], run: Callable[[], list[CheckResult]]) -> pytest.MarkDecorator:
    """A pytest mark that makes one test case of each check; a case calls its argument `check`.

    Args:
        checks: which cases there are.
        run: runs all of them; called once, when the first case is run.
    """
    import pytest

    @cache
    def results() -> dict[str, CheckResult]:
        return {result.name: result for result in run()}

    def case(name: str) -> Callable[[], None]:
        def check() -> None:
            result = results()[name]
            if result.passed is None:
                pytest.skip(result.found)
            assert_passed([result])

        return check

    return pytest.mark.parametrize(
        "check", [pytest.param(case(check.name), id=check.name.replace(" ", "-")) for check in checks]
    )


def _attempt(check: Check[S], subject: S) -> Finding:
    try:
        return check.run(subject)
    except Exception as error:  # noqa: BLE001 - what a check raises is its finding
        text = " ".join(str(error).split())
        return Finding(False, f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _as_expected(finding: Finding, reason: str) -> Finding:
    if finding.passed is False:
        return Finding(None, f"{finding.found} (expected: {reason})")
    if finding.passed:
        return Finding(
            False,
            f"{finding.found}, though a failure was expected ({reason})",
            "Take it off the expected failures.",
        )
    return finding
