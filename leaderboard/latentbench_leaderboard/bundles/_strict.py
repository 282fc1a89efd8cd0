"""Reading JSON of strangers: one meaning only, and bounded in every direction.

What is refused here would either mean different things to different readers (a key twice, NaN), or cost more to read
than any honest file does (a line of gigabytes, a number of a thousand digits, lists a thousand deep).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from latentbench.errors import LatentbenchError

__all__ = ["LONGEST_LINE", "LONGEST_TEXT", "Refused", "parse", "read_bounded", "read_items", "shown"]

LONGEST_TEXT: Final = 256 * 1024
"""Bytes of one string: room for one bit each of a million latents in base 64."""
LONGEST_LINE: Final = 32 * 1024 * 1024
"""Bytes of one line of items, or of a whole record."""
_DEEPEST = 40
"""Lists and objects inside of each other."""
_LONGEST_NUMBER = 40
"""Characters of a number; an exact float64 has at most 24."""
_LARGEST_INTEGER = 2**63
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ODD_NUMBER = re.compile(rb"[-+0-9.eE]{20,}|[0-9.][eE][-+]?[0-9]{3,}")


class Refused(LatentbenchError):
    """A file that must not be read further; the message says why in one line."""


def shown(text: object, longest: int = 80) -> str:
    """A stranger's text as it may stand in a message: printable, quoted, and short."""
    whole = str(text)
    return ascii(whole[:longest] + ("..." if len(whole) > longest else ""))


def parse(data: bytes) -> Any:
    """The JSON value of some bytes.

    Raises:
        Refused: it is not JSON, or is out of bounds; see the module.
    """
    _bounded(data)
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant, parse_int=_integer
        )
    except RecursionError as error:
        raise Refused(f"lists or objects lie more than {_DEEPEST} deep in each other") from error
    except UnicodeDecodeError as error:
        raise Refused(f"is not UTF-8 (byte {error.start})") from error
    except ValueError as error:
        raise Refused(f"is not JSON: {shown(error, 120)}") from error


def read_bounded(path: Path, longest: int = LONGEST_LINE) -> bytes:
    """The bytes of a file.

    Raises:
        Refused: it is longer than that.
    """
    with path.open("rb") as stream:
        data = stream.read(longest + 1)
    if len(data) > longest:
        raise Refused(f"is longer than {longest:,} bytes")
    return data


def read_items(path: Path) -> Iterator[dict[str, Any]]:
    """The items of a file, one a line; none when there is no file.

    Raises:
        Refused: a line is out of bounds, is no item with `kind` and `id`, or repeats the id of another of its kind.
    """
    if not path.exists():
        return
    seen: set[tuple[str, str]] = set()
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise Refused(f"line {number} is longer than {LONGEST_LINE:,} bytes")
            try:
                item = parse(line)
            except Refused as error:
                raise Refused(f"line {number} {error}") from error
            name = _name(item)
            if name is None:
                raise Refused(f"line {number} is not an item: an object with `kind` and `id`, both text")
            if name in seen:
                raise Refused(f"line {number} repeats the id {shown(name[1])} of kind {shown(name[0])}")
            seen.add(name)
            yield item


def _name(item: object) -> tuple[str, str] | None:
    if not isinstance(item, dict):
        return None
    kind, identifier = item.get("kind"), item.get("id")
    if not (isinstance(kind, str) and isinstance(identifier, str) and kind and identifier):
        return None
    return kind, identifier


def _bounded(data: bytes) -> None:
    """Refuse what is out of bounds, before any of it becomes an object."""
    if len(data) > LONGEST_TEXT:
        longest = max((found.end() - found.start() for found in _TEXT.finditer(data)), default=0)
        if longest > LONGEST_TEXT:
            raise Refused(f"a text of {longest:,} bytes; {LONGEST_TEXT:,} are allowed")
    bare = _TEXT.sub(b"", data)
    deepest = _depth(bare)
    if deepest > _DEEPEST:
        raise Refused(f"lists or objects lie {deepest:,} deep in each other; {_DEEPEST} are allowed")
    for found in _ODD_NUMBER.finditer(bare):
        _check_number(bare, found)


def _check_number(bare: bytes, found: re.Match[bytes]) -> None:
    start, end = found.span()
    number = b"-+0123456789.eE"
    while start > 0 and bare[start - 1] in number:
        start -= 1
    text = bare[start:end]
    if len(text) > _LONGEST_NUMBER:
        raise Refused(f"a number of {len(text):,} digits; {_LONGEST_NUMBER} are allowed")
    try:
        finite = math.isfinite(float(text))
    except ValueError:
        return  # not a number; the parser says so
    if not finite:
        raise Refused(f"the number {shown(text.decode('ascii'))} is larger than any float")


def _depth(bare: bytes) -> int:
    marks = np.frombuffer(bare, dtype=np.uint8)
    steps = ((marks == ord("[")) | (marks == ord("{"))).astype(np.int64)
    steps -= (marks == ord("]")) | (marks == ord("}"))
    return int(steps.cumsum().max(initial=0))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Refused(f"an object has the key {shown(twice)} twice")
    return made


def _no_constant(name: str) -> None:
    raise Refused(f"{name} is not a number; an unknown one is null, with a reason")


def _integer(text: str) -> int:
    if len(text) > 20 or abs(int(text)) >= _LARGEST_INTEGER:
        raise Refused(f"the number {shown(text, 40)} is larger than any count")
    return int(text)
