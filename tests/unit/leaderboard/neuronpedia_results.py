"""Results with just the items that an export to Neuronpedia reads, and what is made of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from leaderboard_records import DICTIONARIES, Made, cell_of, finish, metric, record_of
from neuronpedia_host import Host

from latentbench.store import CellFolder, ErrorRecord, ResultsFolder
from latentbench_leaderboard._subjects import load_subjects
from latentbench_leaderboard.exports import NeuronpediaExport, NeuronpediaOptions, neuronpedia_files

TOPK, ROUTED = DICTIONARIES[0], DICTIONARIES[1]
FREE, TERMS = "47_reasoning_tf", "163_agnews_2"
"""A source whose excerpts may be published, and one with terms of its own."""
RUBRIC = {"name": "openai", "model": "gpt-4o-mini"}
MODEL = "smollm2-135m-q4"
Items = list[dict[str, Any]]


def context(document: str, values: list[Any], source: str = FREE, **changed: Any) -> dict[str, Any]:
    """A context that begins behind a row's start, so that nothing is cut off."""
    tokens = [f" word{place}" for place in range(len(values))]
    numbers = [value for value in values if isinstance(value, (int, float))]
    made = {
        "document": document,
        "source": source,
        "start": 10,
        "end": 10 + len(values),
        "activation": max(numbers, default=None),
        "excerpt": {"tokens": tokens, "activations": values, "activated": 1},
    }
    return made | changed


def latent(number: int, *contexts: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "latent", "id": str(number), "latent": number, "contexts": list(contexts)}


def add(
    results: ResultsFolder,
    made: Made,
    task: str,
    items: Items,
    judgements: Items | None = None,
    judge: dict[str, Any] | None = None,
    *,
    seed: int = 0,
    error: ErrorRecord | None = None,
) -> CellFolder:
    cell = cell_of(made, task, {}, judge, seed)
    record = record_of(made, cell, [] if error else [metric("l0", 1.0)], error=error)
    rows: Items = [
        {"kind": "row", "id": name, "document": name, "start_token": 0, "latents": [], "strengths": []}
        for name in ("aa", "bb", "cc", "dd", "ee")
    ]
    return finish(results, record, [*rows, *items], judgements)


def core_row(tokens: int, active: dict[int, int]) -> dict[str, Any]:
    return {
        "kind": "core",
        "id": f"core {tokens}",
        "tokens": tokens,
        "latents": list(active),
        "active": list(active.values()),
    }


def answer(kind: str, number: int, **fields: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "id": f"{kind}-{number}",
        "latent": number,
        "status": "ok",
        "model": "gpt-4o-mini-2024",
        **fields,
    }


def exported(results: ResultsFolder, **options: Any) -> NeuronpediaExport:
    subjects, _ = load_subjects(results.path)
    return neuronpedia_files(subjects, NeuronpediaOptions(**{"source_set": "lab-res-2k", **options}))


def loaded(made: NeuronpediaExport, folder: Path, model: str | None = MODEL) -> Host:
    """A host that has imported it, twice: the second time must change nothing."""
    for name, data in made.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    host = Host(model)
    host.load(folder)
    before = list(host.database.iterdump())
    host.load(folder)
    assert list(host.database.iterdump()) == before
    return host


def lines(made: NeuronpediaExport, kind: str) -> Items:
    found = [gzip.decompress(data) for name, data in made.files.items() if f"/{kind}/" in name]
    return [json.loads(line) for data in found for line in data.decode("ascii").splitlines()]
