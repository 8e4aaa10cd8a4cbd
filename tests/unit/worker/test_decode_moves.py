"""A decode worker that drains hands over what it decodes: which frames and engine calls follow.

Guards: a drain that refuses the move, KV that is not offered or offered for good, an answer with a
token missing where it moved.
"""

import pytest

from services.decode.pulls import Pulls
from services.decode.service import DecodeService
from shared.kv.memory import Piece
from shared.protocol import Attempt, Cancel, Refuse, Start, Tokens
from shared.worker.channel import Abort, Add, Announced, Release, Scheduled
from shared.worker.inbox import Inbox
from tests.unit.worker.fake_parts import Stage, make_assign, make_report, make_run

pytestmark = pytest.mark.anyio
A0, A1 = Attempt("r", 0), Attempt("r", 1)
PIECE = Piece(0, (3,), (1,))


class Draining(Stage):
    """It decodes a request, then it is asked to drain."""

    def __post_init__(self) -> None:
        super().__post_init__()
        pulls = Pulls(self.transport)
        self.service = DecodeService(self.state, self.outbox, self.engine, pulls, self.clock)
        self.inbox = Inbox(self.state, self.outbox, self.service, self.clock)
        self.inbox.on_message(self.peer, make_assign(mode="local", reason="agg"))
        self.inbox.on_event(Scheduled(10, started=((A0, 0),)))
        self.inbox.on_event(make_report(10, 20, chunks=((A0, 5),), tokens=(make_run(0, 42),)))
        self.inbox.on_event(make_report(20, 30, tokens=(make_run(1, 43),)))
        self.state.asked_to_drain = True
        self.journal.take()

    def move(self) -> None:
        """The prompt, and the two tokens after it."""
        self.inbox.on_message(self.peer, make_assign(epoch=1, num_tokens=7, num_prompt_tokens=5))

    def sealed(self) -> None:
        """The cache has four tokens."""
        self.move()
        announced = (Announced(A1, PIECE, None),)
        self.inbox.on_event(Scheduled(40, started=((A1, 4),), announced=announced))
        run = make_run(2, 44, epoch=1)
        self.inbox.on_event(
            make_report(40, 50, chunks=((A1, 3),), tokens=(run,), sealed=((A1, run),))
        )


@pytest.fixture
def draining(anyio_backend: str) -> Draining:
    del anyio_backend
    return Draining()


async def test_the_next_epoch_takes_the_place_of_what_decodes_here(draining: Draining) -> None:
    draining.move()
    told, *rest = draining.journal.take()
    assert told[0] == "gateway", "that decode is over here"
    aborted, offered, (_, added) = rest
    assert aborted == ("engine", Abort(A0))
    assert offered == ("transport", ("offer", A1, "secret"))
    assert isinstance(added, Add)
    assert (added.spec.mode, added.spec.work.attempt) == ("prefill", A1)


async def test_it_is_handed_over_as_a_prefill_worker_does(draining: Draining) -> None:
    draining.sealed()
    entries = [what for who, what in draining.journal.take() if who in ("offer", "gateway")]
    kinds = [type(each) for each in entries]
    assert ("publish", 0, None) in entries
    assert kinds.index(Start) < kinds.index(Tokens) < entries.index(("seal", (44,)))
    assert draining.state.attempts.num_by_stage() == {"held": 1}
    assert draining.transport.on_release is not None
    draining.transport.on_release(A1)
    assert draining.journal.take("engine") == [Release(A1)]
    assert len(draining.state.attempts) == 0
    assert draining.state.load().unpulled_tokens == 0


async def test_the_stages_of_both_epochs_are_told(draining: Draining) -> None:
    draining.sealed()
    draining.transport.on_release(A1)
    assert {"queue", "prefill", "decode", "kv_held"} <= draining.spans().keys()


async def test_a_cancel_withdraws_the_offer(draining: Draining) -> None:
    draining.sealed()
    draining.journal.take()
    draining.inbox.on_message(draining.peer, Cancel(A1))
    assert draining.journal.take() == [("offer", "withdraw"), ("engine", Abort(A1))]
    assert len(draining.state.attempts) == 0


async def test_new_work_is_refused(draining: Draining) -> None:
    draining.inbox.on_message(draining.peer, make_assign("s"))
    [refused] = draining.frames()
    assert isinstance(refused, Refuse)
    assert (refused.attempt.rid, refused.reason) == ("s", "draining")


async def test_without_a_prefix_cache_nobody_may_pull_from_here() -> None:
    for prefix_cache in (True, False):
        stage = Draining()
        service = DecodeService(
            stage.state,
            stage.outbox,
            stage.engine,
            Pulls(stage.transport),
            stage.clock,
            prefix_cache=prefix_cache,
        )
        await service.start()
        assert (("transport", "start") in stage.journal.take()) is prefix_cache
