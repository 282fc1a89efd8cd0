"""What is in a bundle: a results folder reduced to what may be published, in one zip file.

    bundle.json                              format, cells, environments, and size and sha256 of every other file
    runs/<two digits>/<key>/cell.json        as in a results folder
                            run.json
                            items.jsonl
                            judgements.jsonl
                            SHA256SUMS
    cards/<sha256>.json                      what each dictionary says of itself
    calibration/<sha256>.json                what is known of the judges

Unpacked it is a results folder. Equal results give equal bytes: entries are sorted and carry no time. (Another version
of zlib may pack them differently; the bundle's id is therefore the sha256 of `bundle.json`, which names all the rest.)
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["CELL_FILES", "FORMAT", "MANIFEST", "Place", "place_of"]

FORMAT: Final = 1
"""Version of the layout."""
MANIFEST: Final = "bundle.json"
CELL_FILES: Final = ("SHA256SUMS", "cell.json", "items.jsonl", "judgements.jsonl", "run.json")
_CELL = re.compile(r"runs/([0-9a-f]{2})/(\1[0-9a-f]{62})/([A-Za-z0-9]+(?:\.jsonl?)?)")
_SIDE = re.compile(r"(cards|calibration)/([0-9a-f]{64})\.json")


class Place(NamedTuple):
    """Where a file belongs."""

    kind: str
    """"manifest", "cell", "cards" or "calibration"."""
    key: str
    """The cell's key, or the sha256 that the file is named after; empty for the manifest."""
    file: str
    """Name of the file."""


def place_of(name: str) -> Place | None:
    """The place of a path in a bundle; None for any other path, so that none leads outside."""
    if name == MANIFEST:
        return Place("manifest", "", name)
    found = _CELL.fullmatch(name)
    if found is not None:
        return Place("cell", found[2], found[3]) if found[3] in CELL_FILES else None
    found = _SIDE.fullmatch(name)
    return None if found is None else Place(found[1], found[2], name.rpartition("/")[2])
