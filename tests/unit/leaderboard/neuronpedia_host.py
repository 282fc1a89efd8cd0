"""A small Neuronpedia host: its tables in SQLite, and its admin import as it treats files.

Columns, types, defaults, keys and the importer's steps are those of GitHub hijohnnylin/neuronpedia,
apps/webapp/prisma/schema.prisma (commit 78c4d43d), apps/webapp/app/api/admin/import/route.ts (3861c055),
apps/webapp/app/api/admin/import-file/route.ts (ee2de2c0) and apps/webapp/lib/db/import.ts (efd6e355), as far as an
export can touch them.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

USER = "clkht01d40000jv08hvalcvly"

_COLUMNS = {
    "User": "id String",
    "Model": """id String, displayNameShort String = '', displayName String = '', creatorId String, tlensId String?,
        dimension Int?, visibility String = 'PRIVATE', layers Int, neuronsPerLayer Int, owner String, website String?,
        instruct Boolean = 0, inferenceEnabled Boolean = 0""",
    "SourceSet": """modelId String, name String, hasDashboards Boolean = 1, visibility String = 'PRIVATE',
        description String, type String = '', creatorName String, urls String[], creatorEmail String?,
        creatorId String, releaseName String?""",
    "Source": """id String, modelId String, hasDashboards Boolean = 1, hfRepoId String?, hfFolderId String?,
        visibility String = 'PRIVATE', setName String, creatorId String, num_prompts Int?, num_tokens_in_prompt Int?,
        dataset String?, notes String?""",
    "Neuron": """modelId String, layer String, index String, sourceSetName String?, creatorId String?,
        maxActApprox Float? = 0, hasVector Boolean = 0, vector Float[] = '[]', vectorLabel String?,
        vectorDefaultSteerStrength Float? = 10, hookName String?, neg_str String[] = '[]', neg_values Float[] = '[]',
        pos_str String[] = '[]', pos_values Float[] = '[]', frac_nonzero Float = 0,
        freq_hist_data_bar_heights Float[] = '[]', freq_hist_data_bar_values Float[] = '[]',
        logits_hist_data_bar_heights Float[] = '[]', logits_hist_data_bar_values Float[] = '[]',
        decoder_weights_dist Float[] = '[]'""",
    "Activation": """id String, tokens String[], dataIndex String?, index String, layer String, modelId String,
        dataSource String?, maxValue Float, maxValueTokenIndex Int, minValue Float, values Float[],
        dfaValues Float[] = '[]', dfaTargetIndex Int?, dfaMaxValue Float?, creatorId String, lossValues Float[] = '[]',
        logitContributions String?, binMin Float?, binMax Float?, binContains Float?, qualifyingTokenIndex Int?""",
    "Explanation": """id String, modelId String, layer String, index String, description String, authorId String,
        notes String?, scoreV1 Float = 0, scoreV2 Float?, umap_x Float? = 0, umap_y Float? = 0, umap_cluster Int? = 0,
        umap_log_feature_sparsity Float? = 0, typeName String?, explanationModelName String?""",
    "ExplanationType": """name String, displayName String, description String, featured Boolean = 1,
        isAttention Boolean = 0, url String?, creatorName String, creatorId String""",
    "ExplanationModelType": """name String, displayName String, description String, featured Boolean = 1,
        openRouterModelId String?, url String?, creatorName String""",
    "ExplanationScoreType": """name String, displayName String, description String, featured Boolean = 1,
        scoreDescription String?, url String?, creatorName String, creatorId String""",
    "ExplanationScoreModel": """name String, displayName String, description String, featured Boolean = 1,
        url String?, creatorName String""",
    "ExplanationScore": """id String, initiatedByUserId String, value Float, explanationId String,
        explanationScoreTypeName String, explanationScoreModelName String, jsonDetails String = ''""",
}
_KEYS = {
    "SourceSet": ["modelId, name"],
    "Source": ["modelId, id"],
    "Neuron": ["modelId, layer, index"],
    **{table: ["name"] for table in _COLUMNS if table.startswith("Explanation") and table[11:]},
    "ExplanationScore": ["id"],
}
_REFERENCES = {
    "Model": ["creatorId > User.id"],
    "SourceSet": ["modelId > Model.id", "creatorId > User.id"],
    "Source": ["modelId, setName > SourceSet.modelId, name", "creatorId > User.id"],
    "Neuron": [
        "modelId > Model.id",
        "modelId, layer > Source.modelId, id",
        "modelId, sourceSetName > SourceSet.modelId, name",
        "creatorId > User.id",
    ],
    "Activation": ["modelId, layer, index > Neuron.modelId, layer, index", "creatorId > User.id"],
    "Explanation": [
        "modelId, layer, index > Neuron.modelId, layer, index",
        "authorId > User.id",
        "typeName > ExplanationType.name",
        "explanationModelName > ExplanationModelType.name",
    ],
    "ExplanationType": ["creatorId > User.id"],
    "ExplanationScoreType": ["creatorId > User.id"],
    "ExplanationScore": [
        "initiatedByUserId > User.id",
        "explanationId > Explanation.id",
        "explanationScoreTypeName > ExplanationScoreType.name",
        "explanationScoreModelName > ExplanationScoreModel.name",
    ],
}
_CONFIG = {
    "explanation_model_type": "ExplanationModelType",
    "explanation_type": "ExplanationType",
    "explanation_score_model": "ExplanationScoreModel",
    "explanation_score_type": "ExplanationScoreType",
}
_SQL = {"String": "TEXT", "Int": "INTEGER", "Boolean": "INTEGER", "Float": "REAL"}
_PYTHON: dict[str, tuple[type, ...]] = {
    "String": (str,),
    "Int": (int,),
    "Boolean": (bool,),
    "Float": (int, float),
}
_MODEL_ID = re.compile(r"[a-zA-Z0-9._-]{1,128}")


class Host:
    """A host with one user and, if asked for, a model."""

    def __init__(self, model: str | None = None) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.row_factory = sqlite3.Row
        self.database.execute("PRAGMA foreign_keys = ON")
        self._types: dict[str, dict[str, str]] = {}
        for table, columns in _COLUMNS.items():
            self._make(table, columns)
        self._insert("User", [{"id": USER}])
        if model is not None:
            row = {"id": model, "creatorId": USER, "layers": 30, "neuronsPerLayer": 0, "owner": "x"}
            self._insert("Model", [row])

    def load(self, folder: Path) -> None:
        """Import config, then every source of a folder, scores included."""
        for name, table in _CONFIG.items():
            path = folder / "config" / f"{name}.jsonl"
            if path.exists():
                self._create(table, path)
        for source in sorted(path.parent for path in folder.glob("*/*/source.jsonl")):
            assert _MODEL_ID.fullmatch(source.parent.name)
            for name, table in (("model", "Model"), ("sourceset", "SourceSet"), ("source", "Source")):
                self._create(table, source / f"{name}.jsonl")
            for name, table in (
                ("features", "Neuron"),
                ("activations", "Activation"),
                ("explanations", "Explanation"),
                ("explanation_scores", "ExplanationScore"),
            ):
                for path in sorted((source / name).glob("*.jsonl.gz")):
                    assert re.fullmatch(r"batch-\d+\.jsonl\.gz", path.name)
                    self.import_jsonl(table, gzip.decompress(path.read_bytes()).decode("utf-8"))

    def import_jsonl(self, table: str, text: str) -> None:
        """`importJsonlString`: columns of the first line alone, NULL for what another line lacks."""
        text = text.replace("\\u0000", " ")
        lines = [json.loads(line) for line in text.strip().split("\n")]
        columns = [name for name in self._types[table] if name in lines[0]]
        self._insert(table, [{name: line.get(name) for name in columns} for line in lines])

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table, arrays as lists."""
        found = [dict(row) for row in self.database.execute(f'SELECT * FROM "{table}"')]
        arrays = [name for name, kind in self._types[table].items() if "[]" in kind]
        return [{**row, **{name: json.loads(row[name]) for name in arrays}} for row in found]

    def _make(self, table: str, columns: str) -> None:
        self._types[table] = {}
        parts = []
        for column in re.split(r",\s*", columns):
            head, _, default = column.partition(" = ")
            name, kind = head.split()
            self._types[table][name] = kind
            sql = "TEXT" if "[]" in kind else _SQL[kind.rstrip("?")]
            null = "" if kind.endswith("?") else "NOT NULL"
            parts.append(f'"{name}" {sql} {null} {f"DEFAULT {default}" if default else ""}')
        for key in _KEYS.get(table, ["id"]):
            parts.append(f"UNIQUE ({_quoted(key)})")
        for reference in _REFERENCES.get(table, []):
            mine, _, other = reference.partition(" > ")
            target, _, theirs = other.partition(".")
            parts.append(f'FOREIGN KEY ({_quoted(mine)}) REFERENCES "{target}" ({_quoted(theirs)})')
        self.database.execute(f'CREATE TABLE "{table}" ({", ".join(parts)}) STRICT')

    def _create(self, table: str, path: Path) -> None:
        """What Prisma's `create` does: a field that it does not know is an error, and what is there stays."""
        for line in path.read_text(encoding="utf-8").split("\n"):
            if line:
                row = json.loads(line)
                assert set(row) <= set(self._types[table]), (
                    f"{table} has no {set(row) - set(self._types[table])}"
                )
                self._insert(table, [row])

    def _insert(self, table: str, rows: list[dict[str, Any]]) -> None:
        names = list(rows[0])
        places = ", ".join("?" * len(names))
        sql = f'INSERT INTO "{table}" ({_quoted(", ".join(names))}) VALUES ({places}) ON CONFLICT DO NOTHING'
        self.database.executemany(
            sql, [[self._value(table, name, row[name]) for name in names] for row in rows]
        )

    def _value(self, table: str, name: str, value: Any) -> Any:
        kind = self._types[table][name].rstrip("?")
        if value is None:
            return None
        for one in value if kind.endswith("[]") else [value]:
            wanted = _PYTHON[kind.removesuffix("[]")]
            assert type(one) in wanted, f"{table}.{name} takes {kind}, not {one!r}"
            if isinstance(one, str):
                one.encode("utf-8")  # Postgres refuses halves of surrogate pairs,
                assert "\x00" not in one  # and NUL
        return json.dumps(value) if kind.endswith("[]") else value


def _quoted(names: str) -> str:
    return ", ".join(f'"{name}"' for name in names.split(", "))
