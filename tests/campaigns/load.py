"""The load of a campaign: greedy streams, each with an answer that is known or asked for again.

A request that was refused with 429 comes back at the time it was told. Whatever else is not a
whole answer has failed; a 503 is counted apart, because its request was not accepted.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from services.cli.chaos.load import keep_open
from services.cli.gateway_client import GatewayClient
from tests.e2e.sse_load import LoadedStream, stream_completion

WHOLE_BYTES = 2**22
"""more than any answer here"""
RECEIPT = "x-baton-receipt: 1\r\n"
MAX_RETRIES = 5
"""of one client that is told to come back"""

Answer = tuple[str, int]
"""text and number of tokens"""


@dataclass(frozen=True)
class Ask:
    """A prompt of token ids and how many tokens are wanted."""

    prompt: tuple[int, ...]
    max_tokens: int

    def body(self, model: str) -> bytes:
        body = {
            "model": model,
            "prompt": self.prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": self.max_tokens,
            "min_tokens": self.max_tokens,
            "temperature": 0,
        }
        return json.dumps(body).encode()


def random_ask(numbers: random.Random, prompt_tokens: tuple[int, int], max_tokens: int) -> Ask:
    """No two share a block."""
    length = numbers.randint(*prompt_tokens)
    return Ask(tuple(numbers.randrange(100, 4000) for _ in range(length)), max_tokens)


@dataclass
class Asked:
    """What became of one request: its streams, the refused ones first."""

    ask: Ask
    streams: list[LoadedStream] = field(default_factory=list)
    body: dict[str, Any] = field(default_factory=dict)
    """the whole receipt of one that needed several attempts"""

    @property
    def last(self) -> LoadedStream:
        return self.streams[-1]

    @property
    def accepted(self) -> bool:
        return self.last.status not in (429, 503)

    @property
    def lost(self) -> bool:
        return self.accepted and not self.last.complete

    @property
    def answer(self) -> Answer:
        return self.last.text, self.last.completion_tokens

    @property
    def attempts(self) -> list[dict[str, Any]]:
        return list(self.last.receipt["attempts"])

    @property
    def longest_wait_s(self) -> float:
        """For the first token or between two."""
        return self.stall_s(())

    def stall_s(self, faults_s: Iterable[float]) -> float:
        """That wait, but for the first token only from the first fault in it on: what a stream
        waited before was no fault's doing. `faults_s`: their moments, on the monotonic clock."""
        times_s = [0.0, *self.last.times_s]
        if len(times_s) > 1:
            since_s = [fault_s - self.last.sent_s for fault_s in faults_s]
            times_s[0] = min((at_s for at_s in since_s if 0 < at_s < times_s[1]), default=0.0)
        return max((later - earlier for earlier, later in pairwise(times_s)), default=0.0)


class Load:
    """Sends requests and keeps what became of them."""

    def __init__(self, url: str, model: str, headers: str = "", admin_url: str = "") -> None:
        """`headers`: more lines of each request's head, each with its line end. `admin_url`: where
        receipts are shown, if it is not there."""
        self._url = url
        self._headers = RECEIPT + headers
        self._gateway = GatewayClient(admin_url or url)
        self._model = model
        self.asked: list[Asked] = []

    async def send(self, ask: Ask, *, retries: int = MAX_RETRIES) -> Asked:
        """To the end of its stream, retries included."""
        asked = Asked(ask)
        self.asked.append(asked)
        for _ in range(1 + retries):
            asked.streams.append(await _stream(self._url, ask.body(self._model), self._headers))
            if asked.last.status not in (429, 503):
                break
            await asyncio.sleep(asked.last.retry_after_s)
        if asked.last.complete and len(asked.attempts) > 1:
            asked.body = await asyncio.to_thread(self._gateway.receipt, asked.last.receipt["id"])
        return asked

    async def poisson(
        self,
        asks: Iterator[Ask],
        per_s: float,
        seconds: float,
        seed: int,
        *,
        retries: int = MAX_RETRIES,
    ) -> None:
        """An open loop: nobody waits for anybody. Ends when the last answer has."""
        numbers = random.Random(seed)  # noqa: S311
        begin_s = time.monotonic()
        due_s = numbers.expovariate(per_s)
        async with asyncio.TaskGroup() as tasks:
            while due_s < seconds:
                await asyncio.sleep(begin_s + due_s - time.monotonic())
                tasks.create_task(self.send(next(asks), retries=retries))
                due_s += numbers.expovariate(per_s)

    async def keep_open(
        self, asks: Iterable[Ask], num_streams: int, going: Callable[[], bool] = lambda: True
    ) -> None:
        """A closed loop: `num_streams` at every moment, until the asks or `going` end."""
        await keep_open(self.send, asks, num_streams, going)


async def _stream(url: str, body: bytes, headers: str) -> LoadedStream:
    """A connection that breaks is an answer that is not complete."""
    begin_s = time.monotonic()
    try:
        return await stream_completion(url, body, WHOLE_BYTES, headers)
    except (OSError, EOFError) as error:
        return LoadedStream(begin_s, tail=repr(error).encode())


async def known_answers(
    url: str, model: str, asks: Sequence[Ask], num_streams: int
) -> dict[Ask, Answer]:
    """Of a cell in which nothing is wrong."""
    load = Load(url, model)
    await load.keep_open(asks, num_streams)
    failed = [asked for asked in load.asked if asked.lost or not asked.accepted]
    assert not failed, f"a calm cell failed: {describe_failed(failed)}"
    return {asked.ask: asked.answer for asked in load.asked}


def num_wrong(asked: Iterable[Asked], answers: dict[Ask, Answer]) -> int:
    """Whole answers that are not the known ones."""
    whole = (item for item in asked if item.last.complete)
    return sum(item.answer != answers[item.ask] for item in whole)


def describe_lost(asked: Iterable[Asked], at_most: int = 5) -> str:
    return describe_failed([item for item in asked if item.lost][:at_most])


def describe_failed(asked: Iterable[Asked]) -> str:
    streams = [item.last for item in asked]
    return "\n".join(f"lost: {stream.status} {_last_words(stream)}" for stream in streams)


def describe_longest(asked: Iterable[Asked], at_most: int = 5) -> str:
    """The streams that waited longest: the workers of each attempt, and its times in seconds since
    the request was accepted."""
    longest = sorted(asked, key=lambda item: -item.longest_wait_s)[:at_most]
    return "\n".join(f"waited {item.longest_wait_s:.2f} s: {_way(item)}" for item in longest)


def _way(asked: Asked) -> str:
    body = asked.body
    attempts = "; ".join(_attempt(item, body) for item in body["attempts"])
    return f"{attempts} ({body['waited'] or 'never waited'})"


def _attempt(attempt: dict[str, Any], body: dict[str, Any]) -> str:
    """Its workers, and when each of its stages began and ended."""
    stages = [
        f"{stage['name']} {_since(stage['start_ns'], body)}-{_since(stage['end_ns'], body)}"
        for stage in body["stages"]
        if stage["epoch"] == attempt["epoch"] and stage["name"] != "read"
    ]
    end = f"{attempt['end']} {_since(attempt['ended_ns'], body)}"
    return f"{attempt['prefill']} > {attempt['decode'] or 'nobody'}: {', '.join([*stages, end])}"


def _since(moment_ns: int, body: dict[str, Any]) -> str:
    return f"{(moment_ns - body['accepted_ns']) / 1e9:.1f}"


def _last_words(stream: LoadedStream) -> str:
    """The last event; of an answer without any, all there is."""
    lines = stream.tail.decode(errors="replace").splitlines()
    events = [line for line in lines if line.startswith("data: ")]
    return events[-1] if events else "".join(lines)
