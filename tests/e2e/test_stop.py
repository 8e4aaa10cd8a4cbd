"""Stopping with streams open: each ends in one clean error event, and nothing is left."""

import time
from pathlib import Path

import pytest

from tests.e2e.cluster import running
from tests.support.measured import Measured

pytestmark = pytest.mark.clock

NUM_STREAMS = 4
STOPPED_WITHIN_S = 8.0


def test_open_streams_end_cleanly_when_everything_stops(tmp_path: Path, measured: Measured) -> None:
    body = {"prompt": list(range(1000, 1040)), "max_tokens": 3000, "ignore_eos": True}
    with running(tmp_path) as cluster, cluster.streams([body] * NUM_STREAMS) as streams:
        cluster.wait(lambda: all(stream.num_chunks > 3 for stream in streams.seen))
        stopped_s = time.monotonic()
        assert cluster.stop() == 0, cluster.log_tail()
        measured.at_most("stopped after", time.monotonic() - stopped_s, STOPPED_WITHIN_S, "s")
        seen = streams.wait(10)
    assert "killed" not in cluster.log.read_text()
    assert [stream.status for stream in seen] == [200] * NUM_STREAMS
    assert [(stream.error or {}).get("code") for stream in seen] == ["gateway_stopping"] * 4
    assert not any(stream.done for stream in seen)
