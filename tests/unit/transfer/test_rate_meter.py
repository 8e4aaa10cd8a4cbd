"""The rate of a link: of busy time only, and quick to follow."""

import pytest

from shared.protocol import Attempt
from shared.transfer.rate_meter import FILLING_BYTES, WINDOW_S, RateMeter
from tests.support.fakes.manual_clock import ManualClock

ONE, TWO = Attempt("one", 0), Attempt("two", 3)


def test_the_rate_is_of_the_time_in_which_something_could_move() -> None:
    clock = ManualClock()
    meter = RateMeter(clock)
    assert meter.bytes_s == 0.0
    for _ in range(3):
        meter.activate(ONE)
        meter.activate(ONE)
        clock.advance(WINDOW_S)
        meter.move(50)
        meter.rest(ONE)
        clock.advance(100.0)
    assert meter.bytes_s == pytest.approx(50 / WINDOW_S)


def test_two_hand_overs_at_once_share_one_clock() -> None:
    clock = ManualClock()
    meter = RateMeter(clock)
    meter.activate(ONE)
    meter.activate(TWO)
    clock.advance(0.6 * WINDOW_S)
    meter.move(40)
    meter.rest(TWO)
    clock.advance(0.6 * WINDOW_S)
    meter.move(20)
    meter.rest(ONE)
    assert meter.bytes_s == pytest.approx(60 / (1.2 * WINDOW_S))


def test_a_link_that_slows_down_is_noticed_within_seconds_and_one_that_stands_still_too() -> None:
    clock = ManualClock()
    meter = RateMeter(clock)
    meter.activate(ONE)
    meter.activate(ONE)
    for rate in (1e6, 1e4):
        for _ in range(200):
            clock.advance(WINDOW_S)
            meter.move(round(rate * WINDOW_S))
        assert meter.bytes_s == pytest.approx(rate, rel=0.01)
    for _ in range(200):
        clock.advance(WINDOW_S)
        assert 0.0 < meter.bytes_s <= 1.001e4
    assert meter.bytes_s < 100


def test_after_a_hiccup_a_few_small_hand_overs_are_believed() -> None:
    clock = ManualClock()
    meter = RateMeter(clock)

    def hand_over(num_bytes: int, seconds_s: float) -> None:
        for attempt in (ONE, TWO):
            meter.activate(attempt)
        clock.advance(seconds_s)
        meter.move(num_bytes)
        for attempt in (ONE, TWO):
            meter.rest(attempt)

    for _ in range(100):
        hand_over(10**6, 0.001)
    for _ in range(400):
        hand_over(0, WINDOW_S)
    assert meter.bytes_s < 100.0
    for _ in range(25):
        hand_over(10**6, 0.001)
    assert meter.bytes_s > 0.05 * 10**9


def test_small_hand_overs_one_at_a_time_measure_no_less_than_is_known() -> None:
    """Each waits for its latency alone; a link with two reads to answer says what it carries."""
    clock = ManualClock()
    meter = RateMeter(clock)

    def hand_over(num_bytes: int, *attempts: Attempt) -> None:
        for attempt in attempts:
            meter.activate(attempt)
        clock.advance(WINDOW_S)
        meter.move(num_bytes)
        for attempt in attempts:
            meter.rest(attempt)

    hand_over(100, ONE)
    assert meter.bytes_s == 0.0
    hand_over(10**6, ONE, TWO)
    known = meter.bytes_s
    assert known == pytest.approx(10**6 / WINDOW_S)
    for _ in range(200):
        hand_over(100, ONE)
    assert meter.bytes_s == known
    hand_over(2 * 10**6, ONE)
    assert meter.bytes_s > known
    for _ in range(200):
        hand_over(100, ONE, TWO)
    assert meter.bytes_s < 2 * 100 / WINDOW_S


def test_a_prompt_that_trickles_tells_a_first_rate_by_its_large_reads() -> None:
    """What was there at first is one large read, what prefill computes meanwhile many small ones:
    of those alone nobody would ever know how fast the link is."""
    clock = ManualClock()
    meter = RateMeter(clock)

    def read(num_bytes: int, seconds_s: float) -> None:
        meter.activate(ONE, num_bytes)
        clock.advance(seconds_s)
        meter.move(num_bytes)
        meter.rest(ONE)

    def hand_over() -> None:
        read(FILLING_BYTES, 0.1 * WINDOW_S)
        for _ in range(30):
            read(FILLING_BYTES // 8, 0.1 * WINDOW_S)

    for _ in range(9):
        hand_over()
    assert meter.bytes_s == 0.0
    hand_over()
    hand_over()
    assert meter.bytes_s == pytest.approx(FILLING_BYTES / (0.1 * WINDOW_S))


@pytest.mark.parametrize("known", [False, True])
def test_who_asks_amid_a_large_read_changes_nothing(known: bool) -> None:
    """Its bytes are counted when all of them have come."""
    clock = ManualClock()
    meter = RateMeter(clock)
    rate = FILLING_BYTES / (5 * WINDOW_S)

    def read() -> None:
        meter.activate(ONE, FILLING_BYTES)
        for _ in range(5):
            clock.advance(WINDOW_S)
            assert meter.bytes_s in (0.0, pytest.approx(rate))
        meter.move(FILLING_BYTES)
        meter.rest(ONE)

    if known:
        read()
    read()
    assert meter.bytes_s == pytest.approx(rate)


def test_reads_that_hardly_overlap_measure_no_more_than_the_link_carries() -> None:
    clock = ManualClock()
    meter = RateMeter(clock)
    for _ in range(50):
        meter.activate(ONE)
        clock.advance(0.9 * WINDOW_S)
        meter.activate(TWO)
        clock.advance(0.1 * WINDOW_S)
        meter.move(100)
        meter.rest(ONE)
        clock.advance(0.9 * WINDOW_S)
        meter.move(100)
        meter.rest(TWO)
    assert meter.bytes_s == pytest.approx(200 / (1.9 * WINDOW_S), rel=0.01)
