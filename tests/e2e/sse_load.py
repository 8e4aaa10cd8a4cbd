"""Many streamed completions at once on raw sockets, cheap enough to share two cores with what
it measures: events are counted in the bytes, and only the last ones are parsed."""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

READ_BYTES = 2**16
TAIL_BYTES = 2**13
LIMIT_S = 150.0
"""an answer without an event for so long is lost; one that goes on slowly is not"""


@dataclass
class LoadedStream:
    """One streamed answer under load."""

    sent_s: float
    status: int = 0
    num_events: int = 0
    """events with text or a finish reason"""
    first_s: float = 0.0
    end_s: float = 0.0
    """after it was sent"""
    tail: bytes = b""
    """the last `keep_bytes` of the body"""
    keep_bytes: int = TAIL_BYTES
    times_s: list[float] = field(default_factory=list)
    """when events arrived, after it was sent"""
    retry_after_s: int = 0
    """what the header says, if it is there"""

    @property
    def complete(self) -> bool:
        return self.status == 200 and b"data: [DONE]" in self.tail and not self.error

    @property
    def error(self) -> str:
        found = b'"error"' in self.tail or self.status != 200
        return self.tail.decode(errors="replace") if found else ""

    @property
    def completion_tokens(self) -> int:
        """What the usage event says."""
        for line in reversed(self.tail.split(b"\n")):
            if line.startswith(b"data: {") and b'"usage":{' in line:
                usage: int = json.loads(line[6:])["usage"]["completion_tokens"]
                return usage
        return 0

    @property
    def rid(self) -> str:
        return str(self._events()[-1]["id"]).partition("-")[2]

    @property
    def text(self) -> str:
        """Of an answer that is shorter than its tail."""
        assert len(self.tail) < self.keep_bytes
        return "".join(choice["text"] for event in self._events() for choice in event["choices"])

    @property
    def receipt(self) -> dict[str, Any]:
        """What its last event says of its way, if it was asked for."""
        return dict(self._events()[-1]["baton"])

    def _events(self) -> list[dict[str, Any]]:
        lines = (line for line in self.tail.split(b"\n") if line.startswith(b"data: {"))
        return [json.loads(line[6:]) for line in lines]

    @property
    def tokens_per_s(self) -> float:
        """From the request to its end: waiting counts."""
        return self.completion_tokens / self.end_s


@dataclass
class LoadReport:
    """What a loaded gateway's clients saw."""

    streams: list[LoadedStream] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> list[LoadedStream]:
        return [stream for stream in self.streams if not stream.complete]

    @property
    def slowest(self) -> float:
        """Tokens per second of the slowest stream."""
        return min(stream.tokens_per_s for stream in self.streams)

    def summary(self) -> str:
        firsts = sorted(stream.first_s for stream in self.streams)
        ends = sorted(stream.end_s for stream in self.streams)
        tokens = sum(stream.completion_tokens for stream in self.streams)
        return (
            f"{len(self.streams)} answers in {self.seconds:.1f} s, {tokens / self.seconds:.0f} "
            f"tokens/s, {len(self.failed)} failed, slowest {self.slowest:.2f} tokens/s, "
            f"first token p50 {firsts[len(firsts) // 2]:.2f} s, end p50 "
            f"{ends[len(ends) // 2]:.2f} s, max {ends[-1]:.2f} s"
        )


async def stream_completion(
    url: str, body: bytes, keep_bytes: int = TAIL_BYTES, headers: str = ""
) -> LoadedStream:
    """One POST /v1/completions, read to the end of the connection. `headers`: more lines of the
    head, each with its line end."""
    address = urlsplit(url)
    stream = LoadedStream(time.monotonic(), keep_bytes=keep_bytes)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {address.netloc}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        )
        writer.write(head.encode() + body)
        async with asyncio.timeout(LIMIT_S) as silence:
            await _read(reader, stream, silence)
    finally:
        writer.close()
    stream.end_s = time.monotonic() - stream.sent_s
    return stream


async def keep_open(
    url: str,
    bodies: Iterator[bytes],
    num_streams: int,
    seconds: float,
    on_start: Callable[[], None],
) -> LoadReport:
    """`num_streams` streams at every moment for so long: each that ends is replaced at once.
    Those open at the end are read to theirs."""
    report = LoadReport()
    start_s = time.monotonic()

    async def slot() -> None:
        while time.monotonic() - start_s < seconds:
            report.streams.append(await stream_completion(url, next(bodies)))

    on_start()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(num_streams):
            tasks.create_task(slot())
    report.seconds = time.monotonic() - start_s
    return report


async def in_turn(url: str, bodies: Iterable[bytes], num_streams: int) -> LoadReport:
    """Every body once, `num_streams` at a time."""
    report = LoadReport()
    start_s = time.monotonic()
    left = iter(bodies)

    async def slot() -> None:
        for body in left:
            report.streams.append(await stream_completion(url, body))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(num_streams):
            tasks.create_task(slot())
    report.seconds = time.monotonic() - start_s
    return report


async def all_at_once(url: str, bodies: Sequence[bytes]) -> LoadReport:
    """Every body in a stream of its own, sent together."""
    start_s = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        jobs = [tasks.create_task(stream_completion(url, body)) for body in bodies]
    return LoadReport([job.result() for job in jobs], time.monotonic() - start_s)


async def _read(
    reader: asyncio.StreamReader, stream: LoadedStream, silence: asyncio.Timeout
) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    stream.status = int(head.split(b" ", 2)[1])
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"retry-after:"):
            stream.retry_after_s = int(line.partition(b":")[2])
    while received := await reader.read(READ_BYTES):
        num_events = received.count(b'"finish_reason"')
        if num_events:
            stream.times_s.append(time.monotonic() - stream.sent_s)
            stream.first_s = stream.times_s[0]
            silence.reschedule(asyncio.get_running_loop().time() + LIMIT_S)
        stream.num_events += num_events
        stream.tail = (stream.tail + received)[-stream.keep_bytes :]
