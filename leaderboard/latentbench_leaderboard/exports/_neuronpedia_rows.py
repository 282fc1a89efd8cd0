"""The rows of Neuronpedia's tables; see `_neuronpedia` for what the importer does with them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from latentbench_leaderboard._subjects import Subject
from latentbench_leaderboard.exports._neuronpedia_facts import Context, Explanation, Facts, LatentFacts

__all__ = [
    "NEURONPEDIA_CREATOR",
    "ConfigRows",
    "NeuronpediaOptions",
    "Target",
    "activation_rows",
    "density",
    "explanation_row",
    "feature_row",
    "json_lines",
    "model_rows",
    "score_rows",
    "set_row",
    "source_row",
]

NEURONPEDIA_CREATOR: Final = "clkht01d40000jv08hvalcvly"
"""The user that Neuronpedia's own converter writes rows for unless told otherwise."""
_REFUSED = re.compile("[\x00\ud800-\udfff]")
"""NUL, and halves of surrogate pairs."""


@dataclass(frozen=True)
class NeuronpediaOptions:
    """What the results can't tell."""

    source_set: str | None = None
    """Name of the source set; required."""
    model_id: str | None = None
    """Id of the language model on the host; None takes the model's own name if that can be an id."""
    layers: int | None = None
    """Layers of the language model: with it a host that lacks the model makes it; without, the host must have it."""
    creator: str = "unknown"
    """Who made the dictionaries, as the host shows it."""
    creator_id: str = NEURONPEDIA_CREATOR
    """Id of the host's user that everything is written for."""
    dictionaries: tuple[str, ...] = ()
    """Names of the dictionaries to export; empty for all."""
    local_texts: bool = False
    """Whether to take texts from `texts.jsonl`, whatever their terms."""


class Target(NamedTuple):
    """Where a dictionary goes."""

    subject: Subject
    """The dictionary."""
    model: str
    """Id of the language model."""
    layer: str
    """Its layer, "e" for the embedding."""
    source: str
    """Id of the source."""


def density(latent: LatentFacts, facts: Facts) -> float | None:
    """Share of the tokens; None where it was not seen at all, which says no more than "below one in so many"."""
    return latent.active / facts.tokens if facts.tokens and latent.active else None


def model_rows(target: Target, options: NeuronpediaOptions) -> list[dict[str, Any]]:
    """The model, if its layers are known: the host's column has no null. A model that is there already is kept."""
    if options.layers is None:
        return []
    name = str(target.subject.lm.get("name", target.model))
    return [
        {
            "id": target.model,
            "displayName": name,
            "displayNameShort": name,
            "creatorId": options.creator_id,
            "visibility": "UNLISTED",
            "layers": options.layers,
            "neuronsPerLayer": 0,  # pages of neurons, as Neuronpedia's converter writes it; the column has no null
            "owner": options.creator,
        }
    ]


def set_row(target: Target, options: NeuronpediaOptions, description: str) -> dict[str, Any]:
    """The source set, as a row of the table SourceSet."""
    return {
        "modelId": target.model,
        "name": options.source_set,
        "creatorId": options.creator_id,
        "creatorName": options.creator,
        "description": description,
        "urls": [],
        "visibility": "UNLISTED",
    }


def source_row(target: Target, facts: Facts, options: NeuronpediaOptions) -> dict[str, Any]:
    """The source, as a row of the table Source; `notes` say what its numbers are."""
    cells = [entry.record.cell for entry in target.subject.entries]
    row: dict[str, Any] = {
        "id": target.source,
        "modelId": target.model,
        "setName": options.source_set,
        "creatorId": options.creator_id,
        "visibility": "UNLISTED",
        "notes": _notes(target.subject, facts),
    }
    corpora = sorted({str(cell.corpus["name"]) for cell in cells if cell.corpus.get("name")})
    lengths = {cell.token_policy.get("context") for cell in cells}
    if corpora:
        row["dataset"] = ", ".join(corpora)
    if len(lengths) == 1 and isinstance(length := lengths.pop(), int):
        row["num_tokens_in_prompt"] = length
    return row


def _notes(subject: Subject, facts: Facts) -> str:
    sites = ", ".join(map(str, subject.card["reads"]))
    parts = [
        f"{subject.name}: {subject.family} at {sites}, exported by latentbench",
        "a control, whose scores mean nothing" if subject.control else "",
        f"weights sha256 {subject.card['sha256']}" if subject.card.get("sha256") else "",
        "activations are strengths, not raw codes: a latent's contribution relative to the norm of its token's "
        "centred activation, times sqrt(2048)",
        "maxActApprox is the largest strength that was measured",
        "frac_nonzero was counted on "
        f"{facts.tokens} tokens; where a latent was not seen on any of them, it is not known"
        if facts.tokens
        else "frac_nonzero was not measured",
        "logits, histograms and vectors were not measured",
    ]
    return "; ".join(part for part in parts if part)


def feature_row(
    target: Target, latent: LatentFacts, facts: Facts, options: NeuronpediaOptions
) -> dict[str, Any]:
    """A latent, as a row of the table Neuron; without `frac_nonzero` where the density is not known."""
    row: dict[str, Any] = {
        **_where(target, latent),
        "sourceSetName": options.source_set,
        "creatorId": options.creator_id,
        "maxActApprox": latent.peak,
        "vectorDefaultSteerStrength": None,
    }
    share = density(latent, facts)
    return row if share is None else row | {"frac_nonzero": share}


def activation_rows(target: Target, latent: LatentFacts, options: NeuronpediaOptions) -> list[dict[str, Any]]:
    """A latent's contexts, the strongest first, as rows of the table Activation."""
    ordered = sorted(
        latent.contexts.values(), key=lambda one: (-max(one.values), one.document, one.start, one.activated)
    )
    return [_activation(target, latent, context, options) for context in ordered]


def _activation(
    target: Target, latent: LatentFacts, context: Context, options: NeuronpediaOptions
) -> dict[str, Any]:
    where, values = _where(target, latent), list(context.values)
    end = context.start + len(context.tokens)
    origin = f"{context.document}:{context.start}:{end}"
    return {
        "id": _id("activation", *where.values(), origin, str(context.activated)),
        **where,
        "creatorId": options.creator_id,
        "tokens": list(context.tokens),
        "values": values,
        "maxValue": max(values),
        "maxValueTokenIndex": values.index(max(values)),
        "minValue": min(values),
        "qualifyingTokenIndex": context.activated,
        "dataSource": context.source,
        "dataIndex": origin,
    }


def explanation_row(
    target: Target, latent: LatentFacts, explanation: Explanation, options: NeuronpediaOptions
) -> dict[str, Any]:
    """An explanation, as a row of the table Explanation; `notes` hold its scores."""
    where = _where(target, latent)
    scores = [
        f"{score.kind} {score.value:.3f} over {score.texts} texts"
        + (f" ({score.unscored} questions unscored)" if score.unscored else "")
        for score in explanation.scores
    ]
    return {
        "id": _id("explanation", *where.values(), explanation.cell),
        **where,
        "authorId": options.creator_id,
        "description": explanation.text,
        "typeName": _method(explanation),
        "explanationModelName": explanation.model,
        "notes": f"latentbench cell {explanation.cell}; balanced accuracy, chance 0.5: "
        + (", ".join(scores) or "not scored"),
        "umap_x": None,
        "umap_y": None,
        "umap_cluster": None,
        "umap_log_feature_sparsity": None,
    }


def score_rows(
    explanation_id: str, explanation: Explanation, options: NeuronpediaOptions
) -> list[dict[str, Any]]:
    """An explanation's scores, as rows of the table ExplanationScore."""
    return [
        {
            "id": _id("score", explanation_id, score.kind),
            "initiatedByUserId": options.creator_id,
            "value": score.value,
            "explanationId": explanation_id,
            "explanationScoreTypeName": _score_type(explanation, score.kind),
            "explanationScoreModelName": explanation.model,
        }
        for score in explanation.scores
    ]


def _where(target: Target, latent: LatentFacts) -> dict[str, str]:
    return {"modelId": target.model, "layer": target.source, "index": str(latent.number)}


def _method(explanation: Explanation) -> str:
    return f"latentbench_autointerp-{explanation.version}"


def _score_type(explanation: Explanation, kind: str) -> str:
    return f"latentbench_{kind}-{explanation.version}"


class ConfigRows:
    """Methods and models that explanations name, as rows of the host's own tables."""

    def __init__(self, options: NeuronpediaOptions) -> None:
        self._options = options
        self._rows: dict[str, dict[str, dict[str, Any]]] = {}

    def add(self, explanation: Explanation) -> None:
        """Note what an explanation names."""
        method = _method(explanation)
        says = f"latentbench, task autointerp, version {explanation.version}"
        self._add(
            "explanation_type", method, f"{says}: a judge explains a latent from contexts of it", own=True
        )
        self._add("explanation_model_type", explanation.model, "judge of latentbench's task autointerp")
        for score in explanation.scores:
            name = _score_type(explanation, score.kind)
            self._add("explanation_score_type", name, f"{says}: balanced accuracy, chance 0.5", own=True)
            self._add("explanation_score_model", explanation.model, "judge of latentbench's task autointerp")

    def _add(self, table: str, name: str, description: str, own: bool = False) -> None:
        row = {"name": name, "displayName": name, "description": description, "featured": False}
        row |= (
            {"creatorName": "latentbench", "creatorId": self._options.creator_id}
            if own
            else {"creatorName": "unknown"}
        )
        self._rows.setdefault(table, {})[name] = row

    def files(self) -> dict[str, bytes]:
        """The files by path."""
        return {
            f"config/{table}.jsonl": json_lines([rows[name] for name in sorted(rows)])
            for table, rows in sorted(self._rows.items())
        }


def _id(*parts: str) -> str:
    """25 characters, as the host's own ids, from what the row is."""
    return "c" + hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest()[:24]


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """JSON lines that the importer and Postgres take."""
    return "".join(_line(row) + "\n" for row in rows).encode("ascii")


def _line(row: Mapping[str, Any]) -> str:
    text = json.dumps(_clean(row), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace(r"\\u0000", r"\u005cu0000")  # the importer would break it


def _clean(value: Any) -> Any:
    """The same without characters that Postgres refuses."""
    if isinstance(value, str):
        return _REFUSED.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {key: _clean(inner) for key, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list) else value
