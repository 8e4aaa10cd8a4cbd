"""A prefill and a decode transport of either kind, joined, with pools whose content is known."""

import asyncio
import random
from collections.abc import Callable
from typing import Literal

from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory, Piece
from shared.protocol import Attempt, TokenRun
from shared.transfer.memory import MemoryNetwork, MemoryTransport
from shared.transfer.tcp import TcpTransport
from shared.transfer.transport import KVTransport, Pulled, PullRequest, TransferLimits
from tests.support.fakes.faulty_transport import (
    FaultPlan,
    FaultyMemoryTransport,
    FaultyTcpTransport,
)

Kind = Literal["memory", "tcp"]
KINDS: tuple[Kind, ...] = ("memory", "tcp")
LAYOUT = KVLayout("m", "float32", 2, 2, 1, 8, 4)
NUM_BLOCKS = 24
TICKET = "ticket"
ATTEMPT = Attempt("rid", 1)
RUN = TokenRun("rid", 1, 0, (42,))


class Side:
    """One worker's pool, transport and faults."""

    def __init__(
        self, kind: Kind, incarnation: str, network: MemoryNetwork, limits: TransferLimits
    ) -> None:
        self.memory = KVMemory.create(LAYOUT, NUM_BLOCKS)
        self.incarnation = incarnation
        self.plan = FaultPlan()
        self.released: list[Attempt] = []
        self.changed = asyncio.Event()
        self.transport: KVTransport
        if kind == "tcp":
            self.transport = FaultyTcpTransport(self.plan, self.memory, incarnation, limits=limits)
        else:
            self.transport = FaultyMemoryTransport(
                self.plan, self.memory, incarnation, network, limits=limits
            )
        self.transport.on_release = self._release

    def _release(self, attempt: Attempt) -> None:
        self.released.append(attempt)
        self.changed.set()

    def rewrite(self, block_id: int, seed: int) -> int:
        """New content under a new generation, as an engine does it; returns the generation."""
        self.memory.generations[block_id] += 1
        self.memory.block(block_id)[:] = content(block_id, seed)
        return self.memory.generations[block_id]

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
        self.p = Side(kind, "p.1", self.network, self.limits)
        self.d = Side(kind, "d.1", self.network, self.limits)

    async def __aenter__(self) -> "Pair":
        await self.p.transport.start()
        await self.d.transport.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.d.transport.close()
        await self.p.transport.close()

    def request(
        self,
        num_blocks: int,
        num_present: int = 0,
        *,
        attempt: Attempt = ATTEMPT,
        ticket: str = TICKET,
        incarnation: str = "p.1",
        source: str = "",
    ) -> PullRequest:
        """Into d's blocks NUM_BLOCKS - 1 downwards."""
        block_ids = tuple(NUM_BLOCKS - 1 - logical for logical in range(num_blocks))
        source = source or self.p.transport.address
        return PullRequest(attempt, source, incarnation, ticket, block_ids, num_present)

    def pull(self, num_blocks: int, num_present: int = 0) -> "asyncio.Task[Pulled]":
        return asyncio.create_task(self.d.transport.pull(self.request(num_blocks, num_present)))

    @property
    def num_offers(self) -> int:
        """Offers that p still remembers."""
        transport = self.p.transport
        if isinstance(transport, TcpTransport):
            return len(transport._table)
        assert isinstance(transport, MemoryTransport)
        return len(transport.table)

    def received(self, logical: int) -> bytes:
        return bytes(self.d.memory.block(NUM_BLOCKS - 1 - logical))


def content(block_id: int, seed: int) -> bytes:
    return random.Random(1000 * seed + block_id).randbytes(LAYOUT.block_bytes)  # noqa: S311


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
