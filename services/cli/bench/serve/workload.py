"""What is sent and when, planned whole before the run: sending costs nothing but a write."""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from services.cli.bench.serve.arrivals import Arrivals
from services.cli.bench.serve.endpoint import Endpoint
from services.cli.bench.serve.prompts import PromptSource
from services.cli.bench.serve.trace_file import TraceLine
from shared.errors import SettingsError


@dataclass(frozen=True)
class Lengths:
    """A fixed number of tokens, or a uniform range of them."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, flag: str) -> "Lengths":
        """`1024` or `100-1024`."""
        low, dash, high = text.partition("-")
        try:
            lengths = cls(int(low), int(high if dash else low))
        except ValueError:
            raise SettingsError(f"{flag} {text}: a number like 1024 or a range 100-1024") from None
        if not 1 <= lengths.low <= lengths.high:
            raise SettingsError(f"{flag} {text}: from at least 1 up")
        return lengths

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


@dataclass(frozen=True)
class PlannedRequest:
    """One request, ready for the wire."""

    index: int
    at_s: float
    """after the start of the run; closed loop: 0"""
    num_input: int
    num_output: int
    wire: bytes


@dataclass(frozen=True)
class OpenLoop:
    """Requests in the order of their times."""

    requests: tuple[PlannedRequest, ...]
    span_s: float
    """how long they are sent for"""

    @property
    def offered_per_s(self) -> float | None:
        return len(self.requests) / self.span_s if self.span_s else None


@dataclass(frozen=True)
class RequestTemplate:
    """What all requests of a run have in common."""

    endpoint: Endpoint
    model: str
    fields: tuple[tuple[str, bytes], ...]
    """more fields of the body, as JSON"""

    def wire(self, prompt: bytes, num_output: int) -> bytes:
        """The request for a prompt, given as JSON."""
        name = b'"messages":' if self.endpoint.kind == "chat" else b'"prompt":'
        fields = b"".join(b',"%s":%s' % (key.encode(), value) for key, value in self.fields)
        body = b"{%s%s%s}" % (name, prompt, b',"max_tokens":%d%s' % (num_output, fields))
        return self.endpoint.request(body)


@dataclass(frozen=True)
class Limits:
    """How long a run is: whichever is reached first."""

    num_requests: int | None
    duration_s: float | None

    def run_at(self, rate: float) -> tuple[int, float]:
        """The number of requests at this rate, and the seconds they are sent for."""
        if self.duration_s is not None:
            num = round(rate * self.duration_s)
            if self.num_requests is None or num <= self.num_requests:
                return num, self.duration_s
        assert self.num_requests is not None
        return self.num_requests, self.num_requests / rate

    def cut(self, times_s: Iterable[float]) -> Iterator[float]:
        for number, at_s in enumerate(times_s):
            if self.num_requests is not None and number >= self.num_requests:
                return
            if self.duration_s is not None and at_s >= self.duration_s:
                return
            yield at_s


class Planner:
    """Makes the requests of a run out of lengths, prompts and a seed."""

    def __init__(
        self,
        template: RequestTemplate,
        prompts: PromptSource,
        lengths: tuple[Lengths, Lengths],
        seed: int,
    ) -> None:
        """`lengths`: of input and output."""
        self._template = template
        self._prompts = prompts
        self._input, self._output = lengths
        self._rng = random.Random(f"{seed} lengths")  # noqa: S311 a workload, no secret
        self._seed = seed

    def open_loop(self, arrivals: Arrivals, rate: float, limits: Limits) -> OpenLoop:
        rng = random.Random(f"{self._seed} arrivals {rate}")  # noqa: S311
        num, span_s = limits.run_at(rate)
        if not num:
            raise SettingsError("no request falls into the run: a longer --duration or more --rate")
        times_s = arrivals.times(num, span_s, rng)
        plan = [self._drawn(index, at_s) for index, at_s in enumerate(times_s)]
        return OpenLoop(tuple(plan), span_s)

    def endless(self) -> Iterator[PlannedRequest]:
        """For a closed loop: made when they are asked for."""
        return (self._drawn(index, 0.0) for index in count())

    def warm(self, num_requests: int) -> list[PlannedRequest]:
        return [self._drawn(index, 0.0) for index in range(num_requests)]

    def of_trace(self, lines: Sequence[TraceLine], speed: float) -> OpenLoop:
        plan = [
            self._request(
                index,
                line.at_s / speed,
                self._prompts.of_blocks(line.hash_ids, line.num_input),
                line,
            )
            for index, line in enumerate(lines)
        ]
        return OpenLoop(tuple(plan), plan[-1].at_s)

    def _drawn(self, index: int, at_s: float) -> PlannedRequest:
        line = TraceLine(at_s, self._input.draw(self._rng), self._output.draw(self._rng), ())
        return self._request(index, at_s, self._prompts.unique(line.num_input), line)

    def _request(self, index: int, at_s: float, prompt: bytes, line: TraceLine) -> PlannedRequest:
        wire = self._template.wire(prompt, line.num_output)
        return PlannedRequest(index, at_s, line.num_input, line.num_output, wire)


def fitting(
    lines: Sequence[TraceLine], max_model_len: int | None, limits: Limits, speed: float
) -> tuple[list[TraceLine], int]:
    """The requests of a trace within the run's limits that the model can hold, and how many
    within them it cannot."""
    inside = list(limits.cut(line.at_s / speed for line in lines))
    wanted = lines[: len(inside)]
    if max_model_len is None:
        return list(wanted), 0
    fit = [line for line in wanted if line.num_input + line.num_output <= max_model_len]
    if not fit:
        raise SettingsError(f"no request of the trace fits into {max_model_len} tokens")
    return fit, len(wanted) - len(fit)


def body_fields(model: str, options: dict[str, Any]) -> tuple[tuple[str, bytes], ...]:
    """The common fields as JSON; None leaves a field out."""
    fields = {"model": model, "stream": True, **options}
    return tuple((k, json.dumps(v).encode()) for k, v in fields.items() if v is not None)
