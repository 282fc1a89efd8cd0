"""Judges: what gives verdicts on stored items. Each is one file and one entry point of `latentbench.judges`."""

from __future__ import annotations

from latentbench_judges._answer import STATUSES, Answer, Status, Usage
from latentbench_judges._ask import ask
from latentbench_judges._fence import harmless
from latentbench_judges._marked import MarkedText
from latentbench_judges._parse import parse
from latentbench_judges._question import Question
from latentbench_judges._roles import RubricJudge, SimilarityJudge
from latentbench_judges.rubric import Rubric, load_rubric, rubric_names

__all__ = [
    "STATUSES",
    "Answer",
    "MarkedText",
    "Question",
    "Rubric",
    "RubricJudge",
    "SimilarityJudge",
    "Status",
    "Usage",
    "ask",
    "harmless",
    "load_rubric",
    "parse",
    "rubric_names",
]
