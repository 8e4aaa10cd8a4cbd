"""What nixl promises beyond the contract: a source is forgotten with its connection, a killed one
is lost at once, and where it cannot be used the reason is told."""

import asyncio
import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shared.errors import CannotMapError, PeerLostError
from shared.kv.memory import KVMemory, Piece
from shared.mover.agent import MISSING, NixlAgent
from shared.mover.client import MoverClient, data_socket_pair
from shared.mover.copies import CopyError, Regions
from shared.mover.host_copies import HostCopies
from shared.mover.mover import Mover, Outside
from shared.protocol import Attempt
from shared.transfer.blocks import joined
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.socket_transport import SocketTransport
from shared.transfer.transport import Pulled, PullRequest
from shared.transfer.ways.auto import auto_transport
from shared.transfer_address import TransferAddress
from tests.support.fakes.faulty_agent import FaultyAgent
from tests.support.pairs.owner_processes import (
    OwnerProcesses,
    kill,
    layout_of,
    owner_processes,
    stamp,
)
from tests.support.pairs.transfer_pair import (
    ATTEMPT,
    LAYOUT,
    RUN,
    TICKET,
    Pair,
    content,
    until,
)

NUM_KILLS = int(os.environ.get("TRANSFER_KILLS", "4"))
"""`make hand-overs` sets it"""
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60 + 3 * NUM_KILLS)]

BIG_BLOCK = 2**20
NUM_BIG = 24
LOST_WITHIN_S = 4.0
"""on a busy machine; a pull that waits for words of its source does so for 5 s"""


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Pair("nixl") as pair:
        yield pair


@pytest.fixture
def owners() -> Iterator[OwnerProcesses]:
    with owner_processes() as owners:
        yield owners


def only_agent(pair: Pair) -> FaultyAgent:
    (found,) = pair.d.agents
    return found


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.clock
async def test_an_owner_killed_amid_reads_is_lost_and_forgotten(
    pair: Pair, owners: OwnerProcesses, tmp_path: Path
) -> None:
    """Between two halves of a read; what follows finds nobody. The next owner is read."""
    held = 0
    for _ in range(NUM_KILLS):
        owner = owners.make("nixl", tmp_path, LAYOUT.block_bytes, 24)
        gate = pair.p.plan.hold("half_read")
        request = pair.request(24, attempt=Attempt("rid", 0), source=owner.address)
        pull = asyncio.create_task(pair.d.transport.pull(request))
        try:
            async with asyncio.timeout(20):
                await gate.reached.wait()
            assert only_agent(pair).num_joined == 1
            await kill(owner)
            await asyncio.sleep(0.05)
            assert not pull.done(), "a read still touches the destination"
        finally:
            gate.open.set()  # the mover waits there, and a test that fails waits for the mover
        async with asyncio.timeout(LOST_WITHIN_S):
            with pytest.raises(PeerLostError):
                await pull
            await until(lambda: not only_agent(pair).num_joined)
        held = held or num_descriptors()
    await until(lambda: num_descriptors() <= held + 2)
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1))
    offer.seal(RUN)
    assert (await pair.pull(1)).transport == "nixl"
    assert pair.received(0) == content(1, 0)


async def test_a_source_is_forgotten_when_it_closes(pair: Pair) -> None:
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1))
    offer.seal(RUN)
    await pair.pull(1)
    assert only_agent(pair).num_joined == 1
    await pair.p.transport.close()
    await until(lambda: not only_agent(pair).num_joined)


async def test_a_source_that_could_not_be_read_once_is_joined_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stands all the while."""
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1))
    offer.seal(RUN)
    with monkeypatch.context() as patch:
        patch.setattr(only_agent(pair), "is_done", no_reads(only_agent(pair)))
        with pytest.raises(PeerLostError, match="cannot be read any more: cut off"):
            await pair.pull(1)
    await pair.pull(1)
    assert pair.received(0) == content(1, 0)


def no_reads(ours: FaultyAgent) -> Callable[[Any], bool]:
    """The probe is read, nothing else."""
    num_ended = count()

    def is_done(handle: Any) -> bool:
        ended = FaultyAgent.is_done(ours, handle)
        if ended and next(num_ended):
            raise CopyError("cut off")
        return ended

    return is_done


async def test_a_pool_whose_probe_reads_other_bytes_is_not_read(pair: Pair) -> None:
    pair.p.memory.probe[0] ^= 1
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1))
    offer.seal(RUN)
    with pytest.raises(CannotMapError, match="read other bytes"):
        await pair.pull(1)
    assert not only_agent(pair).num_joined


class Reader:
    """A decode worker that can only be reached by nixl, with blocks of a real size."""

    def __init__(self) -> None:
        self.memory = KVMemory.create(layout_of(BIG_BLOCK), NUM_BIG)
        ours, theirs = data_socket_pair()
        Mover(theirs, HostCopies(self.memory), HostCopies(self.memory)).start()
        self.mover = MoverClient(ours)
        self.transport = auto(self.memory, "d.1", self.mover)

    async def pull(self, source: TransferAddress, epoch: int, num_blocks: int = NUM_BIG) -> Pulled:
        blocks = tuple(range(num_blocks))
        request = PullRequest(Attempt("rid", epoch), source, "p.1", TICKET, blocks)
        return await self.transport.pull(request)

    @property
    def is_right(self) -> bool:
        return all(
            bytes(self.memory.block(block)) == stamp(block, BIG_BLOCK) for block in range(NUM_BIG)
        )

    async def close(self) -> None:
        await self.transport.close()
        self.mover.close()


def auto(memory: KVMemory, incarnation: str, mover: MoverClient) -> SocketTransport:
    """Tests name its port alone, as that of a worker on another host."""
    folder = Path(tempfile.gettempdir())
    return auto_transport(ShownPool(memory), incarnation, mover, folder=folder)


@pytest.mark.clock
async def test_owners_killed_amid_reads_leave_no_wrong_block(
    owners: OwnerProcesses, tmp_path: Path
) -> None:
    reader, rng = Reader(), random.Random(7)  # noqa: S311
    for _ in range(NUM_KILLS):
        owner = owners.make("nixl", tmp_path, BIG_BLOCK, NUM_BIG)
        assert (await reader.pull(owner.address, 0)).transport == "nixl"
        assert reader.is_right
        reader.memory.rows()[:] = 0
        pull = asyncio.create_task(reader.pull(owner.address, 1))
        await asyncio.sleep(rng.uniform(0, 0.1))
        os.kill(owner.pid, signal.SIGKILL)
        try:
            async with asyncio.timeout(LOST_WITHIN_S):
                await pull
        except PeerLostError:
            pass
        else:
            assert reader.is_right
        await until(lambda: not len(reader.transport._ways._nixl.pools))  # type: ignore[attr-defined]
    await reader.close()


async def test_auto_says_why_it_reads(owners: OwnerProcesses, tmp_path: Path) -> None:
    owner = owners.make("nixl", tmp_path, BIG_BLOCK, NUM_BIG)
    reader = Reader()
    pulled = await reader.pull(owner.address, 0)
    assert pulled.why.startswith("the source cannot be mapped: it names no socket; 1 MiB of its ")
    await reader.close()


@pytest.mark.parametrize("too_long", [False, True])
async def test_auto_sends_what_cannot_be_read(
    too_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here because the source has no nixl, or more to show than a frame holds; its words reach
    decode."""
    outside = Outside(no_agent)
    if too_long:
        monkeypatch.setattr(joined, "MAX_CARD_BYTES", 10)
        outside = Outside()
    memory = KVMemory.create(layout_of(BIG_BLOCK), NUM_BIG)
    memory.block(3)[:] = stamp(0, BIG_BLOCK)
    ours, theirs = data_socket_pair()
    Mover(theirs, HostCopies(memory), HostCopies(memory), outside=outside).start()
    mover = MoverClient(ours)
    source = auto(memory, "p.1", mover)
    await source.start()
    offer = source.offer(Attempt("rid", 0), TICKET)
    offer.publish(Piece(0, (3,), (0,)))
    offer.seal(RUN)
    reader = Reader()
    pulled = await reader.pull(TransferAddress(port=source.address.port), 0, num_blocks=1)
    assert pulled.transport == "tcp"
    assert pulled.why.endswith(f"at the source, {joined.TOO_LONG if too_long else MISSING}")
    assert reader.memory.block(0) == memory.block(3)
    await reader.close()
    await source.close()
    mover.close()


async def test_auto_pulls_from_a_source_that_only_sends(
    owners: OwnerProcesses, tmp_path: Path
) -> None:
    owner = owners.make("tcp", tmp_path, BIG_BLOCK, NUM_BIG)
    reader = Reader()
    pulled = await reader.pull(owner.address, 0)
    assert pulled.transport == "tcp"
    assert pulled.why.endswith("at the source, blocks are only sent")
    assert reader.is_right
    await reader.close()


def no_agent(name: str, regions: Regions) -> NixlAgent:
    raise CopyError(MISSING)
