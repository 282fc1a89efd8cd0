"""Which latents each method chooses for a concept: selectors of `latentbench.selectors` put to labelled documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from latentbench.run import CellSetup
from latentbench.selectors import Auroc, Example, GradSae, MeanDifference, OutputScore, Target, splice
from latentbench.stats import generator
from latentbench_tasks.steering._choose import Labelled, Ranking

if TYPE_CHECKING:
    from latentbench.data import TokenRow

__all__ = ["Ranker"]

_ANSWER = 8
"""Tokens of a document whose probability GradSAE's gradient is taken of, behind the first half."""
_BATCH = 8


class Ranker:
    """Rankings of one cell, method by method; what several concepts or methods need is worked out once."""

    def __init__(
        self, setup: CellSetup, labelled: Labelled, rows: Sequence[TokenRow], candidates: int
    ) -> None:
        """A ranker.

        Args:
            setup: the cell.
            labelled: activations on labelled documents.
            rows: the documents' tokens.
            candidates: how many latents of highest contrast the methods of kind "rank" choose among.
        """
        self._setup = setup
        self._labelled = labelled
        self._rows = {row.document: list(row.ids) for row in rows}
        self._candidates = candidates
        self._influence: dict[str, dict[int, float]] = {}
        self._output: dict[int, float] = {}

    def ranking(self, method: str, concept: str) -> Ranking:
        """The latents of a method of kind "labelled", "rank" or "random_latent", the best first."""
        first = self._labelled.contrast(concept)
        if not first.latents:
            return first
        if method == "contrast":
            return first
        if method in ("mean_difference", "auroc"):
            return self._by_labels(method, concept)
        rng = generator(f"{self._setup.seed}:steering:{method}:{concept}")
        if method == "random_latent":
            alive = np.flatnonzero(self._labelled.usable)
            drawn = rng.permutation(alive)[: self._labelled.options.n_latents]
            return Ranking([int(latent) for latent in drawn], [0.0] * len(drawn))
        candidates = first.latents[: self._candidates]
        if method == "random_candidate":
            return Ranking([int(latent) for latent in rng.permutation(candidates)], [0.0] * len(candidates))
        scores = self._output_scores(candidates) if method.startswith("output") else self._influences(concept)
        sign = -1.0 if method.endswith("_low") else 1.0
        order = sorted(
            candidates, key=lambda latent: (-sign * scores.get(latent, 0.0), candidates.index(latent))
        )
        return Ranking(order, [scores.get(latent, 0.0) for latent in order])

    def _by_labels(self, method: str, concept: str) -> Ranking:
        positives, negatives = self._labelled.sides(concept)
        selector = Auroc() if method == "auroc" else MeanDifference()
        field = "peaks" if method == "auroc" else "sums"  # AxBench pools by the largest activation
        pooled = self._labelled.pooled([*positives, *negatives], field)
        labels = torch.tensor([True] * len(positives) + [False] * len(negatives))
        values = selector.scores(torch.from_numpy(pooled), labels).scores.numpy()
        return self._labelled.ranking(np.asarray(values, dtype=np.float64), positive=True)

    def _output_scores(self, latents: Sequence[int]) -> Mapping[int, float]:
        new = sorted(set(latents) - set(self._output))
        if new:
            found = OutputScore().scores(self._setup.lm, self._setup.dictionary, torch.tensor(new))
            self._output.update(zip(found.latents.tolist(), found.scores.tolist(), strict=True))
        return self._output

    def _influences(self, concept: str) -> Mapping[int, float]:
        """Mean influence on documents with the concept less that on documents without, by latent."""
        positives, negatives = self._labelled.sides(concept)
        self._run_examples([str(one["document"]) for one in (*positives, *negatives)])
        total: dict[int, float] = {}
        for side, sign in ((positives, 1.0), (negatives, -1.0)):
            known = [found for one in side if (found := self._influence[str(one["document"])])]
            for found in known:
                for latent, value in found.items():
                    total[latent] = total.get(latent, 0.0) + sign * value / len(known)
        return total

    def _run_examples(self, documents: Sequence[str]) -> None:
        """GradSAE's scores on documents that haven't been run; one too short for an answer has none."""
        target, selector = Target("log_probability", "answer"), GradSae.preset("corrected")
        left = sorted(
            {name for name in documents if name not in self._influence}, key=lambda n: len(self._rows[n])
        )
        self._influence.update({name: {} for name in left})
        skip = self._setup.tokens.skip_first
        left = [name for name in left if len(self._rows[name]) // 2 > skip]
        for start in range(0, len(left), _BATCH):
            names = left[start : start + _BATCH]
            self._setup.progress("influence of latents", start, len(left))
            examples = [_example(self._rows[name]) for name in names]
            spliced = splice(
                self._setup.lm,
                self._setup.dictionary,
                examples,
                target,
                keep_error=selector.keep_error,
                skip_first=skip,
            )
            for name, found in zip(names, selector.scores(spliced), strict=True):
                self._influence[name] = dict(zip(found.latents.tolist(), found.scores.tolist(), strict=True))


def _example(ids: Sequence[int]) -> Example:
    """A document's first half as the prompt, and what follows as its answer."""
    half = len(ids) // 2
    return Example(tuple(ids[:half]), tuple(ids[half : half + _ANSWER]))
