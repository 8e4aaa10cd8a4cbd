"""What a campaign found, for people and for a file that later runs add to."""

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from services.cli.bench.measure.quantiles import Distribution
from services.cli.chaos.campaign import Outcome
from services.cli.chaos.load import Asked
from services.cli.chaos.oracle import ANSWERED
from shared.errors import SettingsError

HIT_BY = {
    "killed": ("kill engine", "crash engine", "kill an engine of each role", "kill worker"),
    "frozen or cut": (
        "freeze worker",
        "freeze engine",
        "a connection is cut",
        "wire stands still",
        "wire cut one way",
    ),
}
"""groups of kinds for whose stalls there are goals"""
OTHERS = "other faults"
PROBLEMS = "lost", "refused", "duplicated", "wrong", "billed twice", "billed wrong", "unrecorded"
MOST_UNSEEN = 0.02
"""of faults that were seen: each that was not is drawn again"""
MOST_TEXTS = 20


def record(outcome: Outcome, seed: int) -> dict[str, Any]:
    """The JSON line of one run."""
    tally = outcome.tally
    stalls = _stalls_by_group(outcome)
    return {
        "seed": seed,
        "seconds": round(outcome.seconds, 1),
        "faults": len(outcome.faults),
        "not_injected": len(outcome.not_injected),
        "unseen": dict(Counter(text.partition(":")[0] for text in outcome.not_injected)),
        "kinds": dict(sorted(Counter(fault.kind for fault in outcome.faults).items())),
        "requests": len(outcome.verdicts),
        "outcomes": dict(tally.outcomes),
        "problems": {name: tally.problems[name] for name in PROBLEMS},
        "leaked_blocks": outcome.num_leaked,
        "histories": outcome.num_histories,
        "violations": outcome.violations,
        "stalls_s": {group: [round(each, 3) for each in found] for group, found in stalls.items()},
        "memory": [asdict(one) for one in outcome.growths],
    }


def is_clean(line: dict[str, Any]) -> bool:
    """Nothing was found, and nearly all faults were seen to happen, of each kind most."""
    found = [*line["problems"].values(), *line["violations"]]
    unseen, seen = line.get("unseen", {}), line["kinds"]
    blind = line["not_injected"] > MOST_UNSEEN * line["faults"]
    blind = blind or any(num > seen.get(kind, 0) for kind, num in unseen.items())
    unheard = line["faults"] and not line.get("histories", 1)
    return not (any(found) or blind or unheard) and line["outcomes"].get(ANSWERED, 0) > 0


def render(lines: Sequence[dict[str, Any]]) -> str:
    """All runs together: how often each kind happened, and the lines that are published."""
    kinds, problems = (_added(lines, name) for name in ("kinds", "problems"))
    outcomes = _added(lines, "outcomes")
    width = max(map(len, kinds), default=0)
    table = "".join(f"  {name.ljust(width)}  {num:6d}\n" for name, num in kinds.most_common())
    counted = ", ".join(f"{problems[name]} {name}" for name in PROBLEMS)
    violations = sum(len(line["violations"]) for line in lines)
    spared = "" if outcomes["hit"] else "no request was hit: more --faults would tell more\n"
    return (
        f"{table}"
        f"{_sum(lines, 'faults')} faults of {len(kinds)} kinds in {len(lines)} runs, "
        f"{_sum(lines, 'not_injected')} not injected; {_sum(lines, 'requests')} requests, "
        f"{outcomes['hit']} hit: {counted}, {_sum(lines, 'leaked_blocks')} blocks leaked, "
        f"{violations} other violations\n"
        f"{sum(line.get('histories', 0) for line in lines)} histories read at their gateways\n"
        f"answered {outcomes['answered']}, clients left {outcomes['left']}, ended with their "
        f"gateway {outcomes['unread']}\n"
        f"{spared}{''.join(_stall_lines(lines))}{''.join(_memory_lines(lines[-1]))}"
    )


def explain(outcome: Outcome) -> Iterator[str]:
    """Every problem in words."""
    texts = [*outcome.violations, *(f"not injected: {text}" for text in outcome.not_injected)]
    texts += outcome.tally.texts
    yield from texts[:MOST_TEXTS]
    if len(texts) > MOST_TEXTS:
        yield f"and {len(texts) - MOST_TEXTS} more"


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Of a file that may not be there yet. SettingsError if it is another kind of file."""
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError:
        raise SettingsError(f"--resume {path}: not a file of this command") from None


def _added(lines: Sequence[dict[str, Any]], name: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line[name])
    return counts


def _sum(lines: Sequence[dict[str, Any]], name: str) -> int:
    return sum(line[name] for line in lines)


def _stalls_by_group(outcome: Outcome) -> dict[str, list[float]]:
    """The longest wait between two tokens of each answer that needed several attempts, in seconds,
    by the first fault in that wait."""
    found: dict[str, list[float]] = {}
    for asked, verdict in outcome.verdicts:
        if verdict.hit and asked.last.whole:
            since_s, until_s = _longest_gap(asked)
            found.setdefault(_group(outcome, since_s, until_s), []).append(until_s - since_s)
    return found


def _group(outcome: Outcome, since_s: float, until_s: float) -> str:
    kinds = (one.kind for one in outcome.faults if one.begin_s < until_s and one.end_s > since_s)
    first = next(kinds, None)
    return next((group for group, kinds in HIT_BY.items() if first in kinds), OTHERS)


def _longest_gap(asked: Asked) -> tuple[float, float]:
    """Begin and end."""
    return max(pairwise(asked.last.times_s), key=lambda gap: gap[1] - gap[0], default=(0.0, 0.0))


def _stall_lines(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Of all runs together."""
    for group in (*HIT_BY, OTHERS):
        found = Distribution.of(
            each for line in lines for each in line.get("stalls_s", {}).get(group, ())
        )
        if found.n:
            median = statistics.median(found.ordered)
            yield (
                f"stall of answers that were hit, {group}: p50 {median:.2f} s, "
                f"p99 {found.tail:.2f} s, n {found.n}\n"
            )


def _memory_lines(line: dict[str, Any]) -> Iterator[str]:
    """Of the last run: those processes that no fault hit."""
    for one in line.get("memory", ()):
        slope, bound = one["slope_bytes_per_h"] / 1e6, one["bound_bytes_per_h"] / 1e6
        yield (
            f"memory of {one['name']}: {one['first_bytes'] / 2**20:.1f} MiB, then {slope:+.2f} MB "
            f"an hour, below {bound:.2f} (95 %), over {one['seconds'] / 3600:.2f} h\n"
        )
