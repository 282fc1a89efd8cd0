"""Options of the steering task."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from latentbench.run import TaskConfig
from latentbench_tasks.steering._axbench import axbench_sha256
from latentbench_tasks.steering._choose import Contrast, Unit
from latentbench_tasks.steering._methods import METHODS, known_methods, usable_factors

__all__ = ["SteeringConfig"]


class SteeringConfig(TaskConfig):
    """Options of the steering task."""

    concepts: tuple[str, ...] = ()
    """Ids of the concepts; empty takes all."""
    methods: tuple[str, ...] = ("contrast",)
    """What steers, see `_methods.METHODS`; the first one, which must choose latents, gives the headline, and the others
    are compared with it."""
    candidates: int = Field(20, ge=2)
    """Latents with the highest contrast among which methods of kind "rank" choose."""
    baseline_site: str = ""
    """Where directions without a dictionary are added; empty takes the last site that the dictionary writes."""
    concepts_file: str = ""
    """Path of a file in AxBench's format to take the concepts from; empty takes those that ship with the task.
    See `_axbench.axbench_concepts`."""
    concepts_sha256: str | None = None
    """Of that file and its texts, filled in; None without one. Other contents are another measurement."""
    prompts: int = 16
    """Number of prompts, half for choosing the factor and half for the test."""
    prompting: Literal["plain", "chat"] = "plain"
    """See `_generate.prompt_ids`."""
    select_documents: int = Field(24, ge=2)
    """Labelled documents on each side of a concept that latents are chosen on."""
    select_context: int = Field(48, ge=4)
    """Tokens of each of them."""
    contrast: Contrast = "effect_size"
    """See `ChoiceOptions`. Effect size prefers latents that tell most documents of a concept from the others;
    the plain mean prefers strong ones, however few documents they are on in."""
    n_latents: int = Field(1, ge=1, le=3)
    """Latents steered together."""
    max_density: float | None = Field(0.5, gt=0, le=1)
    """See `ChoiceOptions`."""
    unit: Unit = "max"
    """See `ChoiceOptions`."""
    factors: tuple[float, ...] = (1.0, 2.0, 4.0)
    """Grid of amounts, in units, ascending. On smollm2-135m-q4, half a unit changes next to nothing and four
    units break about half of the texts."""
    extensions: int = Field(0, ge=0, le=6)
    """How often a concept's grid is made longer where its best factor lies at an end: twice the largest factor, or half
    the smallest."""
    operator: Literal["add", "set", "min_clamp"] = "add"
    """What is done with latents: their activation raised by the amount, set to it, or raised to it at least. Directions
    without a dictionary are always added."""
    phases: Literal["both", "prefill", "decode"] = "both"
    """Whether prompt tokens, generated tokens or both are steered."""
    max_new_tokens: int = Field(16, ge=1)
    """Tokens of a text."""
    temperature: float = Field(0.0, ge=0, allow_inf_nan=False)
    """0 is greedy; otherwise softmax sampling with seeded noise that dictionaries share."""
    samples: int = Field(1, ge=1)
    """Texts per prompt, concept and factor; more than 1 needs a temperature."""
    batch_rows: int = Field(32, ge=1)
    """Texts generated together."""
    test_factors: Literal["all", "chosen"] = "all"
    """"chosen" generates test texts only at each concept's chosen factor and at the one fixed factor:
    cheaper, but the dose-response curves are then those of the select prompts."""
    kl: bool = False
    """Whether the divergence from the unsteered model is measured on test texts: one more pass of each."""
    choose_by: Literal["score", "success"] = "score"
    """Mean over the select prompts that picks the factor: concept probability of well-formed texts (0 for the
    others), which has few ties, or the success share itself."""
    scorer_documents: int = Field(600, ge=40)
    """Labelled documents on each side of a concept that its classifier is fitted and measured on."""
    scorer_windows: int = Field(8, ge=1)
    """Windows of each document that the classifier learns from."""
    neutral_texts: int = Field(96, ge=0)
    """Unsteered texts, sampled on prompts of their own, among the classifiers' negatives."""
    window_words: tuple[int, int] | None = None
    """Shortest and longest window in words; None takes half to all of `max_new_tokens`, since an English word
    is 1.3 tokens or so."""
    lexicon: bool = False
    """Whether concepts without labelled texts are scored by words of their lexicon; else they are left out and
    counted. Words say less than a classifier: a text may tell of a thing without them, or name it in passing."""
    min_auroc: float = Field(0.8, ge=0.5, le=1)
    """Concepts whose classifier does worse on held-out documents are excluded and counted."""
    concept_threshold: float = Field(0.5, ge=0, le=1)
    """Lowest concept probability of a success."""
    concept_false_positives: float = Field(0.05, ge=0, le=1)
    """The threshold is raised until at most this share of the held-out negative documents, and of the
    held-out neutral texts, passes it."""
    fluency_margin: float = Field(2.0, ge=0)
    """Nats per token that a success may be less fluent than the mean unsteered text. A sensible text on a
    subject that the prompt did not suggest lies one to two nats below; broken ones lie three and more
    below."""
    min_distinct_2: float = Field(0.5, ge=0, le=1)
    """Lowest share of distinct token pairs of a success."""

    @model_validator(mode="before")
    @classmethod
    def _hashed(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.get("concepts_file") or given.get("concepts_sha256"):
            return given  # a stored configuration, which must load where its file is not
        return {**given, "concepts_sha256": axbench_sha256(Path(str(given["concepts_file"])))}

    @model_serializer(mode="wrap")
    def _without_a_file(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        made: dict[str, Any] = handler(self)
        if not self.concepts_file:
            del made["concepts_file"], made["concepts_sha256"]
        if not self.lexicon:
            del made["lexicon"]  # younger than the published cells, whose keys stay what they are
        return made

    @model_validator(mode="after")
    def _consistent(self) -> SteeringConfig:
        if not usable_factors(self.factors):
            raise ValueError(
                f"factors {list(self.factors)} must be finite, positive and ascending, and differ in six digits"
            )
        known_methods(self.methods)
        if METHODS[self.methods[0]].kind not in ("labelled", "rank"):
            raise ValueError(
                f"methods begins with {self.methods[0]!r}, which chooses no latents: put one that does first"
            )
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples = {self.samples} at temperature 0 would give {self.samples} equal texts"
            )
        words = self.window_words
        if words is not None and not 1 <= words[0] <= words[1]:
            raise ValueError(f"window_words {list(words)} must be [shortest, longest] with at least one word")
        return self
