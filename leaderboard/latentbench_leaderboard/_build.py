"""From a results folder to a folder of pages: a pure function of records, items and site version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment

from latentbench.errors import UserError
from latentbench.identity import sha256_json
from latentbench_leaderboard._board import Board, Target, boards_of, by_model, lm_label, targets_of
from latentbench_leaderboard._calibration import load_calibrations
from latentbench_leaderboard._compare import compare_shards
from latentbench_leaderboard._curves import charts_against_l0, charts_over_tokens
from latentbench_leaderboard._dictionary import dictionary_view
from latentbench_leaderboard._errata import Erratum, load_errata
from latentbench_leaderboard._format import listing
from latentbench_leaderboard._judges import judges_of
from latentbench_leaderboard._latents import CONTEXTS_SHOWN, LatentBook, latent_book
from latentbench_leaderboard._method import meanings_of, policies_of
from latentbench_leaderboard._render import page, templates
from latentbench_leaderboard._series import siblings_of
from latentbench_leaderboard._shards import shard_text
from latentbench_leaderboard._steering import SteeringBook, steering_book
from latentbench_leaderboard._subjects import Subject, load_subjects
from latentbench_leaderboard._table import ROWS_SHOWN, table_of
from latentbench_leaderboard._target import check_target, write_site
from latentbench_leaderboard._texts import has_texts
from latentbench_leaderboard._units import DRAWS, UnitBook

__all__ = ["SITE_VERSION", "BuildOptions", "SiteReport", "build_site"]

SITE_VERSION = "4"
"""Raised whenever the same records give other pages."""


@dataclass(frozen=True)
class BuildOptions:
    """How a site is built."""

    title: str = "latentbench"
    """Title of the board."""
    target_l0: tuple[float, ...] = ()
    """Sparsities at which tables compare, one board for each; none: those that the suites of the records name."""
    tolerance: float = 0.05
    """Largest distance from the target, as a share of it."""
    local_texts: bool = True
    """Show texts from `texts.jsonl` files beside the items. Leave out for a site that is published: those
    texts come from sources with their own terms.
    """

    def __post_init__(self) -> None:
        if not (all(l0 > 0 for l0 in self.target_l0) and 0 <= self.tolerance < 1):
            named = " and ".join(f"{l0:g}" for l0 in self.target_l0) or "any"
            raise UserError(
                f"a target L0 of {named} with tolerance {self.tolerance:g} holds no "
                "dictionary; the target is a positive number of latents per token, the tolerance a "
                "share of it such as 0.05"
            )


@dataclass(frozen=True)
class SiteReport:
    """What was built."""

    index: Path
    """The first page."""
    dictionaries: int
    """Rows, off-target ones and controls included."""
    cells: int
    """Finished cells."""
    failed: int
    """Failed ones among them."""
    unfinished: int
    """Cells without a record, which are not shown."""
    latents: int
    """Latents with a place on a latents page."""
    local_texts: bool
    """Whether the pages hold texts that are not for publication."""
    files: int
    """Files written."""
    bytes: int
    """Their size together."""


def build_site(results: Path, target: Path, options: BuildOptions) -> SiteReport:
    """Build the site of a results folder.

    Args:
        results: the results folder.
        target: folder of the site; made, or replaced if it is an older site.
        options: see `BuildOptions`.

    Raises:
        UserError: the results can't be read, or the target must not be replaced.
    """
    if results.is_file():
        raise UserError(
            f"{results} is a file: a site is built from a results folder. Take a bundle into one with `latentbench "
            f"leaderboard add {results} --to FOLDER`, and build from that."
        )
    check_target(target, results)
    subjects, unfinished = load_subjects(results)
    site = _Site(subjects, unfinished, load_calibrations(results), load_errata(results), options)
    written = write_site(target, site.files(), site.about)
    records = [entry.record for subject in subjects for entry in subject.entries]
    return SiteReport(
        index=target / "index.html",
        dictionaries=len(subjects),
        cells=len(records),
        failed=sum(record.status == "failed" for record in records),
        unfinished=unfinished,
        latents=sum(book.total for book in site.latents.values()),
        local_texts=site.private,
        files=written.files,
        bytes=written.bytes,
    )


class _Site:
    """One site while it is built."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        unfinished: int,
        calibrations: dict[str, dict[str, Any]],
        errata: list[Erratum],
        options: BuildOptions,
    ) -> None:
        self.subjects = subjects
        self.unfinished = unfinished
        self.calibrations = calibrations
        self.errata = errata
        self.options = options
        self.units = UnitBook()
        self.environment: Environment = templates()

    @cached_property
    def latents(self) -> dict[str, LatentBook]:
        local = self.options.local_texts
        found = {s.key: latent_book(s, local, self.steering.get(s.key)) for s in self.subjects}
        return {key: book for key, book in found.items() if book is not None}

    @cached_property
    def steering(self) -> dict[str, SteeringBook]:
        found = {s.key: steering_book(s) for s in self.subjects}
        return {key: book for key, book in found.items() if book is not None}

    @cached_property
    def targets(self) -> list[Target]:
        named = [Target(l0, self.options.tolerance) for l0 in sorted(set(self.options.target_l0))]
        return named or targets_of(self.subjects, self.options.tolerance)

    @cached_property
    def boards(self) -> list[Board]:
        return boards_of(self.subjects, self.targets, self.units)

    @cached_property
    def runs(self) -> dict[str, list[Subject]]:
        """Training runs of its recipe by key of the row, for rows whose recipe has others."""
        return {run.key: runs for runs in siblings_of(self.subjects).values() for run in runs}

    @cached_property
    def private(self) -> bool:
        """Whether the pages hold texts that are not for publication."""
        return self.options.local_texts and any(
            has_texts(entry.measured.path) for subject in self.subjects for entry in subject.entries
        )

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the site was made from; holds no time and no path, so that equal inputs give equal sites."""
        records = [entry.record for subject in self.subjects for entry in subject.entries]
        return {
            "title": self.options.title,
            "models": [lm_label(group[0].lm) for _, group in by_model(self.subjects)],
            "dictionaries": len(self.subjects),
            "latents": sum(book.total for book in self.latents.values()),
            "site_version": SITE_VERSION,
            "target_l0": [target.l0 for target in self.targets],
            "tolerance": self.options.tolerance,
            "holds_local_texts": self.private,
            "records": len(records),
            "records_sha256": sha256_json(
                sorted([record.key, sha256_json(record.model_dump(mode="json"))] for record in records)
            ),
            "newest_record": max(record.finished for record in records),
        }

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Every file by its path in the site."""
        yield from _static()
        yield from self._board_files()
        yield "curves.html", self._page("curves.html", {"models": self._charts()})
        overview = {"rows": self._steered(), "concepts": self._concept_names()}
        yield "steering.html", self._page("steering.html", overview)
        yield "compare.html", self._page("compare.html", {"draws": DRAWS})
        best = [row.subject.slug for row in self.boards[0].rows or self.boards[0].asides]
        for name, shard in compare_shards(self.subjects, self.units, best):
            yield f"data/{name}.js", shard_text(name, shard).encode("ascii")
        yield "metrics.html", self._page("metrics.html", {"tasks": meanings_of(self.subjects, self.errata)})
        yield (
            "judges.html",
            self._page("judges.html", {"judges": judges_of(self.subjects, self.calibrations)}),
        )
        yield "errata.html", self._page("errata.html", {"errata": self.errata})
        method = {
            "policies": policies_of(self.subjects),
            "boards": self.boards,
            "contexts_shown": CONTEXTS_SHOWN,
            "draws": DRAWS,
        }
        yield "method.html", self._page("method.html", method)
        for subject in self.subjects:
            yield from self._subject_files(subject)

    def _board_files(self) -> Iterator[tuple[str, bytes]]:
        pages = {board.id: f"boards/{board.id}.html" for board in self.boards}
        pages[self.boards[0].id] = "index.html"
        models = {board.lm_key: board for board in reversed(self.boards)}
        for board in self.boards:
            table = table_of(board, set(self.latents))
            values = {
                "board": board,
                "table": table,
                "first": board is self.boards[0],
                "pages": pages,
                "models": list(reversed(models.values())),
                "sparsities": [one for one in self.boards if one.lm_key == board.lm_key],
                "rows_shown": ROWS_SHOWN,
                "unfinished": self.unfinished,
            }
            root = "" if board is self.boards[0] else "../"
            yield pages[board.id], self._page("board.html", values, root)
            for number, shard in enumerate(table.shards):
                name = f"board/{board.id}/{number}"
                yield f"data/{name}.js", shard_text(name, shard).encode("ascii")

    def _subject_files(self, subject: Subject) -> Iterator[tuple[str, bytes]]:
        latents, steering = self.latents.get(subject.key), self.steering.get(subject.key)
        values = {
            "view": dictionary_view(subject, self.runs.get(subject.key, ())),
            "errata": [one for one in self.errata if one.concerns(subject)],
            "subject": subject,
            "latents": latents,
            "steering": steering,
        }
        yield f"dictionaries/{subject.slug}.html", self._page("dictionary.html", values, "../")
        for entry in subject.entries:
            yield f"records/{entry.record.key}.json", entry.record.to_json().encode("utf-8")
        if latents is not None:
            yield f"latents/{subject.slug}.html", self._page("latents.html", values, "../")
            yield from _shards(f"{subject.slug}/latents", latents.index, latents.shards)
        if steering is not None:
            yield f"steering/{subject.slug}.html", self._page("transcripts.html", values, "../")
            for concept in steering.concepts:
                name = f"{subject.slug}/steering-{concept.id}"
                yield f"data/{name}.js", shard_text(name, concept.shard).encode("ascii")

    def _page(self, template: str, values: dict[str, Any], root: str = "") -> bytes:
        shared = {
            "site": self.about,
            "options": self.options,
            "targets": self.targets,
            "target_text": listing([target.text for target in self.targets]),
            "latent_pages": set(self.latents),
        }
        return page(self.environment, template, root, shared | values)

    def _charts(self) -> list[dict[str, Any]]:
        targets = [target.l0 for target in self.targets]
        return [
            {
                "id": f"model-{key[:8]}",
                "lm": lm_label(group[0].lm),
                "against_l0": charts_against_l0(group, targets),
                "over_tokens": charts_over_tokens(group),
            }
            for key, group in by_model(self.subjects)
        ]

    def _steered(self) -> list[dict[str, Any]]:
        """Rows of the overview: a dictionary and its concepts by name."""
        return [
            {"subject": s, "concepts": {c.name: c for c in self.steering[s.key].concepts}}
            for s in sorted(self.subjects, key=lambda subject: subject.control)
            if s.key in self.steering
        ]

    def _concept_names(self) -> list[str]:
        """Names of all concepts, in order."""
        return sorted({concept.name for book in self.steering.values() for concept in book.concepts})


def _shards(
    name: str, index: dict[str, Any], shards: list[list[dict[str, Any]]]
) -> Iterator[tuple[str, bytes]]:
    yield f"data/{name}/index.js", shard_text(f"{name}/index", index).encode("ascii")
    for number, shard in enumerate(shards):
        yield f"data/{name}/{number}.js", shard_text(f"{name}/{number}", shard).encode("ascii")


def _static() -> Iterator[tuple[str, bytes]]:
    folder = files("latentbench_leaderboard") / "static"
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.name.endswith((".css", ".js", ".svg")):
            yield f"static/{item.name}", item.read_bytes()
