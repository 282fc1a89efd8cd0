"""Recipes that train dictionaries on one shared activation stream."""

from latentbench.train._recipe import Recipe, TraineeSpec, Unit, load_recipe, multiplier
from latentbench.train._stream import ActivationStream, Block, StreamClock
from latentbench.train._train import (
    Speed,
    TrainingReport,
    TrainOptions,
    choose_units,
    held_out_error,
    train,
)
from latentbench.train._trainees import Outcome, Trainee
from latentbench.train._view import BlockView

__all__ = [
    "ActivationStream",
    "Block",
    "BlockView",
    "Outcome",
    "Recipe",
    "Speed",
    "StreamClock",
    "TrainOptions",
    "Trainee",
    "TraineeSpec",
    "TrainingReport",
    "Unit",
    "choose_units",
    "held_out_error",
    "load_recipe",
    "multiplier",
    "train",
]
