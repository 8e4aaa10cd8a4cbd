"""The same arrivals on perfect servers: what no scheduler of whole prompts in order can beat.

Each prompt takes its measured prefill time on the first free of k servers, first come first
served; nothing else costs anything. The measured time to first token over this one tells how
much of it is the system's own doing.

A prefill of L tokens takes a L + b L^2: matrix products are linear, attention is quadratic.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


class PrefillTime(Protocol):
    """Seconds that a prompt takes on an idle server."""

    def seconds(self, num_tokens: int, num_cached: int = 0) -> float:
        """`num_cached` leading tokens need no computing."""

    @property
    def text(self) -> str:
        """For a person."""


@dataclass(frozen=True)
class QuadraticPrefill:
    """a L + b L^2."""

    a_s: float
    b_s: float
    error: float | None = None
    """largest relative distance of a measured point; None when it was given, not measured"""

    def seconds(self, num_tokens: int, num_cached: int = 0) -> float:
        linear_s = self.a_s * (num_tokens - num_cached)
        return linear_s + self.b_s * (num_tokens**2 - num_cached**2)

    @property
    def text(self) -> str:
        per_1k = f"{self.a_s * 1e6:.3g} ms per 1k tokens + {self.b_s * 1e9:.3g} ms per (1k)^2"
        return per_1k if self.error is None else f"{per_1k} (off by {self.error:.0%} at most)"


@dataclass(frozen=True)
class PointPrefill:
    """Measured points (tokens, seconds) in order, straight lines in between and beyond."""

    points: tuple[tuple[int, float], ...]

    def seconds(self, num_tokens: int, num_cached: int = 0) -> float:
        return self._whole(num_tokens) - (self._whole(num_cached) if num_cached else 0.0)

    @property
    def text(self) -> str:
        return f"{len(self.points)} given points"

    def _whole(self, num_tokens: int) -> float:
        points = ((0, 0.0), *self.points)
        at = next((i for i, (n, _) in enumerate(points) if n >= num_tokens), len(points) - 1)
        (n0, s0), (n1, s1) = points[max(at, 1) - 1], points[max(at, 1)]
        return s0 + (s1 - s0) * (num_tokens - n0) / (n1 - n0)


def fit_prefill(points: Sequence[tuple[int, float]]) -> QuadraticPrefill:
    """Least squares of the relative error over (tokens, seconds); neither part is negative.

    One length alone cannot tell the parts apart: all is linear then."""
    xs = [num / seconds for num, seconds in points]
    ys = [num**2 / seconds for num, seconds in points]
    xx, yy = sum(x * x for x in xs), sum(y * y for y in ys)
    xy = sum(x * y for x, y in zip(xs, ys, strict=True))
    sx, sy = sum(xs), sum(ys)
    determinant = xx * yy - xy * xy
    a_s, b_s = sx / xx, 0.0
    if len({num for num, _ in points}) > 1:
        a_s = (sx * yy - sy * xy) / determinant
        b_s = (sy * xx - sx * xy) / determinant
    if b_s < 0:
        a_s, b_s = sx / xx, 0.0
    elif a_s < 0:
        a_s, b_s = 0.0, sy / yy
    fit = QuadraticPrefill(a_s, b_s)
    error = max(abs(fit.seconds(num) / seconds - 1) for num, seconds in points)
    return QuadraticPrefill(a_s, b_s, error)


@dataclass(frozen=True)
class ReplayedRequest:
    """One arrival of the replay."""

    at_s: float
    num_tokens: int
    num_cached: int = 0


def replay(
    requests: Iterable[ReplayedRequest], prefill: PrefillTime, num_servers: int
) -> list[float]:
    """Time to first token of each, in order of arrival."""
    free_at_s = [0.0] * num_servers
    heapq.heapify(free_at_s)
    times_s = []
    for request in sorted(requests, key=lambda one: one.at_s):
        start_s = max(request.at_s, heapq.heappop(free_at_s))
        end_s = start_s + prefill.seconds(request.num_tokens, request.num_cached)
        heapq.heappush(free_at_s, end_s)
        times_s.append(end_s - request.at_s)
    return times_s
