"""How long a request takes from a worker on: computing, a place, and the tokens it asks for."""

from types import SimpleNamespace
from typing import cast

import pytest

from services.gateway.owner.links.worker_view import WorkerView
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.placement.answer_time import TRUST, answering_s
from shared.message_parts.step_costs import StepCosts
from shared.protocol import DEFAULT_PRIORITY, Sampling
from shared.queue.room import Room


def worker(
    name: str, role: str = "decode", *, place_s: float = 0.0, trial_token_s: float = 0.0
) -> WorkerView:
    view = WorkerView(name, role, True, Room.whole(9), True, 0, 0, 9)  # type: ignore[arg-type]
    view.place_s, view.trial_token_s = place_s, trial_token_s
    return view


def request(max_tokens: int, min_tokens: int = 0, priority: int = DEFAULT_PRIORITY) -> LiveRequest:
    sampling = Sampling(max_tokens, min_tokens=min_tokens)
    parts = {
        "work": SimpleNamespace(sampling=sampling),
        "request": SimpleNamespace(priority=priority),
    }
    return cast(LiveRequest, SimpleNamespace(**parts))


PREFILL = worker("p", "prefill", trial_token_s=0.002)
FULL = worker("full", place_s=3.0)
SLOW = worker("slow")
IDLE = worker("idle")
IDLE.costs = StepCosts(step_s=0.02, row_s=0.01)
GAPS_S = {"idle": 0.0, "p": 0.0, "full": 0.1, "slow": 0.5}


@pytest.mark.parametrize(
    ("live", "readers", "seconds"),
    [
        (request(50), [], TRUST * 2.0),
        (request(50), [SLOW], TRUST * 2.0),
        (request(1, 1), [FULL], TRUST * 2.0),
        (request(50), [FULL], 3.0),
        (request(50, 11), [FULL], 3.0 + 10 * 0.1),
        (request(50, 11, DEFAULT_PRIORITY - 1), [FULL], TRUST * 2.0 + 10 * 0.1),
        (request(50, 5), [FULL, SLOW], TRUST * 2.0 + 4 * 0.5),
        (request(50, 11), [FULL, SLOW], 3.0 + 10 * 0.1),
        (request(50, 11), [IDLE], TRUST * 2.0 + 10 * TRUST * 0.03),
    ],
)
def test_an_answer_takes_what_the_best_reader_leaves(
    live: LiveRequest, readers: list[WorkerView], seconds: float
) -> None:
    assert answering_s(live, 1000, [PREFILL], readers, GAPS_S) == pytest.approx(seconds)


def test_the_fastest_taker_counts() -> None:
    takers = [PREFILL, worker("q", "prefill", trial_token_s=0.004)]
    assert answering_s(request(50), 500, takers, [], {}) == pytest.approx(TRUST * 1.0)
