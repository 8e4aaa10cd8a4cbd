"""Clients that stream greedy answers one after another, and what each of them saw."""

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import httpx

from tests.e2e.cluster import Stream, note
from tests.support.measured import Measured

NUM_CLIENTS = 4
PAUSE_S = 0.2
"""after a request that failed"""
LONGEST_S = 150.0


@dataclass
class Asked:
    """One request of a client."""

    number: int
    """of its body"""
    began_s: float
    ended_s: float = 0.0
    stream: Stream = field(default_factory=Stream)
    failure: str = ""
    """of the connection: refused, reset, cut"""
    retry_after: str = ""

    @property
    def was_refused(self) -> bool:
        """Politely: 503 with the time to come again."""
        return self.stream.status == 503 and bool(self.retry_after) and not self.failure

    @property
    def worst_gap_s(self) -> float:
        times = self.stream.chunk_times_s
        return max((b - a for a, b in pairwise(times)), default=0.0)


def bodies_of(num_tokens: int) -> list[dict[str, Any]]:
    """Greedy ones, each with a prompt of its own that fills several blocks."""
    return [
        {
            "prompt": [300 + 7 * at + step % (11 + at) for step in range(70)],
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        for at in range(NUM_CLIENTS)
    ]


SHORT = bodies_of(120)
LONG = [*bodies_of(1500)[:2], *bodies_of(240)[2:]]
"""for two clients, and short ones for the others"""


class Load:
    """Runs in the `with` block; each client ends with the answer that it reads then. Every second
    client keeps its connection."""

    def __init__(self, url: str, bodies: Sequence[dict[str, Any]]) -> None:
        self.asked: list[Asked] = []
        """in the order of their ends"""
        self._url = url
        self._bodies = bodies
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(at,), daemon=True) for at in range(NUM_CLIENTS)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(LONGEST_S)
            assert not thread.is_alive(), "a client hangs"

    def _ask(self, at: int) -> None:
        number = at
        with client_of(self._url) as kept:
            while not self._stopping.is_set():
                asked = Asked(number % len(self._bodies), time.monotonic())
                body = self._bodies[asked.number]
                if at % 2:
                    read(kept, body, asked)
                else:
                    with client_of(self._url) as fresh:
                        read(fresh, body, asked)
                self.asked.append(asked)
                number += NUM_CLIENTS
                if asked.failure or asked.stream.status != 200:
                    time.sleep(PAUSE_S)


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=60)


def read(client: httpx.Client, body: dict[str, Any], asked: Asked) -> None:
    """One answer to its end, whatever that is."""
    extra = {"model": "demo", "stream": True, "stream_options": {"include_usage": True}}
    try:
        with client.stream(
            "POST", "/v1/completions", json={**extra, "logprobs": 1, **body}
        ) as response:
            asked.stream.status = response.status_code
            asked.retry_after = response.headers.get("retry-after", "")
            if response.status_code != 200:
                asked.stream.error = json.loads(response.read())["error"]
            for line in response.iter_lines():
                if line.startswith("data: "):
                    after_s = time.monotonic() - asked.began_s
                    note(asked.stream, line.removeprefix("data: "), after_s)
    except httpx.TransportError as error:
        asked.failure = repr(error)
    asked.ended_s = time.monotonic()


def answers_in_peace(url: str, bodies: Sequence[dict[str, Any]]) -> list[str]:
    """The texts that each of them has to have under any circumstances."""

    def text_of(number: int) -> str:
        asked = asked_once(url, bodies[number], number)
        assert asked.stream.complete, asked
        return asked.stream.text

    with ThreadPoolExecutor() as threads:
        return list(threads.map(text_of, range(len(bodies))))


def asked_once(url: str, body: dict[str, Any], number: int = 0) -> Asked:
    """By a new client."""
    asked = Asked(number, time.monotonic())
    with client_of(url) as client:
        read(client, body, asked)
    return asked


def judge(
    measured: Measured, asked: Sequence[Asked], texts: Sequence[str], *, may_refuse: bool = False
) -> None:
    """AssertionError that lists every broken answer."""
    whole = [each for each in asked if each.stream.complete]
    refused = sum(each.was_refused for each in asked)
    gap_s = max((each.worst_gap_s for each in whole), default=0.0)
    wrong = broken(asked, texts, may_refuse=may_refuse)
    line = f"{len(whole)} whole, {refused} refused, {len(wrong)} broken; worst gap {gap_s:.2f} s"
    measured.note(line)
    assert not wrong, "\n".join(wrong)
    assert len(whole) >= NUM_CLIENTS


def broken(asked: Sequence[Asked], texts: Sequence[str], *, may_refuse: bool = False) -> list[str]:
    """What is wrong with each answer that is not whole, or not the one in peace. `may_refuse`: a
    503 that says when to come again is fine."""
    found = []
    for each in asked:
        if may_refuse and each.was_refused:
            continue
        stream = each.stream
        if each.failure or not stream.complete:
            error = stream.error or f"{len(stream.tokens)} tokens, then nothing"
            found.append(f"at {each.ended_s:.1f} s, {each.failure or stream.status}: {error}")
        elif stream.text != texts[each.number]:
            found.append(f"another text for body {each.number}: {stream.text[-60:]!r}")
    return found
