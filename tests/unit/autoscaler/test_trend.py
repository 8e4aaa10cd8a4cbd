"""How much more comes now: exact for steady arrivals and for a straight rise, and never wild."""

import pytest

from services.autoscaler.planning.demand import LAST_S
from services.autoscaler.planning.policy import decide
from services.autoscaler.planning.trend import LEAST, MOST, READ_AT, growth
from services.autoscaler.view import LOOK_S, Arrival, Memory, Promise
from tests.support.cell_views import NOW_S, cell, poisson


def rising(slope: float, number: int = 10_000) -> list[float]:
    """Moments of [0, 1] whose density is 1 + slope * (t - 0.5)."""
    steps = [(index + 0.5) / number for index in range(number)]
    return [at for at in steps for _ in range(round(10 * (1 + slope * (at - 0.5))))]


def test_as_many_as_ever_is_no_growth() -> None:
    assert growth([0.5 + index for index in range(900)], 0.0, 900.0) == pytest.approx(1.0)
    assert growth([], 0.0, 900.0) == 1.0
    assert growth([5.0], 5.0, 5.0) == 1.0


@pytest.mark.parametrize("slope", [-0.8, -0.3, 0.4, 1.0])
def test_a_straight_line_is_read_where_it_says(slope: float) -> None:
    expected = 1 + slope * (READ_AT - 0.5)
    assert growth(rising(slope), 0.0, 1.0) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("at_s", "expected"), [([99.0] * 5, MOST), ([1.0] * 5, LEAST)])
def test_a_burst_at_an_end_is_no_line(at_s: list[float], expected: float) -> None:
    assert growth(at_s, 0.0, 100.0) == expected


def test_of_the_same_requests_more_workers_serve_those_that_rise() -> None:
    steady = poisson(8.0, LOOK_S)
    middle_s = NOW_S - LOOK_S / 2
    early = [item for item in steady if item.at_s < middle_s]
    late = [item for item in steady if item.at_s >= middle_s]
    falls, rises = [*early, *late[::2]], [*early[::2], *late]
    needs = [decide(cell(arrivals=a), Memory())[0].roles["prefill"] for a in (falls, rises)]
    assert needs[0].replicas < needs[1].replicas
    assert "x as many" in needs[0].reason


def test_a_last_minute_that_is_served_badly_orders_though_the_window_is_served() -> None:
    """Twenty times as many requests were in time before."""
    promise = Promise(target=0.9)
    calm = [item for item in poisson(3.0, LOOK_S) if item.at_s < NOW_S - LAST_S]
    burst = poisson(30.0, 5.0)
    alone = decide(cell(arrivals=calm, promise=promise), Memory())[0].roles["prefill"]
    after = decide(cell(arrivals=[*calm, *burst], promise=promise), Memory())[0].roles["prefill"]
    assert "of the last 15 minutes' " in alone.reason
    assert after.replicas > alone.replicas
    assert f"of the last {LAST_S:g} s' {len(burst)} prompts" in after.reason


def test_it_says_how_long_what_it_knows_reaches_back() -> None:
    """The lists in Redis are younger than the window where that was restarted."""
    known = cell(arrivals=[Arrival(NOW_S - 250.0, 100, 0, 10), *poisson(3.0, 240.0)])
    reason = decide(known, Memory())[0].roles["prefill"].reason
    assert "of the last 250 s' " in reason
    assert known.judged_s == 250.0
    young = decide(cell(arrivals=poisson(30.0, 5.0)), Memory())[0].roles["prefill"].reason
    assert "of the last 5 s' " in young
    assert cell(arrivals=[Arrival(NOW_S - LOOK_S - 9.0, 100), *known.arrivals]).judged_s == LOOK_S
    assert cell(arrivals=[]).judged_s == LOOK_S, "nobody came"


def test_a_last_minute_in_which_nobody_came_orders_nothing() -> None:
    """The window as it was, without its fall, would need more."""
    ended = [item for item in poisson(16.0, LOOK_S) if item.at_s < NOW_S - LOOK_S / 2]
    needed = decide(cell(arrivals=ended), Memory())[0].roles["prefill"]
    assert "of the last 15 minutes' " in needed.reason
    assert "0.8 x as many" in needed.reason
