"""A prefill and a decode transport of any kind, joined, with pools whose content is known."""

import asyncio
import contextlib
import gc
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory, Piece
from shared.mover.client import MoverClient, data_socket_pair
from shared.mover.copies import Copies
from shared.mover.first_tokens import FirstTokens
from shared.mover.host_copies import HostCopies
from shared.mover.mover import Mover, Outside
from shared.mover.rank_movers import RankMovers
from shared.protocol import Attempt, TokenRun
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.blocks.payloads import payloads_of
from shared.transfer.limits import TransferLimits
from shared.transfer.socket_transport import SocketTransport
from shared.transfer.transport import KVTransport, Pulled, PullRequest
from shared.transfer.ways.nccl import nccl_transport
from shared.transfer.ways.nixl import nixl_transport
from shared.transfer.ways.tcp import tcp_transport
from shared.transfer_address import TransferAddress
from tests.support.fakes.faulty_agent import FaultyAgent
from tests.support.fakes.faulty_copies import FaultyCopies
from tests.support.fakes.faulty_link import FaultyLink
from tests.support.fakes.faulty_transport import (
    FaultPlan,
    FaultyMemoryTransport,
    FaultyTerms,
    faulty_auto_transport,
    faulty_mapped_transport,
)
from tests.support.fakes.local_agent import LocalAgent
from tests.support.fakes.memory_transport import MemoryNetwork, MemoryTransport
from tests.support.fakes.staged_copies import StagedCopies
from tests.support.fakes.strikes import Strikes
from tests.support.pairs.rank_pools import RankPools

Kind = Literal[
    "memory",
    "tcp",
    "staged",
    "ranked_tcp",
    "mapped",
    "ranked",
    "nixl",
    "ranked_nixl",
    "nccl",
    "auto",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""staged: tcp where no block lies in the memory that a socket reads; ranked: of a model on two GPUs
at prefill and on four, which hold two copies of each head, at decode; ranked_nixl: read by what
copies within the process; nccl: over gloo"""
THAT_MAP = ("mapped", "ranked", "auto")
"""auto: of two workers that can map each other"""
THAT_FETCH = (*THAT_MAP, "nixl", "ranked_nixl", "nccl")
"""the mover of decode brings the blocks; no frame carries them"""
LAYOUT = KVLayout("m", "float32", 3, 2, 2, 4, 4)
"""of two layer groups"""
PREFILL_RANKS, DECODE_RANKS = 2, 4
NUM_BLOCKS = 24
ARENA_BYTES = 5 * LAYOUT.block_bytes
"""few, so that senders wait for room"""
TICKET = "ticket"
ATTEMPT = Attempt("rid", 1)
RUN = TokenRun("rid", 1, 0, (42,))


class Side:
    """One worker's pool, transport and faults."""

    def __init__(
        self,
        kind: Kind,
        incarnation: str,
        network: MemoryNetwork,
        limits: TransferLimits,
        folder: Path,
        source: "Side | None" = None,
    ) -> None:
        """`folder`: of mapped workers. `source`: whose plan strikes when a mapped worker copies,
        as it strikes when a tcp worker sends."""
        self.memory = KVMemory.create(LAYOUT, NUM_BLOCKS)
        self.incarnation = incarnation
        self.plan = FaultPlan()
        self.released: list[Attempt] = []
        self.changed = asyncio.Event()
        self.agents: list[FaultyAgent] = []
        """that its mover made"""
        self.links: list[FaultyLink] = []
        self.first_tokens = FirstTokens(lambda: None)
        """as its step loop sees them"""
        self.transport: KVTransport
        self.mover: MoverClient | RankMovers | None = None
        self.ranks: RankPools | None = None
        self.terms = FaultyTerms(self.plan, limits)
        if kind == "tcp":
            self.transport = tcp_transport(self.memory, incarnation, terms=self.terms)
        elif kind == "staged":
            host = KVMemory.create(LAYOUT, NUM_BLOCKS, ARENA_BYTES)
            self.memory.generations = host.generations
            self.mover = self._start_mover(StagedCopies(self.memory, host))
            self.transport = self._over_arena(host, self.mover)
        elif kind in ("ranked", "ranked_tcp", "ranked_nixl"):
            self.transport = self._of_ranks(kind, folder, source)
        elif kind in ("mapped", "auto"):
            terms_of_source = (source or self).terms
            self.mover = self._start_mover(FaultyCopies(self.memory, self.terms, terms_of_source))
            make = faulty_mapped_transport if kind == "mapped" else faulty_auto_transport
            shown = ShownPool(self.memory)
            self.transport = make(shown, incarnation, self.mover, folder, self.terms)
        elif kind == "nixl":
            strikes = Strikes(self.terms, (source or self).terms)
            make_agent = partial(FaultyAgent, strikes, self.agents)
            self.mover = self._start_mover(HostCopies(self.memory), Outside(make_agent))
            self.transport = nixl_transport(self.memory, incarnation, self.mover, terms=self.terms)
        elif kind == "nccl":
            strikes = Strikes(self.terms, (source or self).terms)
            make_link = partial(FaultyLink, strikes, self.links)
            outside = Outside(make_link=make_link)
            self.mover = self._start_mover(HostCopies(self.memory), outside)
            self.transport = nccl_transport(self.memory, incarnation, self.mover, terms=self.terms)
        else:
            self.transport = FaultyMemoryTransport(
                self.plan, self.memory, incarnation, network, limits=limits
            )
        self.transport.on_release = self._release

    def _of_ranks(self, kind: Kind, folder: Path, source: "Side | None") -> KVTransport:
        size = DECODE_RANKS if source else PREFILL_RANKS
        self.ranks = RankPools(LAYOUT, NUM_BLOCKS, ARENA_BYTES, size)
        self.memory = host = self.ranks.host
        strikes = Strikes(self.terms, (source or self).terms)
        make_agent = partial(FaultyAgent, strikes, self.agents, make=LocalAgent)
        self.mover = self.ranks.start_movers(strikes, self.first_tokens, make_agent)
        if kind == "ranked_nixl":
            return nixl_transport(
                host, self.incarnation, self.mover, num_ranks=size, terms=self.terms
            )
        if kind == "ranked":
            shown = ShownPool(host, self.ranks.descriptors)
            return faulty_mapped_transport(shown, self.incarnation, self.mover, folder, self.terms)
        return self._over_arena(host, self.mover)

    def _over_arena(self, host: KVMemory, mover: MoverClient | RankMovers) -> KVTransport:
        payloads = payloads_of(host, mover)
        return tcp_transport(
            host, self.incarnation, digester=mover, payloads=payloads, terms=self.terms
        )

    def _start_mover(self, copies: Copies, outside: Outside | None = None) -> MoverClient:
        ours, theirs = data_socket_pair()
        digests = HostCopies(self.memory)
        mover = Mover(theirs, copies, digests, None, self.first_tokens, outside=outside)
        mover.start()
        return MoverClient(ours)

    async def close(self) -> None:
        await self.transport.close()
        if self.mover is not None:
            self.mover.close()

    def _release(self, attempt: Attempt) -> None:
        self.released.append(attempt)
        self.changed.set()

    def rewrite(self, block_id: int, seed: int) -> int:
        """New content under a new generation, as an engine does it; returns the generation."""
        self.memory.generations[block_id] += 1
        self.write(block_id, content(block_id, seed))
        return self.memory.generations[block_id]

    def write(self, block_id: int, written: bytes) -> None:
        if self.ranks is not None:
            self.ranks.write(block_id, written)
        else:
            self.memory.block(block_id)[:] = written

    def read(self, block_id: int) -> bytes:
        if self.ranks is not None:
            return self.ranks.read(block_id)
        return bytes(self.memory.block(block_id))

    def piece(self, first_block: int, *block_ids: int, seed: int = 0) -> Piece:
        """Fresh blocks, written and ready to publish."""
        generations = tuple(self.rewrite(block_id, seed) for block_id in block_ids)
        return Piece(first_block, block_ids, generations)


class Pair:
    """`p` serves, `d` pulls."""

    def __init__(self, kind: Kind, limits: TransferLimits | None = None) -> None:
        self.kind = kind
        self.network = MemoryNetwork()
        self.limits = limits or TransferLimits(progress_timeout_s=5.0)
        self._folder = tempfile.TemporaryDirectory(prefix="kv")
        self.p = self.side("p.1")
        self.d = self.side("d.1", self.p)

    def side(self, incarnation: str, source: Side | None = None) -> Side:
        folder = Path(self._folder.name)
        return Side(self.kind, incarnation, self.network, self.limits, folder, source)

    async def __aenter__(self) -> "Pair":
        await self.p.transport.start()
        await self.d.transport.start()
        if self.kind == "nixl":  # the first agent of a process takes as long as a short lease
            for side in (self.p, self.d):
                assert side.mover is not None
                await side.mover.show(side.incarnation)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.d.close()
        await self.p.close()
        self._folder.cleanup()

    def request(
        self,
        num_blocks: int,
        num_present: int = 0,
        *,
        attempt: Attempt = ATTEMPT,
        ticket: str = TICKET,
        incarnation: str = "p.1",
        source: TransferAddress | str = "",
    ) -> PullRequest:
        """Into d's blocks NUM_BLOCKS - 1 downwards."""
        block_ids = tuple(NUM_BLOCKS - 1 - logical for logical in range(num_blocks))
        source = source or self.p.transport.address
        if isinstance(source, str):
            source = TransferAddress(port=source)
        return PullRequest(attempt, source, incarnation, ticket, block_ids, num_present)

    def pull(self, num_blocks: int, num_present: int = 0) -> "asyncio.Task[Pulled]":
        return asyncio.create_task(self.d.transport.pull(self.request(num_blocks, num_present)))

    @property
    def num_offers(self) -> int:
        """Offers that p still remembers."""
        transport = self.p.transport
        if isinstance(transport, SocketTransport):
            return len(transport._table)
        assert isinstance(transport, MemoryTransport)
        return len(transport.table)

    def received(self, logical: int) -> bytes:
        return self.d.read(NUM_BLOCKS - 1 - logical)


def content(block_id: int, seed: int) -> bytes:
    return random.Random(1000 * seed + block_id).randbytes(LAYOUT.block_bytes)  # noqa: S311


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def num_pools() -> int:
    """Mappings of KV pools in this process, and descriptors of them; of those in use."""
    num_descriptors = num_pool_descriptors()
    return num_descriptors + Path("/proc/self/maps").read_text(encoding="utf-8").count("baton-kv")


def num_pool_descriptors() -> int:
    """Of pools that something still refers to."""
    gc.collect()
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself is gone
            found += "baton-kv" in str(entry.readlink())
    return found
