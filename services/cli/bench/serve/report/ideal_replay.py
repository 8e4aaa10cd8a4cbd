"""The same arrivals on perfect servers: what no scheduler of whole prompts in order can beat.

Each prompt takes its measured prefill time on the first free of k servers, first come first
served; nothing else costs anything. The measured time to first token over this one tells how
much of it is the system's own doing.

A prefill of L tokens takes c + a L + b L^2: c is what every prompt costs, matrix products are
linear, attention is quadratic.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

_POWERS = (1, 2, 0)
"""of the length; in the order in which they are preferred where points cannot tell them apart"""
_GAIN = 1e-9
"""of the squared relative error: what less is no reason for another part"""


class PrefillTime(Protocol):
    """Seconds that a prompt takes on an idle server."""

    def seconds(self, num_tokens: int, num_cached: int = 0) -> float:
        """`num_cached` leading tokens need no computing."""

    @property
    def text(self) -> str:
        """For a person."""

    @property
    def error(self) -> float | None:
        """Largest relative distance of a measured point; None when it was given, not measured."""


@dataclass(frozen=True)
class QuadraticPrefill:
    """c + a L + b L^2."""

    a_s: float
    b_s: float
    c_s: float = 0.0
    error: float | None = None
    """largest relative distance of a measured point; None when it was given, not measured"""

    def seconds(self, num_tokens: int, num_cached: int = 0) -> float:
        linear_s = self.a_s * (num_tokens - num_cached)
        return self.c_s + linear_s + self.b_s * (num_tokens**2 - num_cached**2)

    @property
    def text(self) -> str:
        constant = f"{self.c_s * 1e3:.3g} ms + " if self.c_s else ""
        per_1k = (
            f"{constant}{self.a_s * 1e6:.3g} ms per 1k tokens + {self.b_s * 1e9:.3g} ms per (1k)^2"
        )
        return per_1k if self.error is None else f"{per_1k} (off by {self.error:.0%} at most)"


@dataclass(frozen=True)
class PointPrefill:
    """Measured points (tokens, seconds) in order, straight lines in between and beyond."""

    points: tuple[tuple[int, float], ...]
    error: None = None

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
    """Least squares of the relative error over (tokens, seconds); no part is negative.

    The best of all fits with some of the parts and none below zero is the best with all of them
    that has none below zero. Points of n lengths can tell n parts apart: one length is linear."""
    num_parts = min(len({num for num, _ in points}), len(_POWERS))
    best, best_error = (0.0, 0.0, 0.0), float("inf")
    for size in range(1, num_parts + 1):
        for powers in combinations(_POWERS, size):
            found = _least_squares(points, powers)
            if found is None or min(found) < 0:
                continue
            parts = dict(zip(powers, found, strict=True))
            fit = (parts.get(1, 0.0), parts.get(2, 0.0), parts.get(0, 0.0))
            errors = [_relative(QuadraticPrefill(*fit), point) for point in points]
            if (error := sum(one * one for one in errors)) < best_error - _GAIN:
                best, best_error = fit, error
    largest = max(_relative(QuadraticPrefill(*best), point) for point in points)
    return QuadraticPrefill(*best, largest)


def _relative(fit: QuadraticPrefill, point: tuple[int, float]) -> float:
    num, seconds = point
    return abs(fit.seconds(num) / seconds - 1)


def _least_squares(
    points: Sequence[tuple[int, float]], powers: Sequence[int]
) -> list[float] | None:
    """Coefficients of `powers` by the normal equations; None where they do not tell them apart.

    Lengths count in the longest one, so that the equations' numbers are of one size."""
    scale = max(num for num, _ in points)
    rows = [[(num / scale) ** power / seconds for power in powers] for num, seconds in points]
    matrix = [
        [*(sum(r[i] * r[j] for r in rows) for j in _places(powers)), sum(r[i] for r in rows)]
        for i in _places(powers)
    ]
    for at in _places(powers):
        pivot = max(range(at, len(powers)), key=lambda row: abs(matrix[row][at]))
        matrix[at], matrix[pivot] = matrix[pivot], matrix[at]
        if abs(matrix[at][at]) < 1e-12:
            return None
        for other in _places(powers):
            if other != at:
                factor = matrix[other][at] / matrix[at][at]
                matrix[other] = [
                    x - factor * y for x, y in zip(matrix[other], matrix[at], strict=True)
                ]
    return [matrix[at][-1] / matrix[at][at] / scale ** powers[at] for at in _places(powers)]


def _places(powers: Sequence[int]) -> range:
    return range(len(powers))


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
