"""`make cancels`: clients that hang up, one after the other in every state of a request, and then
five hundred at once. What they held is free soon after.

Each worker is asked every few milliseconds which blocks are held, over a link as a gateway has it.
"""

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from services.cli.chaos.asks import Ask, drawn_between, drawn_prompt
from shared.protocol import Ping, Pong
from shared.state.embedded import EmbeddedRedis
from shared.state.keys import Keys
from shared.state.redis_client import RedisClient
from shared.state.redis_registry import RedisWorkerRegistry
from tests.campaigns.figures import Figure, at_least, at_most, judge, quantile, say
from tests.e2e.cluster import Cluster, running
from tests.support.pairs.worker_process import WorkerLink, all_entries

FLAGS = ("--prefill", "1", "--decode", "1", "--kv-blocks", "8192", "--threads", "1")
ROOM = {
    "BATON_MAX_NUM_SEQS": "480",
    "BATON_MAX_BACKLOG": "1000",
    "BATON_FIRST_TOKEN_TIMEOUT_S": "600",
}
"""nobody is refused in a storm"""
CELL_SECRET = "a secret of this campaign, and of its cell"  # noqa: S105
PROMPT_TOKENS, SHORT_TOKENS = (17, 600), (17, 60)
ANSWER_TOKENS = 400
HANG_UP_S = 0.002, 2.0
"""after the request was sent: it waits, is computed, handed over, or decoded"""
STORM_S = 8.0
"""for which its requests run"""
LOOK_S = 0.005
PATIENCE_S = 30.0
LEAST_HELD = 0.2
"""of the single ones: the others hung up before they had blocks, or after their end"""
MOST_PER_BLOCK = 4
"""requests of a storm for each block that it holds"""
MAX_FREE_S = 0.5


@dataclass(frozen=True)
class Size:
    """How much of it."""

    num_single: int = 200
    num_storms: int = 3
    num_at_once: int = 500


class Holdings:
    """What the workers of a cell hold, as they say themselves."""

    def __init__(self, links: Sequence[WorkerLink]) -> None:
        self._links = links
        self._numbers = itertools.count()

    async def num_held(self) -> int:
        """Blocks of live requests."""
        number = next(self._numbers)
        for link in self._links:
            link.send(Ping(number))
        pongs = await asyncio.gather(*(link.take(Pong) for link in self._links))
        return sum(pong.load.held for pong in pongs)

    async def free_after_s(self) -> float:
        """Seconds until nothing is held."""
        begin_s = time.monotonic()
        while await self.num_held():
            if time.monotonic() - begin_s > PATIENCE_S:
                break
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - begin_s


@asynccontextmanager
async def holdings(redis_url: str) -> AsyncIterator[Holdings]:
    async with RedisClient(redis_url) as client:
        entries = await all_entries(RedisWorkerRegistry(client, Keys()))
    links = [await WorkerLink.dial(entry, cell_secret=CELL_SECRET) for entry in entries]
    try:
        yield Holdings(links)
    finally:
        for link in links:
            await link.close()


class Client(asyncio.Protocol):
    """Sends one request, and may hang up. It reads what comes and looks at none of it but the
    status: five hundred that parse would take a core from the cell."""

    def __init__(self, cluster: Cluster, between: tuple[int, int], numbers: random.Random) -> None:
        """`between`: how many tokens its prompt has."""
        ask = Ask(drawn_prompt(numbers.randint(*between), numbers), ANSWER_TOKENS, None)
        body = ask.body(cluster.model())
        parts = urlsplit(cluster.url)
        assert parts.hostname is not None and parts.port is not None
        self._place = parts.hostname, parts.port
        self._request = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._transport: asyncio.BaseTransport | None = None
        self._opening = asyncio.create_task(self._open())
        self.status = 0
        self._head = b""

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, *self._place)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._head = self._head if self.status else self._head + data
        if not self.status and b"\r\n" in self._head:
            self.status = int(self._head.split(maxsplit=2)[1])

    def hang_up(self) -> None:
        if self._opening.done():
            self._opening.result()  # raises what kept it from asking
        self._opening.cancel()
        if self._transport is not None:
            self._transport.close()


async def cancel_one(cluster: Cluster, holds: Holdings, numbers: random.Random) -> float | None:
    """Seconds until it holds nothing; None where it held nothing when its client left."""
    client = Client(cluster, PROMPT_TOKENS, numbers)
    await asyncio.sleep(drawn_between(*HANG_UP_S, numbers))
    num_held = await holds.num_held()
    client.hang_up()
    free_s = await holds.free_after_s()
    return free_s if num_held else None


async def storm(cluster: Cluster, holds: Holdings, num: int, numbers: random.Random) -> float:
    """Seconds until nothing is held of any of them."""
    clients = [Client(cluster, SHORT_TOKENS, numbers) for _ in range(num)]
    await asyncio.sleep(STORM_S)
    num_held = await holds.num_held()
    say(f"after {STORM_S:g} s: {dict(Counter(client.status for client in clients))}")
    assert num_held > num / MOST_PER_BLOCK, "many were under way"
    for client in clients:
        client.hang_up()
    free_s = await holds.free_after_s()
    say(f"{num} hung up: {num_held} blocks were free after {1e3 * free_s:.0f} ms")
    return free_s


def num_live(cluster: Cluster) -> int:
    return int(cluster.status()["requests"]["live"])


async def run(folder: Path, size: Size) -> list[Figure]:
    numbers = random.Random(1)  # noqa: S311
    with ExitStack() as stack:
        redis = stack.enter_context(EmbeddedRedis())
        environment = {**ROOM, "BATON_REDIS": redis.url, "BATON_CELL_SECRET": CELL_SECRET}
        cluster = stack.enter_context(running(folder, *FLAGS, **environment))
        async with holdings(redis.url) as holds:
            tried = [await cancel_one(cluster, holds, numbers) for _ in range(size.num_single)]
            single_s = [free_s for free_s in tried if free_s is not None]
            storms_s = [
                await storm(cluster, holds, size.num_at_once, numbers)
                for _ in range(size.num_storms)
            ]
        await asyncio.to_thread(cluster.wait_blocks_back)
        await asyncio.to_thread(cluster.wait, lambda: not num_live(cluster))
    name = "free after a client hung up"
    return [
        at_least(
            "requests that held blocks when their client hung up",
            len(single_s),
            LEAST_HELD * size.num_single,
        ),
        at_most(f"{name}, p50", quantile(single_s, 0.5), MAX_FREE_S, "s"),
        at_most(f"{name}, p99", quantile(single_s, 0.99), MAX_FREE_S, "s"),
        at_most(f"all free after {size.num_at_once} hung up", max(storms_s), MAX_FREE_S, "s"),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--single", type=int, default=Size.num_single)
    parser.add_argument("--storms", type=int, default=Size.num_storms)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return judge(asyncio.run(run(Path(folder), Size(given.single, given.storms))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
