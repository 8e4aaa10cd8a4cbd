"""A launch that waits begins its lead and a slack before the end of the step in flight; one that
came late widens the slack."""

import pytest

from shared.engine.running.launch_time import (
    EXERCISE_EVERY_S,
    EXERCISED_S,
    LEAST_SLACK_S,
    MOST_SLACK_S,
    NUM_LEADS,
    LaunchTime,
)
from tests.support.fakes.manual_clock import ManualClock

STEP_S, FIRST_S, REST_S = 0.020, 0.001, 0.004


class Launches:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.time = LaunchTime(self.clock)

    def launch(
        self, first_s: float = FIRST_S, takes_s: float = STEP_S, *, late: bool = False
    ) -> None:
        """The device begins at once, or once the step before has ended (`follow`)."""
        self.time.begin()
        self.clock.advance(first_s)
        self.time.reach(late=late)
        self.clock.advance(REST_S)
        self.time.end(takes_s)

    def wait(self) -> float:
        """For the time to launch; how long that was."""
        due_s = self.time.due_s(STEP_S)
        self.clock.advance(due_s)
        return due_s


def launched(*firsts_s: float, takes_s: float = STEP_S) -> Launches:
    one = Launches()
    for first_s in firsts_s:
        one.launch(first_s, takes_s)
    return one


def test_a_launch_is_due_so_that_its_first_work_is_there_as_the_step_in_flight_ends() -> None:
    one = launched(FIRST_S, FIRST_S)
    assert one.wait() == pytest.approx(STEP_S - REST_S - FIRST_S - LEAST_SLACK_S)
    assert one.time.due_s(STEP_S) == 0


def test_what_the_host_takes_longer_than_the_device_is_part_of_the_lead() -> None:
    short_s = 0.002
    one = launched(FIRST_S, FIRST_S, takes_s=short_s)
    lead_s = FIRST_S + REST_S - short_s
    assert one.wait() == pytest.approx(STEP_S - REST_S - lead_s - LEAST_SLACK_S)


def test_a_step_begins_when_the_one_before_it_has_ended() -> None:
    one = launched(FIRST_S, FIRST_S)
    one.clock.advance(0.004)
    left_s = one.time.due_s(STEP_S)
    one.time.follow(None)
    assert one.time.due_s(STEP_S) == pytest.approx(left_s + REST_S + 0.004)


def test_a_step_that_ended_unseen_ended_when_its_time_was_over() -> None:
    """The host was still launching the next one, or had other things to do."""
    one = launched(FIRST_S)
    took_s = REST_S + FIRST_S + 0.001
    one.launch()  # its first work is there 1 ms before the end
    one.clock.advance(0.005)
    one.time.follow(took_s)
    assert one.time.due_s(STEP_S) == pytest.approx(
        STEP_S + 0.001 - REST_S - 0.005 - FIRST_S - LEAST_SLACK_S
    )


def test_a_step_that_had_ended_before_the_launch_holds_up_nothing() -> None:
    """The device begins as its first work comes, however late it is heard of the end."""
    one = launched(FIRST_S)
    one.clock.advance(STEP_S)
    one.launch(late=True)
    left_s = one.time.due_s(STEP_S)
    one.time.follow(STEP_S)
    assert one.time.due_s(STEP_S) == left_s


def test_long_leads_count_where_they_are_more_than_a_few() -> None:
    long_s = 0.005
    ordinary_s = STEP_S - REST_S - FIRST_S - LEAST_SLACK_S
    one = launched(*[FIRST_S] * 12, *[long_s] * 4)
    assert one.time.due_s(STEP_S) == pytest.approx(ordinary_s)
    for _ in range(2):
        one.launch(long_s)
    one.launch()
    assert one.time.due_s(STEP_S) == pytest.approx(ordinary_s - long_s + FIRST_S)
    for _ in range(NUM_LEADS):
        one.launch()
    assert one.time.due_s(STEP_S) == pytest.approx(ordinary_s)


def test_late_launches_widen_the_slack_and_timely_ones_narrow_it() -> None:
    one = launched(FIRST_S)
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
    one = launched(FIRST_S)
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
    one.time.begin()
    assert one.time.exercise_due_s() == pytest.approx(EXERCISE_EVERY_S)
