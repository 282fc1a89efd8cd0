"""`check_judge`: does a judge keep what tasks rely on? And a judge for tests of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from latentbench.identity import canonical_json, sha256_text
from latentbench.testing._results import Check, CheckResult, Finding, assert_passed, parametrised, run_checks
from latentbench.testing._rubric_judge import RUBRIC_CHECKS, other_role
from latentbench.testing._subject import passages

if TYPE_CHECKING:
    import pytest

__all__ = ["JUDGE_CHECKS", "ToyJudge", "assert_judge", "check_judge", "parametrize_judge_checks"]

_TOLERANCE = 1e-3
"""Difference of two unit vectors that rounding in another batch may explain."""


class ToyJudge:
    """Role "similarity" without a model: a text is the direction of its hashed words. For tests of tasks."""

    name = "toy"
    """Registered name, if it were."""
    role = "similarity"
    """What it can be asked."""

    def identity(self) -> dict[str, Any]:
        """Everything that can change a vector."""
        return {"name": self.name, "version": "1", "dimensions": 64}

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Unit vectors, `Float[ndarray, "text dim"]`, in the order of the texts."""
        vectors = np.zeros((len(texts), 64), np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split() or [""]:
                vectors[row, int(sha256_text(word)[:8], 16) % 64] += 1
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def check_judge(judge: Any, *, expected_failures: Mapping[str, str] | None = None) -> list[CheckResult]:
    """Check a judge; nothing is raised for a check that fails.

    Role and identity are checked of every judge. What it is asked is checked for the roles "similarity" and "rubric";
    for another role those checks are skipped. A judge of the role "rubric" is asked nine short questions, several
    times over, and nine on hostile texts.

    Args:
        judge: an instance.
        expected_failures: reason by name of a check that is known to fail.

    Returns:
        One result for each of `JUDGE_CHECKS`, in their order.
    """
    return run_checks(_CHECKS, judge, expected_failures)


def assert_judge(judge: Any, *, expected_failures: Mapping[str, str] | None = None) -> None:
    """`check_judge` for a test.

    Raises:
        AssertionError: names every check that failed, what it found and what to do.
    """
    assert_passed(check_judge(judge, expected_failures=expected_failures))


def parametrize_judge_checks(
    make: Callable[[], Any], *, expected_failures: Mapping[str, str] | None = None
) -> pytest.MarkDecorator:
    """A decorator that makes one pytest case of each check; the case calls its argument `check`.

    Args:
        make: the judge; called once, when the first case runs.
        expected_failures: see `check_judge`.
    """
    return parametrised(_CHECKS, lambda: check_judge(make(), expected_failures=expected_failures))


def _role(judge: Any) -> Finding:
    role = getattr(judge, "role", None)
    if not isinstance(role, str) or not role:
        return Finding(False, f"role is {role!r}", 'Name what it can be asked, such as role = "similarity".')
    return Finding(True, f"role {role!r}")


def _identity(judge: Any) -> Finding:
    first, second = judge.identity(), judge.identity()
    text = canonical_json(first)  # raises where it is no JSON
    if text != canonical_json(second):
        return Finding(
            False, "identity changes from call to call", "Leave times, paths and counters out of it."
        )
    if not isinstance(first, dict) or not first:
        return Finding(
            False, "identity is empty", "Name the model, its revision, the rubric and the sampling."
        )
    return Finding(True, f"names {', '.join(first)}")


def _vectors(judge: Any) -> Finding:
    texts = passages()[:4]
    found = _embedded(judge, texts)
    if found is None:
        return other_role(judge)
    if not isinstance(found, np.ndarray) or found.dtype != np.float32 or found.ndim != 2:
        kind = (
            f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
        )
        return Finding(False, f"embed gave {kind}", "Return a float32 array [text, dim].")
    if len(found) != len(texts):
        return Finding(False, f"embed gave {len(found)} vectors for {len(texts)} texts")
    lengths = np.linalg.norm(found.astype(np.float64), axis=1)
    if not np.allclose(lengths, 1, atol=1e-3):  # NaN fails too
        instead = "Divide every vector by its length: tasks take dot products for cosines."
        return Finding(False, f"lengths run from {lengths.min():.3g} to {lengths.max():.3g}", instead)
    return Finding(True, f"{found.shape[1]} dimensions, length 1")


def _no_texts(judge: Any) -> Finding:
    found = _embedded(judge, [])
    if found is None:
        return other_role(judge)
    return Finding(len(found) == 0, f"{len(found)} vectors for no texts")


def _deterministic(judge: Any) -> Finding:
    texts = passages()[:6]
    first, second = _embedded(judge, texts), _embedded(judge, [*texts, texts[0]])
    if first is None or second is None:
        return other_role(judge)
    off = float(np.abs(first - second[:-1]).max())
    twin = float(np.abs(second[0] - second[-1]).max())
    if off > _TOLERANCE or twin > _TOLERANCE:
        return Finding(
            False,
            f"equal texts differ by {max(off, twin):.2g}",
            "Judge at temperature 0, without randomness.",
        )
    return Finding(True, "equal texts get equal vectors")


def _batches(judge: Any) -> Finding:
    texts = [*passages()[:4], "short"]
    together, alone = _embedded(judge, texts), [_embedded(judge, [text]) for text in texts]
    if together is None:
        return other_role(judge)
    joined = np.concatenate([one for one in alone if one is not None])
    off = float(np.abs(together - joined).max())
    reverse = _embedded(judge, texts[::-1])
    assert reverse is not None
    turned = float(np.abs(together - reverse[::-1]).max())
    if max(off, turned) > _TOLERANCE:
        instead = "Is padding read, or the order of the texts lost?"
        return Finding(False, f"vectors move by {max(off, turned):.2g} with the company of a text", instead)
    return Finding(
        True, f"alone, together and in reverse the same (largest difference {max(off, turned):.1g})"
    )


def _awkward(judge: Any) -> Finding:
    texts = ["", " ", "\n", "word " * 2000, "naïve 東京 🙂 \u202e", "<|endoftext|> {contexts} </s>"]
    found = _embedded(judge, texts)
    if found is None:
        return other_role(judge)
    if len(found) != len(texts) or not bool(np.isfinite(found).all()):
        return Finding(
            False, f"{len(found)} vectors for {len(texts)} texts, finite: {bool(np.isfinite(found).all())}"
        )
    return Finding(True, "empty, long and foreign texts get finite vectors")


def _distinct(judge: Any) -> Finding:
    texts = passages()
    found = _embedded(judge, texts)
    if found is None:
        return other_role(judge)
    cosines = found.astype(np.float64) @ found.T.astype(np.float64) - np.eye(len(texts))
    if float(cosines.max()) > 0.999:
        return Finding(False, f"two of {len(texts)} different passages have cosine {cosines.max():.4f}")
    return Finding(True, f"{len(texts)} different passages have cosines up to {cosines.max():.2f}")


def _embedded(judge: Any, texts: list[str]) -> NDArray[np.float32] | None:
    """The judge's vectors; None where it has another role."""
    if judge.role != "similarity":
        return None
    vectors: NDArray[np.float32] = judge.embed(texts)
    return vectors


_CHECKS: tuple[Check[Any], ...] = (
    Check("role", "A plan gives a task only a judge of the role that it names.", _role),
    Check(
        "identity",
        "It is part of every judged cell's key: what it leaves out is mistaken for the same.",
        _identity,
    ),
    Check("vectors", "Tasks take dot products of these vectors.", _vectors, ("role",)),
    Check("no texts", "A cell may have nothing to judge.", _no_texts, ("role",)),
    Check("determinism", "Verdicts are cached by text.", _deterministic, ("vectors",)),
    Check(
        "batch invariance", "Which texts are judged together must not change a score.", _batches, ("vectors",)
    ),
    Check("awkward texts", "Contexts of latents hold anything.", _awkward, ("vectors",)),
    Check(
        "distinct texts",
        "A judge that can't tell texts apart scores every latent the same.",
        _distinct,
        ("vectors",),
    ),
    *RUBRIC_CHECKS,
)
JUDGE_CHECKS = tuple(check.name for check in _CHECKS)
"""Names of the checks of `check_judge`, in their order."""
