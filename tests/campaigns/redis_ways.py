"""`make redis-ways`: every way in which Redis fails, ten seconds each, under 20 streams.

    answers in calm -> for each way: streams; Redis fails; it is back; the streams end
    -> a minute without Redis at 50 requests a second -> figures

Streams must not notice: each is whole and right, and waits hardly longer between two tokens than
in calm. Probes tell when a new request is answered again.
"""

import argparse
import asyncio
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from services.cli.chaos.memory import resident_bytes
from shared.state.embedded import EmbeddedRedis
from shared.state.redis_client import RedisClient
from shared.state.reply import as_bytes, as_list
from tests.campaigns.figures import Figure, at_least, at_most, exactly, judge, say
from tests.campaigns.load import Answer, Ask, Load, num_wrong, random_ask
from tests.campaigns.redis_proxy import RedisProxy
from tests.campaigns.shifted_clock.sitecustomize import SECONDS
from tests.e2e.cluster import Cluster, running
from tests.e2e.sse_load import LoadedStream
from tests.e2e.wire import ProxyThread

FLAGS = ("--topology", "pd", "--kv-blocks", "4096", "--max-model-len", "2048")
SHIFTED_CLOCK = Path(__file__).parent / "shifted_clock"
PROMPT_TOKENS = (17, 200)
PROBE_TOKENS = 20
PROBE_EVERY_S = 0.25
BACK_LIMIT_S = 20.0
POLL_S = 0.02
SLOW_S = 0.3
HOUR_S = 3600.0
OK = 200
MAX_BACK_S = 2.0
MAX_GROWTH_MIB = 20


@dataclass(frozen=True)
class Size:
    """How much of it."""

    num_streams: int = 20
    num_tokens: int = 700
    """of each answer: they outlast the fault"""
    calm_s: float = 3.0
    """of streams before Redis fails"""
    away_s: float = 10.0
    outage_s: float = 60.0
    per_s: float = 50.0
    """requests in that outage"""
    max_extra_gap_ms: float = 200
    """of the longest wait between two tokens, more than in calm"""


class Bed:
    """A cell whose Redis is behind a proxy, and whose wall clocks can be set."""

    def __init__(
        self, cluster: Cluster, redis: EmbeddedRedis, proxy: RedisProxy, thread: ProxyThread
    ) -> None:
        self.cluster = cluster
        self.redis = redis
        self.proxy = proxy
        self.state = RedisClient(redis.url)
        """past the proxy"""
        self._thread = thread

    async def on_proxy(self, work: Coroutine[None, None, object]) -> None:
        await asyncio.to_thread(self._thread.run, work)


@contextmanager
def bed(folder: Path) -> Iterator[Bed]:
    clock_of(folder).write_bytes(SECONDS.pack(0))
    with ExitStack() as stack:
        redis = stack.enter_context(EmbeddedRedis())
        thread = ProxyThread()
        stack.callback(thread.close)
        proxy = RedisProxy(redis.socket_path.with_name("proxy.sock"), redis.socket_path)
        thread.run(proxy.start())
        stack.callback(lambda: thread.run(proxy.close()))
        paths = [str(SHIFTED_CLOCK), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            "BATON_REDIS": redis.url.replace(str(redis.socket_path), str(proxy.path)),
            "SHIFTED_CLOCK": str(clock_of(folder)),
            "PYTHONPATH": os.pathsep.join(paths),
        }
        cluster = stack.enter_context(running(folder, *FLAGS, **environment))
        yield Bed(cluster, redis, proxy, thread)


def clock_of(folder: Path) -> Path:
    return folder / "clock"


def set_clock(folder: Path, off_s: float) -> None:
    """In place: the processes of the cell have the file mapped, and would die of a shorter one."""
    with clock_of(folder).open("r+b") as file:
        file.write(SECONDS.pack(off_s))


Break = Callable[[Bed, float], Awaitable[None]]
"""breaks Redis for that number of seconds; it is back when this returns"""


async def killed(bed: Bed, seconds: float) -> None:
    os.kill(bed.redis.pid, signal.SIGKILL)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(bed.redis.restart)


async def frozen(bed: Bed, seconds: float) -> None:
    os.kill(bed.redis.pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    os.kill(bed.redis.pid, signal.SIGCONT)


async def emptied(bed: Bed, seconds: float) -> None:
    """Once a second."""
    for _ in range(max(1, round(seconds))):
        await bed.state.command("FLUSHALL")
        await asyncio.sleep(1)


async def full(bed: Bed, seconds: float) -> None:
    await bed.state.command("CONFIG", "SET", "maxmemory", "1")
    await asyncio.sleep(seconds)
    await bed.state.command("CONFIG", "SET", "maxmemory", "0")


async def read_only(bed: Bed, seconds: float) -> None:
    """A replica of nobody that answers."""
    await bed.state.command("REPLICAOF", "127.0.0.1", "1")
    await asyncio.sleep(seconds)
    await bed.state.command("REPLICAOF", "NO", "ONE")


async def slow(bed: Bed, seconds: float) -> None:
    bed.proxy.delay_s = SLOW_S
    await asyncio.sleep(seconds)
    bed.proxy.delay_s = 0


async def odd_answers(bed: Bed, seconds: float) -> None:
    bed.proxy.spoils = True
    await asyncio.sleep(seconds)
    bed.proxy.spoils = False
    assert bed.proxy.num_spoiled


async def failed_over(bed: Bed, seconds: float) -> None:
    """To a server with the same keys and no scripts; and back, a little later, with those it has
    then."""
    with EmbeddedRedis() as other:
        other._password = bed.redis._password
        other.stop()
        other.start()
        await _move(bed, bed.redis, other)
        await asyncio.sleep(seconds)
        await _move(bed, other, bed.redis)


async def hour_ahead(bed: Bed, seconds: float) -> None:
    await _off(bed, seconds, HOUR_S)


async def hour_behind(bed: Bed, seconds: float) -> None:
    await _off(bed, seconds, -HOUR_S)


WAYS: tuple[Break, ...] = (
    killed,
    frozen,
    emptied,
    full,
    read_only,
    slow,
    odd_answers,
    failed_over,
    hour_ahead,
    hour_behind,
)


async def _move(bed: Bed, source: EmbeddedRedis, target: EmbeddedRedis) -> None:
    old, new = RedisClient(source.url), RedisClient(target.url)
    await new.command("FLUSHALL")
    for key in map(as_bytes, as_list(await old.command("KEYS", "*"))):
        left_ms, dumped = await old.command("PTTL", key), await old.command("DUMP", key)
        if dumped is not None:
            assert isinstance(left_ms, int)
            await new.command("RESTORE", key, max(left_ms, 0), as_bytes(dumped))
    await bed.on_proxy(bed.proxy.redirect(target.socket_path))
    await old.close()
    await new.close()


async def _off(bed: Bed, seconds: float, off_s: float) -> None:
    """The clocks of all of the cell's processes, and not that of Redis."""
    folder = bed.cluster.log.parent
    set_clock(folder, off_s)
    body = {"model": bed.cluster.model(), "prompt": "a", "max_tokens": 1}
    answer = bed.cluster.client.post("/v1/completions", json=body).json()
    assert abs(answer["created"] - time.time() - off_s) < HOUR_S / 2, "the clock was set"
    await asyncio.sleep(seconds)
    set_clock(folder, 0)


@dataclass
class Probes:
    """Short requests at a rate, as others would send them meanwhile."""

    load: Load
    ask: Ask
    sent: list[asyncio.Task[LoadedStream]] = field(default_factory=list)

    async def keep(self) -> None:
        while True:
            self.sent.append(asyncio.create_task(self._one()))
            await asyncio.sleep(PROBE_EVERY_S)

    async def _one(self) -> LoadedStream:
        return (await self.load.send(self.ask, retries=0)).last

    async def answered_since(self, since_s: float) -> float:
        """Seconds until the first one has its first token."""
        while time.monotonic() - since_s < BACK_LIMIT_S:
            ended = (task.result() for task in self.sent if task.done())
            firsts_s = [one.sent_s + one.first_s for one in ended if one.complete]
            after_s = [first_s - since_s for first_s in firsts_s if first_s > since_s]
            if after_s:
                return min(after_s)
            await asyncio.sleep(POLL_S)
        return BACK_LIMIT_S

    async def statuses(self) -> Counter[int]:
        """A 200 that was not answered to its end is 0."""
        ended = await asyncio.gather(*self.sent)
        return Counter(one.status if one.status != OK or one.complete else 0 for one in ended)


@dataclass
class Seen:
    """What streams and probes saw of one way; or of none, in calm."""

    way: str
    streams: list[LoadedStream]
    num_wrong: int
    num_through: int
    """streams that went on after Redis was back"""
    back_s: float
    probes: Counter[int]

    @property
    def num_failed(self) -> int:
        return sum(not stream.complete for stream in self.streams)

    @property
    def longest_gap_s(self) -> float:
        gaps = (b - a for stream in self.streams for a, b in pairwise(stream.times_s))
        return max(gaps, default=0.0)

    def figures(self, calm: "Seen", max_extra_gap_ms: float) -> list[Figure]:
        extra_ms = 1e3 * (self.longest_gap_s - calm.longest_gap_s)
        return [
            at_least(f"{self.way}: streams that outlasted it", self.num_through, 1),
            exactly(f"{self.way}: streams failed", self.num_failed),
            exactly(f"{self.way}: answers that are wrong", self.num_wrong),
            at_most(f"{self.way}: longest gap more than in calm", extra_ms, max_extra_gap_ms, "ms"),
            at_most(f"{self.way}: answered again after", self.back_s, MAX_BACK_S, "s"),
            exactly(
                f"{self.way}: new requests answered with neither 200 nor 503",
                sum(num for status, num in self.probes.items() if status not in (200, 503)),
            ),
        ]


async def watch(
    bed: Bed, asks: Sequence[Ask], answers: dict[Ask, Answer], way: Break | None, size: Size
) -> Seen:
    """`answers`: filled in where nothing fails."""
    load = Load(bed.cluster.url, bed.cluster.model())
    others = Load(bed.cluster.url, bed.cluster.model())
    probes = Probes(others, random_ask(random.Random(0), PROMPT_TOKENS, PROBE_TOKENS))  # noqa: S311
    probing = asyncio.create_task(probes.keep())
    streams = asyncio.gather(*(load.send(ask, retries=0) for ask in asks))
    await asyncio.sleep(size.calm_s)
    await (asyncio.sleep(size.away_s) if way is None else way(bed, size.away_s))
    mended_s = time.monotonic()
    back_s = await probes.answered_since(mended_s)
    asked = await streams
    probing.cancel()
    if way is None:
        answers.update((one.ask, one.answer) for one in asked)
    seen = [one.last for one in asked]
    return Seen(
        "calm" if way is None else way.__name__.replace("_", " "),
        seen,
        num_wrong(asked, answers),
        sum(one.sent_s + one.end_s > mended_s for one in seen),
        back_s,
        await probes.statuses(),
    )


async def grow(bed: Bed, size: Size) -> list[Figure]:
    """Of the gateway, while nobody can be admitted."""
    numbers = random.Random(size.num_streams)  # noqa: S311
    load = Load(bed.cluster.url, bed.cluster.model())
    pid, levels = bed.cluster.gateway.pid, [0]
    asks = (random_ask(numbers, PROMPT_TOKENS, PROBE_TOKENS) for _ in itertools.count())
    before = resident_bytes(pid)
    os.kill(bed.redis.pid, signal.SIGKILL)
    sending = asyncio.create_task(load.poisson(asks, size.per_s, size.outage_s, seed=1, retries=0))
    while not sending.done():
        levels.append(resident_bytes(pid))
        await asyncio.sleep(1)
    await sending
    await asyncio.to_thread(bed.redis.restart)
    statuses = Counter(asked.last.status for asked in load.asked)
    grown_mib = (max(levels) - before) / 2**20
    name = f"{size.outage_s:g} s without Redis at {size.per_s:g} requests/s"
    return [
        at_most(f"{name}: the gateway grows by", grown_mib, MAX_GROWTH_MIB, "MiB"),
        at_least(f"{name}: requests refused with 503", statuses[503], 1),
        exactly(f"{name}: other answers than 503", len(load.asked) - statuses[503]),
    ]


async def run(folder: Path, size: Size, ways: Sequence[Break]) -> list[Figure]:
    numbers = random.Random(1)  # noqa: S311
    asks = [random_ask(numbers, PROMPT_TOKENS, size.num_tokens) for _ in range(size.num_streams)]
    answers: dict[Ask, Answer] = {}
    figures = []
    with bed(folder) as made:
        await watch(made, asks, answers, None, size)  # what is first is slower
        calm = await watch(made, asks, answers, None, size)
        say(f"calm: longest gap {1e3 * calm.longest_gap_s:.0f} ms, probes {dict(calm.probes)}")
        for way in ways:
            seen = await watch(made, asks, answers, way, size)
            say(
                f"{seen.way}: longest gap {1e3 * seen.longest_gap_s:.0f} ms, answered again after "
                f"{seen.back_s:.2f} s, probes {dict(seen.probes)}"
            )
            figures += seen.figures(calm, size.max_extra_gap_ms)
        if size.outage_s:
            figures += await grow(made, size)
        await made.state.close()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=Size.away_s, help="of each way")
    parser.add_argument("--ways", help="only these, with commas between")
    parser.add_argument(
        "--outage", type=float, default=Size.outage_s, help="seconds of the last part"
    )
    arguments = parser.parse_args()
    wanted = arguments.ways.split(",") if arguments.ways else [way.__name__ for way in WAYS]
    ways = [way for way in WAYS if way.__name__ in wanted]
    with tempfile.TemporaryDirectory() as folder:
        size = Size(away_s=arguments.seconds, outage_s=arguments.outage)
        return judge(asyncio.run(run(Path(folder), size, ways)))


if __name__ == "__main__":
    sys.exit(main())
