"""Judges: what gives verdicts on stored items. Each is one file and one entry point of `latentbench.judges`."""

from __future__ import annotations

from latentbench_judges._roles import SimilarityJudge
from latentbench_judges.rubric import Rubric, load_rubric, rubric_names

__all__ = ["Rubric", "SimilarityJudge", "load_rubric", "rubric_names"]
