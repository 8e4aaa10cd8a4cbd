"""Sends planned requests and fills in their samples; keeps connections for the next one."""

import asyncio
import contextlib
import time
from collections import deque

from services.cli.bench.serve.client.answer_account import AnswerAccount, error_of_body
from services.cli.bench.serve.client.http_stream import (
    BrokenAnswerError,
    HttpConnection,
    StaleConnectionError,
)
from services.cli.bench.serve.endpoint import Endpoint
from services.cli.bench.serve.request_template import RequestTemplate
from services.cli.bench.serve.sample import RequestSample
from services.cli.bench.serve.workload import PlannedRequest

OK = 200


class LoadClient:
    """All connections to one endpoint."""

    def __init__(self, endpoint: Endpoint, template: RequestTemplate, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._template = template
        self._tls = endpoint.tls
        self._timeout_s = timeout_s
        self._kept: deque[HttpConnection] = deque()
        self.num_running = 0

    async def send(self, planned: PlannedRequest, scheduled_s: float) -> RequestSample:
        """One request to its end; a failure is in the sample, never raised."""
        sample = RequestSample(planned.index, scheduled_s, planned.num_input, planned.num_output)
        sample.started_s = time.monotonic()
        self.num_running += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                wire = self._template.wire(planned.prompt, planned.num_output)
                await self._exchange(wire, sample)
        except TimeoutError:
            _note(sample, "timeout", f"no whole answer in {self._timeout_s:g} s")
        except BrokenAnswerError as error:
            _note(sample, "broken_off", str(error))
        except OSError as error:
            _note(sample, "broken_off" if sample.sent_s else "not_connected", str(error))
        finally:
            self.num_running -= 1
            sample.end_s = time.monotonic()
        return sample

    def close(self) -> None:
        while self._kept:
            self._kept.pop().close()

    async def _exchange(self, wire: bytes, sample: RequestSample) -> None:
        kept = self._pop_kept()
        if kept is not None:
            # A peer may close a kept connection at any time: that is no failed request.
            with contextlib.suppress(StaleConnectionError):
                await self._exchange_on(kept, wire, sample)
                return
        await self._exchange_on(await self._connect(), wire, sample)

    async def _exchange_on(
        self, connection: HttpConnection, wire: bytes, sample: RequestSample
    ) -> None:
        answer = _Answer(sample)
        sample.sent_s = time.monotonic()
        try:
            await connection.exchange(wire, answer)
        except BaseException:
            connection.close()
            raise
        answer.judge()
        if connection.reusable:
            self._kept.append(connection)

    def _pop_kept(self) -> HttpConnection | None:
        while self._kept:
            connection = self._kept.pop()
            if connection.reusable:
                return connection
        return None

    async def _connect(self) -> HttpConnection:
        endpoint = self._endpoint
        _, connection = await asyncio.get_running_loop().create_connection(
            HttpConnection, endpoint.host, endpoint.port, ssl=self._tls
        )
        return connection


class _Answer:
    """Takes one answer: events if it is a stream, else an error's text."""

    def __init__(self, sample: RequestSample) -> None:
        self._sample = sample
        self._account = AnswerAccount(sample)
        self._refusal = b""

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._sample.status = status
        self._sample.request_id = headers.get(b"x-request-id", b"").decode("latin-1")

    def on_body(self, piece: bytes) -> None:
        if self._sample.status == OK:
            self._account.feed(piece, time.monotonic())
        else:
            self._refusal += piece

    def judge(self) -> None:
        """The answer is over: was it whole?"""
        sample = self._sample
        if sample.status != OK:
            _note(sample, f"http_{sample.status}", error_of_body(self._refusal))
        elif not self._account.done:
            _note(sample, "cut_off", "the stream ended without [DONE]")
        elif not sample.chunk_times_s:
            _note(sample, "empty", "the answer has neither output nor a finish")


def _note(sample: RequestSample, kind: str, text: str) -> None:
    if not sample.error:
        sample.error, sample.error_text = kind, text
