"""The grid of texts, their prompts, and the scores that need the language model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latentbench.adapters import Dictionary, steering_rows
from latentbench.errors import UserError
from latentbench.identity import sha256_text
from latentbench.lm import LM, Edit
from latentbench_tasks.steering._concepts import Prompt

__all__ = [
    "Decoding",
    "GridRow",
    "decoder_norms",
    "directions",
    "distinct_2",
    "divergences",
    "grid",
    "log_probabilities",
    "neutral_texts",
    "prompt_ids",
    "random_direction",
    "seed_of",
    "spoiled",
    "torch_generator",
]

_NEUTRAL_TEMPERATURE = 0.7
"""Between greedy text, of which there is one per prompt, and plain sampling, which small models do badly."""


class GridRow(NamedTuple):
    """One text to generate."""

    concept: str
    """Concept it is steered towards; "" for an unsteered text."""
    method: str
    """What steers; "none" for an unsteered text."""
    factor: float
    """How much of it, in units."""
    prompt: Prompt
    """What it continues."""
    sample: int
    """Number of the text among those of the same prompt; more than one only makes sense when sampling."""

    @property
    def id(self) -> str:
        """Name of the text within its cell."""
        return "|".join([self.concept, self.method, f"{self.factor:g}", self.prompt.id, str(self.sample)])


class Decoding(NamedTuple):
    """How texts are decoded."""

    max_new_tokens: int
    """Most tokens of a text."""
    temperature: float
    """0 is greedy."""
    phases: str
    """Which tokens are steered: "both", "prefill" or "decode"."""
    skip_first: int
    """Tokens at the start of every row that are not steered."""
    seed: int
    """Seed of sampling."""


def grid(
    concepts: Sequence[str],
    method: str,
    factors: Mapping[str, Sequence[float]],
    prompts: Sequence[Prompt],
    samples: int,
) -> list[GridRow]:
    """Every text to generate for these concepts, prompts innermost.

    Args:
        concepts: ids, in the order wanted.
        method: what steers.
        factors: by concept.
        prompts: what to continue.
        samples: texts per prompt.
    """
    return [
        GridRow(concept, method, factor, prompt, sample)
        for concept in concepts
        for factor in factors[concept]
        for sample in range(samples)
        for prompt in prompts
    ]


def prompt_ids(
    lm: LM, prompts: Sequence[Prompt], style: str, bos: Any, about: str = ""
) -> dict[str, list[int]]:
    """Token ids of every prompt, by prompt id.

    Args:
        lm: the model.
        prompts: the openings.
        style: "plain" continues the opening as it stands. "chat" asks in a user turn for the continuation of a text
            and puts the opening at the start of the model's own turn, so that both styles continue the same words.
        bos: the suite's policy ("tokenizer", "always" or "never"), for the plain style.
        about: what the text should be about, said before the opening or in the user's turn; "" says nothing.

    Raises:
        UserError: the chat style was asked of a model without a chat template.
    """
    texts = [prompt.text for prompt in prompts]
    if style == "plain":
        opening = f"The following text is about {about}.\n\n" if about else ""
        rows = lm.tokenize([opening + text for text in texts], 10_000, bos=bos)
    else:
        if getattr(lm.tokenizer, "chat_template", None) is None:
            raise UserError(f"prompting = 'chat' needs a chat template, and {lm.name} has none: use 'plain'")
        wish = "Continue this text." + (f" It must be about {about}." if about else "")
        turn = [{"role": "user", "content": wish}]
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
    return torch.Generator().manual_seed(int(sha256_text(key)[:15], 16))


def seed_of(decoding: Decoding, row: GridRow) -> int:
    """Seed of a text's sampling noise: the same for all methods, factors and dictionaries."""
    return int(sha256_text(f"{decoding.seed}:sampling:{row.prompt.id}/{row.sample}")[:15], 16)


def neutral_texts(lm: LM, ids: Mapping[str, Sequence[int]], count: int, decoding: Decoding) -> list[str]:
    """About `count` distinct unsteered continuations, sampled; empty ones are left out."""
    rows = [list(row) for row in ids.values()]
    found: list[str] = []
    for turn in range(-(-count // len(rows))):
        out = lm.generate(
            rows,
            max_new_tokens=decoding.max_new_tokens,
            temperature=_NEUTRAL_TEMPERATURE,
            seeds=[
                int(sha256_text(f"{decoding.seed}:neutral:{turn}:{index}")[:15], 16)
                for index in range(len(rows))
            ],
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


def divergences(
    lm: LM,
    prompts: Sequence[Sequence[int]],
    steered: Sequence[Sequence[int]],
    new: Sequence[Sequence[int]],
    edits: Sequence[Edit],
) -> list[float | None]:
    """KL(steered || unsteered) over the tokens of each row's own text, nats per token; None for an empty text.

    Args:
        lm: the model.
        prompts: token ids that the unsteered model reads first.
        steered: token ids that the steered model reads first.
        new: the generated tokens.
        edits: the steered model's, for these rows.
    """
    if not any(new):
        return [None] * len(new)
    plain = lm.batch([[*prompt, *text] for prompt, text in zip(prompts, new, strict=True)])
    changed = lm.batch([[*prompt, *text] for prompt, text in zip(steered, new, strict=True)])
    before = lm.forward(plain).logits
    after = lm.forward(changed, edits=edits, prompt_lengths=[len(prompt) for prompt in steered]).logits
    assert before is not None
    assert after is not None
    found: list[float | None] = []
    for row, text in enumerate(new):
        places = [len(some[row]) - 1 for some in (steered, prompts)]
        p, q = (
            logits[row, place : place + len(text)].float().log_softmax(dim=-1)
            for logits, place in zip((after, before), places, strict=True)
        )
        value = float((p.exp() * (p - q)).sum(dim=-1).mean()) if text else None
        found.append(value if value is None or np.isfinite(value) else None)
    return found


def spoiled(text: str, form: Literal["shuffled", "loop"], key: str) -> str:
    """A text made senseless: its words in another order, or its first three over and over."""
    words = text.split()
    if form == "loop":
        return " ".join((words[:3] * len(words))[: len(words)])
    order = np.random.default_rng(int(sha256_text(key)[:15], 16)).permutation(len(words))
    return " ".join(words[place] for place in order)


def distinct_2(tokens: Sequence[int]) -> float:
    """Share of distinct pairs among the neighbouring tokens; 1 for a text of one token, which has no pair."""
    pairs = list(itertools.pairwise(tokens))
    return len(set(pairs)) / len(pairs) if pairs else 1.0
