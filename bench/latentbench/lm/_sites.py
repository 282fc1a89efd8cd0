"""Sites: named places in a language model where activations are read or edited."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

from latentbench.errors import UserError, nearest

__all__ = ["KINDS", "Site"]

KINDS = ("embed", "attn_z", "attn_out", "resid_mid", "mlp_in", "mlp_out", "resid_post")
"""Site kinds in the order in which one block computes them."""

_LAYER_LISTS = r"(?:model\.language_model\.layers|model\.layers|transformer\.h|gpt_neox\.layers|layers)"
_ALIASES: tuple[tuple[str, str], ...] = (
    (r"blocks\.(\d+)\.hook_resid_post", "resid_post"),
    (r"blocks\.(\d+)\.hook_resid_mid", "resid_mid"),
    (r"blocks\.(\d+)\.hook_mlp_out", "mlp_out"),
    (r"blocks\.(\d+)\.hook_attn_out", "attn_out"),
    (r"blocks\.(\d+)\.attn\.hook_z", "attn_z"),
    (r"blocks\.(\d+)\.mlp\.hook_in", "mlp_in"),
    (_LAYER_LISTS + r"\.(\d+)", "resid_post"),
    (_LAYER_LISTS + r"\.(\d+)\.mlp", "mlp_out"),
    (_LAYER_LISTS + r"\.(\d+)\.(?:self_attn|attn|attention)", "attn_out"),
)
_AFTER = re.compile(r"hidden_states\[(\d+)\]|blocks\.(\d+)\.hook_resid_pre")
"""Names that count the residual stream from the embeddings: entry i is the output of block i - 1."""


@total_ordering
@dataclass(frozen=True)
class Site:
    """One named place in a language model. `str(site)` is its canonical name, such as `resid_post.7`."""

    kind: str
    """One of `KINDS`. `mlp_out` and `attn_out` mean what is added to the residual stream, after any
    post-norm."""
    layer: int | None = None
    """Block index from 0; None for `embed`, the residual stream before the first block."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            close = nearest(self.kind, KINDS) or list(KINDS)
            raise UserError(f"unknown site kind {self.kind!r}: did you mean {' or '.join(map(repr, close))}?")
        if (self.layer is None) != (self.kind == "embed"):
            raise UserError(f"site kind {self.kind!r} with layer {self.layer!r}: only 'embed' has no layer")

    @classmethod
    def parse(cls, name: str | Site) -> Site:
        """Read a site name or one of its aliases.

        Accepted beside `kind.layer` and `embed`: TransformerLens hook names (`blocks.7.hook_resid_post`),
        Hugging Face module names (`model.layers.7`, `transformer.h.7.mlp`) and `hidden_states[8]`, which is
        the output of block 7.

        Raises:
            UserError: the text names no site; the message lists the accepted forms.
        """
        if isinstance(name, Site):
            return name
        text = name.strip()
        if text == "embed":
            return cls("embed")
        plain = re.fullmatch(r"([a-z_]+)\.(\d+)", text)
        if plain and plain[1] in KINDS:
            return cls(plain[1], int(plain[2]))
        after = _AFTER.fullmatch(text)
        if after:
            entry = int(after[1] or after[2])
            return cls("resid_post", entry - 1) if entry else cls("embed")
        for pattern, kind in _ALIASES:
            match = re.fullmatch(pattern, text)
            if match:
                return cls(kind, int(match[1]))
        close = nearest(text.split(".")[0], KINDS)
        advice = f"did you mean {' or '.join(repr(c + '.N') for c in close)}?" if close else ""
        raise UserError(
            f"unknown site {name!r}: write kind.layer with a kind of {', '.join(KINDS[1:])}, or 'embed', "
            f"'hidden_states[8]', 'model.layers.7', 'blocks.7.hook_resid_post'. {advice}".rstrip()
        )

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: the order in which a forward pass reaches the sites."""
        return (-1 if self.layer is None else self.layer, KINDS.index(self.kind))

    def __lt__(self, other: Site) -> bool:
        return self.order < other.order

    def __str__(self) -> str:
        return self.kind if self.layer is None else f"{self.kind}.{self.layer}"
