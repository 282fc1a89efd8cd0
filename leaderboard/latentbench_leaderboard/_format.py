"""Numbers and names as people read them."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from latentbench.store import Metric

__all__ = [
    "DASH",
    "MINUS",
    "clip",
    "decimals_for",
    "flat",
    "humanise",
    "interval_text",
    "listing",
    "number",
    "plain",
    "rank_text",
    "short_sha",
    "sites_text",
    "slug",
]

DASH = "\N{EN DASH}"
"""Between the ends of a range."""
MINUS = "\N{MINUS SIGN}"
"""Before negative numbers."""
_MOST_DECIMALS = 4
_NAME_LIMIT = 80
_SLUG_LIMIT = 40
_ACRONYMS = {
    "auroc": "AUROC", "ce": "CE", "diffmean": "DiffMean", "gradsae": "GradSAE", "kl": "KL", "l0": "L0", "l2": "L2",
    "lm": "LM", "mse": "MSE", "pca": "PCA", "routesae": "RouteSAE", "topk": "TopK",
}  # fmt: skip


def clip(text: str, limit: int = _NAME_LIMIT) -> str:
    """`text` on one line, cut with an ellipsis: a name of a megabyte must not become a page of a megabyte."""
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit and len(text) <= 4 * limit else line[: limit - 1] + "…"


def slug(name: str, key: str) -> str:
    """A file name for a row: readable, and unique because it ends in the key's first eight digits.

    Only a-z, 0-9 and hyphens survive, so no name can leave the site's folder.
    """
    plain_text = (
        unicodedata.normalize("NFKD", name[: 4 * _SLUG_LIMIT]).encode("ascii", "ignore").decode("ascii")
    )
    words = re.sub(r"[^a-z0-9]+", "-", plain_text.lower()).strip("-")[:_SLUG_LIMIT].strip("-")
    return f"{words or 'dictionary'}-{key[:8]}"


def humanise(name: str) -> str:
    """A title from a name in code: "explained_variance" -> "Explained variance"."""
    words = clip(name).replace("_", " ").strip().split(" ")
    text = " ".join(_ACRONYMS.get(word, word) for word in words)
    return text[:1].upper() + text[1:]


def short_sha(text: object) -> str:
    """The first twelve characters of a checksum."""
    return str(text)[:12]


def decimals_for(metrics: Iterable[Metric]) -> int:
    """Decimals for a column: two significant digits of the typical half interval, the same in every row.

    Without intervals, three significant digits of the largest value. Whole numbers show none.
    """
    scored = [metric for metric in metrics if metric.value is not None]
    widths = [(m.interval.high - m.interval.low) / 2 for m in scored if m.interval is not None]
    widths = [width for width in widths if width > 0]
    values = [abs(m.value) for m in scored if m.value]
    if scored and all(float(m.value or 0).is_integer() for m in scored) and max(values, default=0) > 1:
        return 0
    if widths:
        return _clamp(1 - math.floor(math.log10(median(widths))))
    return _clamp(2 - math.floor(math.log10(max(values)))) if values else 2


def number(value: float, decimals: int) -> str:
    """A number with grouped thousands and a true minus sign."""
    text = f"{value:,.{decimals}f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS)


def plain(value: float) -> str:
    """A number of unknown scale in four significant digits, without needless zeros."""
    if float(value).is_integer() and abs(value) < 1e15:
        return number(value, 0)
    if 1e-4 <= abs(value) < 1e6:
        digits = _clamp(3 - math.floor(math.log10(abs(value))))
        text = number(value, digits)
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.3g}".replace("-", MINUS)


def interval_text(metric: Metric, decimals: int) -> str:
    """The ends of a metric's interval, empty without one.

    Negative ends are joined by "to", because a dash would read as a minus.
    """
    if metric.interval is None:
        return ""
    low, high = number(metric.interval.low, decimals), number(metric.interval.high, decimals)
    return f"{low} to {high}" if MINUS in low + high else f"{low}{DASH}{high}"


def rank_text(rank: int, low: int | None, high: int | None) -> str:
    """A rank with its interval in brackets."""
    if low is None or high is None:
        return str(rank)
    return f"{rank} ({low}{DASH}{high})" if low != high else f"{rank} ({low})"


def listing(words: Sequence[str]) -> str:
    """Words as people list them: "a, b and c"."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1] if words else ""


def sites_text(sites: Sequence[str]) -> str:
    """Sites in a few words; neighbouring layers of one kind become a range."""
    if len(sites) < 3:
        return ", ".join(sites)
    kinds = {site.rpartition(".")[0] for site in sites}
    layers = [site.rpartition(".")[2] for site in sites]
    if len(kinds) == 1 and all(layer.isdecimal() for layer in layers):
        numbers = sorted({int(layer) for layer in layers})
        if numbers == list(range(numbers[0], numbers[0] + len(layers))):
            return f"{kinds.pop()}.{numbers[0]}{DASH}{numbers[-1]}"
    return f"{sites[0]}, {sites[1]} and {len(sites) - 2} more"


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of a JSON value with dotted names, for tables of provenance."""
    if isinstance(value, Mapping) and value:
        for key in sorted(value, key=str):
            yield from flat(value[key], f"{name}.{key}" if name else str(key))
    elif isinstance(value, float):
        yield clip(name, 120), plain(value)
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield clip(name, 120), clip(text, 400)


def _clamp(decimals: int) -> int:
    return max(0, min(_MOST_DECIMALS, decimals))
