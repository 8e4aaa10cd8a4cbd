"""What is due happens in order, at its time.

Guarded against: two events of one second that change places, a clock that goes back, and an event
after the end that happens all the same.
"""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.simulator.timeline import Timeline


@given(st.lists(st.integers(0, 5), max_size=30))
def test_events_happen_by_time_and_equal_ones_as_they_were_put(moments: list[int]) -> None:
    timeline = Timeline()
    seen: list[tuple[float, tuple[int, int]]] = []

    def note(item: tuple[int, int]) -> None:
        seen.append((timeline.now_s, item))

    for index, when_s in enumerate(moments):
        timeline.at(when_s, partial(note, (when_s, index)))
    timeline.run(10)
    assert [item for _, item in seen] == sorted((at, index) for index, at in enumerate(moments))
    assert all(now_s == item[0] for now_s, item in seen)


def test_what_an_event_puts_on_its_own_second_comes_after_what_was_there() -> None:
    timeline = Timeline()
    seen: list[str] = []
    timeline.at(1, lambda: timeline.after(0, lambda: seen.append("put later")))
    timeline.at(1, lambda: seen.append("put before"))
    timeline.run(1)
    assert seen == ["put before", "put later"]


def test_what_is_due_after_the_end_waits_for_the_next_run() -> None:
    timeline = Timeline()
    seen: list[float] = []
    timeline.at(2, lambda: seen.append(timeline.now_s))
    timeline.run(1.5)
    assert (timeline.now_s, seen) == (1.5, [])
    timeline.run(2)
    assert seen == [2]


def test_every_repeats() -> None:
    timeline = Timeline()
    seen: list[float] = []
    timeline.every(15, lambda: seen.append(timeline.now_s))
    timeline.run(45)
    assert seen == [15, 30, 45]


def test_nothing_is_put_into_the_past() -> None:
    timeline = Timeline()
    timeline.run(5)
    with pytest.raises(AssertionError, match="is before"):
        timeline.at(4, lambda: None)
