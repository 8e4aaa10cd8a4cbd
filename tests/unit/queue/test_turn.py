"""Requests that pass long ones without a place: which may, that nobody starves, and shares."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.queue.backlog import BacklogEntry
from shared.queue.memory_backlog import MemoryBacklog
from shared.queue.room import LongPlace, Room
from shared.queue.turn import Turn

LONG = Turn(3, "a", start=10, finish=110, is_long=True)
SHORT = LONG._replace(is_long=False)


@pytest.mark.parametrize(
    ("turn", "passes"),
    [
        (SHORT._replace(start=9_000), True),
        (SHORT._replace(tenant="b", start=110), True),
        (SHORT._replace(tenant="b", start=111), False),
        (LONG._replace(tenant="b"), False),
        (SHORT._replace(priority=4), False),
        (LONG._replace(priority=2), True),
    ],
)
def test_who_passes_a_long_one(turn: Turn, *, passes: bool) -> None:
    assert turn.may_pass(LONG) is passes


def test_nothing_of_its_class_passes_a_short_one() -> None:
    assert not SHORT.may_pass(SHORT)
    assert not LONG.may_pass(SHORT)


LIMIT = 100
PLACE = Room.whole(LIMIT)
NO_PLACE = Room(LIMIT, LIMIT, LIMIT, LongPlace.NONE)
LOADS = st.lists(
    st.lists(st.integers(1, 30) | st.integers(51, 300), min_size=1, max_size=20),
    min_size=2,
    max_size=4,
)
PLACES = st.lists(st.booleans(), min_size=20, max_size=80)


@dataclass
class Served:
    """What workers took of a backlog that all wait in, in order."""

    order: list[BacklogEntry]
    widest_gap: int
    """between what two tenants were served while both waited"""


def serve(loads: list[list[int]], places: list[bool]) -> Served:
    """`places`: at each pop, whether the worker has a place for a long one; then it always has."""

    async def play() -> Served:
        backlog = MemoryBacklog(1000, ())
        for tenant, load in enumerate(loads):
            for n, num_tokens in enumerate(load):
                await backlog.put(BacklogEntry(f"{tenant}.{n}", "g", str(tenant), num_tokens))
        waiting, tokens = [len(load) for load in loads], [0] * len(loads)
        served, rooms = Served([], 0), [PLACE if has else NO_PLACE for has in places]
        rooms += [PLACE] * sum(waiting)
        for room in rooms:
            entry = await backlog.pop((), room)
            if entry is None:
                continue
            served.order.append(entry)
            tenant = int(entry.tenant)
            waiting[tenant] -= 1
            tokens[tenant] += entry.num_tokens
            if all(waiting):
                served.widest_gap = max(served.widest_gap, max(tokens) - min(tokens))
        return served

    return asyncio.run(play())


def is_long(entry: BacklogEntry) -> bool:
    return entry.num_tokens > LIMIT // 2


def is_short(entry: BacklogEntry) -> bool:
    return not is_long(entry)


@given(loads=LOADS, places=PLACES)
@settings(max_examples=200, deadline=None)
def test_all_are_served_and_each_length_in_its_order(
    loads: list[list[int]], places: list[bool]
) -> None:
    """A long one has its place when the long ones before it have had theirs, whatever passed."""
    served, plain = serve(loads, places), serve(loads, [])
    assert sorted(entry.rid for entry in served.order) == sorted(e.rid for e in plain.order)
    for kind in (is_long, is_short):
        assert list(filter(kind, served.order)) == list(filter(kind, plain.order))


def bound(loads: list[list[int]]) -> int:
    """Goyal et al., theorem 1, and one longest request more."""
    longest = sorted((max(load) for load in loads), reverse=True)
    return longest[0] + longest[1] + longest[0]


@given(loads=LOADS, places=PLACES)
@settings(max_examples=200, deadline=None)
def test_tenants_are_served_evenly_but_for_one_longest_request_more(
    loads: list[list[int]], places: list[bool]
) -> None:
    assert serve(loads, places).widest_gap <= bound(loads)


ONE_LONG, MANY_SHORT = [60, 60], [10] * 100


@pytest.mark.parametrize(("may_pass", "holds"), [(Turn.may_pass, True), (None, False)])
def test_passing_without_end_breaks_that(
    may_pass: Callable[[Turn, Turn], bool] | None, monkeypatch: pytest.MonkeyPatch, *, holds: bool
) -> None:
    monkeypatch.setattr(Turn, "may_pass", may_pass or (lambda turn, _: not turn.is_long))
    loads = [ONE_LONG, MANY_SHORT]
    assert (serve(loads, [False] * 90).widest_gap <= bound(loads)) is holds


def test_without_passing_short_ones_wait_for_a_place_that_they_do_not_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads = [[60, 10, 10]]
    assert [e.num_tokens for e in serve(loads, [False] * 3).order] == [10, 10, 60]
    monkeypatch.setattr(Turn, "may_pass", lambda turn, other: False)
    assert [e.num_tokens for e in serve(loads, [False] * 3).order] == [60, 10, 10]
