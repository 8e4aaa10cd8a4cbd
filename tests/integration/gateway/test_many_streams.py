"""Many streams at once through one gateway: no error, and a bounded cost for each token.

The workers are mocks, so that the gateway alone is what is slow."""

import asyncio
import json
import sys
from pathlib import Path

from shared.state.embedded import EmbeddedRedis
from tests.e2e.sse_load import LoadReport, all_at_once
from tests.support.fakes.mock_cell import MockCell, mock_cell
from tests.support.measured import Measured
from tests.support.redis_server import ON_PATH, server_binary

NUM_STREAMS = 256
MAX_TOKENS = 64
STEP_MS = 30.0
MAX_US_PER_TOKEN = 100.0
"""a guard against a slip by a factor; an idle core needs about 30"""


def stream_all(cell: MockCell, max_tokens: int) -> LoadReport:
    body = {
        "model": "demo",
        "prompt": list(range(5, 105)),
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }
    return asyncio.run(all_at_once(cell.url, [json.dumps(body).encode()] * NUM_STREAMS))


def test_256_streams(tmp_path: Path, measured: Measured) -> None:
    """The cost of a token: what longer answers cost beyond short ones, in CPU time."""
    with (
        EmbeddedRedis(server_binary(ON_PATH)) as redis,
        mock_cell(redis.url, tmp_path, step_ms=STEP_MS) as cell,
    ):
        cpu_s = [cell.cpu_s()]
        for max_tokens in (2, MAX_TOKENS):
            report = stream_all(cell, max_tokens)
            assert not report.failed, report.failed[0].error
            assert {stream.completion_tokens for stream in report.streams} == {max_tokens}
            cpu_s.append(cell.cpu_s())
        more_s = (cpu_s[2] - cpu_s[1]) - (cpu_s[1] - cpu_s[0])
        us_per_token = more_s * 1e6 / (NUM_STREAMS * (MAX_TOKENS - 2))
        sys.stdout.write(f"{report.summary()}\n")
        measured.at_most("gateway's CPU per token", us_per_token, MAX_US_PER_TOKEN, "us")
        assert cell.get("/v1/baton/status")["requests"]["live"] == 0
