"""`auto` between two hosts with GPUs: tcp at first, nccl once the two are linked, and why not if
they cannot be."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from shared.errors import PeerLostError
from shared.kv.memory import KVMemory, Piece
from shared.mover.agent import MISSING
from shared.mover.client import MoverClient, data_socket_pair
from shared.mover.copies import CopyError
from shared.mover.host_copies import HostCopies
from shared.mover.links.gloo import GlooLink
from shared.mover.links.link import End, MakeLink
from shared.mover.mover import Mover, Outside
from shared.protocol import Attempt
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.blocks.linked import LinkedPool
from shared.transfer.blocks.standing import Standing
from shared.transfer.terms import Terms
from shared.transfer.transport import Pulled, PullRequest
from shared.transfer.ways.auto import MOST_APART_S, auto_transport
from shared.transfer.ways.failed_ways import LEAVE_S
from shared.transfer.ways.nccl import nccl_way
from shared.transfer_address import TransferAddress
from tests.support.fakes.manual_clock import ManualClock
from tests.support.pairs.transfer_pair import LAYOUT, RUN, TICKET, content, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


class Worker:
    """With `auto`. Other hosts find it at its port."""

    def __init__(self, incarnation: str, make_link: MakeLink) -> None:
        self.memory = KVMemory.create(LAYOUT, 4)
        ours, theirs = data_socket_pair()
        copies, outside = HostCopies(self.memory), Outside(make_link=make_link)
        Mover(theirs, copies, HostCopies(self.memory), outside=outside).start()
        self.mover = MoverClient(ours)
        folder = Path(tempfile.gettempdir())
        self.transport = auto_transport(
            ShownPool(self.memory), incarnation, self.mover, folder=folder
        )

    async def close(self) -> None:
        await self.transport.close()
        self.mover.close()


class Hosts:
    """Two of them, with a worker each; `d` takes its pool for a GPU's, and has no nixl."""

    def __init__(self) -> None:
        self.problem = ""
        self.num_made = 0
        self.p, self.d = Worker("p.1", GlooLink), Worker("d.1", self._link)
        self.ways = self.d.transport._ways
        self.ways._nixl = None  # type: ignore[attr-defined]
        self.ways._nccl = nccl_way(self.d.memory, self.d.mover, Terms())  # type: ignore[attr-defined]
        self.clock = self.ways._clock = ManualClock()  # type: ignore[attr-defined]
        self._num_pulls = 0

    @property
    def links(self) -> Standing[LinkedPool]:
        pools: Standing[LinkedPool] = self.ways._nccl.pools  # type: ignore[attr-defined]
        return pools

    def _link(self, end: End, host: str, device: torch.device) -> GlooLink:
        self.num_made += 1
        if self.problem:
            raise CopyError(self.problem)
        return GlooLink(end, host, device)

    async def pull(self) -> Pulled:
        attempt = Attempt("rid", self._num_pulls)
        self._num_pulls += 1
        self.p.memory.block(2)[:] = content(self._num_pulls, 0)
        self.p.memory.generations[2] += 1
        offer = self.p.transport.offer(attempt, TICKET)
        offer.publish(Piece(0, (2,), (self.p.memory.generations[2],)))
        offer.seal(RUN)
        source = TransferAddress(port=self.p.transport.address.port)
        pulled = await self.d.transport.pull(PullRequest(attempt, source, "p.1", TICKET, (1,)))
        assert self.d.memory.block(1) == self.p.memory.block(2)
        return pulled

    async def pull_once(self) -> Pulled:
        """And wait for what it began."""
        pulled = await self.pull()
        source = self.ways._sources["p.1"]  # type: ignore[attr-defined]
        await until(lambda: source.linking is None)
        return pulled

    async def pull_by(self, way: str) -> Pulled:
        """Pull until one comes so."""
        async with asyncio.timeout(10):
            while (pulled := await self.pull()).transport != way:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return pulled


@pytest.fixture
async def hosts() -> AsyncIterator[Hosts]:
    hosts = Hosts()
    await hosts.p.transport.start()
    yield hosts
    await hosts.d.close()
    await hosts.p.close()


async def test_auto_links_two_gpus_that_it_cannot_join(hosts: Hosts) -> None:
    assert (await hosts.pull()).why.endswith(f"{MISSING}; it is being linked to")
    linked_by = await hosts.pull_by("nccl")
    assert MISSING in linked_by.why
    assert "of its pool read right at" in linked_by.why


async def test_auto_says_why_it_does_not_link(hosts: Hosts) -> None:
    hosts.problem = "no way to link"
    await hosts.pull()
    async with asyncio.timeout(10):
        while not (pulled := await hosts.pull()).why.endswith("no way to link"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert pulled.transport == "tcp"


async def test_auto_leaves_a_link_that_fails_for_tcp(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hosts.pull_by("nccl")
    monkeypatch.setattr(GlooLink, "receive", cut_off)
    with pytest.raises(PeerLostError):
        await hosts.pull()
    for _ in range(3):
        assert (await hosts.pull_once()).transport == "tcp"
    assert (await hosts.pull()).why.endswith("cut off")
    monkeypatch.undo()
    hosts.clock.advance(LEAVE_S + 1)
    assert (await hosts.pull()).transport == "tcp", "its link is made again meanwhile"
    await hosts.pull_by("nccl")


async def test_nobody_fails_while_a_link_that_was_lost_cannot_be_made_again(hosts: Hosts) -> None:
    await hosts.pull_by("nccl")
    hosts.problem = "no way to link"
    (pool,) = [begun.result() for begun, _ in hosts.links._live.values()]
    await pool.end()
    for _ in range(5):
        assert (await hosts.pull_once()).transport == "tcp"
        hosts.clock.advance(LEAVE_S + 1)


async def test_a_source_that_could_not_be_linked_to_is_tried_again_later_and_later(
    hosts: Hosts,
) -> None:
    hosts.problem = "no way to link"
    tried = []
    for _ in range(9):
        before = hosts.num_made
        await hosts.pull_once()
        tried.append(hosts.num_made - before)
        hosts.clock.advance(LEAVE_S + 1)
    assert tried == [1, 1, 0, 1, 0, 0, 0, 1, 0], "after 5 minutes, 10, 20"
    hosts.problem = ""
    hosts.clock.advance(MOST_APART_S)
    await hosts.pull_by("nccl")


def cut_off(link: GlooLink, rows: torch.Tensor) -> None:
    raise CopyError("cut off")
