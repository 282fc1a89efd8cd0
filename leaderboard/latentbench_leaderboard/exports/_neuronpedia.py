r"""Neuronpedia: features, activations and explanations as its admin import reads them.

Source: GitHub hijohnnylin/neuronpedia, apps/webapp/app/api/admin/import/route.ts (commit 3861c055), lib/db/import.ts
(efd6e355), prisma/schema.prisma (78c4d43d) and utils/neuronpedia-utils/neuronpedia_utils/export-data.py (1a80fe9b);
the converter is jbloomAus/SAEDashboard, sae_dashboard/neuronpedia/neuronpedia_export.py (3ea1249a). The layout is

    <model id>/<source id>/{model,sourceset,source}.jsonl          (`release.jsonl` is optional there, and not written)
    <model id>/<source id>/{features,activations,explanations}/batch-<n>.jsonl.gz
    <model id>/<source id>/explanation_scores/batch-<n>.jsonl.gz   (for /api/admin/import-file, table ExplanationScore)
    config/explanation_{type,model_type,score_type,score_model}.jsonl

What the importer does decides what is written:

* It takes the columns of a whole file from its first line, and the database's default for the others. So all lines
  of a file have the same fields, and features whose density is not known stand in files without `frac_nonzero`,
  which has no null. What is known of no latent (logits, histograms, vectors) is never a field; the default of those
  columns is empty. That goes for the lists of promoted tokens, too: `feature_count` stores ten without the logits
  beside them. Fields whose default is a number but that may be null (`maxActApprox`, `umap_x`) are written as null.
* It keeps what is there (`ON CONFLICT DO NOTHING`); ids derive from the contents, so a second import adds nothing.
* Explanations name their method and model, which must exist as rows: `config` holds those that these need. It is no
  host's whole config: append the lines whose names the host's own files lack.
* Postgres takes no NUL and no half of a surrogate pair, and the importer replaces the six characters `\u0000` wherever
  they are in the JSON, even behind a backslash.

A source is one layer of a model: `<layer>-<source set>`, then `__` and what tells several dictionaries of a layer
apart. So a dictionary that reads several sites has no place there, and is refused.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from latentbench.errors import UserError
from latentbench_leaderboard._format import slug
from latentbench_leaderboard._subjects import Subject
from latentbench_leaderboard.exports._neuronpedia_facts import Facts, facts_of
from latentbench_leaderboard.exports._neuronpedia_rows import (
    ConfigRows,
    NeuronpediaOptions,
    Target,
    activation_rows,
    density,
    explanation_row,
    feature_row,
    json_lines,
    model_rows,
    score_rows,
    set_row,
    source_row,
)

__all__ = ["Exported", "NeuronpediaExport", "neuronpedia_files"]

_BATCH = 1024
"""Features in a file, as in Neuronpedia's own exports; activations and explanations go with their features."""
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_SITE = re.compile(r"(?:resid_post|resid_mid|mlp_in|mlp_out|attn_z|attn_out)\.(\d+)|embed")
_EMBEDDING = "e"
"""What Neuronpedia has in place of a layer for the embedding."""
_TASKS = (
    "`feature_count` and `interpretability` measure contexts, `core` how often a latent is active, `autointerp` "
    "explanations"
)


class Exported(NamedTuple):
    """One dictionary in the export."""

    dictionary: str
    """Its name."""
    source: str
    """`<model id>/<source id>`."""
    features: int
    """Latents of which anything was measured."""
    without_density: int
    """Of those, latents without a density: a host shows its default, 0."""
    activations: int
    """Contexts."""
    explanations: int
    """Explanations."""
    left_out: dict[str, int]
    """Contexts that are not there, by reason."""


class NeuronpediaExport(NamedTuple):
    """The whole export."""

    files: dict[str, bytes]
    """Files by path."""
    exported: list[Exported]
    """What is in them."""
    refused: list[tuple[str, str]]
    """Dictionaries that are not in them: name and reason."""


def neuronpedia_files(subjects: Sequence[Subject], options: NeuronpediaOptions) -> NeuronpediaExport:
    """The export of some dictionaries; the same bytes every time.

    Args:
        subjects: the dictionaries.
        options: names that the results can't tell, and what to take.

    Raises:
        UserError: a name is needed and missing or can't be one, or no dictionary can be exported.
    """
    if options.source_set is None:
        raise UserError(
            "Neuronpedia keeps dictionaries in source sets: name one with --source-set, short, with its author, hook "
            "and width, such as mylab-res-2k (the layer is put before it)"
        )
    _check("--source-set", options.source_set)
    refused: list[tuple[str, str]] = []
    files: dict[str, bytes] = {}
    exported = []
    config = ConfigRows(options)
    places = _places(_chosen(subjects, options.dictionaries), options, refused)
    described = _descriptions(places)
    for target in places:
        facts = facts_of(target.subject, options.local_texts)
        if not facts.latents:
            refused.append((target.subject.name, f"no cell holds items of its latents ({_TASKS})"))
            continue
        folder = f"{target.model}/{target.source}"
        made = _folder(target, facts, options, described[target.model], config)
        files |= {f"{folder}/{name}": data for name, data in made.items()}
        exported.append(_exported(target, facts, folder))
    if not exported:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused)
        raise UserError(f"nothing here can be exported to Neuronpedia: {reasons}")
    return NeuronpediaExport(files | config.files(), exported, refused)


def _chosen(subjects: Sequence[Subject], names: tuple[str, ...]) -> list[Subject]:
    known = [subject.name for subject in subjects]
    for name in names:
        if name not in known:
            raise UserError(f"there is no dictionary {name!r} in the results; there are: {', '.join(known)}")
    return [subject for subject in subjects if not names or subject.name in names]


def _places(
    subjects: Sequence[Subject], options: NeuronpediaOptions, refused: list[tuple[str, str]]
) -> list[Target]:
    """Source ids; dictionaries that share a layer get their names behind it."""
    models = {str(subject.lm.get("name", "")) for subject in subjects}
    if options.model_id is not None and len(models) > 1:
        raise UserError(
            f"--model-id names one language model, and the dictionaries are of {len(models)} "
            f"({', '.join(sorted(models))}): choose those of one with --dictionary"
        )
    found = []
    for subject in subjects:
        layer = _layer(subject)
        if layer is None:
            refused.append((subject.name, _no_layer(subject)))
        else:
            found.append((subject, _model(subject, options), layer))
    shared = Counter((model, layer) for _, model, layer in found)
    return [
        Target(
            subject,
            model,
            layer,
            f"{layer}-{options.source_set}"
            + (f"__{slug(subject.name, subject.key)}" if shared[model, layer] > 1 else ""),
        )
        for subject, model, layer in found
    ]


def _layer(subject: Subject) -> str | None:
    """The layer of a dictionary that reads one site."""
    sites = subject.card.get("reads")
    if not isinstance(sites, (list, tuple)) or len(sites) != 1:
        return None
    match = _SITE.fullmatch(str(sites[0]))
    return None if match is None else match[1] or _EMBEDDING


def _no_layer(subject: Subject) -> str:
    sites = [str(site) for site in subject.card.get("reads") or ()]
    if len(sites) < 2:
        return f"a source of Neuronpedia is one layer, and {sites[0] if sites else 'its card'} names none"
    shown = f"{sites[0]}, {sites[1]}" + (", ..." if len(sites) > 2 else "")
    return (
        f"a source of Neuronpedia is one layer, and the latents of this {subject.family} are shared by "
        f"{len(sites)} sites ({shown})"
    )


def _model(subject: Subject, options: NeuronpediaOptions) -> str:
    if options.model_id is not None:
        _check("--model-id", options.model_id)
        return options.model_id
    name = str(subject.lm.get("name", ""))
    made = name.rpartition("/")[2].lower()
    if not _is_id(made):
        raise UserError(
            f"the language model's name, {name!r}, can't be an id of Neuronpedia: give the id that the host has for "
            "it with --model-id, such as gemma-2-2b"
        )
    return made


def _check(option: str, name: str) -> None:
    if not _is_id(name):
        raise UserError(
            f"{option} {name!r} can't be an id of Neuronpedia: a-z, 0-9, hyphens, dots and single underscores, "
            "beginning with a letter or digit, and not 'config'"
        )


def _is_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None and "__" not in name and name != "config"


def _descriptions(places: Iterable[Target]) -> dict[str, str]:
    """Of the source set of each model: kinds of sites and widths. The first import of a set decides what it says."""
    found: dict[str, set[str]] = {}
    for target in places:
        card = target.subject.card
        kind, width = str(card["reads"][0]).partition(".")[0], card.get("n_latents")
        words = f"{kind}, {width} latents" if isinstance(width, int) else kind
        found.setdefault(target.model, set()).add(words)
    return {model: "; ".join(sorted(words)) for model, words in found.items()}


def _exported(target: Target, facts: Facts, folder: str) -> Exported:
    latents = facts.latents.values()
    return Exported(
        target.subject.name,
        folder,
        len(latents),
        sum(density(latent, facts) is None for latent in latents),
        sum(len(latent.contexts) for latent in latents),
        sum(len(latent.explanations) for latent in latents),
        dict(sorted(facts.left_out.items())),
    )


def _folder(
    target: Target, facts: Facts, options: NeuronpediaOptions, description: str, config: ConfigRows
) -> dict[str, bytes]:
    """The files of one source by name."""
    files = {
        "model.jsonl": json_lines(model_rows(target, options)),
        "sourceset.jsonl": json_lines([set_row(target, options, description)]),
        "source.jsonl": json_lines([source_row(target, facts, options)]),
    }
    ordered = [facts.latents[number] for number in sorted(facts.latents)]
    dense = [latent for latent in ordered if density(latent, facts) is not None]
    others = [latent for latent in ordered if density(latent, facts) is None]
    batches = [part[at : at + _BATCH] for part in (dense, others) for at in range(0, len(part), _BATCH)]
    for number, batch in enumerate(batches):
        rows = {
            "features": [feature_row(target, latent, facts, options) for latent in batch],
            "activations": [row for latent in batch for row in activation_rows(target, latent, options)],
            "explanations": [],
            "explanation_scores": [],
        }
        for latent in batch:
            for explanation in latent.explanations:
                one = explanation_row(target, latent, explanation, options)
                rows["explanations"].append(one)
                rows["explanation_scores"] += score_rows(str(one["id"]), explanation, options)
                config.add(explanation)
        for kind, lines in rows.items():
            if lines:
                files[f"{kind}/batch-{number}.jsonl.gz"] = gzip.compress(json_lines(lines), 6, mtime=0)
    return files
