"""A text of which some tokens are marked: what a judge of latents is shown."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MarkedText"]


class MarkedText(NamedTuple):
    """One context of a latent."""

    tokens: tuple[str, ...]
    """Texts of the tokens; together they are the whole text, white space included."""
    strengths: tuple[float, ...]
    """How strongly the latent is active on each token; 0 where it is not."""

    @property
    def text(self) -> str:
        """The whole text, without marks."""
        return "".join(self.tokens)

    @property
    def peak(self) -> int:
        """Place of the strongest token, the first of equal ones."""
        return max(range(len(self.strengths)), key=lambda place: self.strengths[place])
