"""Delays between restarts, and the limit per minute."""

from hypothesis import given
from hypothesis import strategies as st

from services.cli.restart_policy import MAX_STARTS_PER_WINDOW, WINDOW_S, RestartPolicy


def test_delays_double_up_to_ten_seconds() -> None:
    policy, now_s, delays = RestartPolicy(), 0.0, []
    for _ in range(5):
        delays.append(policy.next_delay_s(now_s, lived_s=0.0))
        now_s += delays[-1]
    assert delays == [1, 2, 4, 8, 10]


def test_a_long_life_starts_the_delays_over() -> None:
    policy = RestartPolicy()
    assert [policy.next_delay_s(0, 0), policy.next_delay_s(1, 0)] == [1, 2]
    assert policy.next_delay_s(100, lived_s=97) == 1


@given(lives=st.lists(st.floats(0, 200), min_size=1, max_size=60))
def test_never_more_than_five_starts_in_any_minute(lives: list[float]) -> None:
    policy, now_s, starts = RestartPolicy(), 0.0, []
    for lived_s in lives:
        now_s += lived_s
        now_s += policy.next_delay_s(now_s, lived_s)
        starts.append(now_s)
    for first, beyond in zip(starts, starts[MAX_STARTS_PER_WINDOW:], strict=False):
        assert beyond - first >= WINDOW_S - 1e-6
