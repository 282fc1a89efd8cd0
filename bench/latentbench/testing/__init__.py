"""Conformance kits, toy language models and synthetic dictionaries, for this project's tests and its plug-ins'."""

from latentbench.testing._adapter import (
    ADAPTER_CHECKS,
    assert_adapter,
    check_adapter,
    parametrize_adapter_checks,
)
from latentbench.testing._fitted import fitted_sae
from latentbench.testing._judge import (
    JUDGE_CHECKS,
    ToyJudge,
    assert_judge,
    check_judge,
    parametrize_judge_checks,
)
from latentbench.testing._results import CheckResult, assert_passed
from latentbench.testing._subject import passages
from latentbench.testing._synthetic import perfect_weights, random_routesae, random_sae, random_weights
from latentbench.testing._task import (
    TASK_CHECKS,
    assert_task,
    check_task,
    parametrize_task_checks,
    toy_corpus,
)
from latentbench.testing._toy_lm import FAMILIES, toy_lm
from latentbench.testing._toy_tokenizer import TOY_VOCABULARY, toy_tokenizer

__all__ = [
    "ADAPTER_CHECKS",
    "FAMILIES",
    "JUDGE_CHECKS",
    "TASK_CHECKS",
    "TOY_VOCABULARY",
    "CheckResult",
    "ToyJudge",
    "assert_adapter",
    "assert_judge",
    "assert_passed",
    "assert_task",
    "check_adapter",
    "check_judge",
    "check_task",
    "fitted_sae",
    "parametrize_adapter_checks",
    "parametrize_judge_checks",
    "parametrize_task_checks",
    "passages",
    "perfect_weights",
    "random_routesae",
    "random_sae",
    "random_weights",
    "toy_corpus",
    "toy_lm",
    "toy_tokenizer",
]
