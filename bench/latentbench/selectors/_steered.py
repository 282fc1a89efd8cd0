"""Next-token distributions with one latent raised at the end of a prompt, and what latents' directions promote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from latentbench.adapters import Codes, Dictionary, LatentChange, latent_edits
from latentbench.errors import UserError
from latentbench.lm import LM, Site, TokenBatch

__all__ = ["PREFIX", "Raised", "direction_logits", "prompt_ids", "raised_logits"]

PREFIX = "From my experience,"
"""The prompt of Arad et al.'s code and of Wang et al. (arXiv 2505.20063, 2510.03659); Arad et al.'s text has "In"."""
_BATCH = 64
"""Latents at once: [latent, vocab] of all of them would be large."""


class Raised(NamedTuple):
    """What the model expects after a prompt, as it is and with some latents raised."""

    latents: Tensor
    """`Int64[Tensor, "latent"]`."""
    base: Tensor
    """`Float[Tensor, "vocab"]`: logits without a change."""
    raised: Tensor
    """`Float[Tensor, "latent vocab"]`: with each latent raised."""


def prompt_ids(lm: LM, prompt: str | Sequence[int]) -> list[int]:
    """Token ids of a prompt that is a text or has them already."""
    return lm.tokenize([prompt], max_tokens=64)[0] if isinstance(prompt, str) else list(prompt)


def raised_logits(
    lm: LM,
    dictionary: Dictionary,
    prompt: Sequence[int],
    latents: Tensor,
    *,
    factor: float,
    others: Literal["kept", "zero"],
) -> Iterator[Raised]:
    """Raise each latent by `factor` times the largest activation at the prompt's last token, there alone.

    What the reconstruction leaves over is added back, so that nothing else differs from the model's own pass. The
    prompt is run once; each latent costs a pass of its last token.

    Args:
        lm: the model.
        dictionary: the dictionary.
        prompt: token ids; at least two.
        latents: `Int64[Tensor, "latent"]`; they come back in this order, some at a time.
        factor: in units of the largest activation there.
        others: whether all other latents keep their activation or are set to zero.

    Raises:
        UserError: no latent is active at the last token, so there is no unit.
    """
    codes = _last_codes(lm, dictionary, prompt)
    if not codes.nnz:
        raise UserError(
            "no latent is active on the prompt's last token, so there is no size to raise others to"
        )
    amount = factor * codes.values.max().cpu()
    own = codes.dense()[0].cpu() if others == "kept" else torch.zeros(codes.n_latents, dtype=amount.dtype)
    gone = codes.latents.cpu() if others == "zero" else torch.zeros(0, dtype=torch.int64)
    none = [LatentChange.none()]
    start = lm.begin_columns(prompt, (), len(prompt) - 1, latent_edits(dictionary, none, keep_error=True))

    def logits(changes: Sequence[LatentChange]) -> Tensor:
        edits = latent_edits(dictionary, changes, tokens="prompt_last", keep_error=True)
        run = lm.continue_begun(start, len(changes), max_new_tokens=1, edits=edits, stop_ids=())
        assert run.draft_logits is not None
        return run.draft_logits[:, 0]

    base = logits(none)[0]
    for piece in latents.split(_BATCH):
        if len(piece):
            changes = [
                LatentChange(gone, latent[None], (own[latent] + amount)[None]) for latent in piece.cpu()
            ]
            yield Raised(piece, base, logits(changes))


def direction_logits(lm: LM, dictionary: Dictionary, latents: Tensor) -> Iterator[Tensor]:
    """`Float[Tensor, "latent vocab"]`, some latents at a time: the logit lens of what they write.

    It goes through the model's own final norm and unembedding. Directions of several sites are averaged.

    Args:
        lm: the model.
        dictionary: the dictionary; its decoder rows are read in its own space.
        latents: `Int64[Tensor, "latent"]`.
    """
    last = Site("resid_post", lm.n_layers - 1)
    for piece in latents.split(_BATCH):
        if not len(piece):
            continue
        written = dictionary.write_vectors(piece.tolist())
        mean = torch.stack([vectors.to(device=lm.device, dtype=lm.dtype) for vectors in written.values()])
        ids = torch.zeros(len(piece), 1, dtype=torch.int64)
        tokens = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool))
        logits = lm.forward(tokens, resume=(last, mean.mean(dim=0)[:, None])).logits
        assert logits is not None
        yield logits[:, 0].float()


def _last_codes(lm: LM, dictionary: Dictionary, prompt: Sequence[int]) -> Codes:
    acts = lm.forward(lm.batch([prompt]), capture=dictionary.reads, logits=False).acts
    return dictionary.encode({site: value[0, -1:] for site, value in acts.items()})
