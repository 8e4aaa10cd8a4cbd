"""More requests than one worker of each kind has room for: they wait in order, or are told to."""

import asyncio
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shared.queue.backlog import WINDOW
from tests.e2e.cluster import Cluster, running
from tests.e2e.sse_load import (
    LoadedStream,
    LoadReport,
    all_at_once,
    keep_open,
    stream_completion,
)
from tests.support.measured import Measured

NUM_REQUESTS = 200
NUM_REPLAYED = 20
MAX_TOKENS = 8
PIECES_IN_ONE_STEP = 32
"""prompts of 16 tokens and more that fit into the token budget of one step"""
STEP_TOKENS = 64
LONG_TOKENS, SHORT_TOKENS = 1500, 16
NUM_LONG = 5
"""clients, each with one long prompt after the other: one is computed, one waits on the worker, the
others in the line"""
SECONDS = 12.0
PAUSE_S = 0.15
"""between two short ones"""


def make_bodies(model: str, num_bodies: int) -> list[bytes]:
    numbers = random.Random(11)  # noqa: S311
    prompts = [
        [numbers.randrange(3, 4096) for _ in range(numbers.randrange(16, 129))]
        for _ in range(num_bodies)
    ]
    fixed: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
    }
    return [json.dumps({**fixed, "prompt": prompt}).encode() for prompt in prompts]


def assert_fair(cluster: Cluster, streams: list[LoadedStream]) -> None:
    """First come, first started, but for the window a popping worker may choose from."""
    receipts = [cluster.receipt(stream.rid) for stream in streams]
    receipts.sort(key=lambda receipt: receipt["accepted_ns"])
    by_start = sorted(receipts, key=lambda receipt: receipt["started_ns"])
    place = {receipt["id"]: number for number, receipt in enumerate(by_start)}
    moved = [abs(place[receipt["id"]] - number) for number, receipt in enumerate(receipts)]
    assert max(moved) <= WINDOW + PIECES_IN_ONE_STEP, moved


def test_200_at_once_wait_in_the_backlog_and_all_are_answered(tmp_path: Path) -> None:
    with running(tmp_path, "--prefill", "1", "--decode", "1") as cluster:
        bodies = make_bodies(cluster.model(), NUM_REQUESTS)
        report = asyncio.run(all_at_once(cluster.url, bodies))
        assert not report.failed, [(s.status, s.error) for s in report.failed[:5]]
        assert {stream.completion_tokens for stream in report.streams} == {MAX_TOKENS}
        assert cluster.metric("baton_backlog_puts_total") > 0
        assert cluster.metric("baton_backlog_pulls_total") > 0
        assert cluster.unwanted_local_prefill() == {}
        assert_fair(cluster, report.streams)
        cluster.wait_blocks_back()
        for body, stream in list(zip(bodies, report.streams, strict=True))[:NUM_REPLAYED]:
            (alone,) = asyncio.run(all_at_once(cluster.url, [body])).streams
            assert alone.text == stream.text


def test_a_full_backlog_is_429_with_a_retry_after(tmp_path: Path) -> None:
    flags = ("--prefill", "1", "--decode", "1")
    with running(tmp_path, *flags, BATON_MAX_BACKLOG="4") as cluster:
        bodies = make_bodies(cluster.model(), NUM_REQUESTS)
        streams = asyncio.run(all_at_once(cluster.url, bodies)).streams
        refused = [stream for stream in streams if stream.status == 429]
        served = [stream for stream in streams if stream.status == 200]
        assert len(refused) + len(served) == NUM_REQUESTS
        assert refused and served
        assert all(stream.complete for stream in served)
        assert all(1 <= stream.retry_after_s <= 60 for stream in refused)
        cluster.wait_blocks_back()
        again = asyncio.run(all_at_once(cluster.url, bodies[:1])).streams
        assert again[0].complete


def bodies_of(model: str, num_tokens: int) -> Iterator[bytes]:
    numbers = random.Random(num_tokens)  # noqa: S311
    for _ in itertools.count():
        prompt = [numbers.randrange(100, 1000) for _ in range(num_tokens)]
        yield json.dumps(
            {"model": model, "prompt": prompt, "stream": True, "max_tokens": 1, "temperature": 0}
        ).encode()


async def load(cluster: Cluster) -> tuple[LoadedStream, LoadReport, list[LoadedStream]]:
    """A long one alone; many, and the short ones that came meanwhile."""
    long, short = (bodies_of(cluster.model(), num) for num in (LONG_TOKENS, SHORT_TOKENS))
    alone = await stream_completion(cluster.url, next(long))
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(keep_open(cluster.url, long, NUM_LONG, SECONDS, lambda: None))
        coming = []
        while not keeping.done():
            coming.append(tasks.create_task(stream_completion(cluster.url, next(short))))
            await asyncio.sleep(PAUSE_S)
    return alone, keeping.result(), [each.result() for each in coming]


def test_short_prompts_do_not_wait_for_the_end_of_long_ones(
    tmp_path: Path, measured: Measured
) -> None:
    """Of nine in ten the first token comes sooner than that of a long one which is alone; behind
    those in the line it came after two of them and more."""
    flags = ("--topology", "agg", "--device", "cpu", "--threads", "1")
    with running(tmp_path, *flags, BATON_MAX_NUM_BATCHED_TOKENS=str(STEP_TOKENS)) as cluster:
        alone, long, short = asyncio.run(load(cluster))
        assert not long.failed and all(each.complete for each in (alone, *short))
        assert cluster.metric("baton_backlog_puts_total") > 0, "none waited in the line"
        late_s = sorted(each.first_s for each in short)[len(short) * 9 // 10]
        measured.at_most("short ones, p90", late_s, 0.75 * alone.first_s, "s")
