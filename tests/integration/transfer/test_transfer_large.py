"""A large pull in scattered blocks and small reads, on both event loops."""

import asyncio
import random
import time

import pytest
import uvloop

from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory, Piece
from shared.transfer.limits import TransferLimits
from shared.transfer.terms import Terms
from shared.transfer.transport import PullRequest
from shared.transfer.ways.tcp import tcp_transport
from tests.support.measured import Measured
from tests.support.pairs.transfer_pair import ATTEMPT, RUN, TICKET

pytestmark = [pytest.mark.anyio, pytest.mark.clock, pytest.mark.timeout(120)]


def large_pull(loop_factory: object) -> float:
    """24 MiB in scattered blocks and small reads; returns seconds of the pull."""
    layout = KVLayout("m", "float32", 4, 2, 2, 16, 16)
    num_blocks = 24 * 2**20 // layout.block_bytes
    source, destination = (KVMemory.create(layout, num_blocks) for _ in range(2))
    for block_id in range(num_blocks):
        source.block(block_id)[:] = random.Random(block_id).randbytes(layout.block_bytes)  # noqa: S311
    order = list(range(num_blocks))
    random.Random(1).shuffle(order)  # noqa: S311

    async def main() -> float:
        terms = Terms(limits=TransferLimits(max_read_bytes=2**20 + 5))
        p, d = (
            tcp_transport(source, "p.1"),
            tcp_transport(destination, "d.1", terms=terms),
        )
        await p.start()
        offer = p.offer(ATTEMPT, TICKET)
        for start in range(0, num_blocks, 100):
            block_ids = tuple(order[start : start + 100])
            offer.publish(Piece(start, block_ids, (0,) * len(block_ids)))
        offer.seal(RUN)
        started_s = time.monotonic()
        request = PullRequest(ATTEMPT, p.address, "p.1", TICKET, tuple(range(num_blocks)))
        pulled = await d.pull(request)
        seconds_s = time.monotonic() - started_s
        assert (pulled.num_blocks, pulled.num_reread) == (num_blocks, 0)
        await d.close()
        await p.close()
        return seconds_s

    with asyncio.Runner(loop_factory=loop_factory) as runner:  # type: ignore[arg-type]
        seconds_s = runner.run(main())
    for logical in range(num_blocks):
        assert destination.block(logical) == source.block(order[logical])
    return seconds_s


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_large_scattered_pulls_on_both_event_loops(
    loop_factory: object, measured: Measured
) -> None:
    measured.at_most("pulled in", large_pull(loop_factory), 10, "s")
