"""One streamed answer as its reader feels it: time to the first token, and every gap after it.

A gap belongs to a token. Tokens that arrive in one event are 0 ms apart, which is how a gateway's
own histogram counts them. How many tokens an event carries comes from `continuous_usage_stats`;
a server without it is taken at one token an event.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from services.cli.event_reader import DONE, EventReader


class AnswerError(Exception):
    """The stream is not a complete answer."""


@dataclass
class AnswerTimes:
    """Milliseconds since the request was sent, and what came."""

    first_token_ms: float | None = None
    last_token_ms: float = 0.0
    end_ms: float = 0.0
    gaps_ms: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_total_tokens: int = 0
    """prompt included, if the server says"""
    num_prompt_tokens: int = 0
    """if the server says"""
    num_cached_tokens: int = 0
    """of those, what its prefix cache had"""
    text: str = ""
    finish_reason: str = ""

    def note(self, now_ms: float, num_new: int) -> None:
        """`num_new` tokens arrived."""
        if num_new < 1:
            return
        if self.first_token_ms is None:
            self.first_token_ms = now_ms
        else:
            self.gaps_ms.append(now_ms - self.last_token_ms)
        self.gaps_ms.extend([0.0] * (num_new - 1))
        self.last_token_ms = now_ms
        self.num_tokens += num_new


def read_answer(
    chunks: Iterable[bytes], sent_s: float, now_s: Callable[[], float] = time.perf_counter
) -> AnswerTimes:
    """The answer in a stream of bytes. AnswerError if it is an error, or cut short."""
    times = AnswerTimes()
    done = False
    reader = EventReader()
    for content in itertools.chain.from_iterable(map(reader.feed, chunks)):
        now_ms = (now_s() - sent_s) * 1000
        if content == DONE:
            done, times.end_ms = True, now_ms
            continue
        _note_chunk(times, json.loads(content), now_ms)
    if not done:
        raise AnswerError("the stream ended without [DONE]")
    if not times.finish_reason:
        raise AnswerError("the answer has no finish_reason")
    if times.first_token_ms is None:
        raise AnswerError("the answer has no token")
    return times


def _note_chunk(times: AnswerTimes, chunk: dict[str, Any], now_ms: float) -> None:
    if "error" in chunk:
        raise AnswerError(str(chunk["error"].get("code") or chunk["error"].get("message")))
    usage = chunk.get("usage") or {}
    counted = usage.get("completion_tokens")
    text = ""
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        text += choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
        times.finish_reason = choice.get("finish_reason") or times.finish_reason
    times.text += text
    details = usage.get("prompt_tokens_details") or {}
    times.num_prompt_tokens = usage.get("prompt_tokens") or times.num_prompt_tokens
    times.num_cached_tokens = details.get("cached_tokens") or times.num_cached_tokens
    times.num_total_tokens = usage.get("total_tokens") or times.num_total_tokens
    times.note(now_ms, (1 if text else 0) if counted is None else counted - times.num_tokens)
