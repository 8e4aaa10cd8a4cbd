"""Transports that fail on purpose: drop, damage, hold or cut at a named point.

Points are the names of frames in lower case (`watermark`, `blocks`, `verify`, `release`, `renew`,
...), `seal` for a short one too, `map` for an Open that wants to, and `half_read`, in the middle of
a payload. A plan acts on what its
own side sends: give it to prefill's transport for `blocks`, to decode's for `verify`.
"""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from shared.errors import CorruptPieceError, PeerLostError
from shared.transfer.blocks.copied import CopiedReads, ShownPool
from shared.transfer.blocks.manifest import Tags
from shared.transfer.blocks.mapping import BlockMover
from shared.transfer.blocks.payloads import HostPayloads
from shared.transfer.blocks.progress import Progress
from shared.transfer.blocks.sent import SentBlocks
from shared.transfer.digest_threads import DigestThreads
from shared.transfer.frame_stream import FrameStream, Moved, SendMore
from shared.transfer.frames import Frame, Open, encode
from shared.transfer.limits import TransferLimits
from shared.transfer.offers import OfferTable
from shared.transfer.socket_transport import SocketTransport
from shared.transfer.terms import Terms
from shared.transfer.ways.auto import AutoWays
from shared.transfer.ways.mapped import MappedWay, SocketListener
from shared.transfer.ways.tcp import PortListener, TcpWay
from shared.transfer.ways.way import OneWay
from tests.support.fakes.memory_transport import MemoryTransport


class Fault(Enum):
    PASS = "pass"  # noqa: S105
    DROP = "drop"
    CORRUPT = "corrupt"
    CLOSE = "close"


@dataclass
class Gate:
    """A point where the transfer stands still until `open` is set."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    open: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _Planned:
    fault: Fault
    gate: Gate | None
    num_left: int


class FaultPlan:
    """What happens at which point; counts how often each point was passed."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self._planned: dict[str, _Planned] = {}

    def add(self, point: str, fault: Fault, *, times: int = 1) -> None:
        """The next `times` passes of `point` suffer `fault`."""
        self._planned[point] = _Planned(fault, None, times)

    def hold(self, point: str) -> Gate:
        """The next pass of `point` waits at the returned gate."""
        gate = Gate()
        self._planned[point] = _Planned(Fault.PASS, gate, 1)
        return gate

    async def strike(self, point: str) -> Fault:
        self.passed[point] += 1
        planned = self._planned.get(point)
        if planned is None or not planned.num_left:
            return Fault.PASS
        planned.num_left -= 1
        if planned.gate is not None:
            planned.gate.reached.set()
            await planned.gate.open.wait()
        return planned.fault


class FaultyStream(FrameStream):
    """Applies a plan to the frames it sends."""

    def __init__(self, sock: socket.socket, timeout_s: float, plan: FaultPlan) -> None:
        super().__init__(sock, timeout_s)
        self._plan = plan

    async def send(
        self, frame: Frame, payload: Sequence[memoryview] = (), moved: Moved | None = None
    ) -> None:
        fault = await self._plan.strike(_point(frame))
        if fault is Fault.CLOSE:
            cut(self._socket)
        if fault is Fault.DROP:
            self._num_sent += 1
        elif payload:
            await self._send_halves(frame, payload, fault)
            if moved is not None:
                moved(sum(map(len, payload)))
        elif fault is Fault.CORRUPT:
            await self._send_damaged(frame)
        else:
            await super().send(frame)

    @contextlib.asynccontextmanager
    async def sending(self, frame: Frame, payload_bytes: int) -> AsyncIterator[SendMore]:
        """Each piece of the payload goes in two halves, with `half_read` between them."""
        fault = await self._plan.strike(type(frame).__name__.lower())
        if fault is Fault.CLOSE:
            cut(self._socket)
        if fault is Fault.DROP:
            self._num_sent += 1
            yield _drop
            return
        async with super().sending(frame, payload_bytes) as send_more:

            async def send_halves(payload: list[memoryview], moved: Moved) -> None:
                first, second = self._halves_with(fault, payload)
                await send_more(first, moved)
                if await self._plan.strike("half_read") is Fault.CLOSE:
                    cut(self._socket)
                await send_more(second, moved)

            yield send_halves

    async def _send_damaged(self, frame: Frame) -> None:
        async with self._sending:
            damaged = bytearray(encode(frame, self._num_sent))
            damaged[-1] ^= 1
            self._num_sent += 1
            await self._send_views([memoryview(damaged)])

    async def _send_halves(self, frame: Frame, payload: Sequence[memoryview], fault: Fault) -> None:
        """The payload is read from the pool in two halves, with `half_read` between them."""
        async with self._sending:
            views = self._halves_with(fault, payload)
            payload_bytes = sum(map(len, payload))
            head = encode(frame, self._num_sent, payload_bytes)
            self._num_sent += 1
            await self._send_views([memoryview(head), *views[0]])
            if await self._plan.strike("half_read") is Fault.CLOSE:
                cut(self._socket)
            await self._send_views(views[1])

    def _halves_with(
        self, fault: Fault, payload: Sequence[memoryview]
    ) -> tuple[list[memoryview], list[memoryview]]:
        first, second = _halves(payload)
        if fault is Fault.CORRUPT:
            damaged = bytearray(first[-1])
            damaged[-1] ^= 1
            first[-1] = memoryview(damaged)
        return first, second


def _point(frame: Frame) -> str:
    if isinstance(frame, Open) and frame.purpose == "map":
        return "map"
    return type(frame).__name__.lower().removeprefix("short")


async def _drop(payload: list[memoryview], moved: Moved) -> None:
    del payload, moved


class FaultyTerms(Terms):
    """With a plan for the frames that this side sends, and for what would be one over tcp: `read`
    before a copy and `verify` before the look at the generations at decode's side, `blocks` and
    `half_read` in the copy at prefill's (see `faulty_copies`)."""

    def __init__(self, plan: FaultPlan, limits: TransferLimits | None = None) -> None:
        super().__init__(limits=limits)
        self.plan = plan
        self._streams: list[FrameStream] = []

    async def strike(self, point: str) -> Fault:
        """CLOSE ends every connection of this side."""
        fault = await self.plan.strike(point)
        if fault is Fault.CLOSE:
            self.cut()
        return fault

    def cut(self) -> None:
        for stream in self._streams:
            with contextlib.suppress(OSError):
                cut(stream._socket)

    def stream(self, sock: socket.socket) -> FrameStream:
        stream = FaultyStream(sock, self.limits.progress_timeout_s, self.plan)
        self._streams = [kept for kept in self._streams if kept._socket.fileno() >= 0]
        self._streams.append(stream)
        return stream


class FaultyMappedWay(MappedWay):
    """`mapped`, on faulty terms."""

    _terms: FaultyTerms

    def reads(self, progress: Progress, stream: FrameStream) -> CopiedReads:
        del stream
        terms = self._terms
        reads = FaultyReads(progress, self.mappings, self._layout, terms.traffic, terms.limits)
        reads.strike = terms.strike
        return reads


def faulty_mapped_transport(
    pool: ShownPool, incarnation: str, mover: BlockMover, folder: Path, terms: FaultyTerms
) -> SocketTransport:
    return SocketTransport(
        incarnation,
        OfferTable(pool.memory, terms.limits.lease_s, terms.clock, mover),
        [SocketListener(pool, folder)],
        OneWay(FaultyMappedWay(pool.memory.layout, mover, terms)),
        terms,
    )


def faulty_auto_transport(
    pool: ShownPool, incarnation: str, mover: BlockMover, folder: Path, terms: FaultyTerms
) -> SocketTransport:
    payloads = HostPayloads(DigestThreads(pool.memory))
    sent = SentBlocks(pool.memory.layout, payloads, terms.traffic)
    return SocketTransport(
        incarnation,
        OfferTable(pool.memory, terms.limits.lease_s, terms.clock, mover),
        [SocketListener(pool, folder), PortListener(sent, ("127.0.0.1", 0))],
        AutoWays(
            FaultyMappedWay(pool.memory.layout, mover, terms),
            None,
            None,
            TcpWay(pool.memory, payloads, terms),
            terms.clock,
        ),
        terms,
    )


class FaultyReads(CopiedReads):
    """Asks a plan before the look at the generations."""

    strike: Callable[[str], Awaitable[Fault]]

    async def is_fresh(self, tags: Tags) -> bool:
        await self.strike("verify")
        return await super().is_fresh(tags)


class FaultyMemoryTransport(MemoryTransport):
    """`memory` with a plan for what this side would send."""

    def __init__(self, plan: FaultPlan, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.plan = plan

    async def reach(self, point: str) -> bool:
        await super().reach(point)
        fault = await self.plan.strike(point)
        if fault is Fault.CLOSE:
            raise PeerLostError(f"cut at {point}")
        if fault is Fault.DROP and point in ("renew", "release"):
            return False
        if fault is not Fault.PASS:
            raise CorruptPieceError(f"{fault.value} at {point}")
        return True


def cut(sock: socket.socket) -> None:
    """End a connection the hard way, both directions; the socket object stays usable."""
    sock.shutdown(socket.SHUT_RDWR)


def _halves(payload: Sequence[memoryview]) -> tuple[list[memoryview], list[memoryview]]:
    first: list[memoryview] = []
    left = sum(map(len, payload)) // 2
    for index, view in enumerate(payload):
        if len(view) >= left:
            return [*first, view[:left]], [view[left:], *payload[index + 1 :]]
        first.append(view)
        left -= len(view)
    return first, []
