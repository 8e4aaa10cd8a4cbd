"""The pace follows what the last steps took, and one interrupted step does not bend it."""

import random

import pytest

from shared.engine.running.pace import GAIN, MAX_SURPRISE, Pace


def test_it_follows_a_device_that_heats_up_within_twenty_steps() -> None:
    pace = Pace()
    for _ in range(20):
        pace.note(0.010, 0.011)
    assert pace.factor == pytest.approx(1.1, rel=0.01)


def test_one_step_moves_it_by_a_bounded_part() -> None:
    pace = Pace()
    pace.note(0.010, 10.0)
    assert pace.factor == pytest.approx(1 + GAIN * MAX_SURPRISE)
    pace.note(0.010, 1e-6)
    assert pace.factor == pytest.approx(1 - (GAIN * MAX_SURPRISE) ** 2)


def test_steps_that_differ_by_chance_leave_it_near_one() -> None:
    rng, pace = random.Random(1), Pace()  # noqa: S311 -- a repeatable draw
    factors = []
    for _ in range(2000):
        pace.note(0.010, 0.010 * rng.lognormvariate(0.0, 0.02))
        factors.append(abs(pace.factor - 1))
    assert sorted(factors)[1800] < 0.02
