"""Options of the tasks about GradSAE's hypotheses, and the readings of the method that set them together."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from latentbench.selectors import TargetKind
from latentbench_tasks._questions import Form, QuestionsConfig

__all__ = ["AnsweringConfig", "Choices", "Count", "Preset", "SelectorName"]

SelectorName = Literal["activation", "gradsae", "attribution", "integrated_gradients", "random"]
Count = int | Literal["50%"]
Preset = Literal["paper", "code", "corrected"]


class Choices(NamedTuple):
    """What a preset decides; `relu` and `keep_error` are those of `GradSae.preset`."""

    form: Form
    """See `AnsweringConfig`, here and below."""
    target: TargetKind
    at: Literal["first", "answer", "bracket"]
    relu: Literal["before", "after"]
    keep_error: bool


_PRESETS: dict[Preset, Choices] = {
    "paper": Choices("few-shot", "probability", "first", "after", keep_error=False),
    "code": Choices("brackets", "probability", "bracket", "before", keep_error=False),
    "corrected": Choices("few-shot", "log_probability", "answer", "after", keep_error=True),
}


class AnsweringConfig(QuestionsConfig):
    """Options that the tasks about GradSAE's hypotheses share."""

    questions: int = Field(default=200, gt=0)
    """Questions that are asked; what is measured are those that the spliced model answers correctly."""
    preset: Preset = "corrected"
    """Readings of GradSAE (arXiv 2505.08080). "paper": the error is dropped, and the target is the probability of the
    first answer token. "code": as its code has it, with the bracket that opens the answer as the target and products
    cut before the mean. "corrected": the error is kept, so that only chosen latents differ from the model's own pass,
    and the target is the log-probability of the whole answer."""
    form: Form | None = None
    """How questions are asked; None takes the preset's, "brackets" for "code"."""
    target: TargetKind | None = None
    """The number that influence is measured on; None takes the preset's."""
    at: Literal["first", "answer", "bracket"] | None = None
    """Of which tokens of the model's own answer; None takes the preset's."""
    relu: Literal["before", "after"] | None = None
    """Where GradSAE cuts negative numbers, before or after the token mean; None takes the preset's."""
    keep_error: bool | None = None
    """Whether what the reconstruction leaves over is added back; None takes the preset's."""
    selectors: tuple[SelectorName, ...] = ("activation", "gradsae", "random")
    """What ranks latents."""
    counts: tuple[Count, ...] = (1, 10, 20, 30, "50%")
    """How many latents are chosen; "50%" is half of those active at the last token."""
    headline: Count = 10
    """The count of the board's numbers, one of `counts`."""
    max_new_tokens: int | None = Field(default=None, gt=0)
    """Tokens of an answer, at most; None takes 10, and 50 in the form "brackets", as GradSAE has it."""

    @model_validator(mode="after")
    def _consistent(self) -> AnsweringConfig:
        if self.choices().at == "bracket" and self.choices().form != "brackets":
            raise ValueError("at = 'bracket' needs form = 'brackets': few-shot answers have none")
        if self.headline not in self.counts:
            raise ValueError(f"headline = {self.headline!r} is not among the counts {self.counts}")
        return self

    @property
    def most_tokens(self) -> int:
        """Tokens of an answer, at most."""
        return self.max_new_tokens or (50 if self.choices().form == "brackets" else 10)

    def choices(self) -> Choices:
        """The preset with the options laid over it."""
        given = {name: getattr(self, name) for name in Choices._fields if getattr(self, name) is not None}
        return _PRESETS[self.preset]._replace(**given)
