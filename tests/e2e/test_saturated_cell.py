"""More requests than one worker of each kind has room for: they wait in order, or are told to."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from shared.queue.backlog import WINDOW
from tests.e2e.cluster import Cluster, running
from tests.e2e.sse_load import LoadedStream, all_at_once

NUM_REQUESTS = 200
NUM_REPLAYED = 20
MAX_TOKENS = 8
PIECES_IN_ONE_STEP = 32
"""prompts of 16 tokens and more that fit into the token budget of one step"""


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
