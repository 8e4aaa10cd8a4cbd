"""How long a request takes from a worker on: computing, a place, and the tokens it asks for."""

from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.gateway.owner.links.worker_view import WorkerView
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.placement.answer_time import (
    SLACK,
    TRUST,
    AnswerTime,
    answer_time,
    whose_way,
)
from services.gateway.owner.placement.router import Placement, Route
from shared.message_parts.step_costs import StepCosts
from shared.protocol import DEFAULT_PRIORITY, Sampling
from shared.queue.room import Room


def worker(
    name: str, role: str = "decode", *, place_s: float = 0.0, trial_token_s: float = 0.0
) -> WorkerView:
    view = WorkerView(name, role, True, Room.whole(9), True, 0, 0, 9)  # type: ignore[arg-type]
    view.place_s, view.trial_token_s = place_s, trial_token_s
    return view


def request(
    max_tokens: int,
    min_tokens: int = 0,
    priority: int = DEFAULT_PRIORITY,
    *,
    has_stops: bool = False,
    **more: Any,
) -> LiveRequest:
    sampling = Sampling(max_tokens, min_tokens=min_tokens, **more)
    parts = {
        "work": SimpleNamespace(sampling=sampling),
        "request": SimpleNamespace(priority=priority, has_stops=has_stops),
    }
    return cast(LiveRequest, SimpleNamespace(**parts))


PREFILL = worker("p", "prefill", trial_token_s=0.002)
FULL = worker("full", place_s=3.0)
SLOW = worker("slow")
IDLE, BUSY = worker("idle"), worker("busy")
IDLE.costs = BUSY.costs = StepCosts(step_s=0.02, row_s=0.01)
LEAST_S = TRUST * 0.03
"""a step of theirs"""
GAPS_S = {"idle": 0.0, "busy": 0.2, "p": 0.0, "full": 0.1, "slow": 0.5}


@pytest.mark.parametrize(
    ("live", "readers", "expected"),
    [
        (request(50), [], (0.0, 1.0, 1.0)),
        (request(50), [SLOW], (0.0, 1.0, 1.0)),
        (request(1, 1), [FULL], (0.0, 1.0, 1.0)),
        (request(50), [FULL], (2.0, 1.0, 1.0)),
        (request(50, 11), [FULL], (2.0, 1.0 + 10 * 0.1, 1.0)),
        (request(50, 11, DEFAULT_PRIORITY - 1), [FULL], (0.0, 1.0 + 10 * 0.1, 1.0)),
        (request(50, 5), [FULL, SLOW], (0.0, 1.0 + 4 * 0.5, 1.0)),
        (request(50, 11), [FULL, SLOW], (2.0, 1.0 + 10 * 0.1, 1.0)),
        (request(50, 11), [IDLE], (0.0, 1.0 + 10 * LEAST_S, 1.0 + 10 * LEAST_S)),
        (request(50, 11), [BUSY], (0.0, 1.0 + 10 * 0.2, 1.0 + 10 * LEAST_S)),
        (request(50, ignore_eos=True), [FULL], (2.0, 1.0 + 49 * 0.1, 1.0)),
        (request(50, ignore_eos=True, stop_token_ids=(7,)), [FULL], (2.0, 1.0, 1.0)),
        (request(50, 11, ignore_eos=True, has_stops=True), [FULL], (2.0, 2.0, 1.0)),
    ],
)
def test_an_answer_takes_what_the_best_reader_leaves(
    live: LiveRequest, readers: list[WorkerView], expected: tuple[float, float, float]
) -> None:
    """Its prompt of 1,000 tokens took 2 s in a trial, of which half is believed."""
    assert answer_time(live, 1000, [PREFILL], readers, GAPS_S) == pytest.approx(expected)


def test_the_fastest_taker_counts() -> None:
    takers = [PREFILL, worker("q", "prefill", trial_token_s=0.004)]
    assert answer_time(request(50), 500, takers, [], {}) == (0.0, TRUST * 1.0, TRUST * 1.0)


def test_a_refusal_says_when_to_come_back_or_that_no_wait_helps() -> None:
    needed = AnswerTime(wait_s=2.0, own_s=3.0, least_s=1.5)
    assert needed.refusal(SLACK * 6.0, line_s=1.0) is None
    late = needed.refusal(SLACK * 6.0 - 0.5, line_s=1.0)
    assert late is not None and late.retry_after_s == pytest.approx(0.5)
    assert "takes 7.2 s now, and it has 6.7" in late.message
    slow_now = needed.refusal(1.6, line_s=0.0)
    assert slow_now is not None and slow_now.retry_after_s == pytest.approx(6.0 - 1.6)
    hopeless = needed.refusal(1.4, line_s=0.0)
    assert hopeless is not None and hopeless.retry_after_s == inf
    assert "takes 6.0 s now, and it has 1.4; give it more time" in hopeless.message


def test_a_way_is_computed_and_read_where_it_leads() -> None:
    workers = [PREFILL, FULL, SLOW, IDLE]
    pd, local = Placement("prefill", "", [PREFILL]), Placement("local", "agg", [FULL, SLOW])
    assert whose_way(None, pd, workers) == ([PREFILL], [FULL, SLOW, IDLE])
    assert whose_way(None, local, workers) == ([FULL, SLOW], [FULL, SLOW])
    assert whose_way(None, None, workers) == ((), ())
    there = Route("slow", "local", "slow_link", 0, 0.0, 1, "only")
    assert whose_way(there, pd, workers) == ([SLOW], [SLOW])
