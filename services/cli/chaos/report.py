"""What a campaign found, for people and for a file that later runs add to."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from services.cli.bench.measure.quantiles import Distribution
from services.cli.chaos.campaign import Outcome
from services.cli.chaos.load import Asked
from services.cli.chaos.oracle import ANSWERED
from shared.errors import SettingsError

PROBLEMS = "lost", "refused", "duplicated", "wrong", "billed twice", "billed wrong", "unrecorded"
MOST_UNSEEN = 0.02
"""of faults that were seen: each that was not is drawn again"""
MOST_TEXTS = 20


def record(outcome: Outcome, seed: int) -> dict[str, Any]:
    """The JSON line of one run."""
    tally = outcome.tally
    stalls = Distribution.of(_stalls(outcome))
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
        "violations": outcome.violations,
        "stall_p50_s": _rounded(stalls.at(0.5)),
        "stall_p99_s": _rounded(stalls.tail),
    }


def is_clean(line: dict[str, Any]) -> bool:
    """Nothing was found, and nearly all faults were seen to happen, of each kind most."""
    found = [*line["problems"].values(), *line["violations"]]
    unseen, seen = line.get("unseen", {}), line["kinds"]
    blind = line["not_injected"] > MOST_UNSEEN * line["faults"]
    blind = blind or any(num > seen.get(kind, 0) for kind, num in unseen.items())
    return not any(found) and not blind and line["outcomes"].get(ANSWERED, 0) > 0


def render(lines: Sequence[dict[str, Any]]) -> str:
    """All runs together: how often each kind happened, and the lines that are published."""
    kinds, problems = (_added(lines, name) for name in ("kinds", "problems"))
    outcomes = _added(lines, "outcomes")
    width = max(map(len, kinds), default=0)
    table = "".join(f"  {name.ljust(width)}  {num:6d}\n" for name, num in kinds.most_common())
    counted = ", ".join(f"{problems[name]} {name}" for name in PROBLEMS)
    violations = sum(len(line["violations"]) for line in lines)
    return (
        f"{table}"
        f"{_sum(lines, 'faults')} faults of {len(kinds)} kinds in {len(lines)} runs, "
        f"{_sum(lines, 'not_injected')} not injected; {_sum(lines, 'requests')} requests, "
        f"{outcomes['hit']} hit: {counted}, {_sum(lines, 'leaked_blocks')} blocks leaked, "
        f"{violations} other violations\n"
        f"answered {outcomes['answered']}, clients left {outcomes['left']}, ended with their "
        f"gateway {outcomes['unread']}; "
        f"stall p99 of those hit, worst run: {max(line['stall_p99_s'] for line in lines):.2f} s\n"
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


def _stalls(outcome: Outcome) -> Iterator[float]:
    """The longest wait between two tokens of each answer that a fault hit."""
    for asked, verdict in outcome.verdicts:
        if verdict.hit and asked.last.whole:
            yield _longest_gap_s(asked)


def _longest_gap_s(asked: Asked) -> float:
    return max((later - earlier for earlier, later in pairwise(asked.last.times_s)), default=0.0)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
