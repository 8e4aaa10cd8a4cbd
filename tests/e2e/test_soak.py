"""Two prefill and two decode workers under two minutes of load: no error, no stall, no growth."""

import asyncio
import itertools
import json
import random
import re
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.cluster import Cluster, process_family, running
from tests.e2e.sse_load import keep_open

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
"""by then a gateway has the thousand receipts it keeps: after 65 s at 16 answers a second"""
NUM_BLOCKS = "2048"
"""of each worker: all full of cached blocks, and in the gateway's index, long before"""


def resident_bytes(pid: int) -> int:
    """RSS without pages of the KV pool: an engine takes them all at its start, and which of them
    its io process has mapped at a moment is the hand-overs under way then."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    kib = dict(re.findall(r"^(Rss\w+):\s+(\d+) kB$", status, re.MULTILINE))
    return (int(kib["RssAnon"]) + int(kib["RssFile"])) * 1024


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


def make_bodies(model: str) -> Iterator[bytes]:
    """Prompts of 16 to 512 random token ids: nothing is shared, nothing is cached."""
    numbers = random.Random(7)  # noqa: S311 -- a repeatable load, no secret
    for _ in itertools.count():
        prompt = [numbers.randrange(3, 4096) for _ in range(numbers.randrange(16, 513))]
        body = {
            "model": model,
            "prompt": prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
        }
        yield json.dumps(body).encode()


def baton_processes(cluster: Cluster) -> list[psutil.Process]:
    """All but Redis, which keeps the record of each request for ten minutes on purpose."""
    family = process_family(cluster.supervisor.pid)
    found = [process for process in family if "redis" not in process.name()]
    assert len(found) == 2 + 2 * 4, "supervisor, gateway, and two processes for each worker"
    return found


def test_two_minutes_of_64_streams(tmp_path: Path) -> None:
    """Memory at the end is at most 3 % over what it needed until it settled, for each process.
    Every stream is as fast as it must be from the request's sending on, waiting included."""
    flags = ("--prefill", "2", "--decode", "2", "--kv-blocks", NUM_BLOCKS)
    with running(tmp_path, *flags) as cluster:
        processes = baton_processes(cluster)
        memory = MemoryLog(processes)
        bodies = make_bodies(cluster.model())
        report = asyncio.run(keep_open(cluster.url, bodies, NUM_STREAMS, SECONDS, memory.start))
        memory.stop()
        sys.stdout.write(f"{report.summary()}\n")
        assert not report.failed, [(s.status, s.error) for s in report.failed[:5]]
        assert {stream.completion_tokens for stream in report.streams} == {MAX_TOKENS}
        assert len(report.streams) >= LEAST_ANSWERS
        assert report.slowest >= LEAST_TOKENS_PER_S
        for process in processes:
            first = memory.peak(process.pid, 0, SETTLED_S)
            last = memory.resident(process.pid, SECONDS)
            sys.stdout.write(f"{process.pid} {first / 2**20:.0f} -> {last / 2**20:.0f} MiB\n")
            assert last <= GROWTH * first, process.cmdline()
        assert cluster.metric("baton_local_prefill_tokens_total") == 0
        cluster.wait_blocks_back()
