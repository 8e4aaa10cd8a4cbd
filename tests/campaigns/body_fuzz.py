"""`make fuzz`: bodies and heads that no client should send, at a real gateway with a worker.

Only 2xx and 4xx may come of a body, and of a head 4xx or the end of the connection. What is refused
is refused at once. The gateway answers a probe meanwhile, does not grow, and stays one process.
"""

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from services.cli.bench.serve.client.http_stream import (
    BrokenAnswerError,
    HttpConnection,
    StaleConnectionError,
)
from tests.campaigns.figures import Figure, at_least, at_most, exactly, judge, quantile, say
from tests.campaigns.odd_bodies import OddRequest, odd_heads, odd_requests
from tests.e2e.cluster import Cluster, running

NUM_BODIES = 1_000_000
NUM_STREAMS = 4
HEAD_EVERY = 20
"""bodies of a stream comes an odd head"""
FLAGS = ("--topology", "agg", "--device", "cpu", "--threads", "1")
PATIENCE_S = 1.0
"""for an answer that has begun; then the client hangs up"""
REFUSAL_S = 5.0
"""for the rest of one; how late its end came is judged apart"""
HEAD_S = 3.0
PROBE_S = 0.05
TELL_S = 60.0
WARM_SHARE = 0.2
"""of all, after which nothing may grow"""
MOST_LEFT = 0.01
"""of all: a gateway that answers nothing is none that answers late"""
MOST_ODD = 20
NUM_SLOWEST = 5
MAX_REJECT_S = 0.05
MAX_GROWTH_MIB = 16


@dataclass
class Seen:
    """What came back."""

    statuses: Counter[int] = field(default_factory=Counter)
    rejects_s: list[float] = field(default_factory=list)
    slowest: list[tuple[float, OddRequest]] = field(default_factory=list)
    """of the refusals, the slowest first"""
    probes_s: list[float] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    """what must not be"""
    num_left: int = 0
    """answers that the client did not wait for"""
    num_heads: int = 0
    grown_mib: float = 0.0
    num_restarts: int = 0

    def note(self, sent: OddRequest, answer: "_Answer", took_s: float) -> None:
        status = answer.status
        self.statuses[status] += 1
        if 400 <= status < 500:
            self.rejects_s.append(took_s)
            self.slowest = sorted([*self.slowest, (took_s, sent)], reverse=True)[:NUM_SLOWEST]
            if not answer.is_an_error:
                self._is_odd(f"{status} without an error", sent.body)
        elif not 200 <= status < 300:
            self._is_odd(f"{sent.path}: {status} {answer.body[:200]!r}", sent.body)

    def note_head(self, sent: bytes, answer: bytes) -> None:
        self.num_heads += 1
        while answer.startswith(b"HTTP/1.1 1"):  # more is to come
            answer = answer.partition(b"\r\n\r\n")[2]
        if answer and not answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 2")):
            self._is_odd(f"a head: {answer[:80]!r}", sent)

    def lose(self, sent: bytes, error: Exception) -> None:
        self._is_odd(f"no answer: {type(error).__name__} {error}", sent)

    def _is_odd(self, what: str, sent: bytes) -> None:
        self.odd.append(f"{what} of {sent[:300]!r}")


class _Answer:
    """Keeps the promise of `AnswerSink`."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    @property
    def is_an_error(self) -> bool:
        try:
            return bool(json.loads(self.body)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return False

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        del headers
        self.status = status

    def on_body(self, piece: bytes) -> None:
        self.body += piece


class _Client:
    """Asks one gateway, over a connection that it keeps."""

    def __init__(self, url: str, seen: Seen) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._at = parts.hostname, parts.port
        self._seen = seen
        self._http: HttpConnection | None = None

    async def ask(self, sent: OddRequest) -> None:
        answer, begin_s = _Answer(), time.perf_counter()
        exchange = asyncio.ensure_future(self._exchange(sent, answer))
        await asyncio.wait({exchange}, timeout=PATIENCE_S)
        if answer.status not in (0, 200):  # half of it came, on cores that others use
            await asyncio.wait({exchange}, timeout=REFUSAL_S)
        exchange.cancel()
        try:
            await exchange
        except asyncio.CancelledError:
            self.hang_up()
            if answer.status not in (0, 200):
                self._seen.lose(sent.body, TimeoutError("it does not end"))
            else:
                self._seen.num_left += 1
        except (OSError, BrokenAnswerError) as error:
            self.hang_up()
            self._seen.lose(sent.body, error)
        else:
            self._seen.note(sent, answer, time.perf_counter() - begin_s)

    async def send_head(self, head: bytes) -> None:
        """Then nothing more, until the gateway has had enough."""
        reader, writer = await asyncio.open_connection(*self._at)
        answer = b""
        with suppress(OSError, TimeoutError):
            writer.write(head)
            writer.write_eof()
            async with asyncio.timeout(HEAD_S):
                while piece := await reader.read(65536):
                    answer += piece
        writer.close()
        self._seen.note_head(head, answer)

    async def _exchange(self, sent: OddRequest, answer: _Answer) -> None:
        head = (
            f"POST {sent.path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            f"content-length: {len(sent.body)}\r\n\r\n"
        ).encode()
        with suppress(StaleConnectionError):  # it was closed after the last refusal
            if self._http is not None and self._http.reusable:
                await self._http.exchange(head + sent.body, answer)
                return
        loop = asyncio.get_running_loop()
        _, self._http = await loop.create_connection(HttpConnection, *self._at)
        await self._http.exchange(head + sent.body, answer)

    def hang_up(self) -> None:
        if self._http is not None:
            self._http.close()
        self._http = None


async def fuzz(cluster: Cluster, num_bodies: int, seed: int) -> Seen:
    seen, numbers = Seen(), random.Random(seed)  # noqa: S311
    gateway = cluster.gateway
    meanwhile = [
        asyncio.create_task(each) for each in (_probe(cluster.url, seen), _tell(seen, num_bodies))
    ]
    num_warm = int(WARM_SHARE * num_bodies)
    bodies, heads = odd_requests(numbers), odd_heads(numbers)
    await _send(cluster.url, seen, bodies, heads, num_warm)
    warm_mib = gateway.memory_info().rss / 2**20
    await _send(cluster.url, seen, bodies, heads, num_bodies - num_warm)
    for task in meanwhile:
        task.cancel()
    await asyncio.gather(*meanwhile, return_exceptions=True)
    seen.grown_mib = gateway.memory_info().rss / 2**20 - warm_mib
    seen.num_restarts = int(cluster.gateway.pid != gateway.pid)
    return seen


async def _send(
    url: str, seen: Seen, bodies: Iterator[OddRequest], heads: Iterator[bytes], number: int
) -> None:
    left = itertools.islice(bodies, number)

    async def stream() -> None:
        client = _Client(url, seen)
        for at, sent in enumerate(left):
            await client.ask(sent)
            if at % HEAD_EVERY == 0:
                await client.send_head(next(heads))
        client.hang_up()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(NUM_STREAMS):
            tasks.create_task(stream())


async def _tell(seen: Seen, num_bodies: int) -> None:
    while True:
        await asyncio.sleep(TELL_S)
        say(f"{seen.statuses.total()} of {num_bodies} bodies, {len(seen.odd)} faults")


async def _probe(url: str, seen: Seen) -> None:
    """Whether the event loop turns."""
    parts = urlsplit(url)
    while True:
        begin_s = time.perf_counter()
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            await reader.read()
        finally:
            writer.close()
        seen.probes_s.append(time.perf_counter() - begin_s)
        await asyncio.sleep(PROBE_S)


def figures(seen: Seen, num_bodies: int) -> list[Figure]:
    refused = sum(num for status, num in seen.statuses.items() if 400 <= status < 500)
    return [
        exactly("answers that must not be", len(seen.odd)),
        exactly("restarts of the gateway", seen.num_restarts),
        at_least("bodies that were refused", refused, num_bodies / 3),
        at_least("bodies that were answered", seen.statuses[200], num_bodies / 100),
        at_most("bodies that were not waited for", seen.num_left, num_bodies * MOST_LEFT),
        at_most("refusal, p99", 1e3 * quantile(seen.rejects_s, 0.99), 1e3 * MAX_REJECT_S, "ms"),
        at_most(
            "probe meanwhile, p99", 1e3 * quantile(seen.probes_s, 0.99), 1e3 * MAX_REJECT_S, "ms"
        ),
        at_most("growth of the gateway", seen.grown_mib, MAX_GROWTH_MIB, "MiB"),
    ]


def run(folder: Path, num_bodies: int, seed: int) -> Seen:
    with running(folder, *FLAGS) as cluster:
        seen = asyncio.run(fuzz(cluster, num_bodies, seed))
        cluster.wait_blocks_back()
        return seen


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bodies", type=int, default=NUM_BODIES)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.monotonic()
        seen = run(Path(folder), given.bodies, given.seed)
    say(f"{given.bodies} bodies, {seen.num_heads} heads in {time.monotonic() - begin_s:.0f} s")
    say(f"by status: {dict(seen.statuses.most_common())}; not waited for: {seen.num_left}")
    say(f"longest refusal {1e3 * max(seen.rejects_s):.0f} ms, probe {1e3 * max(seen.probes_s):.0f}")
    for took_s, (path, body) in seen.slowest:
        say(f"{1e3 * took_s:.0f} ms: {path} {len(body)} bytes: {body[:120]!r}")
    for text in seen.odd[:MOST_ODD]:
        say(text)
    return judge(figures(seen, given.bodies))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
