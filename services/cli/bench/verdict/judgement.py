"""The verdict of a contest: how much more one side serves, how sure that is, and what follows.

Seeds are drawn again, with replacement and the same ones for both sides, as they were given the
same requests; of the ratios that come of it the middle 95 % are the interval. Draws out of few
seeds differ too little, so the interval is made wider by as much as Student's t is wider than the
normal distribution. The draws are the same every time: a verdict can be computed again from its
file.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Literal, NamedTuple

from services.cli.bench.verdict.curve import Curve, goodput
from services.cli.bench.verdict.search import bracket_of

Side = Literal["pd", "agg"]
Decision = Literal["disaggregate", "do not disaggregate", "no difference", "no verdict"]
MORE, LESS = 1.05, 0.95
"""ratios of pd to agg beyond which a second pool pays, or costs"""
WIDEST = 1.5
"""an interval with ends further apart says that little is known, not that little differs"""
WIDE_BRACKET = 1.12
"""a goodput between rates further apart was not found"""
NUM_DRAWS = 1000
DRAW_SEED = 1
NORMAL_975 = 1.96
STUDENT_975 = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles of t for 3, 4, ... seeds; beyond, the last one is a little too wide"""
FEWEST_SEEDS = 3


Bound = Literal["", "at least", "at most"]


class Interval(NamedTuple):
    """A value, and the ends of its 95 %."""

    value: float
    low: float
    high: float

    def within(self, lowest: float, highest: float) -> "Interval":
        """Nothing is known of what lies beyond these."""
        low, high = (min(max(end, lowest), highest) for end in (self.low, self.high))
        return Interval(self.value, low, high)


@dataclass(frozen=True)
class Entry:
    """A topology as it came out of the contest."""

    topology: str
    side: Side
    curve: Curve
    stopped: str = ""
    """why its runs were INVALID at the rate that came next; empty where none was"""


@dataclass(frozen=True)
class Judgement:
    """What is said of a contest."""

    pd: str
    """the split that served most"""
    agg: str
    decision: Decision = "no difference"
    why: str = ""
    """there is no verdict"""
    ratio: Interval | None = None
    """requests that pd serves over those that agg serves"""
    bound: Bound = ""
    """one side held its limits at no rate: the ratio is to the lowest one"""
    goodputs: dict[str, Interval] = field(default_factory=dict)
    """requests/s of each topology with a curve, between the rates that it was tried at"""
    goodput_bounds: dict[str, Bound] = field(default_factory=dict)
    """of those that held the limits at all rates, which have at least the highest, or at none"""

    def goodput_text(self, topology: str) -> str:
        """In short."""
        value, low, high = self.goodputs[topology]
        if bound := self.goodput_bounds.get(topology):
            return f"{bound} {value:.3g}/s"
        return f"{value:.3g}/s ({low:.3g}-{high:.3g})"


def judge(entries: Sequence[Entry], seeds: Sequence[int], wanted: float) -> Judgement:
    """`wanted`: the share of requests that must be within the limits."""
    draws = _draws(seeds)
    drawn = {
        one.topology: [goodput(one.curve.shares(draw), wanted) for draw in (seeds, *draws)]
        for one in entries
        if one.curve.points
    }
    pd, agg = _best("pd", entries, wanted), _best("agg", entries, wanted)
    judgement = Judgement(
        pd.topology,
        agg.topology,
        goodputs={
            one.topology: _interval(drawn[one.topology], len(seeds)).within(
                min(one.curve.points), max(one.curve.points)
            )
            for one in entries
            if one.topology in drawn
        },
        goodput_bounds={
            one.topology: bound for one in entries if (bound := _goodput_bound(one, wanted))
        },
    )
    faults = [fault for one in (pd, agg) if (fault := _fault(one, wanted))]
    if faults:
        return _without(judgement, "; ".join(faults))
    both = zip(drawn[pd.topology], drawn[agg.topology], strict=True)
    judgement = replace(judgement, ratio=_interval([p / a for p, a in both], len(seeds)))
    if not _holds(pd, wanted) or not _holds(agg, wanted):
        return _decided_by_bound(judgement, _holds(pd, wanted), _holds(agg, wanted))
    return _decided(judgement)


def _decided(judgement: Judgement) -> Judgement:
    assert judgement.ratio is not None
    _, low, high = judgement.ratio
    if low > MORE:
        return replace(judgement, decision="disaggregate")
    if high < LESS:
        return replace(judgement, decision="do not disaggregate")
    if high > WIDEST * low:
        return _without(
            judgement,
            f"the ratio lies anywhere from {low:.2f} to {high:.2f}: give it more --seeds or a "
            "longer --duration",
        )
    return judgement


def _decided_by_bound(judgement: Judgement, pd_holds: bool, agg_holds: bool) -> Judgement:
    """One side held at no rate, not even its lowest, and can only be worse than it seems."""
    decided = _decided(judgement)
    if pd_holds and decided.decision == "disaggregate":
        return replace(decided, bound="at least")
    if agg_holds and decided.decision == "do not disaggregate":
        return replace(decided, bound="at most")
    names = [judgement.pd] * (not pd_holds) + [judgement.agg] * (not agg_holds)
    cure = "wider limits, a lower --attainment, a longer --duration or a lower --rate"
    return _without(judgement, f"{' and '.join(names)} held the limits at no rate: {cure}")


def _without(judgement: Judgement, why: str) -> Judgement:
    return replace(judgement, decision="no verdict", why=why)


def _best(side: Side, entries: Sequence[Entry], wanted: float) -> Entry:
    """Of a side the one that held the highest rate, or failed last."""

    def rank(entry: Entry) -> tuple[float, float]:
        low, high = bracket_of(entry.curve.held(wanted))
        return low or 0.0, high or 0.0

    return max((one for one in entries if one.side == side), key=rank)


def _holds(entry: Entry, wanted: float) -> bool:
    return any(entry.curve.held(wanted).values())


def _goodput_bound(entry: Entry, wanted: float) -> Bound:
    """By a curve that was followed to one side alone."""
    held = set(entry.curve.held(wanted).values())
    if held == {True}:
        return "at least"
    return "at most" if held == {False} else ""


def _fault(entry: Entry, wanted: float) -> str:
    """Why its goodput is not known; empty if it is."""
    low, high = bracket_of(entry.curve.held(wanted))
    name, stopped = entry.topology, entry.stopped
    cure = f"INVALID, {stopped}" if stopped else "more --points, or a --rate that is nearer"
    if low is None and high is None:
        return f"{name} has no valid point: {stopped or 'it was not run'}"
    if high is None:
        return f"{name} held the limits up to {low:g}/s, the highest rate with valid runs: {cure}"
    if low is not None and high > WIDE_BRACKET * low:
        return f"the goodput of {name} is only known to lie from {low:g} to {high:g}/s: {cure}"
    return ""


def _draws(seeds: Sequence[int]) -> list[list[int]]:
    rng = random.Random(DRAW_SEED)  # noqa: S311 statistics, no secret
    return [rng.choices(seeds, k=len(seeds)) for _ in range(NUM_DRAWS)]


def _interval(values: Sequence[float], num_seeds: int) -> Interval:
    """The first value is that of all seeds, the others are draws."""
    value, *draws = values
    draws.sort()
    cut, wider = len(draws) // 40, widening(num_seeds)
    low, high = (value * (end / value) ** wider for end in (draws[cut], draws[-1 - cut]))
    return Interval(value, low, high)


def widening(num_seeds: int) -> float:
    """What the logarithm of an interval is stretched by: draws of n values vary by the n-th part of
    their squares where n - 1 would be right, and their tails are normal."""
    student = STUDENT_975[min(num_seeds - FEWEST_SEEDS, len(STUDENT_975) - 1)]
    return sqrt(num_seeds / (num_seeds - 1)) * student / NORMAL_975
