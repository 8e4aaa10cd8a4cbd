"""Blocks that are reused all the time while they are pulled, leases that end meanwhile: no wrong
block is ever accepted."""

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shared.errors import KVTransferError
from shared.kv.memory import KVMemory, Piece
from shared.protocol import Attempt, TokenRun
from shared.transfer.blocks.mapping import Mapping
from shared.transfer.offers import OfferTable
from tests.support.pairs.reuse import (
    ReusingPlan,
    Tally,
    check_all_met,
    reuse,
    run_under_reuse,
    stamped,
)
from tests.support.pairs.transfer_pair import KINDS, LAYOUT, TICKET, Kind, Pair, num_pools, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[3]
NUM_PULLS = int(os.environ.get("TRANSFER_PULLS", "2000"))
"""of mapped, a third of them of the others; `make hand-overs` sets it"""


async def run_kind(kind: Kind, num_pulls: int) -> tuple[Tally, ReusingPlan]:
    async with Pair(kind) as pair:
        return await run_under_reuse(pair, num_pulls, seed=17)


@pytest.mark.parametrize("kind", KINDS)
async def test_no_wrong_block_is_accepted_under_forced_reuse(kind: Kind) -> None:
    """F16, F17, R13."""
    pools = num_pools()
    tally, plan = await run_kind(kind, NUM_PULLS if kind == "mapped" else NUM_PULLS // 3)
    check_all_met(tally, plan)
    assert tally.wrong == 0
    del plan
    gc.collect()
    await until(lambda: num_pools() <= pools)


@pytest.mark.parametrize("kind", KINDS)
async def test_without_verify_the_same_test_finds_wrong_blocks(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OfferTable, "is_fresh", lambda *_: True)
    monkeypatch.setattr(Mapping, "is_fresh", lambda *_: True)
    tally, _ = await run_kind(kind, 300)
    assert tally.wrong > 0


WRITER = """
import random, struct, sys, time
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
memory = KVMemory(KVLayout("m", "float32", 3, 2, 2, 4, 4), 24, int(sys.argv[1]))
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
        reuse(pair.p, block_id)
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
        pair.received(block_id) != stamped(LAYOUT, block_id, generations[block_id])
        for block_id in block_ids
    )
