"""Which attempts a worker names as going on: stage by stage, and none that only others moved."""

from typing import Any

import pytest

from shared.protocol import Attempt
from shared.worker.attempts.progress import advanced_attempts
from shared.worker.attempts.table import HeldAttempt
from shared.worker.state import WorkerState
from tests.unit.worker.fake_parts import INC, LAYOUT, LOAD, ROOM_TOKENS, FakePeer, Journal

ATTEMPT = Attempt("r", 0)
RECEIVED: dict[str, Any] = {"mode": "receive"}
RESERVED: dict[str, Any] = {**RECEIVED, "reserved_ns": 1}


class Watch:
    """One attempt in a given stage, told once already."""

    def __init__(self, num_uncomputed_tokens: int = 0, **facts: Any) -> None:
        self.state = WorkerState(INC, ROOM_TOKENS, LAYOUT)
        self.peer = FakePeer(Journal())
        self.held = HeldAttempt(ATTEMPT, self.peer, "", num_uncomputed_tokens, accepted_ns=1)
        for name, value in facts.items():
            setattr(self.held, name, value)
        self.state.attempts.hold(self.held)
        self.went_on()

    def went_on(self) -> bool:
        return advanced_attempts(self.state, self.peer) == (ATTEMPT,)

    def step(self) -> None:
        num_steps = self.state.counters.get("engine_steps", 0)
        self.state.note_engine(LOAD, {"engine_steps": num_steps + 1})


@pytest.mark.parametrize(
    ("watch", "expected"),
    [
        (Watch(num_uncomputed_tokens=5), True),
        (Watch(num_uncomputed_tokens=5, started_ns=1), True),
        (Watch(first_token_ns=1), False),
        (Watch(first_token_ns=1, num_uncomputed_tokens=5), True),
        (Watch(sealed_ns=1), False),
        (Watch(**RECEIVED), True),
        (Watch(**RESERVED), False),
    ],
    ids=["queued", "prefill", "decode", "decode behind others", "held", "reserve", "transfer"],
)
def test_a_step_of_the_engine_is_progress_where_the_engine_is_waited_for(
    watch: Watch, expected: bool
) -> None:
    assert not watch.went_on()
    watch.step()
    assert watch.went_on() is expected
    assert not watch.went_on()


def test_a_queued_prompt_goes_on_while_readers_of_what_is_held_live() -> None:
    """Decode may be full for long: then every block here waits for it, and no step is run."""
    watch = Watch(num_uncomputed_tokens=5)
    watch.state.traffic.num_signs += 1
    assert watch.went_on()
    assert not watch.went_on()
    computing = Watch(num_uncomputed_tokens=5, started_ns=1)
    computing.state.traffic.num_signs += 1
    assert not computing.went_on()


def test_a_pull_goes_on_by_its_own_bytes_once_its_turn_has_come() -> None:
    watch = Watch(**RESERVED)
    traffic = watch.state.traffic
    traffic.expect(ATTEMPT, 1000)
    traffic.wait(ATTEMPT)
    assert watch.went_on()
    traffic.move(Attempt("before", 0), 10)
    assert watch.went_on()
    traffic.begin(ATTEMPT)
    watch.went_on()
    traffic.move(Attempt("beside", 0), 10)
    assert not watch.went_on()
    traffic.move(ATTEMPT, 10)
    assert watch.went_on()


def test_kv_that_moves_is_progress_for_who_waits_for_blocks() -> None:
    for watch in (Watch(num_uncomputed_tokens=5), Watch(**RECEIVED)):
        watch.state.traffic.move(Attempt("another", 0), 10)
        assert watch.went_on()


def test_a_gateway_hears_of_its_own_attempts_only() -> None:
    watch = Watch(num_uncomputed_tokens=5)
    watch.step()
    assert advanced_attempts(watch.state, FakePeer(Journal())) == ()
