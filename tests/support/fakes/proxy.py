"""A TCP proxy that counts bytes and can flip one bit, and what a KV pull costs on the wire."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from shared.kv.layer_groups import LayerGroups
from shared.protocol import TokenRun
from shared.transfer.blocks.manifest import Part
from shared.transfer.frames import (
    PREFIX_BYTES,
    Blocks,
    Frame,
    Open,
    Opened,
    Read,
    Release,
    Renew,
    Renewed,
    ShortSeal,
    Verified,
    Verify,
    Watermark,
    decode_header,
    decode_prefix,
    encode,
)
from tests.support.introduction import INTRODUCTION_BYTES

Direction = Literal["to_server", "to_client"]
LONG_BYTES = 2048
"""no frame of a pull of a few blocks has as many without its payload"""


class BitFlip(NamedTuple):
    """Which bit of which byte, counted from the start of each connection."""

    direction: Direction
    byte: int
    bit: int


@dataclass(frozen=True)
class SeenFrame:
    """One frame of a recorded pull and where it lies in its direction's bytes."""

    frame: Frame
    start: int
    header_bytes: int
    payload_bytes: int

    @property
    def payload_start(self) -> int:
        return self.start + PREFIX_BYTES + self.header_bytes

    @property
    def end(self) -> int:
        return self.payload_start + self.payload_bytes


def frames_of(recorded: bytes | bytearray) -> list[SeenFrame]:
    """The frames whose headers have passed; the last one's payload may be on its way."""
    frames: list[SeenFrame] = []
    start = INTRODUCTION_BYTES
    while start + PREFIX_BYTES <= len(recorded):
        prefix = decode_prefix(recorded[start : start + PREFIX_BYTES])
        header_end = start + PREFIX_BYTES + prefix.header_bytes
        if header_end > len(recorded):
            break
        frame = decode_header(prefix, recorded[start + PREFIX_BYTES : header_end])
        frames.append(SeenFrame(frame, start, prefix.header_bytes, prefix.payload_bytes))
        start = frames[-1].end
    return frames


class TcpProxy:
    """Forwards connections to `host:port`; one per test."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_bytes: dict[Direction, int] = {"to_server": 0, "to_client": 0}
        self.recorded: dict[Direction, bytearray] | None = None
        """set to two empty arrays to keep what passes"""
        self.flip: BitFlip | None = None
        self.num_flipped = 0

    @property
    def num_open(self) -> int:
        """connections that are not over in both directions"""
        return len(self._tasks)

    async def start(self) -> str:
        """Listen; returns the address to dial instead of the target's."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        host, _, port = self._target.rpartition(":")
        try:
            onward = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        try:
            await asyncio.gather(
                self._forward(reader, onward[1], "to_server"),
                self._forward(onward[0], writer, "to_client"),
            )
        finally:
            onward[1].close()
            writer.close()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        offset = 0
        try:
            while chunk := await reader.read(2**18):
                writer.write(self._pass(chunk, direction, offset))
                offset += len(chunk)
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.transport.abort()

    def _pass(self, chunk: bytes, direction: Direction, offset: int) -> bytes:
        self.num_bytes[direction] += len(chunk)
        if self.recorded is not None:
            self.recorded[direction] += chunk
        flip = self.flip
        if flip is None or flip.direction != direction:
            return chunk
        if not offset <= flip.byte < offset + len(chunk):
            return chunk
        self.num_flipped += 1
        damaged = bytearray(chunk)
        damaged[flip.byte - offset] ^= 1 << flip.bit
        return bytes(damaged)


class DamagingProxy(TcpProxy):
    """On a transfer port: flips a bit in all that is as long as a payload, each time it is sent."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.damages = True

    def _pass(self, chunk: bytes, direction: Direction, offset: int) -> bytes:
        passed = super()._pass(chunk, direction, offset)
        if not self.damages or direction == "to_server" or len(chunk) < LONG_BYTES:
            return passed
        middle = len(passed) // 2
        return passed[:middle] + bytes([passed[middle] ^ 1]) + passed[middle + 1 :]


@dataclass(frozen=True)
class PullPlan:
    """What determines the frames of an undisturbed pull: nothing in it depends on timing
    except the renewals, of which a pull shorter than a third of the lease has none."""

    open: Open
    published: tuple[Part, ...]
    """in that order, without gaps and each once"""
    groups: LayerGroups
    run: TokenRun
    num_present_blocks: int = 0
    max_read_bytes: int = 32 * 2**20
    renew_every_ms: int = 3333
    num_renews: int = 0


class WireBytes(NamedTuple):
    """TCP payload bytes of one pull in each direction, KV blocks included."""

    to_prefill: int
    to_decode: int


def predicted_wire_bytes(plan: PullPlan) -> WireBytes:
    """Exact for a pull in which no block is read again."""
    to_prefill: list[Frame] = [plan.open]
    to_decode: list[Frame] = [Opened(plan.renew_every_ms)]
    num_blocks = payload = 0
    for first, num, groups in plan.published:
        digests = bytes(8 * num * groups.num)
        to_decode.append(Watermark(first, groups.first, *_columns(num), digests))
        part_bytes = plan.groups.num_bytes(groups)
        most = max(1, plan.max_read_bytes // part_bytes)
        num_blocks = max(num_blocks, first + num)
        for at in range(max(first, plan.num_present_blocks), first + num, most):
            count = min(most, first + num - at)
            to_prefill.append(Read(at, count, *groups))
            to_decode.append(Blocks(at, *_columns(count)))
            payload += count * part_bytes
    to_decode.append(ShortSeal(len(plan.published), plan.run))
    present = plan.num_present_blocks
    to_prefill += [Verify(present, *_columns(num_blocks - present)), Release()]
    to_decode.append(Verified(fresh=True))
    to_prefill += [Renew()] * plan.num_renews
    to_decode += [Renewed()] * plan.num_renews
    return WireBytes(
        INTRODUCTION_BYTES + _length(to_prefill), INTRODUCTION_BYTES + _length(to_decode) + payload
    )


def _columns(num_blocks: int) -> tuple[bytes, bytes]:
    return bytes(4 * num_blocks), bytes(8 * num_blocks)


def _length(frames: Sequence[Frame]) -> int:
    return sum(len(encode(frame, sequence=0)) for frame in frames)
