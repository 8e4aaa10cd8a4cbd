"""How a topology holds its limits as the rate rises, and the rate up to which it does.

Goodput is the highest rate at which the wanted share of requests is within the limits: on a
straight line between the last rate that holds and the first that does not. More load never helps,
so where chance says otherwise the shares of such rates are averaged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Counts = tuple[int, int]
"""requests within the limits, and requests sent"""


@dataclass(frozen=True)
class Curve:
    """Of one topology."""

    points: Mapping[float, Mapping[int, Counts]]
    """rate -> seed -> counts; a rate has all seeds"""

    def shares(self, seeds: Sequence[int]) -> list[tuple[float, float]]:
        """(rate, share within the limits), rates rising and shares falling. A seed that is named
        twice counts twice."""
        found = []
        for rate, by_seed in sorted(self.points.items()):
            num_good = sum(by_seed[seed][0] for seed in seeds)
            found.append((rate, num_good / sum(by_seed[seed][1] for seed in seeds)))
        return falling(found)

    def held(self, wanted: float) -> dict[float, bool]:
        """Whether the limits were held at each rate, by all seeds together."""
        return {
            rate: sum(good for good, _ in by_seed.values())
            / sum(sent for _, sent in by_seed.values())
            >= wanted
            for rate, by_seed in self.points.items()
        }


def falling(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The closest shares that do not rise: neighbours that do are averaged."""
    pools: list[tuple[float, int]] = []
    for _, share in points:
        pool = (share, 1)
        while pools and pools[-1][0] < pool[0]:
            mean, num = pools.pop()
            total = num + pool[1]
            pool = ((mean * num + pool[0] * pool[1]) / total, total)
        pools.append(pool)
    shares = [mean for mean, num in pools for _ in range(num)]
    return [(rate, share) for (rate, _), share in zip(points, shares, strict=True)]


def goodput(shares: Sequence[tuple[float, float]], wanted: float) -> float:
    """In requests/s. Where all rates hold it is the highest, and where none does the lowest: the
    true one lies beyond."""
    held = [(rate, share) for rate, share in shares if share >= wanted]
    failed = [(rate, share) for rate, share in shares if share < wanted]
    if not held or not failed:
        return held[-1][0] if held else failed[0][0]
    (low, above), (high, below) = held[-1], failed[0]
    return low + (high - low) * (above - wanted) / (above - below)
