"""`make kv-pressure`: the same load over the policies of --on-kv-pressure, with few KV blocks.

a calm cell: the answers -> for each topology and policy a cell with few blocks, a closed loop of
streams whose clients come back when they are told -> what became of them -> figures
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.figures import Figure, at_least, exactly, judge, quantile, say
from tests.campaigns.load import (
    Answer,
    Ask,
    Asked,
    Load,
    describe_lost,
    known_answers,
    num_wrong,
    random_ask,
)
from tests.e2e.cluster import Cluster, running

POLICIES = ("preempt", "queue", "reject")
SHAPES = {
    "agg": ("--topology", "agg", "--decode", "2"),
    "pd": ("--topology", "pd", "--prefill", "1", "--decode", "2"),
}
COMMON = ("--device", "cpu", "--threads", "1")
NUM_BLOCKS = 24
"""of each worker: four or five of the requests below, whole"""
PROMPT_TOKENS, ANSWER_TOKENS = (20, 60), (30, 80)
MAX_RETRIES = 30


@dataclass(frozen=True)
class Size:
    """Of the load on one cell."""

    num_asks: int = 48
    num_streams: int = 16
    shapes: tuple[str, ...] = tuple(SHAPES)


@dataclass(frozen=True)
class Outcome:
    """What one policy came to."""

    name: str
    asked: list[Asked]
    seconds: float
    num_wrong: int
    num_preempted: float
    """computed again where they were"""
    num_handed_back: float
    """computed again elsewhere"""

    @property
    def num_refused(self) -> int:
        """Answers 429."""
        return sum(stream.status == 429 for one in self.asked for stream in one.streams)

    @property
    def num_unanswered(self) -> int:
        return sum(not one.last.complete for one in self.asked)

    def tell(self) -> None:
        streams = [one.last for one in self.asked if one.last.complete]
        firsts_s = [stream.first_s for stream in streams]
        waits_s = [one.last.sent_s + one.last.first_s - one.streams[0].sent_s for one in self.asked]
        gaps_s = [
            later - earlier
            for stream in streams
            for earlier, later in zip(stream.times_s, stream.times_s[1:], strict=False)
        ]
        num_tokens = sum(stream.completion_tokens for stream in streams)
        say(
            f"{self.name}: {self.num_preempted:.0f} preempted, {self.num_handed_back:.0f} handed "
            f"back, {self.num_refused} refused; first token p50 {quantile(firsts_s, 0.5):.2f} s, "
            f"p99 {quantile(firsts_s, 0.99):.2f} s, with what was refused before p99 "
            f"{quantile(waits_s, 0.99):.2f} s; longest gap {max(gaps_s, default=0.0):.2f} s; "
            f"{num_tokens / self.seconds:.0f} tokens/s"
        )

    def figures(self) -> list[Figure]:
        num_given_up = self.num_preempted + self.num_handed_back
        pressed = {
            "preempt": at_least("preempted or handed back", num_given_up, 1),
            "queue": exactly("preempted or handed back", num_given_up),
            "reject": exactly("preempted or handed back", num_given_up),
        }
        policy = self.name.split()[1]
        refused = at_least if policy == "reject" else exactly
        found = [
            exactly("lost", sum(one.lost for one in self.asked)),
            exactly("unanswered in the end", self.num_unanswered),
            exactly("other answers than in calm", self.num_wrong),
            pressed[policy],
            refused("refused", self.num_refused, int(policy == "reject")),
        ]
        return [Figure(f"{self.name}: {f.name}", f.value, f.low, f.high) for f in found]


def drawn_asks(seed: int, num_asks: int) -> list[Ask]:
    numbers = random.Random(seed)  # noqa: S311
    return [
        random_ask(numbers, PROMPT_TOKENS, numbers.randint(*ANSWER_TOKENS)) for _ in range(num_asks)
    ]


async def press(
    cluster: Cluster, name: str, asks: Sequence[Ask], answers: dict[Ask, Answer], size: Size
) -> Outcome:
    """The load, once all of it is over and every block is back."""
    load, begin_s = Load(cluster.url, cluster.model()), time.monotonic()
    gate = asyncio.Semaphore(size.num_streams)

    async def send(ask: Ask) -> None:
        async with gate:
            await load.send(ask, retries=MAX_RETRIES)

    await asyncio.gather(*map(send, asks))
    seconds = time.monotonic() - begin_s
    if lost := describe_lost(load.asked):
        say(lost)
    await asyncio.to_thread(cluster.wait_blocks_back)
    counted = ("baton_preemptions_total", "baton_handed_back_total")
    totals = [await asyncio.to_thread(cluster.metric, each) for each in counted]
    return Outcome(name, load.asked, seconds, num_wrong(load.asked, answers), *totals)


async def run(folder: Path, size: Size, seed: int) -> list[Figure]:
    asks, figures = drawn_asks(seed, size.num_asks), []
    with running(folder, *COMMON, *SHAPES["agg"], "--kv-blocks", "4096") as cluster:
        answers = await known_answers(cluster.url, cluster.model(), asks, 8)
    for shape in size.shapes:
        for policy in POLICIES:
            flags = (*COMMON, *SHAPES[shape], "--kv-blocks", str(NUM_BLOCKS))
            name = f"{shape} {policy}"
            with running(folder, *flags, BATON_ON_KV_PRESSURE=policy) as cell:
                outcome = await press(cell, name, asks, answers, size)
            outcome.tell()
            figures += outcome.figures()
    return figures


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--asks", type=int, default=Size.num_asks, help="requests to each cell")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return judge(asyncio.run(run(Path(folder), Size(given.asks), given.seed)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
