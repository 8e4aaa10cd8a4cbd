"""Streams on two prefill and two decode workers while something happens to the workers.

    answers in calm -> 16 streams at every moment, faults meanwhile -> idle -> figures

A stream was hit when its receipt has more than one attempt. Its stall is the longest time its
client waited between two tokens, or from the fault on for the first.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.figures import Figure, at_least, exactly, quantile, say
from tests.campaigns.load import (
    Answer,
    Ask,
    Asked,
    Load,
    describe_longest,
    describe_lost,
    known_answers,
    num_wrong,
    random_ask,
)
from tests.e2e.cluster import Cluster, running

NUM_STREAMS = 16
PROMPT_TOKENS = (17, 600)
FLAGS = ("--prefill", "2", "--decode", "2", "--kv-blocks", "2048")
SAY_EVERY_S = 10.0
IDLE_S = 20.0
"""to have given every block back"""


@dataclass(frozen=True)
class Size:
    """How much of it: seconds of faults, different requests, tokens of the longest answer; and
    the flags of the cell."""

    seconds: float
    num_asks: int = 48
    most_tokens: int = 1600
    seed: int = 1
    up: tuple[str, ...] = FLAGS


@dataclass
class Faulted:
    """What a campaign of faults leaves behind."""

    asked: list[Asked]
    answers: dict[Ask, Answer]
    faults_s: list[float]
    """when each began, on the monotonic clock"""
    num_leaked: int

    @property
    def num_faults(self) -> int:
        return len(self.faults_s)

    @property
    def hit(self) -> list[Asked]:
        whole = (asked for asked in self.asked if asked.last.complete)
        return [asked for asked in whole if len(asked.attempts) > 1]

    @property
    def stalls_s(self) -> list[float]:
        return [asked.stall_s(self.faults_s) for asked in self.hit]

    def figures(self) -> list[Figure]:
        """Those that every campaign of faults has."""
        say(describe_lost(self.asked))
        say(describe_longest(self.hit))
        return [
            at_least("faults", self.num_faults, 1),
            at_least("streams hit by a fault", len(self.hit), 1),
            exactly("accepted streams lost", sum(asked.lost for asked in self.asked)),
            exactly("answers that are wrong", num_wrong(self.asked, self.answers)),
            exactly("blocks leaked", self.num_leaked),
        ]

    def summary(self) -> str:
        refused = sum(not asked.accepted for asked in self.asked)
        return (
            f"{len(self.asked)} streams, {refused} refused, "
            f"{sum(asked.lost for asked in self.asked)} lost; "
            f"{self.num_faults} faults hit {len(self.hit)}, stall p50 "
            f"{quantile(self.stalls_s, 0.5):.2f} s, p99 {quantile(self.stalls_s, 0.99):.2f} s"
        )


Fault = Callable[[Cluster, random.Random], Awaitable[bool]]
"""does one thing to the workers; whether it did"""


async def run_faults(folder: Path, size: Size, every_s: float, fault: Fault) -> Faulted:
    numbers = random.Random(size.seed)  # noqa: S311
    asks = [
        random_ask(numbers, PROMPT_TOKENS, _answer_tokens(numbers, size.most_tokens))
        for _ in range(size.num_asks)
    ]
    with running(folder, *size.up) as cluster:
        num_workers = len(await asyncio.to_thread(cluster.workers))
        begin_s = time.monotonic()
        answers = await known_answers(cluster.url, cluster.model(), asks, NUM_STREAMS)
        say(f"{len(asks)} answers in calm after {time.monotonic() - begin_s:.0f} s")
        load = Load(cluster.url, cluster.model())
        faulted = Faulted(load.asked, answers, [], 0)
        end_s = time.monotonic() + size.seconds
        async with asyncio.TaskGroup() as tasks:
            endless = _endless(asks, numbers)
            tasks.create_task(
                load.keep_open(endless, NUM_STREAMS, lambda: time.monotonic() < end_s)
            )
            telling = tasks.create_task(_tell(faulted))
            while time.monotonic() + every_s <= end_s:
                await asyncio.sleep(every_s)
                fault_s = time.monotonic()
                if await fault(cluster, numbers):
                    faulted.faults_s.append(fault_s)
            telling.cancel()
        faulted.num_leaked = await asyncio.to_thread(_leaked_blocks, cluster, num_workers)
    say(faulted.summary())
    return faulted


def _answer_tokens(numbers: random.Random, most: int) -> int:
    """From 16 on; each doubling as likely as the next."""
    return round(16 * math.pow(most / 16, numbers.random()))


def _endless(asks: Sequence[Ask], numbers: random.Random) -> Iterator[Ask]:
    while True:
        yield numbers.choice(asks)


async def _tell(faulted: Faulted) -> None:
    begin_s = time.monotonic()
    while True:
        await asyncio.sleep(SAY_EVERY_S)
        ended = [asked for asked in faulted.asked if asked.streams]
        lost = sum(asked.lost for asked in ended)
        say(
            f"{time.monotonic() - begin_s:4.0f} s: {faulted.num_faults} faults, "
            f"{len(ended)} streams, {lost} lost"
        )


def _leaked_blocks(cluster: Cluster, num_workers: int) -> int:
    """Blocks that are held, or of no state, when nothing is asked any more."""
    with suppress(AssertionError):
        cluster.wait(lambda: len(cluster.workers()) == num_workers, IDLE_S)
        cluster.wait_blocks_back(IDLE_S)
    kv = [worker["kv"] for worker in cluster.workers()]
    return int(sum(k["total"] - k["free"] - k["cached"] for k in kv))
