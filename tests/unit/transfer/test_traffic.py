"""The account of hand-overs: what is left, from whom, whose turn it is."""

from shared.protocol import Attempt
from shared.transfer.rate_meter import WINDOW_S
from shared.transfer.traffic import MAX_SOURCES, Traffic
from tests.support.fakes.manual_clock import ManualClock

ONE, TWO = Attempt("one", 0), Attempt("two", 3)


def test_what_is_left_falls_as_bytes_move_and_never_below_nothing() -> None:
    traffic = Traffic(ManualClock())
    traffic.expect(ONE, 1000)
    traffic.expect(TWO, 300)
    traffic.move(ONE, 300)
    assert (traffic.left(ONE), traffic.left(TWO)) == (700, 300)
    traffic.move(TWO, 400)
    assert traffic.left(TWO) == 0
    traffic.forget(ONE)
    traffic.forget(ONE)
    assert (traffic.left(ONE), traffic.backlogs()) == (0, [])
    assert traffic.moved_bytes == 700


def test_bytes_of_an_attempt_that_nobody_expects_count_as_moved_only() -> None:
    traffic = Traffic(ManualClock())
    traffic.move(ONE, 300)
    assert (traffic.moved_bytes, traffic.backlogs()) == (300, [])


def test_an_attempt_waits_until_its_turn_has_come() -> None:
    traffic = Traffic(ManualClock())
    traffic.expect(ONE, 10)
    assert not traffic.waits(ONE)
    traffic.wait(ONE)
    assert traffic.waits(ONE)
    traffic.begin(ONE)
    assert not traffic.waits(ONE)
    assert not traffic.waits(TWO)


def test_an_attempt_is_busy_while_a_read_of_it_is_unanswered() -> None:
    clock = ManualClock()
    traffic = Traffic(clock)
    traffic.expect(ONE, 10)
    clock.advance(1.0)
    for _ in range(2):
        traffic.activate(ONE)
        traffic.activate(ONE)
        clock.advance(0.25)
        traffic.rest(ONE)
        clock.advance(1.0)
        traffic.rest(ONE)
    assert traffic.busy_s(ONE) == 0.5
    assert traffic.busy_s(TWO) == 0.0


def test_each_source_has_its_backlog_and_its_rate() -> None:
    clock = ManualClock()
    traffic = Traffic(clock)
    traffic.expect(ONE, 1000, "p0")
    traffic.expect(TWO, 500, "p1")
    traffic.activate(ONE)
    traffic.activate(ONE)
    clock.advance(2 * WINDOW_S)
    traffic.move(ONE, 100)
    assert traffic.backlogs() == [("p0", 900, 100 / (2 * WINDOW_S)), ("p1", 500, 0.0)]
    traffic.expect(Attempt("more", 0), 50, "p0")
    assert [left.num_bytes for left in traffic.backlogs()] == [950, 500]


def test_a_rate_outlives_its_hand_overs_but_not_those_of_many_others() -> None:
    clock = ManualClock()
    traffic = Traffic(clock)

    def hand_over(source: str) -> None:
        traffic.expect(ONE, 100, source)
        traffic.activate(ONE)
        traffic.activate(ONE)
        clock.advance(2 * WINDOW_S)
        traffic.move(ONE, 60)

    def rate(source: str) -> float:
        traffic.forget(ONE)
        traffic.expect(TWO, 10, source)
        return traffic.backlogs()[0].bytes_s

    hand_over("first")
    assert rate("first") > 0
    for at in range(MAX_SOURCES):
        hand_over(f"p{at}")
    assert rate("first") == 0.0
