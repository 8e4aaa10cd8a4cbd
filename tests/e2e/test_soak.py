"""Two prefill and two decode workers under two minutes of load: no error, no stall, no growth."""

import asyncio
import itertools
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.cli.chaos.memory import resident_bytes
from services.gateway.owner.records.receipts import MAX_RECEIPTS
from tests.e2e.cluster import Cluster, process_family, running
from tests.e2e.sse_load import in_turn, keep_open
from tests.support.cpu_share import CpuShare
from tests.support.measured import Measured

pytestmark = pytest.mark.alone

SECONDS = 120.0
NUM_STREAMS = 64
MAX_TOKENS = 64
LEAST_ANSWERS = 600
LEAST_TOKENS_PER_S = 1.0
GROWTH = 1.03
SAMPLE_INTERVAL_S = 1.0
WINDOW_S = 10.0
"""memory at a moment is the median of this long before it: a step's workspace comes and goes"""
SETTLED_S = 80.0
NUM_BLOCKS = "2048"
"""of each worker: all full of cached blocks, and in the gateway's index, long before"""
NUM_EARLIER = MAX_RECEIPTS + NUM_STREAMS
"""requests of two tokens before it: a gateway grows with its first thousand, by their receipts and
by the allocator's arenas, so that a slow machine would still see it grow"""
NUM_LONG = 2 * NUM_STREAMS
"""of them, the last, have prompts as long as those to come: after a thousand short ones 150 such
made a gateway grow by 1.3 MiB, which is half of what is allowed"""


class MemoryLog:
    """Resident bytes of every process of a `baton up`, sampled from a thread."""

    def __init__(self, processes: list[psutil.Process]) -> None:
        self._processes = processes
        self._samples: list[tuple[float, dict[int, int]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._start_s = time.monotonic()

    def start(self) -> None:
        self._start_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def peak(self, pid: int, from_s: float, to_s: float) -> float:
        """Highest level between two moments."""
        ends_s = range(int(from_s + WINDOW_S), int(to_s) + 1)
        return max(self.resident(pid, end_s) for end_s in ends_s)

    def resident(self, pid: int, at_s: float) -> float:
        """The level then: the median over the window that ends there."""
        return statistics.median(
            resident[pid] for taken_s, resident in self._samples if 0 <= at_s - taken_s <= WINDOW_S
        )

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_INTERVAL_S):
            resident = {process.pid: resident_bytes(process.pid) for process in self._processes}
            self._samples.append((time.monotonic() - self._start_s, resident))


def make_bodies(
    model: str, most_prompt_tokens: int = 512, max_tokens: int = MAX_TOKENS, seed: int = 7
) -> Iterator[bytes]:
    """Prompts of 16 or more random token ids: nothing is shared, nothing is cached."""
    numbers = random.Random(seed)  # noqa: S311 -- a repeatable load, no secret
    for _ in itertools.count():
        length = numbers.randrange(16, most_prompt_tokens + 1)
        prompt = [numbers.randrange(3, 4096) for _ in range(length)]
        body = {
            "model": model,
            "prompt": prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        yield json.dumps(body).encode()


def serves(process: psutil.Process) -> str:
    """The role in its command line; `up` has none."""
    roles = ("gateway", "prefill", "decode")
    return next((word for word in process.cmdline() if word in roles), "up")


def baton_processes(cluster: Cluster) -> list[psutil.Process]:
    """All but Redis, which keeps the record of each request for a minute on purpose."""
    family = process_family(cluster.supervisor.pid)
    found = [process for process in family if "redis" not in process.name()]
    assert len(found) == 4 + 3 * 4, "up, gateway and its text processes, three for each worker"
    return found


def warm_up(cluster: Cluster) -> None:
    short = make_bodies(cluster.model(), most_prompt_tokens=32, max_tokens=2)
    long = make_bodies(cluster.model(), max_tokens=2, seed=8)
    bodies = itertools.chain(
        itertools.islice(short, NUM_EARLIER - NUM_LONG), itertools.islice(long, NUM_LONG)
    )
    report = asyncio.run(in_turn(cluster.url, bodies, NUM_STREAMS))
    assert not report.failed, [(s.status, s.error) for s in report.failed[:5]]


def test_two_minutes_of_64_streams(tmp_path: Path, measured: Measured) -> None:
    """Memory at the end is at most 3 % over what it needed until it settled, for each process.
    Every stream is as fast as it must be from the request's sending on, waiting included, and
    there are as many as there must be, on a machine that does nothing else; what others compute
    meanwhile is not ours to use."""
    flags = ("--prefill", "2", "--decode", "2", "--kv-blocks", NUM_BLOCKS)
    with running(tmp_path, *flags) as cluster:
        warm_up(cluster)
        processes = baton_processes(cluster)
        memory = MemoryLog(processes)
        bodies = make_bodies(cluster.model())
        cpu = CpuShare(processes)
        report = asyncio.run(keep_open(cluster.url, bodies, NUM_STREAMS, SECONDS, memory.start))
        share = cpu.left()
        memory.stop()
        sys.stdout.write(f"{report.summary()}\n")
        assert not report.failed, [(s.status, s.error) for s in report.failed[:5]]
        assert {stream.completion_tokens for stream in report.streams} == {MAX_TOKENS}
        with_share = f"with {share:.2f} of the CPU"
        measured.at_least(f"answers {with_share}", len(report.streams), share * LEAST_ANSWERS)
        slowest, least = report.slowest, share * LEAST_TOKENS_PER_S
        measured.at_least(f"slowest stream {with_share}", slowest, least, "tokens/s")
        for process in processes:
            first = memory.peak(process.pid, 0, SETTLED_S) / 2**20
            last = memory.resident(process.pid, SECONDS) / 2**20
            what = f"memory of {serves(process)} after {first:.1f} MiB in {SETTLED_S:.0f} s"
            measured.at_most(what, last, GROWTH * first, "MiB")
        assert cluster.unwanted_local_prefill() == {}
        cluster.wait_blocks_back()
