"""Slow workers leave the routing, for a while and never too many.

Guards: a machine that throttles and gets as many requests as the others; a pool that shrinks
because all are slow.
"""

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.owner.links.worker_view import Pace
from services.gateway.owner.placement.failures import Failures
from services.gateway.owner.placement.outliers import FIRST_PAUSE_S, MAX_PAUSE_S, ONE_OF, Outliers
from services.gateway.owner.view.gap_line import LEAST_SECONDS, GapLine


def paces(*gaps_s: float | None) -> list[Pace]:
    return [Pace(f"d{at}", "decode", gap_s) for at, gap_s in enumerate(gaps_s)]


def test_the_slow_one_of_three_is_left_out_and_comes_back() -> None:
    outliers = Outliers()
    outliers.look(paces(0.05, 0.06, 0.5), 0.0)
    assert outliers.left_out(FIRST_PAUSE_S - 0.1) == {"d2"}
    assert outliers.left_out(FIRST_PAUSE_S) == frozenset()


def test_one_that_is_slow_again_is_left_out_for_twice_as_long() -> None:
    outliers, now_s, lengths_s = Outliers(), 0.0, []
    for _ in range(6):
        outliers.look(paces(0.05, 0.06, 0.5), now_s)
        begin_s = now_s
        while outliers.left_out(now_s):
            now_s += 1.0
        lengths_s.append(now_s - begin_s)
    assert lengths_s == [30.0, 60.0, 120.0, 240.0, MAX_PAUSE_S, MAX_PAUSE_S]
    outliers.look(paces(0.05, 0.06, 0.06), now_s)
    outliers.look(paces(0.05, 0.06, 0.5), now_s)
    assert outliers.left_out(now_s + FIRST_PAUSE_S - 1) == {"d2"}
    assert not outliers.left_out(now_s + FIRST_PAUSE_S), "it has been as fast as the others"


def test_who_decodes_nothing_meanwhile_is_not_forgiven_and_not_judged() -> None:
    outliers = Outliers()
    outliers.look(paces(0.05, 0.06, 0.5), 0.0)
    outliers.look(paces(0.05, 0.06, None), 40.0)
    assert not outliers.left_out(40.0)
    outliers.look(paces(0.05, 0.06, 0.5), 41.0)
    assert outliers.left_out(41.0 + FIRST_PAUSE_S) == {"d2"}


def test_a_little_slower_is_no_outlier() -> None:
    for gaps_s in ((0.001, 0.001, 0.02), (0.05, 0.06, 0.14), (1.0, 1.2, 2.9)):
        outliers = Outliers()
        outliers.look(paces(*gaps_s), 0.0)
        assert not outliers.left_out(0.0)


def test_two_of_a_role_are_never_fewer() -> None:
    outliers = Outliers()
    outliers.look([*paces(0.05, 5.0), Pace("p0", "prefill", None)], 0.0)
    assert not outliers.left_out(0.0)


GAPS = st.lists(st.none() | st.floats(0, 10), max_size=12)


@given(st.lists(GAPS, max_size=8))
def test_never_more_than_a_third(looks: list[list[float | None]]) -> None:
    outliers = Outliers()
    for number, gaps_s in enumerate(looks):
        outliers.look(paces(*gaps_s), 10.0 * number)
        left_out = outliers.left_out(10.0 * number)
        known = {pace.incarnation for pace in paces(*gaps_s)}
        assert left_out <= known
        newcomers = len(gaps_s) < max(map(len, looks[: number + 1]))
        assert newcomers or len(left_out) <= len(gaps_s) // ONE_OF


def test_requests_avoid_it_and_the_operator_is_told() -> None:
    failures = Failures()
    named = [pace._replace(incarnation=f"{pace.incarnation}.1") for pace in paces(0.05, 0.06, 0.5)]
    failures.note_paces(named, 0.0)
    assert failures.closed_to(1.0) == {("d2.1",)}
    assert failures.broken(1.0) == frozenset()
    told = failures.trouble({"d0.1", "d1.1", "d2.1"}, 1.0)
    assert told == "d2 decodes much slower than the others and gets no new request"
    assert failures.trouble({"d0.1"}, 1.0) == ""


def test_the_pace_is_the_median_of_whole_seconds() -> None:
    line = GapLine()
    for second in range(LEAST_SECONDS - 1):
        line.note(20.0 + second, 0.1)
    assert line.pace_s(25.0) is None
    line.note(24.5, 0.3)
    line.note(25.1, 9.0)
    assert line.pace_s(25.2) == 0.1
    assert line.pace_s(60.0) is None
