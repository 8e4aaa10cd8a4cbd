"""What is sent and when, planned whole before the run, whichever endpoint it goes to."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from services.cli.bench.serve.arrivals import Arrivals
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
    """One request, for any endpoint."""

    index: int
    at_s: float
    """after the start of the run; closed loop: 0"""
    num_input: int
    num_output: int
    prompt: bytes
    """JSON, as it stands in the body"""


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

    def __init__(self, prompts: PromptSource, lengths: tuple[Lengths, Lengths], seed: int) -> None:
        """`lengths`: of input and output."""
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
            PlannedRequest(
                index,
                line.at_s / speed,
                line.num_input,
                line.num_output,
                self._prompts.of_blocks(line.hash_ids, line.num_input),
            )
            for index, line in enumerate(lines)
        ]
        return OpenLoop(tuple(plan), plan[-1].at_s)

    def _drawn(self, index: int, at_s: float) -> PlannedRequest:
        num_input, num_output = self._input.draw(self._rng), self._output.draw(self._rng)
        prompt = self._prompts.unique(num_input)
        return PlannedRequest(index, at_s, num_input, num_output, prompt)


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
