"""Copy a run of the suite `steering-smollm2` here: records, cards, and every concept's numbers from the items.

    python leaderboard/results/steering-smollm2/collect_steering.py RESULTS

Items hold generated texts and stay where they are.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from shutil import copyfile
from typing import Any, cast

from latentbench.identity import sha256_file
from latentbench.store import ResultsFolder, RunRecord, pretty_json
from latentbench_tasks.steering._judged import Rules, read_items
from latentbench_tasks.steering.metrics import concept_rows

HERE = Path(__file__).parent
KEPT = ("cell.json", "run.json")


def main(results: Path, here: Path = HERE) -> None:
    """Copy what is finished; cells that are still running are left out."""
    rows: dict[str, Any] = {}
    folder = ResultsFolder(results)
    for path in sorted((results / "runs").glob("*/*")):
        record = folder.cell(path.name).record()
        if record is None or record.status != "ok":
            continue
        name = str(record.labels["dictionary"])
        rows[name] = _rows(record, path / "items.jsonl")
        target = here / "runs" / path.parent.name / path.name
        target.mkdir(parents=True, exist_ok=True)
        for file in KEPT:
            copyfile(path / file, target / file)
        sums = "".join(f"{sha256_file(target / file)}  {file}\n" for file in KEPT)
        (target / "SHA256SUMS").write_text(sums, encoding="utf-8")
    (here / "concepts.json").write_text(pretty_json(dict(sorted(rows.items()))), encoding="utf-8")


def _rows(record: RunRecord, items: Path) -> dict[str, Any]:
    """By method, concept and metric; None where there is no number. `factor` is the one that was chosen."""
    config = cast(dict[str, Any], record.cell.task["config"])
    with items.open(encoding="utf-8") as lines:
        book = read_items((json.loads(line) for line in lines), Rules.of(config))
    return {
        method: {
            concept: {name: round(value, 4) if math.isfinite(value) else None for name, value in row.items()}
            for concept, row in sorted(concept_rows(book, method).items())
        }
        for method in config["methods"]
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
