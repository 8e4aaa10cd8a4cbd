"""One direction of a connection through a wire, and what may become of its bytes.

How many came and how many went on is asked of the kernel, so that a disturbance which does nothing
shows.
"""

import asyncio
import fcntl
import random
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, NamedTuple, Protocol, cast

Way = Literal["to", "from"]
"""the worker whose port it is"""
MOST_LATE_BYTES = 8 * 2**20
"""that one lane keeps; then it reads no more for a while"""
DAMAGED = 0.15
"""of the pieces of a damaged lane"""
_BYTES_ACKED = struct.Struct("120xQ")
_BYTES_RECEIVED = struct.Struct("128xQ")


class Tide(NamedTuple):
    """Bytes of a lane, as the kernel counts them: the end of a stream is one."""

    came: int
    """to its source, whether they were read or not"""
    went: int
    """to its sink, whether they were acknowledged or not"""


class Trouble(Protocol):
    """What becomes of the bytes of one lane. It is made for the lane, and begins."""

    def take(self, piece: bytes) -> None:
        """Which the lane has read."""

    def end_stream(self) -> None:
        """Nothing more comes."""

    def end(self) -> None:
        """The lane is mended."""


class Lane:
    """One direction of a passage."""

    def __init__(self, ended: Callable[[], None], lose: Callable[[], None]) -> None:
        """`ended`: its stream has, at the sink too. `lose`: ends the connection: it has a gap."""
        self.num_changed = 0
        """bytes that left otherwise than they came"""
        self.lose = lose
        self._ended = ended
        self._source: asyncio.Transport | None = None
        self._sink: asyncio.Transport | None = None
        self._early: list[bytes] = []
        """pieces that were read before it opened: Python 3.11.2 begins to read what is paused as
        it is made. An empty one is the stream's end"""
        self._trouble: Trouble | None = None
        self._begin = Tide(0, 0)
        self._holds: set[str] = set()
        """reasons to read nothing"""
        self._all_read = False
        self._num_written = 0
        self._changed_end = 0
        """where the last changed byte is, of those that were written"""

    def open(self, source: asyncio.Transport, sink: asyncio.Transport) -> None:
        self._source, self._sink = source, sink
        early, self._early = self._early, []
        for piece in early:
            self.take(piece) if piece else self.end_stream()
        self._update()

    def take(self, piece: bytes) -> None:
        if self._sink is None:
            self._early.append(piece)
        elif self._trouble is None:
            self.write(piece)
        else:
            self._trouble.take(piece)

    def end_stream(self) -> None:
        self._all_read = True
        if self._sink is None:
            self._early.append(b"")
        elif self._trouble is None:
            self.write_end()
        else:
            self._trouble.end_stream()

    def write(self, piece: bytes, came: bytes | None = None) -> None:
        """`came`: what it was, if it may be another one now."""
        if self._sink is None or self._sink.is_closing():
            return
        self._sink.write(piece)
        self._num_written += len(piece)
        if came is not None and came != piece:
            self.num_changed += sum(a != b for a, b in zip(came, piece, strict=True))
            self._changed_end = self._num_written

    def write_end(self) -> None:
        if self._sink is not None and not self._sink.is_closing():
            with suppress(OSError):  # it has ended the connection, which nobody has read yet
                self._sink.write_eof()
        self._ended()

    def hold(self, why: str, *, on: bool) -> None:
        """Read nothing as long as there is a reason."""
        (self._holds.add if on else self._holds.discard)(why)
        self._update()

    def disturb(self, make: "MakeTrouble") -> None:
        begin = self._tide() or Tide(0, 0)
        self._begin = begin._replace(came=begin.came - self._num_unread)
        self._trouble = make(self)

    def mend(self) -> None:
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            trouble.end()

    @property
    def disturbed(self) -> bool:
        return self._trouble is not None

    @property
    def since(self) -> Tide:
        """Its trouble began; nothing of a lane that is closed."""
        now = self._tide()
        if now is None:
            return Tide(0, 0)
        return Tide(now.came - self._begin.came, now.went - self._begin.went)

    @property
    def num_changed_there(self) -> int:
        """Of the changed bytes, those that are in the kernel of whoever is to read them."""
        if self._sink is None or socket_of(self._sink).fileno() < 0:
            return 0
        left = self._sink.get_write_buffer_size() + _num_unacknowledged(socket_of(self._sink))
        return self.num_changed if self._num_written - left >= self._changed_end else 0

    @property
    def _num_unread(self) -> int:
        """In the kernel. They came before, and yet do not pass."""
        if self._source is None or socket_of(self._source).fileno() < 0:
            return 0
        return _asked(socket_of(self._source), termios.FIONREAD)

    def _tide(self) -> Tide | None:
        """None: it is not open."""
        if self._source is None or self._sink is None:
            return None
        source, sink = socket_of(self._source), socket_of(self._sink)
        if source.fileno() < 0 or sink.fileno() < 0:
            return None
        left = self._sink.get_write_buffer_size() + _num_unacknowledged(sink)
        return Tide(_counter(source, _BYTES_RECEIVED), _counter(sink, _BYTES_ACKED) + left)

    def _update(self) -> None:
        if self._source is None or self._source.is_closing() or self._all_read:
            return  # asyncio would read the end of a stream once more
        if self._holds:
            self._source.pause_reading()
        else:
            self._source.resume_reading()


MakeTrouble = Callable[[Lane], Trouble]


class Hold:
    """Bytes wait in the kernel, and go on in the end."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        lane.hold("trouble", on=True)

    def take(self, piece: bytes) -> None:
        self._lane.write(piece)

    def end_stream(self) -> None:
        self._lane.write_end()

    def end(self) -> None:
        self._lane.hold("trouble", on=False)


class Swallow:
    """Bytes are gone, and so is the connection in the end: TCP never reads on behind a gap."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._has_gap = False

    def take(self, piece: bytes) -> None:
        del piece
        self._has_gap = True

    def end_stream(self) -> None:
        self._has_gap = True

    def end(self) -> None:
        if self._has_gap:
            self._lane.lose()


class Late:
    """Bytes go on some time after they came, in their order."""

    def __init__(self, lane: Lane, seconds: float) -> None:
        self._lane = lane
        self._seconds = seconds
        self._waiting: deque[tuple[float, bytes]] = deque()
        """when due; nothing: the stream's end"""
        self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self, piece: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._waiting.append((loop.time() + self._seconds, piece))
        self._count(len(piece))
        if self._timer is None:
            self._timer = loop.call_at(self._waiting[0][0], self._pass_due)

    def end_stream(self) -> None:
        self.take(b"")

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            self._pass_first()

    def _pass_due(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._waiting and self._waiting[0][0] <= loop.time():
            self._pass_first()
        if self._waiting:
            self._timer = loop.call_at(self._waiting[0][0], self._pass_due)

    def _pass_first(self) -> None:
        _, piece = self._waiting.popleft()
        self._count(-len(piece))
        if piece:
            self._lane.write(piece)
        else:
            self._lane.write_end()

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._lane.hold("trouble", on=self._num_bytes > MOST_LATE_BYTES)


class Damage:
    """A bit of some pieces is flipped."""

    def __init__(self, lane: Lane, numbers: random.Random) -> None:
        self._lane = lane
        self._numbers = numbers

    def take(self, piece: bytes) -> None:
        if self._numbers.random() > DAMAGED:
            self._lane.write(piece)
            return
        damaged = bytearray(piece)
        damaged[self._numbers.randrange(len(piece))] ^= 1 << self._numbers.randrange(8)
        self._lane.write(bytes(damaged), piece)

    def end_stream(self) -> None:
        self._lane.write_end()

    def end(self) -> None:
        """What comes now is as it was sent."""


def socket_of(transport: asyncio.Transport) -> socket.socket:
    return cast(socket.socket, transport.get_extra_info("socket"))


def _counter(sock: socket.socket, field: struct.Struct) -> int:
    """Of struct tcp_info."""
    number: int
    (number,) = field.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, field.size))
    return number


def _num_unacknowledged(sock: socket.socket) -> int:
    return _asked(sock, termios.TIOCOUTQ)


def _asked(sock: socket.socket, request: int) -> int:
    number: int
    (number,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), request, bytes(4)))
    return number
