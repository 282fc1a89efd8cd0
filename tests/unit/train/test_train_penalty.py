"""The controller that steers a penalty to a target L0."""

from __future__ import annotations

import pytest
import torch

from latentbench.train._penalty import PenaltyController


def settle(control: PenaltyController, first: float, steps: int = 2000) -> float:
    """L0 after some steps of a process whose L0 follows 200 / weight with a lag of fifty steps."""
    l0 = first
    for _ in range(steps):
        l0 += (200.0 / float(control.weight()) - l0) / 50
        control.observe(torch.full((8,), round(l0)))
    return l0


@pytest.mark.parametrize("first", [1000.0, 3.0])
def test_it_reaches_the_target_from_either_side(first: float) -> None:
    control = PenaltyController(target=64, first=0.3, gain=0.02)
    assert settle(control, first) == pytest.approx(64, rel=0.03)
    assert float(control.weight()) == pytest.approx(200 / 64, rel=0.1)


def test_without_gain_the_penalty_stays() -> None:
    control = PenaltyController(target=64, first=0.3, gain=0.0)
    settle(control, 1000.0, steps=50)
    assert float(control.weight()) == pytest.approx(0.3)


def test_no_active_latents_lower_the_penalty() -> None:
    control = PenaltyController(target=64, first=1.0, gain=0.02)
    control.observe(torch.zeros(8, dtype=torch.int64))
    assert 0 < float(control.weight()) < 1.0


def test_its_state_can_be_saved_and_restored() -> None:
    control = PenaltyController(target=64, first=1.0, gain=0.02)
    control.observe(torch.full((8,), 100))
    other = PenaltyController(target=64, first=5.0, gain=0.02)
    other.load_state_dict(control.state_dict())
    assert float(other.weight()) == float(control.weight())
