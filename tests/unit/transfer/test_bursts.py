"""When a pull between GPUs reads: as late as it can and still end before prefill does."""

import pytest

from shared.transfer.bursts import FIRST_S, UNKNOWN_BYTES_S, Bursts
from tests.support.fakes.manual_clock import ManualClock

RATE = 100e9
STEP_S = 0.07
STEP_BLOCKS, BLOCK_BYTES = 128, 2 * 2**20


def read_at(num_steps: int, rate: float, *, known: bool = True) -> list[tuple[int, int]]:
    """(step, blocks) of each burst of a prompt of `num_steps` whole steps, which are published as
    they begin; all that waits is read in no time."""
    clock = ManualClock()
    bursts = Bursts(num_steps * STEP_BLOCKS, BLOCK_BYTES, clock)
    num_read, found = 0, []
    for step in range(1, num_steps + 1):
        waiting = step * STEP_BLOCKS - num_read
        if bursts.is_due(step * STEP_BLOCKS, waiting * BLOCK_BYTES, rate if known else 0.0):
            found.append((step, waiting))
            num_read += waiting
        clock.advance(STEP_S)
    return found


def test_a_prompt_of_one_step_is_read_at_once() -> None:
    assert read_at(1, RATE) == [(1, 128)]


def test_a_fast_link_is_used_in_the_last_step_alone() -> None:
    assert read_at(4, RATE) == [(4, 4 * 128)]


def test_what_would_not_be_read_in_time_is_begun_before() -> None:
    """It takes 43 ms: more than half of the last step."""
    assert read_at(16, RATE) == [(15, 15 * 128), (16, 128)]
    [first, *_] = read_at(16, RATE / 4)
    assert first[0] < 15


@pytest.mark.parametrize("rate", [RATE, RATE / 4, 8e9, 4e9])
def test_reading_ends_before_the_last_step_does(rate: float) -> None:
    """Where the link can carry what is computed at all: 3.8 GB/s."""
    for num_steps in range(2, 65):
        free_s = 0.0
        for step, num_blocks in read_at(num_steps, rate):
            free_s = max(free_s, step * STEP_S) + num_blocks * BLOCK_BYTES / rate
        assert free_s <= (num_steps + 1) * STEP_S


def test_a_rate_that_is_not_known_is_taken_for_a_low_one() -> None:
    assert read_at(16, RATE, known=False) == read_at(16, UNKNOWN_BYTES_S)


def test_as_long_as_there_is_no_pace_little_waits() -> None:
    bursts = Bursts(1000, BLOCK_BYTES, ManualClock())
    few = int(FIRST_S * RATE) - 1
    assert not bursts.is_due(10, few, RATE)
    assert bursts.is_due(10, few + 1, RATE)


def test_the_groups_of_a_step_do_not_change_the_pace() -> None:
    clock = ManualClock()
    bursts = Bursts(4 * STEP_BLOCKS, BLOCK_BYTES, clock)
    for _ in range(8):
        assert not bursts.is_due(STEP_BLOCKS, 1, RATE)
        clock.advance(STEP_S / 8)
    to_come = 2 * STEP_BLOCKS * BLOCK_BYTES
    assert not bursts.is_due(2 * STEP_BLOCKS, int(STEP_S * RATE * 0.99) - to_come, RATE)
    assert bursts.is_due(2 * STEP_BLOCKS, int(STEP_S * RATE * 1.01) - to_come, RATE)


def test_nothing_is_due_where_nothing_waits() -> None:
    bursts = Bursts(10, BLOCK_BYTES, ManualClock())
    assert not bursts.is_due(10, 0, RATE)


def test_a_prefill_that_stands_still_is_not_waited_for() -> None:
    clock = ManualClock()
    bursts = Bursts(100, 1, clock)
    assert not bursts.is_due(10, 10**6, RATE)
    clock.advance(1.0)
    assert not bursts.is_due(20, 10**6, RATE)
    clock.advance(8.0)
    assert bursts.is_due(20, 10**6, RATE)
