"""What is claimed of the scaling policy, held against the outcomes of simulated runs. Pure.

Points of one load are compared as averages over its seeds: (pods on average, attainment).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Literal

from services.simulator.outcome import Outcome

BEHIND = 0.015
"""of attainment, that the policy may lie behind the one that knows the future"""
COST = 1.25
"""times the GPU-hours of that one"""
REVERSALS = 2.0
"""an hour"""
STEADY_REVERSALS = 0.0
"""of a load that stays within 10 %"""
Form = Literal["azure", "mooncake"]
"""whose trace a load has the form of"""
ABOVE: Mapping[Form, float] = {"azure": 0.0, "mooncake": 0.003}
"""of attainment, that a rival may lie above the policy's curve"""
BELOW = 0.01
"""under the curve lie rivals that keep less than WEAK, on the bursty trace"""
WEAK = 0.97
NAME = "replay-0.99"
BOUND = "foresight-0.99"

Point = tuple[float, float]


@dataclass(frozen=True)
class Claim:
    """One line of the verdict."""

    text: str
    value: str
    holds: bool


def points(outcomes: Iterable[Outcome]) -> dict[str, Point]:
    """By policy: the mean pods and attainment of its seeds."""
    by_policy: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_policy.setdefault(outcome.policy, []).append(outcome)
    return {
        policy: (fmean(one.pods for one in found), fmean(one.attainment for one in found))
        for policy, found in by_policy.items()
    }


def curve_of(found: Mapping[str, Point]) -> list[Point]:
    """The policy's frontier over its targets: what more pods are worth at most."""
    line: list[Point] = []
    for point in sorted(point for policy, point in found.items() if policy.startswith("replay")):
        if not line or point[1] > line[-1][1]:
            line.append(point)
    return line


def on_curve(curve: Sequence[Point], pods: float) -> float | None:
    """Its attainment at that cost, on a straight line between two points; None: it does not span
    that cost."""
    for (low, at_low), (high, at_high) in pairwise(curve):
        if low <= pods <= high:
            return at_low + (at_high - at_low) * (pods - low) / (high - low)
    return None


def form_of(source: str) -> Form:
    """Of a file, as they published theirs, or of a shape."""
    return "mooncake" if source == "mooncake" or source.endswith(".jsonl") else "azure"


def claims(load: str, outcomes: Sequence[Outcome], form: Form = "azure") -> list[Claim]:
    """Of one load."""
    found = points(outcomes)
    result = []
    if NAME in found and BOUND in found:
        (pods, share), (least, best) = found[NAME], found[BOUND]
        behind, cost = best - share, pods / least
        text = f"{load}: at most {100 * BEHIND:g} points behind foresight"
        result.append(Claim(text, f"{100 * behind:.2f}", behind <= BEHIND))
        text = f"{load}: at most {COST:g} x its GPU-hours"
        result.append(Claim(text, f"{cost:.3f}", cost <= COST))
    reversals = [one.reversals_an_hour for one in outcomes if one.policy == NAME]
    if reversals:
        most = STEADY_REVERSALS if load == "steady" else REVERSALS
        text = f"{load}: at most {most:g} quick reversals an hour"
        result.append(Claim(text, f"{max(reversals):.2g}", max(reversals) <= most))
    curve = curve_of(found)
    for policy, (pods, share) in sorted(found.items()):
        if policy.startswith(("hpa", "keda")):
            result += _rival(load, policy, share, on_curve(curve, pods), form)
    return result


def _rival(load: str, policy: str, share: float, ours: float | None, form: Form) -> list[Claim]:
    if ours is None:
        return []
    above = share - ours
    limit = ABOVE[form]
    text = f"{load}: {policy} at most {100 * limit:g} points above the curve"
    result = [Claim(text, f"{100 * above:+.2f}", above <= limit)]
    if form == "azure" and share < WEAK:
        text = f"{load}: {policy}, under {100 * WEAK:g} %, at least {100 * BELOW:g} point below"
        result.append(Claim(text, f"{100 * above:+.2f}", above <= -BELOW))
    return result
