"""The account of hand-overs: what is left, whose turn it is, a rate that counts busy time only."""

import pytest

from shared.clock import ManualClock
from shared.protocol import Attempt
from shared.transfer.traffic import WINDOW_S, Traffic

ONE, TWO = Attempt("one", 0), Attempt("two", 3)


def test_what_is_left_falls_as_bytes_move_and_never_below_nothing() -> None:
    traffic = Traffic(ManualClock())
    traffic.expect(ONE, 1000)
    traffic.expect(TWO, 500)
    traffic.move(ONE, 300)
    traffic.skip(TWO, 200)
    assert (traffic.left(ONE), traffic.left(TWO), traffic.left_bytes) == (700, 300, 1000)
    traffic.move(TWO, 400)
    assert traffic.left(TWO) == 0
    traffic.forget(ONE)
    traffic.forget(ONE)
    assert (traffic.left(ONE), traffic.left_bytes) == (None, 0)
    assert traffic.moved_bytes == 700


def test_bytes_of_an_attempt_that_nobody_expects_count_as_moved_only() -> None:
    traffic = Traffic(ManualClock())
    traffic.move(ONE, 300)
    assert (traffic.moved_bytes, traffic.left_bytes) == (300, 0)


def test_an_attempt_waits_until_its_turn_has_come() -> None:
    traffic = Traffic(ManualClock())
    traffic.expect(ONE, 10)
    assert traffic.waits(ONE)
    traffic.begin(ONE)
    traffic.expect(ONE, 20)
    assert not traffic.waits(ONE)
    assert not traffic.waits(TWO)


def test_the_rate_is_of_the_time_in_which_something_could_move() -> None:
    clock = ManualClock()
    traffic = Traffic(clock)
    assert traffic.rate_bytes_s == 0.0
    for _ in range(3):
        traffic.activate(ONE)
        clock.advance(WINDOW_S)
        traffic.move(ONE, 50)
        traffic.rest(ONE)
        clock.advance(100.0)
    assert traffic.rate_bytes_s == pytest.approx(50 / WINDOW_S)


def test_two_hand_overs_at_once_share_one_clock() -> None:
    clock = ManualClock()
    traffic = Traffic(clock)
    traffic.activate(ONE)
    traffic.activate(TWO)
    clock.advance(0.6 * WINDOW_S)
    traffic.move(TWO, 40)
    traffic.forget(TWO)
    clock.advance(0.6 * WINDOW_S)
    traffic.move(ONE, 20)
    traffic.rest(ONE)
    assert traffic.rate_bytes_s == pytest.approx(60 / (1.2 * WINDOW_S))


def test_a_link_that_slows_down_is_noticed_within_seconds_and_one_that_stands_still_too() -> None:
    clock = ManualClock()
    traffic = Traffic(clock)
    traffic.activate(ONE)
    for rate in (1e6, 1e4):
        for _ in range(60):
            clock.advance(WINDOW_S)
            traffic.move(ONE, round(rate * WINDOW_S))
        assert traffic.rate_bytes_s == pytest.approx(rate, rel=0.01)
    for _ in range(60):
        clock.advance(WINDOW_S)
        assert 0.0 < traffic.rate_bytes_s <= 1e4
    assert traffic.rate_bytes_s < 100
