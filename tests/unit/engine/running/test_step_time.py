"""The model of a step's time finds the costs; no stray step and no one-sided traffic bends it."""

import math
import random
from collections.abc import Iterator

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from shared.engine.running.step_size import StepSize
from shared.engine.running.step_time import CEILING_S, FLOOR_S, StepTime
from shared.message_parts.step_costs import StepCosts

SEED = StepCosts(6e-3, 5e-5, 1e-7, 4e-5, 5e-9)
NOISE = 0.02

factors = st.floats(0.2, 4.0)
costs = st.builds(
    lambda *by: StepCosts(*(cost * factor for cost, factor in zip(SEED, by, strict=True))),
    *(factors,) * 5,
)
sizes = st.builds(StepSize, *(st.integers(0, 10**6),) * 4)


def chance(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 (nothing secret)


def steps(rng: random.Random, num_steps: int) -> Iterator[StepSize]:
    """Traffic of both kinds: decode steps, chunks, and both in one step."""
    for _ in range(num_steps):
        rows = rng.choice((0, rng.randint(1, 256)))
        context = rows * rng.randint(100, 8000)
        if rows and rng.random() < 0.5:
            yield StepSize(rows, context, 0, 0)
        else:
            chunk = StepSize.of_chunk(rng.randint(0, 4000), rng.randint(64, 8192))
            yield chunk._replace(num_rows=rows, num_context_tokens=context)


def decode_steps(rng: random.Random, num_steps: int) -> Iterator[StepSize]:
    for _ in range(num_steps):
        rows = rng.randint(1, 256)
        yield StepSize(rows, rows * rng.randint(100, 8000), 0, 0)


def true_s(of: StepCosts, size: StepSize) -> float:
    return sum(cost * count for cost, count in zip(of, (1, *size), strict=True))


def noisy_s(rng: random.Random, of: StepCosts, size: StepSize) -> float:
    return true_s(of, size) * rng.lognormvariate(0.0, NOISE)


def worst_error(model: StepTime, of: StepCosts, seed: int = 99) -> float:
    """The largest of steps that were not learned from."""
    unseen = steps(chance(seed), 100)
    return max(abs(model.predict(size) / true_s(of, size) - 1) for size in unseen)


@settings(max_examples=10, deadline=None)
@given(costs, st.integers(0, 10**6))
def test_it_finds_the_costs_that_noisy_steps_were_made_with(true: StepCosts, seed: int) -> None:
    rng, model = chance(seed), StepTime(SEED)
    for size in steps(rng, 500):
        model.note(size, noisy_s(rng, true, size))
    assert worst_error(model, true) < 0.05
    assert model.error.p90 < 0.05
    assert model.error.count == 500


@pytest.mark.parametrize("factor", [20.0, 0.02])
def test_steps_that_something_interrupted_do_not_bend_it(factor: float) -> None:
    rng, model = chance(1), StepTime(SEED)
    true = StepCosts(*(cost * 1.5 for cost in SEED))
    for number, size in enumerate(steps(rng, 1000)):
        model.note(size, noisy_s(rng, true, size) * (factor if number % 20 == 19 else 1.0))
    assert worst_error(model, true) < 0.06
    assert model.error.p90 < 0.06, "one in twenty is not in the 90th percentile"


def test_it_follows_a_device_that_slows_down() -> None:
    rng, model = chance(2), StepTime(SEED)
    slow = StepCosts(*(cost * 1.4 for cost in SEED))
    for size in steps(rng, 500):
        model.note(size, noisy_s(rng, SEED, size))
    assert worst_error(model, slow) > 0.2
    for size in steps(rng, 2000):
        model.note(size, noisy_s(rng, slow, size))
    assert model.error.p90 < 0.05
    assert worst_error(model, slow) < 0.15, "steps of a rare kind come last"


def test_without_prompts_their_costs_stay_as_they_were() -> None:
    rng, model = chance(3), StepTime(SEED)
    true = StepCosts(*(cost * 2 for cost in SEED))
    for size in decode_steps(rng, 500):
        model.note(size, noisy_s(rng, true, size))
    assert model.costs[3:] == SEED[3:]
    for size in steps(rng, 500):
        model.note(size, noisy_s(rng, true, size))
    for size in decode_steps(rng, 20_000):
        model.note(size, noisy_s(rng, true, size))
    assert worst_error(model, true) < 0.06, "an hour of decode took away what was known"


def test_steps_all_alike_teach_their_time_and_leave_the_rest_near_the_seed() -> None:
    model, size = StepTime(SEED), StepSize(8, 8000, 0, 0)
    rng, seconds_s = chance(4), 2 * true_s(SEED, StepSize(8, 8000, 0, 0))
    for _ in range(20_000):
        model.note(size, seconds_s * rng.lognormvariate(0.0, NOISE))
    assert model.predict(size) == pytest.approx(seconds_s, rel=0.02)
    assert all(0.5 < cost / seed < 3 for cost, seed in zip(model.costs, SEED, strict=True))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(sizes, st.floats(allow_nan=True, allow_infinity=True)), max_size=40))
def test_whatever_it_is_told_costs_are_finite_and_none_is_negative(
    told: list[tuple[StepSize, float]],
) -> None:
    model = StepTime(SEED)
    for size, seconds_s in told:
        model.note(size, seconds_s)
        assert all(math.isfinite(cost) and cost >= 0 for cost in model.costs)
        assert model.predict(size) >= FLOOR_S
        assert math.isfinite(model.predict(size))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), sizes, st.sampled_from(np.eye(4, dtype=int).tolist()))
@example(67907, StepSize(0, 0, 0, 0), [0, 0, 1, 0])  # a chunk's pace below that of rows
def test_more_work_is_never_predicted_to_take_less(
    seed: int, size: StepSize, more: list[int]
) -> None:
    rng, model = chance(seed), StepTime(SEED)
    for one in steps(rng, 40):  # so noisy that the best fit has negative costs
        model.note(one, true_s(SEED, one) * rng.lognormvariate(0.0, 0.5))
    both = StepSize(*(left + right for left, right in zip(size, more, strict=True)))
    assert model.predict(both) >= model.predict(size)


def test_a_time_that_no_step_can_take_is_ignored() -> None:
    model = StepTime(SEED)
    for seconds_s in (0.0, -1.0, math.nan, math.inf, FLOOR_S / 2, 2 * CEILING_S):
        model.note(StepSize(1, 1, 0, 0), seconds_s)
    assert model.costs == SEED
    assert model.error.count == 0


@pytest.mark.parametrize("cost", [0.0, -1e-6, math.nan, math.inf])
def test_a_seed_has_positive_costs(cost: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        StepTime(SEED._replace(row_s=cost))
