"""Next-token distributions with one latent raised at the end of a prompt, many latents side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from latentbench.adapters import Codes, Dictionary, LatentChange, latent_edits
from latentbench.errors import UserError
from latentbench.lm import LM, Site, TokenBatch

__all__ = ["PREFIX", "Raised", "direction_logits", "raised_logits"]

PREFIX = "From my experience,"
"""The prompt of Arad et al.'s code and of Wang et al. (arXiv 2505.20063, 2510.03659); Arad et al.'s text has "In"."""


class Raised(NamedTuple):
    """What the model expects after a prompt, as it is and with latents raised."""

    base: Tensor
    """`Float[Tensor, "vocab"]`: logits without a change."""
    raised: Tensor
    """`Float[Tensor, "latent vocab"]`: with each latent raised."""


def raised_logits(
    lm: LM,
    dictionary: Dictionary,
    prompt: Sequence[int],
    latents: Tensor,
    *,
    factor: float,
    others: Literal["kept", "zero"],
    batch: int = 64,
) -> Raised:
    """Raise each latent by `factor` times the largest activation at the prompt's last token, there alone.

    What the reconstruction leaves over is added back, so that nothing else differs from the model's own pass.

    Args:
        lm: the model.
        dictionary: the dictionary.
        prompt: token ids; at least two.
        latents: `Int64[Tensor, "latent"]`.
        factor: in units of the largest activation there.
        others: whether all other latents keep their activation or are set to zero.
        batch: latents in one pass.

    Raises:
        UserError: no latent is active at the last token, so there is no unit.
    """
    codes = _last_codes(lm, dictionary, prompt)
    if not codes.nnz:
        raise UserError(
            "no latent is active on the prompt's last token, so there is no size to raise others to"
        )
    unit = codes.values.max()
    active = codes.dense()[0].cpu()
    none = [LatentChange.none()]
    start = lm.begin_columns(prompt, (), len(prompt) - 1, latent_edits(dictionary, none, keep_error=True))

    def logits(changes: Sequence[LatentChange]) -> Tensor:
        edits = latent_edits(dictionary, changes, tokens="prompt_last", keep_error=True)
        run = lm.continue_begun(start, len(changes), max_new_tokens=1, edits=edits, stop_ids=())
        assert run.draft_logits is not None
        return run.draft_logits[:, 0]

    def change(latent: int) -> LatentChange:
        zero = codes.latents.cpu() if others == "zero" else torch.zeros(0, dtype=torch.int64)
        own = active[latent] if others == "kept" else torch.zeros(())
        return LatentChange(zero, torch.tensor([latent]), (own + factor * unit.cpu())[None])

    base = logits(none)[0]
    parts = [logits([change(latent) for latent in piece.tolist()]) for piece in latents.split(batch)]
    return Raised(base, torch.cat(parts) if parts else base.new_zeros(0, len(base)))


def direction_logits(lm: LM, dictionary: Dictionary, latents: Tensor, batch: int = 256) -> Tensor:
    """`Float[Tensor, "latent vocab"]`: the logit lens of what latents write, through final norm and unembedding.

    Directions of several sites are averaged.

    Args:
        lm: the model.
        dictionary: the dictionary; its decoder rows are read in its own space.
        latents: `Int64[Tensor, "latent"]`.
        batch: latents at once.
    """
    last = Site("resid_post", lm.n_layers - 1)
    found = []
    for piece in latents.split(batch):
        written = dictionary.write_vectors(piece.tolist())
        mean = torch.stack([vectors.to(device=lm.device, dtype=lm.dtype) for vectors in written.values()])
        ids = torch.zeros(len(piece), 1, dtype=torch.int64)
        tokens = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool))
        logits = lm.forward(tokens, resume=(last, mean.mean(dim=0)[:, None])).logits
        assert logits is not None
        found.append(logits[:, 0].float())
    return torch.cat(found) if found else torch.zeros(0, lm.vocab_size)


def _last_codes(lm: LM, dictionary: Dictionary, prompt: Sequence[int]) -> Codes:
    acts = lm.forward(lm.batch([prompt]), capture=dictionary.reads, logits=False).acts
    return dictionary.encode({site: value[0, -1:] for site, value in acts.items()})
