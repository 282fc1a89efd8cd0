"""From a choice to what is done to the model: the intervention of each method and concept at any factor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from latentbench.adapters import Dictionary
from latentbench.identity import sha256_json
from latentbench.interventions import (
    BoundIntervention,
    Intervention,
    bind,
    dictionary_sha256,
    vector_payload,
)
from latentbench.lm import Site
from latentbench.run import CellSetup, Item
from latentbench.selectors import promoted_tokens
from latentbench.store import ResponseCache
from latentbench_tasks.steering import _generate as gen
from latentbench_tasks.steering._choose import ChoiceOptions, Labelled, choice_item
from latentbench_tasks.steering._concepts import Concept, prompts
from latentbench_tasks.steering._config import SteeringConfig
from latentbench_tasks.steering._dense import Stream, stream_acts
from latentbench_tasks.steering._methods import METHODS
from latentbench_tasks.steering._rank import Ranker
from latentbench_tasks.steering._write import Steer

if TYPE_CHECKING:
    from latentbench.data import TokenRow

__all__ = ["Chooser", "steers"]

_LENS_TOKENS = 20
"""Arad et al.'s success@20 (arXiv 2505.20063)."""


class Chooser:
    """Makes the choices of a cell, as items of kind "choice"; those that are stored are not made again."""

    def __init__(
        self, setup: CellSetup, config: SteeringConfig, rows: Sequence[TokenRow], items: Sequence[Item]
    ) -> None:
        """A chooser.

        Args:
            setup: the cell.
            config: the task's options.
            rows: tokens of the labelled documents.
            items: what is stored: the watcher's items, and choices.
        """
        self._setup = setup
        self._config = config
        self._rows = rows
        self._stored = {(one["method"], one["concept"]): one for one in items if one["kind"] == "choice"}
        options = ChoiceOptions(config.contrast, config.unit, config.n_latents, config.max_density)
        self._labelled = Labelled(items, gen.decoder_norms(setup.dictionary), options)
        self._ranker = Ranker(setup, self._labelled, rows, config.candidates)
        self._stream: Stream | None = None

    def choices(self, concepts: Sequence[Concept]) -> Iterator[Item]:
        """One item for every method and concept: `latents`, a `direction` or neither, and the `reason` if it can't."""
        for method in self._config.methods:
            for concept in concepts:
                stored = self._stored.get((method, concept.id))
                yield stored if stored is not None else self._choice(method, concept.id)

    def _choice(self, method: str, concept: str) -> Item:
        kind = METHODS[method].kind
        item: Item = {"kind": "choice", "concept": concept, "method": method, "latents": [], "reason": None}
        if kind == "prompt":
            return item
        if method == "random_direction":
            first = self._labelled.contrast(concept)
            return {**item, "reason": first.reason}
        if kind == "direction":
            return {**item, **self._direction(method, concept)}
        return choice_item(self._labelled, concept, method, self._ranker.ranking(method, concept))

    def _direction(self, method: str, concept: str) -> Item:
        positives, negatives = (
            sorted(str(one["document"]) for one in side) for side in self._labelled.sides(concept)
        )
        if min(len(positives), len(negatives)) < 2:
            return {"reason": "fewer than 2 labelled documents on a side"}
        key = {
            "what": "steering direction",
            "version": 3,
            "lm": self._setup.lm.identity(),
            "method": method,
            "site": str(self._site()),
            "documents": [positives, negatives],
            # The unit is the largest activation on all labelled documents.
            "all": self._tokens(),
            "skip_first": self._setup.tokens.skip_first,
        }
        with ResponseCache(self._setup.cache / "steered-texts.sqlite") as cache:
            found = cache.get(key)
            if found is None:
                made = self._acts().direction(method, positives, negatives)
                found = {
                    "site": str(made.site),
                    "direction": [float(f"{value:.7g}") for value in made.vector.tolist()],
                    "units": [float(f"{made.unit:.6g}")],
                }
                cache.put(key, found)
        return dict(found)

    def _site(self) -> Site:
        if self._config.baseline_site:
            return self._setup.lm.site(self._config.baseline_site)
        return self._setup.dictionary.writes[-1]

    def _tokens(self) -> str:
        return sha256_json(sorted([row.document, list(row.ids)] for row in self._rows))

    def _acts(self) -> Stream:
        if self._stream is None:
            key = [
                self._setup.lm.identity(),
                str(self._site()),
                self._setup.tokens.skip_first,
                self._tokens(),
            ]
            self._stream = self._setup.shared.once(
                f"steering-stream:{sha256_json(key)}",
                lambda: stream_acts(self._setup, self._rows, self._site()),
            )
        return self._stream


def steers(
    setup: CellSetup, config: SteeringConfig, choices: Sequence[Item], concepts: Sequence[Concept]
) -> dict[tuple[str, str], Steer]:
    """What every choice does, by (method, concept); choices with a reason for doing nothing are left out."""
    usable = [choice for choice in choices if choice["reason"] is None]
    lens = _lens(setup, usable)
    by_id = {concept.id: concept for concept in concepts}
    units = gen.directions(setup.dictionary, [one for one in usable if one["method"] == config.methods[0]])
    made: dict[tuple[str, str], Steer] = {}
    for choice in usable:
        method, concept = choice["method"], choice["concept"]
        if choice["latents"]:
            tokens = frozenset(token for latent in choice["latents"] for token in lens[latent])
            made[method, concept] = Steer(bound=_latents(setup.dictionary, config, choice), lens=tokens)
        elif "direction" in choice:
            made[method, concept] = Steer(bound=_dense(config, choice))
        elif METHODS[method].kind == "prompt":
            made[method, concept] = Steer(prompts=_told(setup, config, by_id[concept]))
        elif concept in units:
            made[method, concept] = Steer(space=gen.random_direction(units[concept], setup.seed, concept))
    return made


def _latents(
    dictionary: Dictionary, config: SteeringConfig, choice: Mapping[str, Any]
) -> Callable[[float], BoundIntervention]:
    latents = tuple(choice["latents"])

    def at(factor: float) -> BoundIntervention:
        # Several latents share the amount, so that it does not grow with them.
        record = Intervention(
            operator=config.operator,
            amounts=tuple(factor / len(latents) for _ in latents),
            latents=latents,
            dictionary=dictionary_sha256(dictionary),
            unit="max_activation",
            unit_values=tuple(choice["units"]),
            unit_source=f"{config.unit} activation on the labelled texts of the select split",
            phases=config.phases,
        )
        return bind(record, dictionary)

    return at


def _dense(config: SteeringConfig, choice: Mapping[str, Any]) -> Callable[[float], BoundIntervention]:
    vector = torch.tensor(choice["direction"], dtype=torch.float32)

    def at(factor: float) -> BoundIntervention:
        record = Intervention(
            operator="add",
            amounts=(factor,),
            vector=vector_payload(choice["site"], vector),
            unit="max_activation",
            unit_values=tuple(choice["units"]),
            unit_source="largest centred activation along it on the labelled texts of the select split",
            phases=config.phases,
        )
        return bind(record, vector=vector)

    return at


def _told(setup: CellSetup, config: SteeringConfig, concept: Concept) -> dict[str, list[int]]:
    about = f"{concept.name[:1].lower()}{concept.name[1:]} ({concept.description.rstrip('.').lower()})"
    return gen.prompt_ids(setup.lm, prompts(config.prompts), config.prompting, setup.tokens.bos, about)


def _lens(setup: CellSetup, choices: Sequence[Mapping[str, Any]]) -> dict[int, list[int]]:
    latents = sorted({latent for choice in choices for latent in choice["latents"]})
    if not latents:
        return {}
    found = promoted_tokens(setup.lm, setup.dictionary, torch.tensor(latents), _LENS_TOKENS)
    return dict(zip(latents, found.tolist(), strict=True))
