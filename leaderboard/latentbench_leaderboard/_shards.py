"""Data for the pages' scripts, as scripts: a page opened from a file can load one but can't fetch.

`latentbench.shard("name", {...});` in a `.js` file. Everything but plain ASCII is escaped, and so are `<`,
`>` and `&`: a shard can be pasted into a page without ending its script element, and U+2028 can't break a
line of code.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["script_json", "shard_text"]

_ESCAPES = (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"))


def script_json(value: Any) -> str:
    """JSON that is safe inside of a script, in a file or in a page."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))
    for character, escape in _ESCAPES:
        text = text.replace(character, escape)
    return text


def shard_text(name: str, value: Any) -> str:
    """The text of a shard file."""
    return f"latentbench.shard({script_json(name)},{script_json(value)});\n"
