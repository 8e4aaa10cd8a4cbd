"""Traces: W3C context in, finished spans out.

Spans are written after the fact with the times the working process measured, so the hot path
carries two integers per stage and no context managers.
"""

import secrets
from dataclasses import dataclass
from typing import Protocol

from shared.message_parts.span import Span

_TRACEPARENT_PARTS = 4


@dataclass(frozen=True)
class TraceContext:
    """The ids of one W3C `traceparent`."""

    trace_id: str
    """32 hex digits"""
    span_id: str
    """16 hex digits: the span that becomes the parent of what follows"""
    flags: str = "01"

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"

    @property
    def sampled(self) -> bool:
        """Whether whoever began the trace wants it recorded."""
        return bool(int(self.flags, 16) & 1)

    def child(self) -> "TraceContext":
        """Same trace, fresh span id."""
        return TraceContext(self.trace_id, secrets.token_hex(8), self.flags)


def new_trace() -> TraceContext:
    return TraceContext(secrets.token_hex(16), secrets.token_hex(8))


def parse_traceparent(header: str | None) -> TraceContext | None:
    """The context in a `traceparent` header; None when absent or malformed."""
    parts = (header or "").strip().split("-")
    if len(parts) != _TRACEPARENT_PARTS or [len(part) for part in parts] != [2, 32, 16, 2]:
        return None
    version, trace_id, span_id, flags = parts
    hex_digits = set("0123456789abcdef")
    if not all(set(part) <= hex_digits for part in parts) or version == "ff":
        return None
    if int(trace_id, 16) == 0 or int(span_id, 16) == 0:
        return None
    return TraceContext(trace_id, span_id, flags)


class SpanSink(Protocol):
    """Where finished spans go. Never blocks; drops rather than waits."""

    def emit(
        self, span: Span, parent: TraceContext | None, own: TraceContext | None = None
    ) -> None:
        """Record one span under `parent`, or as a root with `own` alone. `own` fixes the span's
        id, so that children can name it before it ends. A trace that its beginner does not
        sample is not recorded."""

    def close(self) -> None:
        """Flush for at most a second or two, then stop."""


class NoSpans:
    """A sink for processes that export nothing."""

    def emit(
        self, span: Span, parent: TraceContext | None, own: TraceContext | None = None
    ) -> None:
        pass

    def close(self) -> None:
        pass
