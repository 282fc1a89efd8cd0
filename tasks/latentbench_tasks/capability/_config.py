"""Options of the capability task."""

from __future__ import annotations

from pydantic import Field, model_validator

from latentbench.run import TaskConfig
from latentbench_tasks.capability._sets import EMBEDDED
from latentbench_tasks.steering._choose import ChoiceOptions, Contrast, Unit
from latentbench_tasks.steering._methods import usable_factors

__all__ = ["CapabilityConfig"]


class CapabilityConfig(TaskConfig):
    """Options of the capability task."""

    tasks: tuple[str, ...] = Field(tuple(EMBEDDED), min_length=1)
    """Names of lm-eval tasks or groups. Those that begin with `lb_` are made from the embedded texts; any other is
    lm-eval's own and fetches its data from the hub."""
    limit: int = Field(100, ge=1)
    """Most items of an lm-eval task, chosen by a hash of the seed and the item."""
    num_fewshot: int | None = Field(None, ge=0)
    """Worked examples in front of each item; None takes each task's own number."""
    concepts: tuple[str, ...] = ("sport", "medicine", "restaurant")
    """Concepts of the steering task that the model is steered towards, each a condition of its own; none leaves
    steering out."""
    factors: tuple[float, ...] = Field((1.0, 2.0), min_length=1)
    """How much is added, in units of the steering task: times the latent's largest activation."""
    select_documents: int = Field(24, ge=2)
    """As in the steering task, and so the next five: how latents are chosen."""
    select_context: int = Field(48, ge=4)
    """Tokens of each labelled document."""
    contrast: Contrast = "effect_size"
    """See `ChoiceOptions`."""
    n_latents: int = Field(1, ge=1, le=3)
    """Latents steered together."""
    max_density: float | None = Field(0.5, gt=0, le=1)
    """See `ChoiceOptions`."""
    unit: Unit = "max"
    """See `ChoiceOptions`."""

    @model_validator(mode="after")
    def _distinct(self) -> CapabilityConfig:
        if len(set(self.tasks)) != len(self.tasks):
            raise ValueError(f"tasks {list(self.tasks)} hold one twice")
        if not usable_factors(self.factors):
            raise ValueError(
                f"factors {list(self.factors)} should be finite, above 0 and ascend, and differ in six digits"
            )
        unknown = [name for name in self.tasks if name.startswith("lb_") and name not in EMBEDDED]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is none of the embedded tasks {', '.join(EMBEDDED)}")
        return self

    def choice(self) -> ChoiceOptions:
        """How latents are chosen."""
        return ChoiceOptions(self.contrast, self.unit, self.n_latents, self.max_density)
