"""Which latents are judged, and on which documents; no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from latentbench.stats import generator

__all__ = ["Peak", "drawing_order", "matched_documents", "peaks_by_latent", "strongest"]


class Peak(NamedTuple):
    """The strongest token of a latent in a document."""

    document: str
    """Its sha256."""
    row: str
    """Id of the row item."""
    column: int
    """Column of the token in its row."""
    strength: float
    """Activation on the scale of d = 2,048."""
    around: Mapping[int, float] | None
    """Strength by column in the context of the token, where the latent is active; None if it was not kept."""


def drawing_order(n_latents: int, seed: int) -> NDArray[np.int64]:
    """All latents in random order; the first eligible ones are a uniform sample without replacement.

    It depends on the seed and the width alone, so dictionaries that share latents are judged on the same ones.
    """
    return generator(f"interpretability/draw/{seed}").permutation(n_latents)


def peaks_by_latent(rows: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Peak]]:
    """By latent and document the strongest token, from row items; the first of equal ones.

    A latent is in there exactly if it was active on a measured token.
    """
    found: dict[int, dict[str, Peak]] = defaultdict(dict)
    for item in sorted(rows, key=lambda item: (item["document"], item["start_token"])):
        document = item["document"]
        around = {
            latent: dict(zip(columns, strengths, strict=True))
            for latent, columns, strengths in zip(
                item["near_latents"], item["near_columns"], item["near_strengths"], strict=True
            )
        }
        for latent, column, strength in zip(item["latents"], item["at"], item["strengths"], strict=True):
            before = found[latent].get(document)
            if before is None or strength > before.strength:
                found[latent][document] = Peak(document, item["id"], column, strength, around.get(latent))
    return found


def strongest(peaks: Mapping[str, Peak], limit: int) -> list[Peak]:
    """The strongest of a latent's peaks, at most `limit`, strongest first; each is in another document."""
    return sorted(peaks.values(), key=lambda peak: (-peak.strength, peak.document))[:limit]


def matched_documents(
    families: Sequence[str], silent: Mapping[str, str], rng: np.random.Generator
) -> list[tuple[str, bool] | None]:
    """For each of some documents one without the latent, of the same family of sources where there is one left.

    Args:
        families: family of each document that is to be matched, in order of preference.
        silent: family by document, of the documents in which the latent is nowhere active.
        rng: source of the draw.

    Returns:
        For each family a document and whether it is of that family; None once all are used up. No document is
        used twice.
    """
    names = sorted(silent)
    left: dict[str, list[str]] = defaultdict(list)
    for place in rng.permutation(len(names)).tolist():
        left[silent[names[place]]].append(names[place])
    same = [left[family].pop() if left[family] else None for family in families]
    rest = sorted(document for documents in left.values() for document in documents)
    others = iter([rest[place] for place in rng.permutation(len(rest)).tolist()])
    matched: list[tuple[str, bool] | None] = []
    for document in same:
        other = None if document is not None else next(others, None)
        matched.append((document, True) if document is not None else (other, False) if other else None)
    return matched
