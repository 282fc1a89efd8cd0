"""Steered and unsteered texts: the grid, its batches, and the scores that need the language model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latentbench.adapters import Dictionary, steering_edits, steering_rows
from latentbench.errors import UserError
from latentbench.identity import sha256_text
from latentbench.lm import BOTH_PHASES, LM, Phase
from latentbench_tasks.steering._concepts import Prompt

__all__ = [
    "Decoding",
    "Generated",
    "GridRow",
    "batches",
    "decoder_norms",
    "directions",
    "generate_batch",
    "grid",
    "neutral_texts",
    "prompt_ids",
    "random_direction",
    "torch_generator",
]

PHASES: dict[str, frozenset[Phase]] = {
    "both": BOTH_PHASES,
    "prefill": frozenset({"prefill"}),
    "decode": frozenset({"decode"}),
}
"""Option values of the task and the phases they stand for."""

_NEUTRAL_TEMPERATURE = 0.7
"""Between greedy text, of which there is one per prompt, and plain sampling, which small models do badly."""

Direction = Literal["latent", "random", "none"]


class GridRow(NamedTuple):
    """One text to generate."""

    concept: str
    """Concept it is steered towards; "" for an unsteered text."""
    direction: Direction
    """What is added: the concept's latents, a random direction of the same norm, or nothing."""
    factor: float
    """How much of it, in units."""
    prompt: Prompt
    """What it continues."""
    sample: int
    """Number of the text among those of the same prompt; more than one only makes sense when sampling."""

    @property
    def id(self) -> str:
        """Name of the text within its cell."""
        return "|".join([self.concept, self.direction, f"{self.factor:g}", self.prompt.id, str(self.sample)])


class Decoding(NamedTuple):
    """How texts are decoded."""

    max_new_tokens: int
    """Most tokens of a text."""
    temperature: float
    """0 is greedy."""
    phases: str
    """Key of `PHASES`."""
    skip_first: int
    """Tokens at the start of every row that are not steered."""
    seed: int
    """Seed of sampling."""


class Generated(NamedTuple):
    """What one batch gave."""

    texts: list[dict[str, Any]]
    """Per row: `text`, `tokens`, `fluency` and `distinct_2` (both None for an empty text)."""
    forward_tokens: int
    """Token positions that went through the model, scoring included."""
    shadow_tokens: int
    """Token positions of the shadow pass that routed dictionaries need."""


def grid(
    concepts: Sequence[str],
    direction: Direction,
    factors: Mapping[str, Sequence[float]],
    prompts: Sequence[Prompt],
    samples: int,
) -> list[GridRow]:
    """Every text to generate for these concepts, prompts innermost.

    Args:
        concepts: ids, in the order wanted.
        direction: what is added.
        factors: by concept.
        prompts: what to continue.
        samples: texts per prompt.
    """
    return [
        GridRow(concept, direction, factor, prompt, sample)
        for concept in concepts
        for factor in factors[concept]
        for sample in range(samples)
        for prompt in prompts
    ]


def batches(rows: Sequence[GridRow], size: int) -> Iterator[tuple[str, list[GridRow]]]:
    """Runs of `size` rows, each with a name made of the ids of its rows."""
    for start in range(0, len(rows), size):
        chunk = list(rows[start : start + size])
        yield sha256_text("\n".join(row.id for row in chunk))[:16], chunk


def prompt_ids(lm: LM, prompts: Sequence[Prompt], style: str, bos: Any) -> dict[str, list[int]]:
    """Token ids of every prompt, by prompt id.

    Args:
        lm: the model.
        prompts: the openings.
        style: "plain" continues the opening as it stands. "chat" asks in a user turn for the continuation of
        a text
            and puts the opening at the start of the model's own turn, so that both styles continue the same
            words.
        bos: the suite's policy ("tokenizer", "always" or "never"), for the plain style.

    Raises:
        UserError: the chat style was asked of a model without a chat template.
    """
    texts = [prompt.text for prompt in prompts]
    if style == "plain":
        rows = lm.tokenize(texts, 10_000, bos=bos)
    else:
        if getattr(lm.tokenizer, "chat_template", None) is None:
            raise UserError(f"prompting = 'chat' needs a chat template, and {lm.name} has none: use 'plain'")
        turn = [{"role": "user", "content": "Continue this text."}]
        text = lm.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        head = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
        rows = [list(head) + row for row in lm.tokenize(texts, 10_000, bos="never")]
    return {prompt.id: row for prompt, row in zip(prompts, rows, strict=True)}


def decoder_norms(dictionary: Dictionary) -> NDArray[np.float64]:
    """Float[latent]: norm of what one unit of each latent writes, over all written sites together."""
    written = dictionary.write_vectors(range(dictionary.card.n_latents))
    squares = torch.stack([vectors.float().norm(dim=1) for vectors in written.values()]).pow(2)
    return squares.sum(dim=0).sqrt().cpu().numpy().astype(np.float64)


def directions(dictionary: Dictionary, choices: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """What factor 1 adds for each concept, `Float[Tensor, "d"]` in the dictionary's space.

    With several latents it is the mean of what each would add alone, so that the amount does not grow with
    them.
    """
    found: dict[str, Tensor] = {}
    for choice in choices:
        if choice["latents"]:
            rows = steering_rows(dictionary, choice["latents"]).float()
            units = torch.tensor(choice["units"], dtype=rows.dtype, device=rows.device)
            found[choice["concept"]] = (units[:, None] * rows).mean(dim=0)
    return found


def random_direction(like: Tensor, seed: int, concept: str) -> Tensor:
    """A direction drawn for a concept, with the norm of `like`; the same in all dictionaries so wide."""
    drawn = torch.randn(
        like.shape, generator=torch_generator(f"{seed}:random-direction:{concept}"), dtype=torch.float32
    )
    matched: Tensor = (drawn / drawn.norm()).to(like) * like.norm()
    return matched


def torch_generator(key: str) -> torch.Generator:
    """A generator on the CPU seeded by text."""
    return torch.Generator().manual_seed(sampling_seed(key))


def sampling_seed(key: str) -> int:
    """A seed of a row's sampling, from text."""
    return int(sha256_text(key)[:15], 16)


def generate_batch(
    lm: LM,
    dictionary: Dictionary | None,
    rows: Sequence[GridRow],
    vectors: Sequence[Tensor] | None,
    ids: Mapping[str, Sequence[int]],
    decoding: Decoding,
) -> Generated:
    """Generate the texts of one batch, each row under its own vector, and score their fluency.

    When sampling, a row's noise is a function of the seed and of the row's id: the same row of two dictionaries' grids
    is drawn with the same noise, however it is batched, and concepts are drawn independently of each other.

    Args:
        lm: the model.
        dictionary: whose space the vectors are in; None for unsteered texts.
        rows: the rows.
        vectors: one `Float[Tensor, "d"]` per row.
        ids: token ids by prompt id.
        decoding: how to decode.
    """
    prompts = [list(ids[row.prompt.id]) for row in rows]
    edits = []
    if dictionary is not None and vectors is not None:
        edits = steering_edits(
            dictionary, torch.stack(list(vectors)), PHASES[decoding.phases], decoding.skip_first
        )
    seeds = [sampling_seed(f"{decoding.seed}:sampling:{row.id}") for row in rows]
    out = lm.generate(
        prompts,
        max_new_tokens=decoding.max_new_tokens,
        edits=edits,
        temperature=decoding.temperature,
        seeds=seeds,
    )
    scores = log_probabilities(lm, prompts, out.tokens)
    texts = [
        {
            "text": lm.tokenizer.decode(tokens, skip_special_tokens=True),
            "tokens": len(tokens),
            "fluency": fluency,
            "distinct_2": distinct_2(tokens) if fluency is not None else None,
        }
        for tokens, fluency in zip(out.tokens, scores, strict=True)
    ]
    scored = sum(len(prompt) + len(new) for prompt, new in zip(prompts, out.tokens, strict=True) if new)
    return Generated(texts, out.forward_tokens + scored, out.shadow_tokens)


def neutral_texts(lm: LM, ids: Mapping[str, Sequence[int]], count: int, decoding: Decoding) -> list[str]:
    """About `count` distinct unsteered continuations, sampled; empty ones are left out."""
    rows = [list(row) for row in ids.values()]
    found: list[str] = []
    for turn in range(-(-count // len(rows))):
        out = lm.generate(
            rows,
            max_new_tokens=decoding.max_new_tokens,
            temperature=_NEUTRAL_TEMPERATURE,
            seeds=[sampling_seed(f"{decoding.seed}:neutral:{turn}/{prompt}") for prompt in ids],
        )
        found += [lm.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in out.tokens if tokens]
    return list(dict.fromkeys(found))


def log_probabilities(
    lm: LM, prompts: Sequence[Sequence[int]], new: Sequence[Sequence[int]]
) -> list[float | None]:
    """Mean log-probability of each row's generated tokens under the unsteered model, given its prompt.

    In nats. The prompt's own tokens don't count, for any method. None for a row without a generated token.
    """
    kept = [index for index, tokens in enumerate(new) if tokens]
    scores: list[float | None] = [None] * len(new)
    if not kept:
        return scores
    batch = lm.batch([[*prompts[index], *new[index]] for index in kept])
    logits = lm.forward(batch).logits
    assert logits is not None
    for place, index in enumerate(kept):
        start, length = len(prompts[index]), len(new[index])
        predicted = logits[place, start - 1 : start - 1 + length].float().log_softmax(dim=-1)
        targets = batch.ids[place, start : start + length]
        scores[index] = float(predicted.gather(1, targets[:, None]).mean())
    return scores


def distinct_2(tokens: Sequence[int]) -> float:
    """Share of distinct pairs among the neighbouring tokens; 1 for a text of one token, which has no pair."""
    pairs = list(itertools.pairwise(tokens))
    return len(set(pairs)) / len(pairs) if pairs else 1.0
