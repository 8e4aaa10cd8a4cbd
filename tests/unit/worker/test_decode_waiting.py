"""While a reservation waits for blocks, prefill's lease is kept; not a moment longer."""

import asyncio

import pytest

from services.decode.pulls import Pulls
from services.decode.service import DecodeService
from shared.protocol import Attempt, Cancel
from shared.worker.channel import Abort, Refused, Reserved, Scheduled
from shared.worker.inbox import Inbox
from tests.unit.worker.fake_parts import Stage, make_receive, settle

pytestmark = pytest.mark.anyio
A0 = Attempt("r", 0)


class Decode(Stage):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.pulls = Pulls(self.transport)
        self.service = DecodeService(self.state, self.outbox, self.engine, self.pulls, self.clock)
        self.inbox = Inbox(self.state, self.outbox, self.service, self.clock)

    async def waiting(self) -> None:
        self.inbox.on_message(self.peer, make_receive())
        await settle(lambda: A0 in self.transport.kept)
        self.journal.take()


@pytest.fixture
def decode(anyio_backend: str) -> Decode:
    del anyio_backend
    return Decode()


async def test_the_pull_takes_over_once_there_are_blocks(decode: Decode) -> None:
    """Until then the worker says that its blocks are waited for, and no link."""
    await decode.waiting()
    load = decode.state.load()
    assert (load.unreserved_tokens, load.incoming) == ({"prefill.1": 8}, ())
    decode.clock.advance(1.0)
    decode.inbox.on_event(Scheduled(10, reserved=(Reserved(A0, (4, 5), 0),)))
    await settle(lambda: A0 in decode.transport.pulls and not decode.transport.kept)
    load = decode.state.load()
    assert load.unreserved_tokens == {}
    assert [incoming.num_tokens for incoming in load.incoming] == [8]


async def test_cancel_ends_the_wait_at_once(decode: Decode) -> None:
    await decode.waiting()
    decode.inbox.on_message(decode.peer, Cancel(A0))
    assert decode.journal.take("engine") == [Abort(A0)]
    assert decode.state.load().unreserved_tokens == {}
    await settle(lambda: not decode.transport.kept)


async def test_a_prompt_that_never_fits_is_not_waited_for(decode: Decode) -> None:
    await decode.waiting()
    decode.inbox.on_event(Refused(A0, "too long", "too_long"))
    await settle(lambda: not decode.transport.kept)


async def test_a_lost_gateway_and_closing_end_the_wait(decode: Decode) -> None:
    await decode.waiting()
    decode.inbox.on_gateway_lost(decode.peer)
    await settle(lambda: not decode.transport.kept)
    decode.inbox.on_message(decode.peer, make_receive(epoch=1))
    await asyncio.sleep(0)
    await decode.service.close()
    assert not decode.transport.kept
