"""A stage of a request, as a worker tells it."""

from dataclasses import dataclass, field
from typing import NamedTuple


class SpanEvent(NamedTuple):
    """A moment within a span; wall-clock ns."""

    name: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class Span:
    """One stage of a request as cut by the process that did the work; wall-clock ns."""

    name: str
    start_ns: int
    end_ns: int
    pid: int
    attributes: dict[str, str | int | float | bool] = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
