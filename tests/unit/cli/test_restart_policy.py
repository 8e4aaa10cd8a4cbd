"""A dead process is back at once, and never starts more often than the limit per minute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.cluster.restart_policy import (
    DELAY_S,
    MAX_STARTS_PER_WINDOW,
    WINDOW_S,
    RestartPolicy,
)


def test_a_worker_that_is_killed_again_and_again_is_back_at_once() -> None:
    policy = RestartPolicy()
    deaths_s = [15.0 * number for number in range(20)]
    assert all(policy.next_delay_s(now_s) == pytest.approx(DELAY_S) for now_s in deaths_s)


def test_one_that_dies_at_its_start_waits_for_the_minute() -> None:
    policy, now_s, delays_s = RestartPolicy(), 0.0, []
    for _ in range(7):
        delays_s.append(policy.next_delay_s(now_s))
        now_s += delays_s[-1]
    assert delays_s[:5] == pytest.approx([DELAY_S] * 5)
    assert 58 < delays_s[5] < WINDOW_S
    assert delays_s[6] < 1


@given(lives=st.lists(st.floats(0, 200), min_size=1, max_size=60))
def test_never_more_than_five_starts_in_any_minute(lives: list[float]) -> None:
    policy, now_s, starts = RestartPolicy(), 0.0, []
    for lived_s in lives:
        now_s += lived_s
        now_s += policy.next_delay_s(now_s)
        starts.append(now_s)
    for first, beyond in zip(starts, starts[MAX_STARTS_PER_WINDOW:], strict=False):
        assert beyond - first >= WINDOW_S - 1e-6
