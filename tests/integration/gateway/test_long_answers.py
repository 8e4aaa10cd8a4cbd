"""How long an answer may take, through a gateway's process and a real socket.

The failure guarded: a stream that makes progress is cut because its whole life is too long. The
limits are scaled: a second stands for the 300 that were the limit of everything.
"""

import http.client
import json
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.fakes.mock_cell import MockCell, mock_cell

STEP_MS = 100.0
NUM_TOKENS = 25
LIMIT_S = 1.0


def stream(cell: MockCell, **headers: str) -> tuple[list[str], float]:
    """The events of an answer of 2.5 s, and how long they took. For all that the gateway knows it
    may be shorter."""
    fields = {"max_tokens": NUM_TOKENS, "stop_token_ids": [1], "ignore_eos": True, "stream": True}
    body = json.dumps({"model": "demo", "prompt": [7] * 40, **fields})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    address = urlsplit(cell.url)
    began_s = time.monotonic()
    with closing(http.client.HTTPConnection(str(address.hostname), address.port)) as connection:
        content = {"content-type": "application/json"}
        connection.request("POST", "/v1/completions", body, {**content, **named})
        events = connection.getresponse().read().decode().split("\n\n")
    return [event for event in events if event], time.monotonic() - began_s


@pytest.mark.clock
def test_a_long_stream_is_not_cut(redis_url: str, tmp_path: Path) -> None:
    flags = ("--first-token-timeout-s", str(LIMIT_S))
    with mock_cell(redis_url, tmp_path, step_ms=STEP_MS, flags=flags) as cell:
        events, took_s = stream(cell)
        assert (events[-1], took_s > 2 * LIMIT_S) == ("data: [DONE]", True)
        assert len(events) > NUM_TOKENS
        cut, took_s = stream(cell, x_baton_timeout_s=str(LIMIT_S))
        error = json.loads(cut[-1].removeprefix("data: "))["error"]
        assert (error["code"], error["type"]) == ("deadline_exceeded", "timeout_error")
        assert "after 1 s (set by the header x-baton-timeout-s" in error["message"]
        assert LIMIT_S <= took_s < 2 * LIMIT_S
