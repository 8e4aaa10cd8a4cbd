"""Keeps account of the tokens of one answer, as its events arrive.

A chunk counts when it carries output (text, reasoning or a tool call) or when its usage shows a
new token: a special token has no text. The chunk that only opens a chat does not count. How many
tokens a chunk holds is known from its own usage if the endpoint sends that with every chunk; the
last usage tells the sum. An answer without any such chunk arrived with the chunk that finished it.
"""

import json
from typing import Any

from services.cli.bench.serve.sample import RequestSample
from services.cli.event_reader import DONE, EventReader

MAX_ERROR_CHARS = 200
_OUTPUT_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")


class AnswerAccount:
    """Fills in one sample. Bytes may be cut anywhere."""

    def __init__(self, sample: RequestSample) -> None:
        self._sample = sample
        self._reader = EventReader()
        self._num_known = 0
        self._usage_in_all = True
        """every chunk with choices carried its usage so far"""
        self._finished_s: float | None = None
        self.done = False
        """`[DONE]` was seen"""

    def feed(self, received: bytes, now_s: float) -> None:
        """What arrived at `now_s`. All events in it share that time."""
        for content in self._reader.feed(received):
            self._event(content, now_s)

    def _event(self, content: bytes, now_s: float) -> None:
        if content == DONE:
            self.done = True
            self._note_unseen_tokens()
            return
        try:
            event = json.loads(content)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self._fail("stream_broken", "an event is no JSON object")
        elif event.get("error"):
            self._fail("stream_error", _error_text(event["error"]))
        else:
            self._chunk(event, now_s)

    def _chunk(self, event: dict[str, Any], now_s: float) -> None:
        sample = self._sample
        num_before = self._num_known
        receipt = event.get("baton")
        if isinstance(receipt, dict):
            sample.gpu_ms, sample.saved_gpu_ms = receipt.get("gpu_ms"), receipt.get("saved_gpu_ms")
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._note_usage(usage)
        choices = event.get("choices") or ()
        num_new = self._num_known - num_before
        if choices:
            self._usage_in_all = self._usage_in_all and isinstance(usage, dict)
        if any(choice.get("finish_reason") for choice in choices) or (not choices and num_new):
            self._finished_s = self._finished_s or now_s
        continuous = bool(choices) and self._usage_in_all
        if not any(map(_has_output, choices)) and not (continuous and num_new):
            return
        if continuous:
            sample.counted_from = "continuous"
        self._add_chunk(now_s, num_new if continuous else 1)

    def _add_chunk(self, now_s: float, num_tokens: int) -> None:
        self._sample.chunk_times_s.append(now_s)
        self._sample.chunk_tokens.append(num_tokens)

    def _note_unseen_tokens(self) -> None:
        """Tokens without text, of an endpoint that does not tell when: known at the finish."""
        if not self._sample.chunk_times_s and self._finished_s is not None:
            num_tokens = self._sample.completion_tokens
            self._add_chunk(self._finished_s, 1 if num_tokens is None else num_tokens)
            self._sample.without_text = True

    def _note_usage(self, usage: dict[str, Any]) -> None:
        sample = self._sample
        if sample.counted_from == "chunks":
            sample.counted_from = "total"
        sample.prompt_tokens = usage.get("prompt_tokens")
        sample.completion_tokens = usage.get("completion_tokens")
        details = usage.get("prompt_tokens_details") or {}
        sample.cached_tokens = details.get("cached_tokens") or 0
        self._num_known = sample.completion_tokens or 0

    def _fail(self, kind: str, text: str) -> None:
        self._sample.error = self._sample.error or kind
        self._sample.error_text = self._sample.error_text or text[:MAX_ERROR_CHARS]


def error_of_body(body: bytes) -> str:
    """What an answer with an error status says."""
    try:
        value = json.loads(body)
    except ValueError:
        return body[:MAX_ERROR_CHARS].decode(errors="replace")
    found = value.get("error", value) if isinstance(value, dict) else value
    return _error_text(found)[:MAX_ERROR_CHARS]


def _error_text(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error)


def _has_output(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta") or {}
    return any(delta.get(name) for name in _OUTPUT_FIELDS)
