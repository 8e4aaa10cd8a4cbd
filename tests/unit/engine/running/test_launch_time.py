"""A launch that waits begins its launch and a slack before the end of the step in flight; one that
came late widens the slack."""

import pytest

from shared.engine.running.launch_time import (
    EXERCISE_EVERY_S,
    EXERCISED_S,
    LEAST_SLACK_S,
    MOST_SLACK_S,
    LaunchTime,
)
from tests.support.fakes.manual_clock import ManualClock

STEP_S, LAUNCH_S = 0.010, 0.001


class Launches:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.time = LaunchTime(self.clock)

    def launch(self, takes_s: float = LAUNCH_S, *, late: bool = False) -> None:
        self.time.begin(late=late)
        self.clock.advance(takes_s)
        self.time.end()

    def wait(self) -> float:
        """For the time to launch; how long that was."""
        due_s = self.time.due_s(STEP_S)
        self.clock.advance(due_s)
        return due_s


def test_a_launch_is_due_before_the_step_in_flight_ends() -> None:
    one = Launches()
    one.launch()
    assert one.wait() == pytest.approx(STEP_S - LAUNCH_S - LEAST_SLACK_S)
    assert one.time.due_s(STEP_S) == 0


def test_a_step_begins_when_the_one_before_it_has_ended() -> None:
    one = Launches()
    one.launch()
    one.clock.advance(0.004)
    left_s = one.time.due_s(STEP_S)
    one.time.follow()
    assert one.time.due_s(STEP_S) == pytest.approx(left_s + 0.004)


def test_a_long_launch_is_remembered_for_a_while() -> None:
    one = Launches()
    one.launch(takes_s=0.005)
    one.launch()
    soon_s = one.time.due_s(STEP_S)
    assert soon_s < STEP_S - 0.004
    for _ in range(200):
        one.launch()
    assert one.time.due_s(STEP_S) == pytest.approx(STEP_S - LAUNCH_S - LEAST_SLACK_S)


def test_late_launches_widen_the_slack_and_timely_ones_narrow_it() -> None:
    one = Launches()
    one.launch()
    for times in (2, 4, 8):
        one.wait()
        one.launch(late=True)
        assert one.time.slack_s == times * LEAST_SLACK_S
    for _ in range(9):
        one.wait()
        one.launch(late=True)
    assert one.time.slack_s == MOST_SLACK_S
    for _ in range(300):
        one.wait()
        one.launch()
    assert one.time.slack_s == LEAST_SLACK_S


def test_a_launch_that_did_not_wait_says_nothing_of_the_slack() -> None:
    one = Launches()
    one.launch()
    one.clock.advance(STEP_S)
    assert one.wait() == 0
    one.launch(late=True)
    assert one.time.slack_s == LEAST_SLACK_S


def test_nothing_is_exercised_unless_a_launch_is_near() -> None:
    one = Launches()
    one.clock.advance(1.0)
    assert one.time.exercise_due_s() is None
    one.time.near()
    assert one.time.exercise_due_s() == 0
    one.clock.advance(EXERCISED_S)
    assert one.time.exercise_due_s() is None


def test_launches_and_exercises_are_apart() -> None:
    one = Launches()
    one.clock.advance(1.0)
    one.time.near()
    one.time.exercise()
    assert one.time.exercise_due_s() == pytest.approx(EXERCISE_EVERY_S)
    one.clock.advance(EXERCISE_EVERY_S / 2)
    assert one.time.exercise_due_s() == pytest.approx(EXERCISE_EVERY_S / 2)
    one.launch()
    assert one.time.exercise_due_s() == pytest.approx(EXERCISE_EVERY_S - LAUNCH_S)
