"""`check_adapter`: is a dictionary what the rest of the benchmark takes it for?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from latentbench.adapters import Dictionary
from latentbench.lm import LM
from latentbench.testing._adapter_scale import SCALE, Examined
from latentbench.testing._adapter_structure import STRUCTURE
from latentbench.testing._results import Check, CheckResult, assert_passed, parametrised, run_checks

if TYPE_CHECKING:
    import pytest

__all__ = ["ADAPTER_CHECKS", "assert_adapter", "check_adapter", "parametrize_adapter_checks"]

_CHECKS: tuple[Check[Examined], ...] = (*STRUCTURE, *SCALE)
ADAPTER_CHECKS = tuple(check.name for check in _CHECKS)
"""Names of the checks of `check_adapter`, in their order."""


def check_adapter(
    dictionary: Dictionary,
    lm: LM | None = None,
    *,
    texts: Sequence[str] | None = None,
    max_tokens: int = 2048,
    context: int = 128,
    skip_first: int = 1,
    seed: int = 0,
    expected_failures: Mapping[str, str] | None = None,
) -> list[CheckResult]:
    """Check a dictionary; nothing is raised for a check that fails.

    The result is the same every time: no randomness but that of `seed`.

    Args:
        dictionary: what to check.
        lm: the model it was made for; without one only the checks of form are made, on Gaussian activations.
        texts: what activations are taken on; None takes about 1,300 tokens of passages that ship with the
            package. A model without a tokenizer gets token ids drawn at random.
        max_tokens: most tokens to take activations on.
        context: tokens in a row.
        skip_first: tokens left out at the start of every row (attention sink), as in a suite's token policy.
        seed: of everything drawn.
        expected_failures: reason by name of a check that is known to fail; see `run_checks`.

    Returns:
        One result for each of `ADAPTER_CHECKS`, in their order.

    Raises:
        UserError: an expected failure names no check.
    """
    subject = Examined(
        dictionary,
        lm,
        texts=texts,
        max_tokens=max_tokens,
        context=context,
        skip_first=skip_first,
        seed=seed,
    )
    return run_checks(_CHECKS, subject, expected_failures)


def assert_adapter(
    dictionary: Dictionary,
    lm: LM | None = None,
    *,
    texts: Sequence[str] | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> None:
    """`check_adapter` for a test.

    Raises:
        AssertionError: names every check that failed, what it found and what to do.
    """
    assert_passed(check_adapter(dictionary, lm, texts=texts, expected_failures=expected_failures))


def parametrize_adapter_checks(
    make: Callable[[], Dictionary],
    make_lm: Callable[[], LM] | None = None,
    *,
    expected_failures: Mapping[str, str] | None = None,
) -> pytest.MarkDecorator:
    """A decorator that makes one pytest case of each check.

    ```python
    @parametrize_adapter_checks(load_mine, toy_lm)
    def test_adapter(check):
        check()
    ```

    Args:
        make: the dictionary; called once, when the first case runs.
        make_lm: the model it was made for; None makes the checks of form alone.
        expected_failures: see `check_adapter`.
    """
    return parametrised(
        _CHECKS,
        lambda: check_adapter(make(), make_lm() if make_lm else None, expected_failures=expected_failures),
    )
