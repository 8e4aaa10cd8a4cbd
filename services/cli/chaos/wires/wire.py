"""A TCP proxy in front of one port of a worker: what passes through it can be disturbed.

    whoever dials -> Wire -> the worker       each connection is a Passage of two Lanes

In calm a lane writes what it reads. A disturbance gives the lanes that it is about a `Trouble`,
which decides what becomes of their bytes.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from services.cli.chaos.wires.lane import Lane, MakeTrouble, Way, socket_of
from shared.challenge import Channel
from shared.settings.groups import LOOPBACK
from shared.sockets import keep_responsive

WAYS: tuple[Way, Way] = "to", "from"
_RESET = struct.pack("ii", 1, 0)


class Passage:
    """A connection through a wire: one end at its dialler, the other at the worker."""

    def __init__(self, wire: "Wire") -> None:
        self.wire = wire
        self.lanes: dict[Way, Lane] = {way: Lane(self._lane_ended, self.reset) for way in WAYS}
        self.dialler_port = 0
        self.dialler: str | None = None
        """its name, once somebody has found out"""
        self._ends: dict[Way, asyncio.Transport] = {}
        """by the way that bytes go which come there"""
        self._num_ended = 0

    def opened(self, way: Way, transport: asyncio.Transport) -> None:
        keep_responsive(transport.get_extra_info("socket"))
        transport.pause_reading()
        self._ends[way] = transport
        if way == "to":
            self.dialler_port = transport.get_extra_info("peername")[1]

    def join(self) -> bool:
        """Begin to read at both ends; whether both are there."""
        near, far = (self._ends[way] for way in WAYS)
        if near.is_closing() or far.is_closing():
            return False
        self.lanes["to"].open(near, far)
        self.lanes["from"].open(far, near)
        return True

    def lost(self, error: Exception | None) -> None:
        """One of its ends; the other one goes the same way."""
        self.wire.forget(self)
        if error is not None:
            self.reset()
        for transport in self._ends.values():
            transport.close()

    def _lane_ended(self) -> None:
        self._num_ended += 1
        if self._num_ended == len(WAYS):
            for transport in self._ends.values():
                transport.close()

    def reset(self) -> None:
        """At once, at both ends."""
        for transport in self._ends.values():
            sock = socket_of(transport)
            if sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()


class _End(asyncio.Protocol):
    """A socket of a passage."""

    def __init__(self, passage: Passage, way: Way) -> None:
        """`way`: that bytes go which come here."""
        self._passage = passage
        self._way = way
        self._back: Way = "from" if way == "to" else "to"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._passage.opened(self._way, cast(asyncio.Transport, transport))
        if self._way == "to":
            self._passage.wire.accept(self._passage)

    def data_received(self, data: bytes) -> None:
        self._passage.lanes[self._way].take(data)

    def eof_received(self) -> bool:
        self._passage.lanes[self._way].end_stream()
        return True

    def pause_writing(self) -> None:
        self._passage.lanes[self._back].hold("sink", on=True)

    def resume_writing(self) -> None:
        self._passage.lanes[self._back].hold("sink", on=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._passage.lost(exc)


@dataclass(frozen=True)
class Disturbance:
    """What happens to which bytes of which passages, those to come among them."""

    make: MakeTrouble
    ways: tuple[Way, ...]
    hits: Callable[[Passage], bool]

    def begin(self, passage: Passage) -> None:
        if self.hits(passage):
            for way in self.ways:
                passage.lanes[way].disturb(self.make)


class Wire:
    """Listens on this host; where the worker does not, whoever dials is hung up on."""

    def __init__(self, worker: str, channel: Channel, target_port: int) -> None:
        self.worker = worker
        self.channel: Channel = channel
        self.port = 0
        self.passages: set[Passage] = set()
        self._target_port = target_port
        self._disturbance: Disturbance | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_changed = 0

    async def start(self) -> str:
        """The address to dial."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _End(Passage(self), "to"), LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return f"{LOOPBACK}:{self.port}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for passage in list(self.passages):
            passage.reset()

    @property
    def lanes(self) -> Iterator[Lane]:
        """Those that are disturbed."""
        for passage in self.passages:
            yield from (lane for lane in passage.lanes.values() if lane.disturbed)

    @property
    def num_changed(self) -> int:
        """Bytes that reached whoever is to read them otherwise than they came."""
        lanes = (lane for passage in self.passages for lane in passage.lanes.values())
        return self._num_changed + sum(lane.num_changed_there for lane in lanes)

    def disturb(self, disturbance: Disturbance) -> None:
        self._disturbance = disturbance
        for passage in list(self.passages):
            disturbance.begin(passage)

    def mend(self) -> None:
        self._disturbance = None
        for passage in list(self.passages):
            for lane in passage.lanes.values():
                lane.mend()

    def accept(self, passage: Passage) -> None:
        task = asyncio.create_task(self._join(passage))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, passage: Passage) -> None:
        """It has an end that is lost, whose socket can still be asked."""
        if passage in self.passages:
            self.passages.discard(passage)
            self._num_changed += sum(lane.num_changed_there for lane in passage.lanes.values())

    async def _join(self, passage: Passage) -> None:
        loop = asyncio.get_running_loop()
        try:
            with suppress(OSError):
                await loop.create_connection(
                    lambda: _End(passage, "from"), LOOPBACK, self._target_port
                )
                if passage.join():
                    self.passages.add(passage)
        finally:
            if passage not in self.passages:
                passage.reset()
        if self._disturbance is not None and passage in self.passages:
            self._disturbance.begin(passage)
