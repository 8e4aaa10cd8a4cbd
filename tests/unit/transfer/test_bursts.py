"""When a pull between GPUs reads: as late as it can and still end before prefill does."""

from collections.abc import Iterator

import pytest

from shared.transfer.bursts import FIRST_S, LEAST_LEFT_S, UNKNOWN_BYTES_S, Bursts
from tests.support.fakes.manual_clock import ManualClock

RATE = 100e9
STEP_S, STEP_BYTES, NUM_GROUPS = 0.072, 128 * 2 * 2**20, 8
GROUP_S, GROUP_BYTES = STEP_S / NUM_GROUPS, STEP_BYTES // NUM_GROUPS


def reads_of(
    num_steps: int, rate: float, *, known: bool = True, waits_s: float = 0.0
) -> Iterator[tuple[float, int]]:
    """(seconds before prefill's end, bytes) of each burst of a prompt of whole steps, whose layer
    groups are published as they are computed; all that waits is read in no time. `waits_s`: for
    other prompts, between the first step and the second."""
    clock = ManualClock()
    bursts = Bursts(num_steps * STEP_BYTES, clock)
    end_s = num_steps * STEP_S + waits_s
    now_s, num_read = 0.0, 0
    for group in range(1, num_steps * NUM_GROUPS + 1):
        passed_s = GROUP_S + waits_s * (group == NUM_GROUPS + 1)
        clock.advance(passed_s)
        now_s += passed_s
        published = group * GROUP_BYTES
        if bursts.is_due(published, published - num_read, rate if known else 0.0):
            yield end_s - now_s, published - num_read
            num_read = published
    assert num_read == num_steps * STEP_BYTES


@pytest.mark.parametrize("num_steps", [4, 16, 64])
def test_reading_begins_at_twice_the_time_it_takes_before_prefill_ends(num_steps: int) -> None:
    begun_s, num_bytes = next(reads_of(num_steps, RATE))
    wanted_s = max(2 * num_steps * STEP_BYTES / RATE, LEAST_LEFT_S)
    assert wanted_s - GROUP_S < begun_s <= wanted_s + 1e-9
    assert num_bytes == pytest.approx((num_steps * STEP_S - begun_s) / STEP_S * STEP_BYTES)


def test_at_the_end_groups_are_read_as_they_come() -> None:
    at_s = [left_s for left_s, _ in reads_of(4, 50 * RATE)]
    assert at_s == pytest.approx([2 * GROUP_S, GROUP_S, 0.0], abs=1e-9)


def test_a_link_that_just_carries_what_is_computed_is_used_from_the_start() -> None:
    assert next(reads_of(16, 2 * STEP_BYTES / STEP_S))[0] > 15 * STEP_S


@pytest.mark.parametrize("waits_s", [0.0, 5.0])
@pytest.mark.parametrize("rate", [RATE, RATE / 4, 8e9, 4e9])
def test_reading_ends_before_prefill_does(rate: float, waits_s: float) -> None:
    """Where the link can carry what is computed at all: 3.7 GB/s. The last group, and a latency,
    are read after."""
    for num_steps in range(2, 65):
        free_s = -1e9
        for left_s, num_bytes in reads_of(num_steps, rate, waits_s=waits_s):
            free_s = max(free_s, -left_s) + num_bytes / rate
        assert free_s <= GROUP_BYTES / rate + 1e-9


def test_a_rate_that_is_not_known_is_taken_for_a_low_one() -> None:
    assert list(reads_of(16, RATE, known=False)) == list(reads_of(16, UNKNOWN_BYTES_S))


def test_what_is_read_first_is_much_although_the_rate_is_not_known() -> None:
    """Else nobody would ever know it: small reads measure their latency."""
    assert next(reads_of(4, RATE, known=False))[1] > 2 * STEP_BYTES


def test_as_long_as_there_is_no_pace_little_waits() -> None:
    bursts = Bursts(2**40, ManualClock())
    few = int(FIRST_S * RATE) - 1
    assert not bursts.is_due(few, few, RATE)
    assert bursts.is_due(few + 1, few + 1, RATE)


def test_a_prompt_that_is_all_there_is_read_at_once() -> None:
    assert Bursts(100, ManualClock()).is_due(100, 1, RATE)


def test_what_waited_in_a_queue_says_nothing_of_the_pace() -> None:
    """The prefix was cached and published before the prompt's turn came."""
    clock = ManualClock()
    bursts = Bursts(20 * STEP_BYTES, clock)
    cached = 19 * STEP_BYTES
    assert bursts.is_due(cached, cached, RATE)
    clock.advance(60.0)
    due = []
    for group in range(1, NUM_GROUPS):
        clock.advance(GROUP_S)
        published = cached + group * GROUP_BYTES
        due.append(bursts.is_due(published, published, RATE))
    assert due == [True] * (NUM_GROUPS - 1)


def test_nothing_is_due_where_nothing_waits() -> None:
    bursts = Bursts(10, ManualClock())
    assert not bursts.is_due(10, 0, RATE)


def test_after_blocks_were_published_again_the_pace_begins_anew() -> None:
    clock = ManualClock()
    bursts = Bursts(1000, clock)
    for published in (10, 20, 30, 5):
        clock.advance(1.0)
        bursts.is_due(published, 1, RATE)
    clock.advance(1.0)
    assert not bursts.is_due(15, 1, RATE)
