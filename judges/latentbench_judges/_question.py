"""What a judge is asked: a rubric and the material that it is about."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from latentbench.errors import UserError
from latentbench.identity import sha256_json
from latentbench_judges._fence import NOTICE, blank, fenced, harmless, marked_line
from latentbench_judges._marked import MarkedText
from latentbench_judges.rubric import PLACE, Rubric

__all__ = ["Material", "Question", "new_nonce"]

Material = str | tuple[str, ...] | tuple[MarkedText, ...]
"""One text, a numbered list of texts, or a numbered list of contexts with their marks."""
_NO_NONCE = "NONCE"


def new_nonce() -> str:
    """A nonce that no text can know."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Question:
    """One question to a judge."""

    id: str
    """Name of the answer; unique among the questions asked together."""
    rubric: Rubric
    """What is asked."""
    material: Mapping[str, Material]
    """By place holder of the rubric. All of it is treated as hostile."""
    replicate: int = 0
    """0, or the number of a repetition: the same question is asked again and not taken from the cache."""
    strengths: bool = False
    """Whether the strongest activation is written before each context."""

    def __post_init__(self) -> None:
        wanted, given = set(self.rubric.places), set(self.material)
        if wanted != given:
            raise UserError(
                f"rubric {self.rubric.name!r} has the place holders {sorted(wanted)}, and question {self.id!r} fills "
                f"{sorted(given)}"
            )
        empty = [name for name, one in self.material.items() if not isinstance(one, str) and not one]
        if empty:
            raise UserError(
                f"question {self.id!r} has nothing to show for {{{empty[0]}}}: there is nothing to judge"
            )

    @property
    def count(self) -> int | None:
        """Values that a verdict must have which is a list; None for one verdict."""
        if not self.rubric.lists:
            return None
        return max(len(one) for one in self.material.values() if not isinstance(one, str))

    @cached_property
    def key(self) -> str:
        """sha256 of the rubric and of what is shown, whatever the nonce, with the number of the repetition."""
        asked = {"rubric": self.rubric.sha256, "messages": self.plain_messages, "replicate": self.replicate}
        return sha256_json(asked)

    @cached_property
    def plain_messages(self) -> list[dict[str, str]]:
        """The messages with a fixed word for the nonce: what keys are made of."""
        return self.messages(_NO_NONCE)

    def messages(self, nonce: str) -> list[dict[str, str]]:
        """System and user message."""
        system = f"{self.rubric.system.strip()}\n\n{NOTICE.replace('{nonce}', nonce)}"
        # One pass over the rubric's own text: what is filled in is never looked at for place holders.
        user = PLACE.sub(lambda place: self._block(place.group(1), nonce), self.rubric.user.strip())
        return [{"role": "system", "content": system}, {"role": "user", "content": user}]

    def _block(self, place: str, nonce: str) -> str:
        return fenced(self._lines[place], nonce)

    @cached_property
    def _lines(self) -> dict[str, list[str]]:
        """By place holder the lines that stand between the fences."""
        found = {}
        for place, material in self.material.items():
            if isinstance(material, str):
                found[place] = [harmless(material) if material.strip() else "⟨empty⟩"]
            else:
                lines: list[str | MarkedText] = list(material)
                found[place] = [f"{number}. {self._line(one)}" for number, one in enumerate(lines, start=1)]
        return found

    def _line(self, one: str | MarkedText) -> str:
        if isinstance(one, str):
            return " ".join(harmless(one).split()) or (blank(one) if one else "⟨empty⟩")
        before = f"[{max(one.strengths):.3g}] " if self.strengths else ""
        return before + marked_line(one)
