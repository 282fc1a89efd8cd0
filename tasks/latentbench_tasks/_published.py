"""Items as they are published: without what nobody but the measuring itself needed (`latentbench.published`).

What is left out is most of a cell's bytes, and no number follows from it: where on a row each latent peaked, from which
contexts were cut that the items of latents hold; and the activations on labelled texts, from which latents were chosen
that the items of choices name with their scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["labelled_texts", "watched_rows"]

_PEAKS = frozenset({"at", "strengths", "near_latents", "near_columns", "near_strengths"})
_ACTIVATIONS = frozenset({"latents", "sums", "active", "peaks"})


def watched_rows(items: list[dict[str, Any]], _config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows keep their latents and lose the peaks: interpretability, monosemanticity, autointerp."""
    return [_without(item, _PEAKS) if item["kind"] == "row" else item for item in items]


def labelled_texts(items: list[dict[str, Any]], _config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Labelled texts keep their labels and lose the activations: steering, steering_judged."""
    return [_without(item, _ACTIVATIONS) if item["kind"] == "contrast" else item for item in items]


def _without(item: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names}
