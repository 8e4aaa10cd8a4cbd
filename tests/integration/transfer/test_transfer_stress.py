"""Blocks that are reused all the time while they are pulled, leases that end meanwhile: no wrong
block is ever accepted.

A block's content names the block and its generation in every word, so a stale, foreign or torn
block is recognised without trusting digests or tags.
"""

import asyncio
import contextlib
import gc
import os
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from shared.errors import KVTransferError
from shared.kv.memory import KVMemory, Piece
from shared.protocol import Attempt, TokenRun
from shared.transfer.blocks.mapping import Mapping
from shared.transfer.offers import OfferState, OfferTable
from tests.support.fakes.faulty_transport import Fault, FaultPlan, FaultyMemoryTransport
from tests.support.pairs.transfer_pair import (
    KINDS,
    LAYOUT,
    TICKET,
    Kind,
    Pair,
    Side,
    num_pools,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[3]
NUM_PULLS = int(os.environ.get("TRANSFER_PULLS", "2000"))
"""`make hand-overs` sets it"""
NUM_WORDS = LAYOUT.block_bytes // 8
POINTS = ("watermark", "blocks", "half_read", "seal", "verify", "read")


def stamped(block_id: int, generation: int) -> bytes:
    return struct.pack("<II", block_id, generation) * NUM_WORDS


def reuse(memory: KVMemory, block_id: int) -> None:
    memory.generations[block_id] += 1
    memory.block(block_id)[:] = stamped(block_id, memory.generations[block_id])


@dataclass
class ReusingPlan(FaultPlan):
    """At points chosen by the seed, prefill's engine gives a block to somebody else, or the lease
    ends and it gives all of them away."""

    memory: KVMemory
    rng: random.Random
    offer: Any = None
    offered: list[int] = field(default_factory=list)
    num_reused: Counter[str] = field(default_factory=Counter)
    num_ended: Counter[str] = field(default_factory=Counter)
    """leases"""

    async def strike(self, point: str) -> Fault:
        if point in POINTS and self.rng.random() < 0.07:
            self.reuse_one(point)
        if point in POINTS and self.rng.random() < 0.02:
            self.end_lease(point)
        return Fault.PASS

    def end_lease(self, point: str) -> None:
        """Of a sealed offer; others have none."""
        if self.offer.state is OfferState.SEALED:
            self.num_ended[point] += 1
            self.offer._table.drop(self.offer, OfferState.EXPIRED)
            for block_id in self.offered:
                reuse(self.memory, block_id)

    def reuse_one(self, point: str) -> None:
        reuse(self.memory, self.rng.choice(self.offered))
        self.num_reused[point] += 1


@dataclass
class Tally:
    accepted: int = 0
    refused: int = 0
    wrong: int = 0


async def pull_under_reuse(pair: Pair, plan: ReusingPlan, number: int, tally: Tally) -> None:
    rng, memory = plan.rng, pair.p.memory
    num = rng.randint(1, 5)
    plan.offered = rng.sample(range(16), num)
    for block_id in plan.offered:
        reuse(memory, block_id)
    tags = [(block_id, memory.generations[block_id]) for block_id in plan.offered]
    attempt = Attempt("rid", number)
    offer = plan.offer = pair.p.transport.offer(attempt, TICKET)
    split = rng.randint(0, num)
    pull = asyncio.create_task(pair.d.transport.pull(replace(pair.request(num), attempt=attempt)))
    for first, some in ((0, tags[:split]), (split, tags[split:])):
        if some:
            block_ids, generations = zip(*some, strict=True)
            offer.publish(Piece(first, block_ids, generations))
            if rng.random() < 0.1:
                plan.reuse_one("publish")
            await asyncio.sleep(0)
    offer.seal(TokenRun("rid", number, 0, (number,)))
    try:
        await pull
    except KVTransferError:
        tally.refused += 1
        offer.withdraw()
    else:
        tally.accepted += 1
        tally.wrong += any(
            pair.received(logical) != stamped(*tag) for logical, tag in enumerate(tags)
        )


async def run_under_reuse(kind: Kind, num_pulls: int, seed: int) -> tuple[Tally, ReusingPlan]:
    tally = Tally()
    async with Pair(kind) as pair:
        plan = ReusingPlan(pair.p.memory, random.Random(seed))  # noqa: S311
        for side in (pair.p, pair.d):
            give_plan(side, plan)
        for number in range(num_pulls):
            await pull_under_reuse(pair, plan, number, tally)
        await until(lambda: not pair.num_offers)
    return tally, plan


def give_plan(side: Side, plan: FaultPlan) -> None:
    side.terms.plan = plan
    if isinstance(side.transport, FaultyMemoryTransport):
        side.transport.plan = plan


@pytest.mark.parametrize("kind", KINDS)
async def test_no_wrong_block_is_accepted_under_forced_reuse(kind: Kind) -> None:
    """F16, F17, R13."""
    pools = num_pools()
    tally, plan = await run_under_reuse(kind, NUM_PULLS, seed=17)
    del plan.memory, plan.offer
    gc.collect()
    await until(lambda: num_pools() <= pools)
    assert tally.wrong == 0
    assert tally.refused > NUM_PULLS / 4
    assert tally.accepted > NUM_PULLS / 10
    assert set(plan.num_reused) == {*POINTS, "publish"}, "reuse really happened everywhere"
    assert set(plan.num_ended) >= {"read", "half_read", "verify"}, "leases really ended"


@pytest.mark.parametrize("kind", KINDS)
async def test_without_verify_the_same_test_finds_wrong_blocks(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OfferTable, "is_fresh", lambda *_: True)
    monkeypatch.setattr(Mapping, "is_fresh", lambda *_: True)
    tally, _ = await run_under_reuse(kind, 300, seed=17)
    assert tally.wrong > 0


WRITER = """
import random, struct, sys, time
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
memory = KVMemory(KVLayout("m", "float32", 3, 2, 1, 8, 4), 24, int(sys.argv[1]))
control, rng = memory.block(23), random.Random(5)
words = memory.layout.block_bytes // 8
while control[0] != 3:
    if control[0] == 0:
        control[0] = 1
    if control[0] == 1:
        time.sleep(0)
        continue
    start = time.monotonic() + rng.random() * 0.001 * 4 ** rng.randrange(4)
    while time.monotonic() < start and control[0] == 2:
        pass
    while control[0] == 2:
        block_id = rng.randrange(8)
        memory.generations[block_id] += 1
        block = memory.block(block_id)
        content = struct.pack("<II", block_id, memory.generations[block_id]) * words
        block[: len(content) // 2] = content[: len(content) // 2]
        block[len(content) // 2 :] = content[len(content) // 2 :]
"""


@contextlib.contextmanager
def writer_process(memory: KVMemory) -> Iterator[None]:
    command = [sys.executable, "-c", WRITER, str(memory.fd)]
    with subprocess.Popen(command, pass_fds=[memory.fd], cwd=ROOT) as writer:  # noqa: S603
        try:
            yield
        finally:
            memory.block(23)[0] = 3
        assert writer.wait(30) == 0


@pytest.mark.parametrize("kind", ["tcp", "mapped", "nixl"])
async def test_another_process_that_keeps_rewriting_the_pool(kind: Kind) -> None:
    """The engine process and the io process race for real; 0 asks it to rest, 1 says it does,
    2 lets it go on, 3 ends it. Its head starts are of 1 to 64 ms: pulls of any speed win some."""
    tally = Tally()
    async with Pair(kind) as pair:
        memory = pair.p.memory
        with writer_process(memory):
            for number in range(400):
                await race_once(pair, number, tally)
    assert tally.wrong == 0
    assert tally.refused > 20
    assert tally.accepted > 20


async def race_once(pair: Pair, number: int, tally: Tally) -> None:
    memory = pair.p.memory
    control = memory.block(23)
    control[0] = 0
    async with asyncio.timeout(20):
        while control[0] != 1:
            os.sched_yield()
            await asyncio.sleep(0)
    for block_id in range(8):
        reuse(memory, block_id)
    block_ids = tuple(range(8))
    generations = tuple(memory.generations[block_id] for block_id in block_ids)
    attempt = Attempt("rid", number)
    offer = pair.p.transport.offer(attempt, TICKET)
    control[0] = 2
    offer.publish(Piece(0, block_ids, generations))
    offer.seal(TokenRun("rid", number, 0, (1,)))
    try:
        await pair.d.transport.pull(replace(pair.request(8), attempt=attempt))
    except KVTransferError:
        tally.refused += 1
        offer.withdraw()
        return
    tally.accepted += 1
    tally.wrong += any(
        pair.received(block_id) != stamped(block_id, generations[block_id])
        for block_id in block_ids
    )
