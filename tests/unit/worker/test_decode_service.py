"""An attempt's life on a decode worker: which frames and engine calls follow, in which order."""

import asyncio
from dataclasses import replace

import pytest

from services.decode.pulls import Pulls
from services.decode.service import DecodeService
from shared.errors import ProtocolError
from shared.protocol import Attempt, Cancel, Fail, Handback, Message, Refuse, Start, Tokens
from shared.transfer.transport import Pulled
from shared.transfer_address import NOWHERE
from shared.worker.attempts.spans import decode_span, transfer_span
from shared.worker.channel import (
    Abort,
    Add,
    Adopt,
    Nearing,
    Refused,
    Reserve,
    Reserved,
    Scheduled,
)
from shared.worker.inbox import Inbox
from tests.unit.worker.fake_parts import (
    INC,
    FakePeer,
    SomeTransferError,
    Stage,
    make_assign,
    make_receive,
    make_report,
    make_run,
    settle,
)

pytestmark = pytest.mark.anyio
A0, A1 = Attempt("r", 0), Attempt("r", 1)
TOKEN_1 = make_run(0, 42)
PREFILL = "chunks", "tokens", "cached_tokens"
PULLED = Pulled(
    TOKEN_1, 640, 2, start_ns=100, sealed_ns=150, end_ns=200, transport="fake", busy_s=0.0025
)


class Decode(Stage):
    """A service with its stand-ins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pulls = Pulls(self.transport)
        self.service = DecodeService(self.state, self.outbox, self.engine, self.pulls, self.clock)
        self.inbox = Inbox(self.state, self.outbox, self.service, self.clock)

    async def receive(self) -> None:
        self.inbox.on_message(self.peer, make_receive())

    async def pulling(self) -> None:
        await self.receive()
        self.inbox.on_event(Scheduled(10, reserved=(Reserved(A0, (4, 5), 0),)))
        await settle(lambda: A0 in self.transport.pulls)

    async def adopted(self) -> None:
        await self.pulling()
        self.transport.pulls[A0].set_result(PULLED)
        await settle(lambda: ("engine", Adopt(A0, TOKEN_1)) in self.journal.entries)

    async def decoding(self) -> None:
        await self.adopted()
        self.inbox.on_event(make_report(300, 310, tokens=(make_run(0, 42, 43),)))


@pytest.fixture
def decode(anyio_backend: str) -> Decode:
    del anyio_backend
    return Decode()


async def test_receive_reserves_and_a_reservation_starts_the_pull(decode: Decode) -> None:
    await decode.receive()
    [command] = decode.journal.take("engine")
    assert isinstance(command, Reserve)
    assert (command.spec.work.attempt, command.spec.mode) == (A0, "decode")
    assert decode.state.attempts.num_uncomputed_tokens == 0
    decode.inbox.on_event(Scheduled(10, reserved=(Reserved(A0, (4, 5), 1),)))
    await settle(lambda: decode.transport.pulls)
    assert decode.journal.take() == [("transport", ("pull", A0))]


async def test_the_engine_hears_that_token_one_is_near(decode: Decode) -> None:
    await decode.pulling()
    decode.journal.take()
    decode.transport.requests[A0].on_nearing()
    assert decode.journal.take("engine") == [Nearing(A0)]


async def test_verified_kv_is_adopted_and_counted(decode: Decode) -> None:
    await decode.adopted()
    counters = decode.state.counters
    assert (counters["kv_transfer_bytes:fake"], counters["kv_transfer_blocks:fake"]) == (640, 2)
    assert counters["kv_transfer_busy_us:fake"] == 2_500
    start_ns, end_ns, attributes = decode.spans()["kv_transfer"]
    assert (start_ns, end_ns) == (100, 200)
    assert {640, 2, "fake"} <= set(attributes.values())


async def test_the_spans_say_when_kv_was_published_copied_and_adopted(decode: Decode) -> None:
    pulled = replace(PULLED, published_ns=120, copied_ns=190)
    events = (("published", 120), ("sealed", 150), ("copied", 190))
    assert transfer_span(pulled).events == events
    assert transfer_span(replace(pulled, published_ns=160)).events[0] == ("sealed", 150)
    assert transfer_span(PULLED).events == (("sealed", 150),)
    decode.clock.advance(1.0)
    await decode.adopted()
    held = decode.state.attempts[A0]
    assert decode_span(held).events == (("adopted", decode.clock.wall_ns()),)


async def test_the_decode_span_runs_from_the_first_step_to_the_last_token(decode: Decode) -> None:
    await decode.decoding()
    decode.inbox.on_event(
        make_report(400, 410, tokens=(make_run(2, 44, finish_reason="stop"),), finished=(A0,))
    )
    start_ns, end_ns, attributes = decode.spans()["decode"]
    assert (start_ns, end_ns, attributes["baton.decode.tokens"]) == (300, 410, 2)
    assert len(decode.state.attempts) == 0


async def test_what_has_finished_is_no_load_when_its_last_token_is_told(
    decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a batch that ends at once looks full until the worker says something again."""
    await decode.decoding()
    num_held: list[int] = []
    monkeypatch.setattr(
        decode.peer,
        "send",
        lambda frame: (
            num_held.append(len(decode.state.attempts)) if isinstance(frame, Tokens) else None
        ),
    )
    last = make_run(2, 44, finish_reason="length")
    decode.inbox.on_event(make_report(320, 330, tokens=(last,), finished=(A0,)))
    assert num_held == [0]


async def test_an_ended_prefill_leaves_nothing_here(decode: Decode) -> None:
    await decode.pulling()
    decode.journal.take()
    decode.transport.pulls[A0].set_result(Pulled(None, 0, 0, 0, 0, 0))
    await settle(lambda: not len(decode.state.attempts))
    assert decode.journal.take() == [("engine", Abort(A0))]
    assert decode.state.counters["kv_transfers:fake"] == 0


async def test_a_failed_pull_is_told_and_aborted_once(decode: Decode) -> None:
    await decode.pulling()
    decode.journal.take()
    decode.transport.pulls[A0].set_exception(SomeTransferError("reused"))
    await settle(lambda: not len(decode.state.attempts))
    fail = Fail(A0, INC, "kv_transfer", "reused")
    assert decode.journal.take() == [("engine", Abort(A0)), ("gateway", fail)]
    decode.inbox.on_message(decode.peer, Cancel(A0))
    assert decode.journal.take() == []


async def test_a_pull_that_breaks_unexpectedly_fails_the_attempt_too(decode: Decode) -> None:
    await decode.pulling()
    decode.journal.take()
    decode.transport.pulls[A0].set_exception(ZeroDivisionError())
    await settle(lambda: not len(decode.state.attempts))
    (_, abort), (_, fail) = decode.journal.take()
    assert abort == Abort(A0) and isinstance(fail, Fail)


@pytest.mark.parametrize("reach", ["receive", "adopted", "decoding"])
async def test_cancel_without_a_pull_aborts_at_once(decode: Decode, reach: str) -> None:
    await getattr(decode, reach)()
    await asyncio.sleep(0)
    decode.journal.take()
    for _ in range(2):
        decode.inbox.on_message(decode.peer, Cancel(A0))
    entries = decode.journal.take()
    assert [what for who, what in entries if who == "engine"] == [Abort(A0)]
    assert len(entries) == 1 + (reach == "decoding"), "its decode stage is told"
    decode.inbox.on_event(make_report(tokens=(make_run(2, 44),), finished=(A0,)))
    decode.inbox.on_event(Scheduled(10, handed_back=(A0,)))
    assert decode.journal.take() == []


async def test_blocks_under_a_pull_are_aborted_only_once_it_has_stopped(decode: Decode) -> None:
    decode.transport.quarantine = asyncio.Event()
    await decode.pulling()
    decode.journal.take()
    decode.inbox.on_message(decode.peer, Cancel(A0))
    for _ in range(5):
        await asyncio.sleep(0)
    assert decode.journal.take() == [] and len(decode.state.attempts) == 0
    decode.transport.quarantine.set()
    await settle(lambda: len(decode.journal.entries) == 2)
    assert decode.journal.take() == [("transport", ("stopped", A0)), ("engine", Abort(A0))]


async def test_a_reservation_that_comes_after_the_cancel_is_given_back(decode: Decode) -> None:
    await decode.receive()
    decode.inbox.on_message(decode.peer, Cancel(A0))
    decode.journal.take()
    decode.inbox.on_event(Scheduled(10, reserved=(Reserved(A0, (4, 5), 0),)))
    assert decode.journal.take() == [("engine", Abort(A0))]


async def test_a_higher_epoch_waits_for_no_one_and_the_lower_keeps_its_quarantine(
    decode: Decode,
) -> None:
    decode.transport.quarantine = asyncio.Event()
    await decode.pulling()
    decode.journal.take()
    decode.inbox.on_message(decode.peer, make_receive(epoch=1))
    await asyncio.sleep(0)
    [command] = decode.journal.take("engine")
    assert isinstance(command, Reserve) and command.spec.work.attempt == A1
    decode.transport.quarantine.set()
    await settle(lambda: ("engine", Abort(A0)) in decode.journal.entries)
    assert [held.attempt for held in decode.state.attempts] == [A1]


async def test_duplicates_and_lower_epochs_are_ignored(decode: Decode) -> None:
    decode.inbox.on_message(decode.peer, make_receive(epoch=1))
    decode.journal.take()
    for message in (make_receive(epoch=1), make_receive(epoch=0)):
        decode.inbox.on_message(decode.peer, message)
    decode.inbox.on_message(decode.peer, make_assign(mode="local", reason="agg"))
    assert decode.journal.take() == []


async def test_another_incarnation_and_draining_are_refused(decode: Decode) -> None:
    decode.inbox.on_message(decode.peer, make_receive(incarnation="worker.0"))
    decode.state.leaving = True
    decode.inbox.on_message(decode.peer, make_receive())
    assert [frame.reason for frame in decode.frames()] == ["incarnation", "draining"]
    assert len(decode.state.attempts) == 0


async def test_a_hand_back_under_pressure_is_no_failure(decode: Decode) -> None:
    await decode.decoding()
    decode.journal.take()
    decode.inbox.on_event(Scheduled(10, handed_back=(A0,)))
    assert decode.frames() == [Handback(A0, INC, "kv_pressure")]
    assert len(decode.state.attempts) == 0


async def test_a_lost_gateway_takes_only_its_own_attempts_along(decode: Decode) -> None:
    other = FakePeer(decode.journal, "other")
    await decode.receive()
    decode.inbox.on_message(other, make_receive("s"))
    decode.journal.take()
    decode.inbox.on_gateway_lost(decode.peer)
    assert decode.journal.take() == [("engine", Abort(A0))]
    assert [held.attempt.rid for held in decode.state.attempts] == ["s"]


async def test_a_local_prompt_is_queued_with_its_reason(decode: Decode) -> None:
    decode.inbox.on_message(
        decode.peer, make_assign(mode="local", reason="slow_link", num_tokens=16)
    )
    [command] = decode.journal.take("engine")
    assert isinstance(command, Add)
    assert (command.spec.mode, command.spec.reason) == ("full", "slow_link")
    decode.inbox.on_message(
        decode.peer, make_assign("s", mode="local", reason="agg", num_tokens=16)
    )
    assert decode.frames() == [Refuse(Attempt("s", 0), INC, "no_room")]


async def test_a_prompt_that_is_not_for_this_worker_breaks_the_protocol(decode: Decode) -> None:
    """To keep it there is a reason; to hand it over it can be pulled from."""
    decode.transport.address = NOWHERE
    for message in (make_assign(mode="local"), make_assign(mode="prefill")):
        with pytest.raises(ProtocolError):
            decode.inbox.on_message(decode.peer, message)
    assert decode.journal.take() == [] and len(decode.state.attempts) == 0


async def test_a_local_answer_has_the_spans_of_both_stages(decode: Decode) -> None:
    decode.clock.advance(5e-9)
    decode.inbox.on_message(decode.peer, make_assign(mode="local", reason="agg"))
    decode.inbox.on_event(Scheduled(10, started=((A0, 2),)))
    decode.inbox.on_event(make_report(10, 20, chunks=((A0, 2),)))
    decode.inbox.on_event(make_report(20, 30, chunks=((A0, 1),), tokens=(TOKEN_1,)))
    decode.inbox.on_event(make_report(30, 40, tokens=(make_run(1, 43),)))
    last = make_run(2, 44, finish_reason="length")
    decode.inbox.on_event(make_report(40, 50, tokens=(last,), finished=(A0,)))
    spans = decode.spans()
    assert {name: span[:2] for name, span in spans.items()} == {
        "queue": (5, 10),
        "prefill": (10, 30),
        "decode": (30, 50),
    }
    told = [spans["prefill"][2][f"baton.prefill.{name}"] for name in PREFILL]
    assert told == [2, 3, 2]
    assert spans["decode"][2]["baton.decode.tokens"] == 2


async def test_start_of_a_local_prompt_is_told_once(decode: Decode) -> None:
    decode.inbox.on_message(decode.peer, make_assign(mode="local", reason="agg"))
    for _ in range(2):
        decode.inbox.on_event(Scheduled(10, started=((A0, 2),)))
    assert [type(frame) for frame in decode.frames()] == [Start]


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (Refused(A0, "never fits"), Fail(A0, INC, "refused", "never fits")),
        (Refused(A0, "never fits", "too_long"), Refuse(A0, INC, "too_long", "never fits")),
        (Refused(A0, "no output", "grammar"), Refuse(A0, INC, "grammar", "no output")),
    ],
)
async def test_what_the_engine_cannot_take_is_told(
    decode: Decode, refused: Refused, told: Message
) -> None:
    """Whether another worker could take it is the engine's word."""
    await decode.receive()
    decode.journal.take()
    decode.inbox.on_event(refused)
    assert decode.journal.take() == [("engine", Abort(A0)), ("gateway", told)]


async def test_close_ends_the_pulls_before_the_transport(decode: Decode) -> None:
    await decode.pulling()
    decode.journal.take()
    await decode.service.close()
    assert decode.journal.take() == [("transport", ("stopped", A0)), ("transport", "close")]
