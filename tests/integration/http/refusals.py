"""What must hold after every bad request, checked in one place.

The answer is an error in the API's exact shape that gives nothing away; the core has seen
nothing; the gateway's processes are the same ones; the next good request is answered correctly;
refusing took little time and the event loop kept turning.
"""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from typing import Any, cast

import httpx
import psutil

from tests.integration.http.loop_lag import LoopLag
from tests.support.cases.http_bodies import CHAT, chat_body
from tests.support.fakes.served_app import ServedApp

JSON_TYPE = {"content-type": "application/json"}
LARGE_BODY_BYTES = 16 * 1024
REFUSE_S = 0.05
REFUSE_LARGE_S = 1.0
LAG_S = 0.05
NUM_TRIES = 6
"""the best try counts: other processes share this machine's cores, our own work is in all"""
LEAK = re.compile(
    r"Traceback|File \"|\.py\b|site-packages|\b[A-Z]\w*(?:Error|Exception)\b|0x[0-9a-f]{6}"
    r"|127\.0\.0\.1|localhost|/(?:usr|home|work|srv|var|tmp|root|opt)/"
    r"|\b(?:services|shared|starlette|fastapi|uvicorn|pydantic|httptools|asyncio)\b"
)
TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    502: "server_error",
    503: "server_error",
    504: "timeout_error",
}


def check_error(
    content: bytes | str,
    headers: Mapping[str, str],
    status: int,
    code: str | None,
    param: str | None = None,
) -> None:
    """The exact shape of an error; `code` None: any."""
    body = json.loads(content)
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == TYPES.get(status, "invalid_request_error")
    assert re.fullmatch("[0-9a-f]{32}", headers["x-request-id"])
    assert headers["content-type"] == "application/json"
    assert 10 <= len(error["message"]) <= 400
    assert error["message"].isprintable()
    assert not LEAK.search(error["message"]), error["message"]
    assert isinstance(error["code"], str)
    if code is not None:
        assert error["code"] == code
    if param is not None:
        assert error["param"] == param


class Refusals:
    """A client of one gateway whose requests must all be refused."""

    def __init__(self, app: ServedApp, client: httpx.AsyncClient) -> None:
        self._app = app
        self._client = client

    async def post(
        self,
        content: bytes,
        code: str | None,
        param: str | None = None,
        *,
        status: int = 400,
        path: str = CHAT,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send it and check everything; the answer, for more."""
        children = _children()
        sent_headers = JSON_TYPE if headers is None else headers
        limit_s = REFUSE_S if len(content) <= LARGE_BODY_BYTES else REFUSE_LARGE_S
        for _ in range(NUM_TRIES):
            lag = LoopLag()
            async with lag.measured():
                start_s = time.monotonic()
                response = await self._client.post(path, content=content, headers=sent_headers)
                took_s = time.monotonic() - start_s
            if took_s <= limit_s and lag.longest_s <= LAG_S:
                break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError(f"refused in {took_s:.3f} s, loop lag {lag.longest_s:.3f} s")
        assert response.status_code == status, response.text
        check_error(response.content, response.headers, status, code, param)
        assert self._app.door.requests == []
        await self.check_serves()
        assert children <= _children(), "a process of the gateway has ended"
        return response

    async def check_serves(self) -> None:
        """A good request is answered, and correctly."""
        answer = await self._client.post(CHAT, json=chat_body())
        assert answer.status_code == 200, answer.text
        body = cast(dict[str, Any], answer.json())
        assert body["choices"][0]["message"]["content"] == "hello world"
        self._app.door.requests.clear()


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}
