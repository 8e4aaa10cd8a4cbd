"""Decode goes on from token 1 as soon as it is told, where prefill's pool is mapped and all KV is
here: before SEAL, and never from blocks that are read again.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from shared.errors import StaleBlocksError
from shared.kv.columns import Words
from shared.kv.memory import first_token_word
from shared.mover import first_tokens
from shared.mover.first_tokens import FirstTokens
from shared.transfer.blocks import copied
from shared.transfer.frames import Pool
from shared.transfer.transport import Pulled
from tests.support.fakes.faulty_transport import Fault
from tests.support.pairs.transfer_pair import ATTEMPT, RUN, TICKET, Kind, Pair, content, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is."""
    monkeypatch.setattr(first_tokens, "PATIENCE_S", 60.0)


@pytest.fixture(params=["mapped", "ranked"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    kind: Kind = request.param
    async with Pair(kind) as pair:
        yield pair


async def all_here(pair: Pair) -> tuple[FirstTokens, Any, "asyncio.Task[Pulled]"]:
    """All blocks of a pull are here, token 1 is not: what decode's step loop looks at, the offer
    and the pull."""
    looked_at = pair.d.first_tokens
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1))
    pull = pair.pull(2)
    await asyncio.sleep(0.02)
    assert not looked_at.any_expected, "a block is missing"
    offer.publish(pair.p.piece(1, 2))
    await until(lambda: looked_at.any_expected)
    return looked_at, offer, pull


def tell(pair: Pair, block: int, token_id: int) -> None:
    """As prefill's engine does."""
    generation = pair.p.memory.generations[block]
    pair.p.memory.first_tokens[block] = first_token_word(generation, token_id)


async def test_the_step_loop_sees_token_one_before_the_seal(pair: Pair) -> None:
    looked_at, offer, pull = await all_here(pair)
    assert looked_at.arrived() == []
    tell(pair, 2, 42)
    assert looked_at.arrived() == [(ATTEMPT, 42)]
    assert not pull.done()
    offer.seal(RUN)
    assert (await pull).run == RUN


async def test_blocks_that_change_are_read_again_if_the_step_loop_has_not_gone_on(
    pair: Pair,
) -> None:
    looked_at, offer, pull = await all_here(pair)
    offer.publish(pair.p.piece(1, 5, seed=3))
    await until(lambda: pair.received(1) == content(5, 3))
    await until(lambda: looked_at.any_expected)
    tell(pair, 2, 41)
    assert looked_at.arrived() == [], "of the block that counted before"
    tell(pair, 5, 42)
    assert looked_at.arrived() == [(ATTEMPT, 42)]
    offer.seal(RUN)
    assert (await pull).num_reread == 1


async def test_blocks_that_change_after_the_step_loop_has_gone_on_are_stale(pair: Pair) -> None:
    looked_at, offer, pull = await all_here(pair)
    tell(pair, 2, 42)
    assert looked_at.arrived() == [(ATTEMPT, 42)]
    before = pair.received(1)
    offer.publish(pair.p.piece(1, 5, seed=3))
    with pytest.raises(StaleBlocksError):
        await pull
    assert pair.received(1) == before, "the engine reads them"


async def test_a_copy_that_is_damaged_on_its_way_is_not_begun_with(pair: Pair) -> None:
    """Token 1 is there, but looked for only once the copy was made again."""
    pair.p.plan.add("blocks", Fault.CORRUPT)
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1, 2))
    tell(pair, 2, 42)
    pull = pair.pull(2)
    await until(pair.d.first_tokens.arrived)
    assert [pair.received(0), pair.received(1)] == [content(1, 0), content(2, 0)]
    offer.seal(RUN)
    assert (await pull).num_reread > 0


async def test_no_rank_s_copy_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Pair("ranked") as pair:
        assert pair.d.ranks is not None
        slow, goes_on = pair.d.ranks.copies[-1], threading.Event()
        fetch = slow.fetch

        def fetch_late(*arguments: Any) -> Words:
            assert goes_on.wait(30)
            return fetch(*arguments)

        monkeypatch.setattr(slow, "fetch", fetch_late)
        offer = pair.p.transport.offer(ATTEMPT, TICKET)
        offer.publish(pair.p.piece(0, 1, 2))
        tell(pair, 2, 42)
        pull = pair.pull(2)
        try:
            await asyncio.sleep(0.2)
            assert not pair.d.first_tokens.any_expected and not pair.d.first_tokens.arrived()
        finally:
            goes_on.set()
        await until(pair.d.first_tokens.arrived)
        offer.seal(RUN)
        await pull


async def pulls_without_them(pair: Pair) -> None:
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1, 2))
    tell(pair, 2, 42)
    offer.seal(RUN)
    assert (await pair.pull(2)).num_reread == 0
    assert pair.received(1) == content(2, 0)
    assert not pair.d.first_tokens.any_expected and not pair.d.first_tokens.arrived()


async def test_a_source_of_an_older_release_shows_none(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(num_blocks: int, probe: bytes, *, has_first_tokens: bool) -> Pool:
        assert has_first_tokens
        return Pool(num_blocks, probe)

    monkeypatch.setattr(copied, "Pool", older)
    await pulls_without_them(pair)


async def test_first_tokens_that_cannot_be_mapped_are_done_without(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(num_blocks: int, fd: int) -> None:
        os.close(fd)
        raise OSError("no")

    monkeypatch.setattr(first_tokens, "PeerFirstTokens", refuse)
    await pulls_without_them(pair)


async def test_its_caller_hears_once_that_token_one_is_near(pair: Pair) -> None:
    heard: list[bool] = []
    request = replace(pair.request(2), on_nearing=lambda: heard.append(True))
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1))
    pull = asyncio.create_task(pair.d.transport.pull(request))
    await until(lambda: pair.received(0) == content(1, 0))
    assert not heard
    offer.publish(pair.p.piece(1, 2))
    await until(lambda: heard)
    offer.seal(RUN)
    await pull
    assert len(heard) == 1


async def test_it_is_looked_for_after_the_seal_too(pair: Pair) -> None:
    gate = pair.p.plan.hold("half_read")
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1, 2))
    pull = pair.pull(2)
    await gate.reached.wait()
    tell(pair, 2, 42)
    offer.seal(RUN)
    assert pair.d.first_tokens.arrived() == []
    gate.open.set()
    await until(lambda: pair.d.first_tokens.arrived() == [(ATTEMPT, 42)])
    await pull
