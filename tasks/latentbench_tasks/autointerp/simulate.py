"""The simulation scorer's questions: an explanation, a text cut into tokens, and how active the latent is on each.

After OpenAI's automated interpretability (Bills et al. 2023). Their simulator read the log-probabilities of a
completions model of 2022 and is dead; here a chat model gives numbers for all tokens at once. Half of the texts have
the latent, half are of documents in which it is nowhere active; none is of a document that the explainer has seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from latentbench_judges import Question, load_rubric

__all__ = ["Simulated", "SimulatedPart", "simulated_texts", "simulation_parts"]


class Simulated(NamedTuple):
    """A text whose tokens are to be simulated."""

    tokens: tuple[str, ...]
    """Texts of the tokens."""
    truth: tuple[float | None, ...]
    """How strongly the latent is active on each; None where it was not measured."""


class SimulatedPart(NamedTuple):
    """A question with the truth about its tokens."""

    kind: str
    """"simulation" or, with another latent's explanation, "simulation_shuffled"."""
    latent: str
    """The latent whose activations are the truth."""
    truth: list[float | None]
    """See `Simulated.truth`."""
    question: Question
    """What is asked."""


def simulated_texts(items: Sequence[Mapping[str, Any]], wanted: int) -> dict[str, list[Simulated]]:
    """By latent some test texts with it and as many without.

    Texts of which no more than the strongest token was kept are no truth; a latent that has only such has none here.

    Args:
        items: what was measured, texts included.
        wanted: texts of each kind; fewer where there are fewer.
    """
    texts = {item["id"]: item for item in items if item["kind"] == "text" and item["activations"] is not None}
    found = {}
    for item in items:
        if item["kind"] == "latent":
            with_it, without = (
                [texts[c["text"]] for c in item[kind] if c["split"] == "test" and c["text"] in texts]
                for kind in ("positives", "negatives")
            )
            count = min(wanted, len(with_it), len(without))
            chosen = [*_spread(with_it, count), *_spread(without, count)]
            found[str(item["latent"])] = [_simulated(text) for text in chosen]
    return found


def _spread(texts: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Evenly spaced ones; the contexts of a latent are in the order of its strength."""
    return [texts[n * len(texts) // count] for n in range(count)]


def _simulated(text: Mapping[str, Any]) -> Simulated:
    unmeasured = text["unmeasured"]
    truth = [
        None if place < unmeasured else float(strength) for place, strength in enumerate(text["activations"])
    ]
    return Simulated(tuple(text["tokens"]), tuple(truth))


def simulation_parts(
    texts: Mapping[str, Sequence[Simulated]], explained: Mapping[str, str], others: Mapping[str, str]
) -> Iterator[SimulatedPart]:
    """Questions about each text, by the latent's explanation and by another's.

    Args:
        texts: see `simulated_texts`.
        explained: explanation by latent.
        others: by latent the one whose explanation stands in for its own.
    """
    rubric = load_rubric("simulation")
    for latent, explanation in explained.items():
        told = {"simulation": explanation}
        if latent in others:
            told["simulation_shuffled"] = explained[others[latent]]
        for kind, words in told.items():
            for number, text in enumerate(texts.get(latent, ())):
                question = Question(
                    f"{latent}-{kind}-{number}",
                    rubric,
                    {"explanation": words, "text": "".join(text.tokens), "tokens": text.tokens},
                )
                yield SimulatedPart(kind, latent, list(text.truth), question)
