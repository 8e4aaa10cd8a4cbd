"""`make slow-link`: hand-overs over a link of a tenth of the rate that the load needs.

closed loop: what the cell computes -> Poisson at half of it, for so long:
    calm: what the load needs, and its TTFT | throttled to a tenth | lifted
-> every accepted prompt again, in calm: the answers -> figures
"""

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.campaigns.figures import Figure, at_least, at_most, exactly, judge, quantile, say
from tests.campaigns.load import (
    Ask,
    Asked,
    Load,
    describe_lost,
    known_answers,
    num_wrong,
    random_ask,
)
from tests.campaigns.slow_cell import SlowCell, Transport, slow_cell

PROMPT_TOKENS = (300, 1200)
MAX_TOKENS = 8
SHARE_OF_CELL = 0.5
"""of what it computes is asked for"""
THROTTLED_TO = 0.1
"""of what the load needs"""
NUM_STREAMS = 4
"""of the closed loop, for each prefill worker"""
NORMAL_AGAIN_S = 10.0
"""after the throttle's end"""
COMPUTED_SLACK = 0.005
LEAST_LINK_SHARE = 0.9
LEAST_ADMITTED = 0.9
PHASES = ("calm", "throttled", "lifted")
SAY_EVERY_S = 10.0
IDLE_S = 30.0
REPORTED_S = 2.0
"""a worker reports once a second"""
PROMPT_TOKENS_TOTAL = "baton_prompt_tokens_total"
COMPUTED = 'source="computed"'
LOCAL_TOKENS = "baton_local_prefill_tokens_total"


class Shape(NamedTuple):
    """Of a cell."""

    num_prefill: int
    num_decode: int
    transport: Transport = "tcp"

    def __str__(self) -> str:
        return f"{self.num_prefill}P{self.num_decode}D {self.transport}"


SHAPES = (Shape(1, 1), Shape(2, 2), Shape(1, 1, "mapped"), Shape(2, 2, "mapped"))


@dataclass(frozen=True)
class Phases:
    """Seconds of each."""

    calibrate_s: float = 8.0
    calm_s: float = 20.0
    throttled_s: float = 120.0
    lifted_s: float = 20.0

    @property
    def loaded_s(self) -> float:
        return self.calm_s + self.throttled_s + self.lifted_s


@dataclass
class Counted:
    """The cell's totals at a moment."""

    at_s: float
    wire_bytes: int
    handed_bytes: float
    """of hand-overs that are complete"""
    computed_tokens: float

    @property
    def totals(self) -> tuple[float, ...]:
        return self.wire_bytes, self.handed_bytes, self.computed_tokens


@dataclass
class Slowed:
    """What a run leaves behind; `begin`, `slow`, `lifted` and `end` are the phases' borders."""

    asked: list[Asked]
    phases: Phases
    begin: Counted
    slow: Counted
    lifted: Counted
    end: Counted
    link_bytes_per_s: float
    num_wrong: int
    local_tokens: dict[str, float]

    @property
    def accepted(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.accepted]

    @property
    def refused_first(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.streams[0].status == 429]

    @property
    def computed_share(self) -> float:
        """Prompt tokens computed of those accepted that no cache had."""
        whole = [asked for asked in self.accepted if asked.last.complete]
        cached = sum(int(asked.last.receipt["cached_tokens"]) for asked in whole)
        tokens = sum(len(asked.ask.prompt) for asked in self.accepted) - cached
        return (self.end.computed_tokens - self.begin.computed_tokens) / max(tokens, 1)

    @property
    def useful_share(self) -> float:
        """Bytes of complete hand-overs of all bytes on the wire."""
        wire_bytes = self.end.wire_bytes - self.begin.wire_bytes
        return (self.end.handed_bytes - self.begin.handed_bytes) / max(wire_bytes, 1)

    @property
    def link_share(self) -> float:
        """Of what the throttled link can carry, useful."""
        seconds = self.lifted.at_s - self.slow.at_s
        wire_bytes = self.lifted.wire_bytes - self.slow.wire_bytes
        return wire_bytes / (seconds * self.link_bytes_per_s) * self.useful_share

    @property
    def admitted_share(self) -> float:
        """Of clients that were refused with 429, those admitted at their first retry."""
        refused = self.refused_first
        admitted = [item for item in refused if item.streams[1:2] and item.streams[1].status == 200]
        return len(admitted) / len(refused) if refused else 1.0

    def ttft_s(self, from_s: float, to_s: float) -> list[float]:
        """Of whole answers whose request was sent between two moments."""
        whole = (asked.last for asked in self.asked if asked.last.complete)
        return [stream.first_s for stream in whole if from_s <= stream.sent_s < to_s]

    def times(self) -> str:
        """Of each phase, by when a request was sent."""
        borders = [item.at_s for item in (self.begin, self.slow, self.lifted, self.end)]
        lines = []
        for name, (from_s, to_s) in zip(PHASES, pairwise(borders), strict=True):
            firsts_s = self.ttft_s(from_s, to_s)
            lines.append(
                f"{name}: {len(firsts_s)} answers, first token p50 "
                f"{quantile(firsts_s, 0.5):.2f} s, p99 {quantile(firsts_s, 0.99):.2f} s"
            )
        return "\n".join(lines)

    def figures(self) -> list[Figure]:
        say(describe_lost(self.asked))
        say(self.times())
        say(f"prompt tokens computed on decode: {self.local_tokens}")
        num_503 = sum(stream.status == 503 for asked in self.asked for stream in asked.streams)
        figures = [
            exactly("accepted requests that failed", sum(asked.lost for asked in self.asked)),
            exactly("refusals with 503", num_503),
            exactly("answers that are wrong", self.num_wrong),
            Figure(
                "prompt tokens computed / accepted",
                self.computed_share,
                1 - COMPUTED_SLACK,
                1 + COMPUTED_SLACK,
            ),
            at_least(
                "share of the slow link that hand-overs use", self.link_share, LEAST_LINK_SHARE
            ),
            at_least(
                f"of {len(self.refused_first)} clients with 429, admitted when told",
                self.admitted_share,
                LEAST_ADMITTED,
            ),
        ]
        again_s = self.lifted.at_s + NORMAL_AGAIN_S
        if self.phases.lifted_s > NORMAL_AGAIN_S:
            after = self.ttft_s(again_s, self.end.at_s)
            after_s = quantile(after, 0.5) if after else float("inf")
            calm_s = quantile(self.ttft_s(self.begin.at_s, self.slow.at_s), 0.9)
            name = "TTFT p50 from 10 s after the throttle's end, against p90 before it"
            figures.append(at_most(name, after_s, calm_s, "s"))
        return figures


async def run_slow_link(folder: Path, shape: Shape, phases: Phases, seed: int) -> Slowed:
    numbers = random.Random(seed)  # noqa: S311
    asks = (random_ask(numbers, PROMPT_TOKENS, MAX_TOKENS) for _ in itertools.count())
    with slow_cell(folder, *shape) as cell:
        url, model = cell.cluster.url, cell.cluster.model()
        num_streams = NUM_STREAMS * shape.num_prefill
        tokens_per_s = await _calibrate(Load(url, model), asks, num_streams, phases.calibrate_s)
        per_s = SHARE_OF_CELL * tokens_per_s / (sum(PROMPT_TOKENS) / 2)
        say(f"{shape}: {tokens_per_s:.0f} tokens/s; {per_s:.2f} requests/s")
        await _settle(cell)
        slowed = await _run_load(cell, Load(url, model), asks, per_s, phases, seed)
        begin_s = time.monotonic()
        accepted = [asked.ask for asked in slowed.accepted]
        answers = await known_answers(url, model, accepted, num_streams)
        say(f"{len(answers)} answers in calm after {time.monotonic() - begin_s:.0f} s")
    slowed.num_wrong = num_wrong(slowed.asked, answers)
    return slowed


async def _calibrate(load: Load, asks: Iterator[Ask], num_streams: int, seconds: float) -> float:
    """Prompt tokens a second of a closed loop."""
    begin_s = time.monotonic()
    await load.keep_open(asks, num_streams, lambda: time.monotonic() < begin_s + seconds)
    assert not any(asked.lost for asked in load.asked), describe_lost(load.asked)
    tokens = sum(len(asked.ask.prompt) for asked in load.asked)
    return tokens / (time.monotonic() - begin_s)


async def _run_load(
    cell: SlowCell, load: Load, asks: Iterator[Ask], per_s: float, phases: Phases, seed: int
) -> Slowed:
    """Through all phases, until everything is answered and idle."""
    begin = await _count(cell)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.poisson(asks, per_s, phases.loaded_s, seed))
        telling = tasks.create_task(_tell(load, cell))
        await asyncio.sleep(phases.calm_s)
        slow = await _count(cell)
        needed_per_s = (slow.wire_bytes - begin.wire_bytes) / (slow.at_s - begin.at_s)
        link_per_s = needed_per_s * THROTTLED_TO
        cell.set_rate(link_per_s)
        say(f"throttled from {needed_per_s / 2**20:.2f} to {link_per_s / 2**20:.2f} MiB/s")
        await asyncio.sleep(phases.throttled_s)
        lifted = await _count(cell)
        cell.set_rate(0)
        say("the throttle is lifted")
        await asyncio.sleep(phases.lifted_s)
        telling.cancel()
    await _settle(cell)
    end = await _count(cell)
    local = await asyncio.to_thread(cell.cluster.samples, LOCAL_TOKENS)
    return Slowed(load.asked, phases, begin, slow, lifted, end, link_per_s, 0, local)


async def _settle(cell: SlowCell) -> None:
    """Until the cell is idle and the workers have reported all that they counted."""
    await asyncio.to_thread(cell.cluster.wait_blocks_back, IDLE_S)
    counted, before = await _count(cell), None
    while before is None or counted.totals != before.totals:
        await asyncio.sleep(REPORTED_S)
        counted, before = await _count(cell), counted


async def _count(cell: SlowCell) -> Counted:
    cluster = cell.cluster
    await asyncio.to_thread(cluster.status)
    computed = await asyncio.to_thread(cluster.samples, PROMPT_TOKENS_TOTAL)
    handed = await asyncio.to_thread(cluster.metric, "baton_kv_transfer_bytes_total")
    return Counted(time.monotonic(), cell.num_passed, handed, computed[COMPUTED])


async def _tell(load: Load, cell: SlowCell) -> None:
    begin_s = time.monotonic()
    while True:
        await asyncio.sleep(SAY_EVERY_S)
        streams = [stream for asked in load.asked for stream in asked.streams]
        say(
            f"{time.monotonic() - begin_s:4.0f} s: {len(load.asked)} asked, "
            f"{sum(stream.status == 200 for stream in streams)} streams, "
            f"{sum(stream.status == 429 for stream in streams)} x 429, "
            f"{sum(asked.lost for asked in load.asked if asked.streams)} lost, "
            f"{cell.num_passed / 2**20:.0f} MiB on the link"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the throttle")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    phases, statuses = Phases(throttled_s=arguments.seconds), []
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            run = run_slow_link(Path(folder), shape, phases, arguments.seed)
            statuses.append(judge(asyncio.run(run).figures()))
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
