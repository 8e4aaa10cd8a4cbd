"""A way that fails twice in turn is left for the next best, and gets another chance later."""

import logging
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from shared.errors import CorruptPieceError
from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange
from shared.kv.memory import KVMemory, Piece
from shared.mover.client import MoverClient, data_socket_pair
from shared.mover.copies import Mark
from shared.mover.host_copies import HostCopies
from shared.mover.mover import Mover
from shared.protocol import Attempt, TokenRun
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.socket_transport import SocketTransport
from shared.transfer.terms import Terms
from shared.transfer.transport import Pulled, PullRequest
from shared.transfer.ways.auto import auto_transport
from shared.transfer.ways.failed_ways import LEAVE_S
from shared.transfer_address import TransferAddress
from tests.support.fakes.manual_clock import ManualClock
from tests.support.pairs.transfer_pair import LAYOUT, TICKET

pytestmark = pytest.mark.anyio


class Damaging(HostCopies):
    """What it copies is not what its digests say, while it is told so."""

    damages = True

    def fetch(
        self,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        after: Mark,
    ) -> Words:
        digests = super().fetch(source, source_blocks, blocks, groups, after)
        return digests ^ self.damages


class Worker:
    def __init__(self, incarnation: str, folder: Path, clock: ManualClock) -> None:
        self.memory = KVMemory.create(LAYOUT, 4)
        self.copies = Damaging(self.memory)
        ours, theirs = data_socket_pair()
        Mover(theirs, self.copies, HostCopies(self.memory)).start()
        self.mover = MoverClient(ours)
        self.transport: SocketTransport = auto_transport(
            ShownPool(self.memory), incarnation, self.mover, folder=folder, terms=Terms(clock=clock)
        )

    async def close(self) -> None:
        await self.transport.close()
        self.mover.close()


class Bench:
    """`p` offers, `d` pulls a block at a time."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.p, self.d = (Worker(name, folder, self.clock) for name in ("p.1", "d.1"))
        self._num_pulls = 0

    async def pull(self, *, has_port: bool = True) -> Pulled:
        attempt = Attempt("rid", self._num_pulls)
        self._num_pulls += 1
        self.p.memory.block(2)[:] = os.urandom(LAYOUT.block_bytes)
        self.p.memory.generations[2] += 1
        offer = self.p.transport.offer(attempt, TICKET)
        offer.publish(Piece(0, (2,), (self.p.memory.generations[2],)))
        offer.seal(TokenRun(attempt.rid, attempt.epoch, 0, (42,)))
        address = self.p.transport.address
        if not has_port:
            address = TransferAddress(socket=address.socket)
        pulled = await self.d.transport.pull(PullRequest(attempt, address, "p.1", TICKET, (1,)))
        assert self.d.memory.block(1) == self.p.memory.block(2)
        return pulled

    async def fail(self, *, has_port: bool = True) -> None:
        with pytest.raises(CorruptPieceError):
            await self.pull(has_port=has_port)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    with TemporaryDirectory(prefix="kv") as folder:
        bench = Bench(Path(folder))
        await bench.p.transport.start()
        yield bench
        await bench.d.close()
        await bench.p.close()


async def test_the_next_best_way_is_taken_loudly(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.d.transport._ways, "_nixl", None)
    for _ in range(2):
        await bench.fail()
    pulled = await bench.pull()
    assert pulled.transport == "tcp"
    assert pulled.why.startswith("mapped failed 2 times (")
    (said,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"does not come by mapped for the next {LEAVE_S:.0f} s: mapped failed" in said.message


async def test_the_way_that_was_left_gets_one_more_chance_at_a_time(bench: Bench) -> None:
    for _ in range(2):
        await bench.fail()
    bench.clock.advance(LEAVE_S - 1)
    assert (await bench.pull()).transport != "mapped"
    bench.clock.advance(2)
    await bench.fail()
    assert (await bench.pull()).transport != "mapped", "it failed again"
    bench.clock.advance(LEAVE_S + 1)
    bench.d.copies.damages = False
    assert (await bench.pull()).transport == "mapped"
    bench.d.copies.damages = True
    await bench.fail()
    bench.d.copies.damages = False
    assert (await bench.pull()).transport == "mapped", "its failures were forgotten"


async def test_failures_that_do_not_follow_each_other_are_forgiven(bench: Bench) -> None:
    for _ in range(3):
        bench.d.copies.damages = True
        await bench.fail()
        bench.d.copies.damages = False
        assert (await bench.pull()).transport == "mapped"


async def test_the_only_way_is_never_left(bench: Bench) -> None:
    for _ in range(4):
        await bench.fail(has_port=False)
    bench.d.copies.damages = False
    assert (await bench.pull(has_port=False)).transport == "mapped"
