"""Directions of the residual stream without a dictionary: DiffMean, PCA, a probe, and DiffMean at a wrong layer.

Recipes of AxBench (arXiv 2501.17148): unit directions from labelled texts, and as the unit of the factor the largest
activation along the direction. Here that activation is centred on the mean of all labelled tokens, because the stream's
mean would make most of it, and tokens of massive norm are left out: on SmolLM2-135M a few tokens have a
hundred times the norm of other tokens (attention sinks beside the first token), and a mean over texts is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latentbench.lm import Site
from latentbench.run import CellSetup

if TYPE_CHECKING:
    from latentbench.data import TokenRow

__all__ = ["Direction", "Stream", "stream_acts", "wrong_site"]

_BATCH = 16
_MASSIVE = 10.0
"""Tokens of more than so many times the median norm are left out."""


class Direction(NamedTuple):
    """A direction and how much of it factor 1 adds."""

    site: Site
    """Where it is added."""
    vector: Tensor
    """`Float[Tensor, "d"]`, of length 1."""
    unit: float
    """Largest centred activation along it on labelled tokens; for another layer, as large a share of the stream."""


class Stream:
    """Activations of labelled documents at a site, and at another for the control of the wrong layer."""

    def __init__(
        self, site: Site, wrong: Site, acts: Mapping[str, NDArray[np.float32]], wrong_norm: float
    ) -> None:
        """Keep them.

        Args:
            site: where directions are made.
            wrong: the other site.
            acts: `Float[token, d]` of every document's measured tokens.
            wrong_norm: median norm of a token at the other site.
        """
        self.site, self.wrong = site, wrong
        norms = {name: np.linalg.norm(table, axis=1) for name, table in acts.items()}
        typical = float(np.median(np.concatenate(list(norms.values()))))
        self._acts = {name: table[norms[name] <= _MASSIVE * typical] for name, table in acts.items()}
        every = np.concatenate(list(self._acts.values())).astype(np.float64)
        self._mean = every.mean(axis=0)
        self._largest = every - self._mean
        self._ratio = wrong_norm / typical

    def direction(self, method: str, positives: Sequence[str], negatives: Sequence[str]) -> Direction:
        """The direction of a method from documents with and without a concept, named by their hashes."""
        with_concept, without = (
            np.stack(
                [self._acts[name].astype(np.float64).mean(axis=0) for name in side if len(self._acts[name])]
            )
            for side in (positives, negatives)
        )
        difference = with_concept.mean(axis=0) - without.mean(axis=0)
        if method == "pca":
            found = self._component(positives)
            found = found if found @ difference >= 0 else -found
        elif method == "probe":
            found = _probe(with_concept, without)
        else:
            found = difference
        unit_vector = found / max(float(np.linalg.norm(found)), 1e-12)
        unit = float((self._largest @ unit_vector).max())
        wrong = method == "wrong_layer"
        return Direction(
            self.wrong if wrong else self.site,
            torch.from_numpy(unit_vector.astype(np.float32)),
            unit * self._ratio if wrong else unit,
        )

    def _component(self, documents: Sequence[str]) -> NDArray[np.float64]:
        """First principal component of the tokens of some documents."""
        tokens = np.concatenate([self._acts[name] for name in documents]).astype(np.float64)
        centred = tokens - tokens.mean(axis=0)
        return np.asarray(np.linalg.eigh(centred.T @ centred)[1][:, -1], dtype=np.float64)


def wrong_site(lm_layers: int, site: Site) -> Site:
    """A resid_post site half a model away from a site: directions that mean something there should mean little here."""
    layer = site.layer or 0
    away = lm_layers // 2
    return Site("resid_post", layer - away if layer >= away else layer + away)


def stream_acts(setup: CellSetup, rows: Sequence[TokenRow], site: Site) -> Stream:
    """Run the labelled documents once."""
    wrong = wrong_site(setup.lm.n_layers, site)
    acts: dict[str, NDArray[np.float32]] = {}
    norms: list[float] = []
    ordered = sorted(rows, key=lambda row: len(row.ids))
    for start in range(0, len(ordered), _BATCH):
        part = ordered[start : start + _BATCH]
        setup.progress("activations of labelled texts", start, len(ordered))
        batch = setup.lm.batch([row.ids for row in part])
        found = setup.lm.forward(batch, capture={site, wrong}, logits=False).acts
        measured = batch.measured(setup.tokens.skip_first)
        for index, row in enumerate(part):
            kept = measured[index]
            acts[row.document] = found[site][index][kept].float().cpu().numpy()
            norms += found[wrong][index][kept].float().norm(dim=1).tolist()
    return Stream(site, wrong, acts, float(np.median(norms)))


def _probe(positives: NDArray[np.float64], negatives: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of a logistic regression on documents' mean activations, in the stream's own units."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    table = scaler.fit_transform(np.concatenate([positives, negatives]))
    labels = np.array([1] * len(positives) + [0] * len(negatives))
    fitted = LogisticRegression(max_iter=1000, class_weight="balanced").fit(table, labels)
    return np.asarray(fitted.coef_[0] / scaler.scale_, dtype=np.float64)
