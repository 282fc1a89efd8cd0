"""Row items as they may be published: with the same counts, but no text can be read back from them.

The items hold the class of every token of a row, which is nearly its text. The count needs less: whether two events of
one latent are of the same class. So a published row lists its events alone, without their places, and numbers the
classes anew for every latent. `columns` then points into that list, which is what `metrics` reads anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

__all__ = ["published"]


def published(items: list[dict[str, Any]], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items with each row reduced to its events.

    Args:
        items: items of one cell; others than rows are left as they are.
        config: the task's options; events below its lowest threshold go.
    """
    lowest = min(config["thresholds"])
    names: dict[int, dict[int, int]] = defaultdict(dict)
    made: dict[int, dict[str, Any]] = {}
    rows = [place for place, item in enumerate(items) if item["kind"] == "row"]
    for place in sorted(rows, key=lambda place: (items[place]["document"], items[place]["start_token"])):
        made[place] = _reduced(items[place], lowest, names)
    return [made.get(place, item) for place, item in enumerate(items)]


def _reduced(item: dict[str, Any], lowest: float, names: dict[int, dict[int, int]]) -> dict[str, Any]:
    classes: list[int] = []
    latents, columns, strengths = [], [], []
    for latent, places, values in zip(item["latents"], item["columns"], item["strengths"], strict=True):
        events = [(column, value) for column, value in zip(places, values, strict=True) if value > lowest]
        if not events:
            continue
        known = names[latent]
        latents.append(latent)
        columns.append(list(range(len(classes), len(classes) + len(events))))
        strengths.append([value for _, value in events])
        classes += [known.setdefault(item["classes"][column], len(known)) for column, _ in events]
    return {**item, "classes": classes, "latents": latents, "columns": columns, "strengths": strengths}
