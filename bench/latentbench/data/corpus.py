"""Corpora: documents with labels, de-duplicated and split by content.

`probe-texts` holds the texts of 155 probing sets. What is done to them, and why:

* Several sets repeat the same texts. Texts that differ in whitespace alone are one document, which keeps the
  labels of all its sets; a set that labels one text in two ways gives it no label.
* A document's split follows from a hash of its first 200 characters alone, so it is the same on every
  machine, and texts that begin alike (one passage with several questions) never lie in two splits.
* `documents` is the stream for watching activations. It leaves out texts under 200 characters (names, sums,
  titles: too short for contexts), keeps the first 2,000 characters of the others, takes one text of each
  group that begins alike, and thins every family of sets that would make up more than a tenth of the
  characters, since source code and essays would swamp the rest. Sets of slurs and abuse never enter it.
* The order is that of a hash, so the first n documents are a uniform sample of all, for every n.
* `pool` holds every document of the split, whole and short ones too, for labelled classes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from latentbench.data._index import SPLITS, IndexedText, group_key, index_key, read_index, split_of, text_key
from latentbench.data._sources import sources as probe_sources
from latentbench.errors import UserError, unknown_name
from latentbench.identity import sha256_json

__all__ = [
    "MAX_CHARACTERS",
    "MAX_SHARE",
    "MIN_CHARACTERS",
    "Corpus",
    "Document",
    "StreamOptions",
    "load_corpus",
]

MIN_CHARACTERS = 200
"""Shortest text in the stream: about 45 tokens of English."""
MAX_CHARACTERS = 2000
"""Longest part of a text in the stream: about 450 tokens of English."""
MAX_SHARE = 0.10
"""Largest share of the stream's characters that one family of sets may have."""
_PROBE_TEXTS = "probe-texts"


@dataclass(frozen=True, slots=True)
class Document:
    """One distinct text."""

    sha256: str
    """Checksum of the whole text, whitespace normalised; names the document. Cutting does not change it."""
    text: str
    """The text; in the stream, its first `max_characters` at most. Offsets in items count from its start."""
    source: str
    """Id of the first probing set it is in, or the source a corpus file names."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Target by probing set."""
    excerpts: bool = False
    """Whether excerpts may be published: true only where all its sets come from clearly free sources."""


@dataclass(frozen=True)
class StreamOptions:
    """What of a split enters the stream."""

    min_characters: int = MIN_CHARACTERS
    """Shorter texts are left out."""
    max_characters: int = MAX_CHARACTERS
    """Longer texts are cut, at a space if there is one near."""
    max_share: float = MAX_SHARE
    """Largest share of the characters that one family of sets may have; 1 turns the cap off."""
    sources: tuple[str, ...] | None = None
    """Only documents of these sets; None takes all."""

    def __post_init__(self) -> None:
        """Check the numbers against each other.

        Raises:
            UserError: they can't hold together.
        """
        if not 0 < self.min_characters <= self.max_characters:
            raise UserError(
                f"min_characters={self.min_characters} and max_characters={self.max_characters}: the first "
                "has to be positive and at most the second"
            )
        if not 0 < self.max_share <= 1:
            raise UserError(f"max_share={self.max_share}: a share lies above 0 and up to 1")


@dataclass(frozen=True, eq=False)
class Corpus:
    """One split of a corpus."""

    name: str
    """Name it was loaded under."""
    split: str
    """Which split: a key of `SPLITS`."""
    sha256: str
    """Checksum of what the stream holds and of how it was chosen; part of every cell's key."""
    documents: Sequence[Document] = field(repr=False)
    """The stream, in hash order."""
    pool: Sequence[Document] = field(repr=False)
    """Every document of the split, whole, in hash order."""

    def labelled(self, set_id: str, target: str | None = None) -> list[Document]:
        """Documents of the split that a probing set labels, whole, in hash order.

        Args:
            set_id: the set, such as `97_news_class`.
            target: only those with this target; None takes all.

        Raises:
            UserError: the corpus has no such set or target; the nearest are named.
        """
        found = [document for document in self.pool if set_id in document.labels]
        if not found:
            known = {name for document in self.pool for name in document.labels}
            raise unknown_name(f"labelled set of {self.name!r}", set_id, known)
        if target is None:
            return found
        kept = [document for document in found if document.labels[set_id] == target]
        if not kept:
            targets = {document.labels[set_id] for document in found}
            raise unknown_name(f"target of {set_id!r}", target, targets)
        return kept


def load_corpus(
    name: str = _PROBE_TEXTS,
    *,
    split: str,
    options: StreamOptions | None = None,
    cache_dir: Path | None = None,
) -> Corpus:
    """One split of a corpus.

    Args:
        name: `probe-texts`, or a file of your own: JSON lines with `text` and perhaps `source`, `labels`.
        split: "train", "calibrate", "select", "classifier", "test" or "capability".
        options: what enters the stream; see `StreamOptions`.
        cache_dir: the cache; see `latentbench.data.assets.cache_root`.

    Raises:
        UserError: the name, split or a source is unknown, or no document is left.
        AssetError: the texts were not pulled yet.
    """
    options = options or StreamOptions()
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    if name == _PROBE_TEXTS:
        for source in options.sources or ():
            if source not in probe_sources():
                raise unknown_name("probing set", source, probe_sources())
        origin, texts = index_key(name), list(read_index(name, split, cache_dir))
    elif name.endswith(".jsonl") and Path(name).is_file():
        origin, texts = "file", [entry for entry in _read_file(Path(name)) if split_of(entry.group) == split]
    else:
        raise unknown_name("corpus", name, [_PROBE_TEXTS], hint="Or give a file of JSON lines (texts.jsonl).")
    texts.sort(key=lambda entry: entry.sha256[16:])  # the first digits choose the split of short texts
    pool = [_document(entry) for entry in texts]
    documents = _stream(texts, pool, options)
    if not documents:
        raise UserError(
            f"corpus {name!r}: no document of split {split!r} is left with {options}: relax "
            "min_characters or sources"
        )
    content = [[document.sha256, len(document.text)] for document in documents]
    key = sha256_json(
        {"origin": origin, "split": split, "max_share": options.max_share, "documents": content}
    )
    return Corpus(name, split, key, documents, pool)


def _stream(
    texts: Sequence[IndexedText], whole: Sequence[Document], options: StreamOptions
) -> list[Document]:
    eligible = list(
        _one_a_group(pair for pair in zip(texts, whole, strict=True) if _eligible(pair[0], options))
    )
    sizes: Counter[str] = Counter()
    for entry, _ in eligible:
        sizes[_family(entry)] += min(len(entry.text), options.max_characters)
    keep = _kept_shares(sizes, options.max_share)
    return [
        _cut(document, options.max_characters)
        for entry, document in eligible
        if int(entry.sha256[-8:], 16) / 16**8 < keep[_family(entry)]  # digits that order nothing
    ]


def _eligible(entry: IndexedText, options: StreamOptions) -> bool:
    known = probe_sources()
    if any(set_id in known and not known[set_id].stream for set_id in entry.sets):
        return False
    if options.sources is not None and not set(entry.sets) & set(options.sources):
        return False
    return len(entry.text) >= options.min_characters


def _one_a_group(pairs: Iterable[tuple[IndexedText, Document]]) -> Iterator[tuple[IndexedText, Document]]:
    seen: set[str] = set()
    for entry, document in pairs:
        if entry.group not in seen:
            seen.add(entry.group)
            yield entry, document


def _family(entry: IndexedText) -> str:
    source = probe_sources().get(entry.sets[0])
    return source.family if source is not None else entry.sets[0]


def _kept_shares(sizes: Mapping[str, int], max_share: float) -> dict[str, float]:
    """Share of each family to keep, so that none has more than `max_share` of what is kept.

    The k largest families are cut to one level c with c = max_share * (k c + the rest), for the least k at
    which the next family lies below the level. With too few families for that to be possible, all are cut to
    the smallest.
    """
    order = sorted(sizes.values(), reverse=True)
    level, rest = float(min(order, default=1)), sum(order)
    for k, size in enumerate(order if max_share * len(order) > 1 else ()):
        if 1 - k * max_share <= 0:
            break
        level = max_share * rest / (1 - k * max_share)
        if size <= level:
            break
        rest -= size
    return {family: min(1.0, level / size) for family, size in sizes.items()}


def _document(entry: IndexedText) -> Document:
    known = probe_sources()
    free = all(set_id in known and known[set_id].excerpts for set_id in entry.sets)
    return Document(entry.sha256, entry.text, entry.sets[0], entry.labels, free)


def _cut(document: Document, characters: int) -> Document:
    if len(document.text) <= characters:
        return document
    space = document.text.rfind(" ", characters - 50, characters)
    return replace(document, text=document.text[: space if space > 0 else characters])


def _read_file(path: Path) -> list[IndexedText]:
    found: dict[str, IndexedText] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            text, source = row["text"], str(row.get("source", "file"))
            labels = {str(key): str(value) for key, value in row.get("labels", {}).items()}
            key = text_key(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}, line {number}: not a document ({error}); write JSON objects with a 'text' and, "
                "if you like, a 'source' and 'labels'"
            ) from error
        if text.strip():
            found.setdefault(key, IndexedText(key, group_key(text), (source,), labels, text))
    return list(found.values())
