"""What each kernel adds to a step, from kernels as intervals."""

import pytest

from services.cli.bench.engine.steps.gap import Kernel
from services.cli.bench.engine.steps.parts import IDLE, render_parts, step_parts

PREPARE = "prepare_step_kernel"


def step(start_us: float) -> list[Kernel]:
    """prepare 3, idle 2, product 40, attention that waits 10 for it and adds 20; 65 in all."""
    return [
        Kernel(start_us, start_us + 3, PREPARE),
        Kernel(start_us + 5, start_us + 45, "product"),
        Kernel(start_us + 35, start_us + 65, "attention"),
    ]


def test_kernels_and_idle_time_add_up_to_the_step() -> None:
    kernels = [*step(0), *step(70), *step(140), *step(210)]
    parts = {part.name: part for part in step_parts(reversed(kernels), 3)}
    assert {name: part.adds_us for name, part in parts.items()} == {
        "product": 40,
        "attention": 20,
        IDLE: 7,
        PREPARE: 3,
    }
    assert sum(part.adds_us for part in parts.values()) == 70
    assert parts["attention"].runs_us == 30
    assert parts["product"].launches == 1
    assert list(parts) == ["product", "attention", IDLE, PREPARE]


def test_a_kernel_of_the_step_before_that_still_runs_is_not_counted_twice() -> None:
    kernels = [Kernel(-50, 2, "sampling"), *step(0), *step(65)]
    parts = {part.name: part.adds_us for part in step_parts(kernels, 1)}
    assert parts[PREPARE] == 1
    assert "sampling" not in parts


def test_only_the_last_whole_steps() -> None:
    kernels = [*step(0), Kernel(66, 1000, "capture"), *step(1000), *step(1065)]
    assert "capture" not in {part.name for part in step_parts(kernels, 1)}
    assert "capture" in {part.name for part in step_parts(kernels, 2)}
    assert step_parts(step(0), 5) == []
    assert step_parts([], 5) == []


def test_launches_of_one_kernel_are_one_row() -> None:
    kernels = [Kernel(0, 1, PREPARE), Kernel(1, 3, "a"), Kernel(3, 7, "a"), Kernel(7, 8, PREPARE)]
    part = step_parts(kernels, 1)[0]
    assert (part.name, part.launches, part.adds_us) == ("a", 2, 6)
    text = render_parts(step_parts(kernels, 1))
    assert [line.split()[0] for line in text.splitlines()] == [
        "kernels",
        "a",
        PREPARE,
        IDLE,
        "total",
    ]
    assert text.splitlines()[1].split()[1:] == ["2.0", "6.0", "85.7", "6.0"]
    assert part.record() == {"kernel": "a", "launches": 2.0, "adds_us": 6.0, "runs_us": 6.0}


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_every_number_of_steps_adds_up(num_steps: int) -> None:
    kernels = [*step(0), *step(70), *step(150), *step(220)]
    total = sum(part.adds_us for part in step_parts(kernels, num_steps)) * num_steps
    starts = [0, 70, 150, 220]
    assert total == pytest.approx(starts[-1] - starts[-1 - num_steps])
