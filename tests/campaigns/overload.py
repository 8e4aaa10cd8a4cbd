"""`make overload`: three times the requests that a cell can answer, for three minutes.

    what it can answer -> 0.9 of that -> 3 times that -> 0.9 again

Whoever is admitted must not wait longer for it, the rest is refused at once, and nothing of it is
felt ten seconds after its end.
"""

import argparse
import asyncio
import itertools
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.figures import Figure, at_least, at_most, exactly, judge, quantile, say
from tests.campaigns.load import Ask, Asked, Load, random_ask
from tests.e2e.cluster import Cluster, running

FLAGS = ("--prefill", "1", "--decode", "1", "--kv-blocks", "4096", "--threads", "1")
MAX_WAIT_S = 0.3
"""less than what an admitted request waits for anyway, for its prompt and for a decode step"""
PROMPT_TOKENS, ANSWER_TOKENS = (17, 400), (10, 120)
NUM_STREAMS = 48
"""of the closed loop that tells what the cell can answer"""
CALM, STORM = 0.9, 3.0
RECOVERED_S = 10.0
MOST_SLOWER = 1.2
LEAST_GOODPUT = 0.9
MAX_REFUSAL_S = 0.5


@dataclass(frozen=True)
class Size:
    """How long each phase is, in seconds."""

    capacity_s: float = 60.0
    calm_s: float = 90.0
    storm_s: float = 180.0
    after_s: float = 40.0
    max_wait_s: float = MAX_WAIT_S


@dataclass
class Phase:
    """What clients saw of requests at one rate."""

    name: str
    asked: list[Asked]
    per_s: float
    begin_s: float
    seconds: float

    @property
    def firsts_s(self) -> list[float]:
        """Of those admitted, until the first token."""
        return [one.last.first_s for one in self.asked if one.last.complete]

    @property
    def refusals_s(self) -> list[float]:
        """Until they were told."""
        return [one.last.end_s for one in self.asked if not one.accepted]

    @property
    def num_failed(self) -> int:
        return sum(one.lost for one in self.asked)

    def goodput(self, since_s: float = 0.0) -> float:
        """Answered of each request that was sent, of those from then on."""
        late = [one for one in self.asked if one.last.sent_s >= self.begin_s + since_s]
        return sum(one.last.complete for one in late) / max(len(late), 1)

    def answered_per_s(self, since_s: float = 0.0) -> float:
        """Until the end of the phase."""
        begin_s, end_s = self.begin_s + since_s, self.begin_s + self.seconds
        ends_s = [one.last.sent_s + one.last.end_s for one in self.asked if one.last.complete]
        return sum(begin_s < at_s <= end_s for at_s in ends_s) / (end_s - begin_s)

    def tell(self) -> None:
        statuses = dict(Counter(one.last.status for one in self.asked))
        say(
            f"{self.name}: {self.per_s:.1f}/s for {self.seconds:g} s, {statuses}; answered "
            f"{self.answered_per_s():.1f}/s; first token p50 {quantile(self.firsts_s, 0.5):.2f} s, "
            f"p99 {quantile(self.firsts_s, 0.99):.2f} s"
        )


def drawn_asks(seed: int) -> Iterator[Ask]:
    numbers = random.Random(seed)  # noqa: S311
    for _ in itertools.count():
        yield random_ask(numbers, PROMPT_TOKENS, numbers.randint(*ANSWER_TOKENS))


async def capacity(cluster: Cluster, seconds: float) -> float:
    """Answers a second, first of a closed loop, then of more requests than those, for as long:
    a closed loop that waits for one answer to ask again asks for less than there is."""
    load, begin_s = Load(cluster.url, cluster.model()), time.monotonic()
    end_s = begin_s + seconds
    await load.keep_open(drawn_asks(0), NUM_STREAMS, lambda: time.monotonic() < end_s)
    closed = Phase("closed loop", load.asked, math.inf, begin_s, seconds)
    most_per_s = STORM * closed.answered_per_s(seconds / 2)
    full = await offer(cluster, "to see what it can", most_per_s, seconds, 4)
    return full.answered_per_s(seconds / 2)


async def offer(cluster: Cluster, name: str, per_s: float, seconds: float, seed: int) -> Phase:
    load, begin_s = Load(cluster.url, cluster.model()), time.monotonic()
    await load.poisson(drawn_asks(seed), per_s, seconds, seed, retries=0)
    phase = Phase(name, load.asked, per_s, begin_s, seconds)
    phase.tell()
    return phase


async def run(folder: Path, size: Size) -> list[Figure]:
    with running(folder, *FLAGS, BATON_MAX_WAIT_S=str(size.max_wait_s)) as cluster:
        most_per_s = await capacity(cluster, size.capacity_s)
        say(f"the cell answers {most_per_s:.1f} requests/s")
        calm = await offer(cluster, "0.9 of it", CALM * most_per_s, size.calm_s, 1)
        work = offer(cluster, "3 times", STORM * most_per_s, size.storm_s, 2)
        storming = asyncio.create_task(work)
        await asyncio.sleep(size.storm_s)  # its answers go on into what comes after
        after = await offer(cluster, "0.9 again", CALM * most_per_s, size.after_s, 3)
        storm = await storming
        await asyncio.to_thread(cluster.wait_blocks_back)
    calm_s, storm_s = (quantile(phase.firsts_s, 0.99) for phase in (calm, storm))
    num_refused = sum(not one.accepted for one in storm.asked)
    return [
        at_most("first token at 3 times, p99, by that at 0.9", storm_s / calm_s, MOST_SLOWER),
        at_least(
            "answers a second at 3 times, by those at 0.9",
            storm.answered_per_s() / calm.answered_per_s(),
            LEAST_GOODPUT,
        ),
        at_least(
            f"answered from {RECOVERED_S:g} s after it on, by those in calm",
            after.goodput(RECOVERED_S) / calm.goodput(),
            LEAST_GOODPUT,
        ),
        exactly("admitted and not answered", sum(p.num_failed for p in (calm, storm, after))),
        at_least("refused at 3 times", num_refused / len(storm.asked), 0.3),
        at_most("refused after, p99", quantile(storm.refusals_s, 0.99), MAX_REFUSAL_S, "s"),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=Size.storm_s, help="of 3 times the rate")
    parser.add_argument("--max-wait-s", type=float, default=MAX_WAIT_S, help="for a worker")
    given = parser.parse_args(arguments)
    size = Size(storm_s=given.seconds, max_wait_s=given.max_wait_s)
    with tempfile.TemporaryDirectory() as folder:
        return judge(asyncio.run(run(Path(folder), size)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
