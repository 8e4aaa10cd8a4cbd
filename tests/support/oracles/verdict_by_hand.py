"""The numbers of a verdict computed again from its file, by nothing of what computed them first.

`python -m tests.support.oracles.verdict_by_hand verdict.json [verdict.html]` says what differs.
"""

import itertools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Shares = list[tuple[float, float]]
T_975 = {3: 4.303, 4: 3.182, 5: 2.776}


def is_good(request: Sequence[Any], limits: dict[str, Any]) -> bool:
    ttft, gap, tpot, _ = request
    pairs = ((ttft, limits["ttft_ms"]), (gap, limits["gap_ms"]), (tpot, limits["tpot_ms"]))
    return ttft is not None and all(
        value is None or limit is None or value <= limit for value, limit in pairs
    )


def counts_of(record: dict[str, Any], topology: str) -> dict[float, dict[int, tuple[int, int]]]:
    """rate -> seed -> (good, sent), of rates with a valid run of each seed."""
    counts: dict[float, dict[int, tuple[int, int]]] = defaultdict(dict)
    for run in record["runs"]:
        if run["topology"] == topology and run["invalid"] is None:
            good = sum(is_good(one, record["limits"]) for one in run["requests"])
            counts[run["rate"]][run["seed"]] = (good, len(run["requests"]))
    seeds = record["rules"]["seeds"]
    return {rate: found for rate, found in counts.items() if set(found) == set(seeds)}


def falling_shares(counts: dict[float, dict[int, tuple[int, int]]], seeds: Sequence[int]) -> Shares:
    """Each share is the least of the highest averages that reach it from the left and right."""
    rates = sorted(counts)
    raw = [
        sum(counts[rate][seed][0] for seed in seeds) / sum(counts[rate][seed][1] for seed in seeds)
        for rate in rates
    ]
    num = len(raw)
    return [
        (
            rates[at],
            min(
                max(sum(raw[low:high]) / (high - low) for high in range(at + 1, num + 1))
                for low in range(at + 1)
            ),
        )
        for at in range(num)
    ]


def crossing(shares: Shares, wanted: float) -> float:
    if shares[-1][1] >= wanted:
        return shares[-1][0]
    if shares[0][1] < wanted:
        return shares[0][0]
    for (low, above), (high, below) in itertools.pairwise(shares):
        if above >= wanted > below:
            return low + (above - wanted) / (above - below) * (high - low)
    raise AssertionError(shares)


def interval(values: Sequence[float], value: float, num_seeds: int) -> tuple[float, float]:
    """Of all draws there are: the middle 95 %, stretched on a logarithmic scale."""
    ordered, cut = sorted(values), int(len(values) * 0.025)
    stretch = (num_seeds / (num_seeds - 1)) ** 0.5 * T_975[num_seeds] / 1.96
    low, high = (value * (end / value) ** stretch for end in (ordered[cut], ordered[-1 - cut]))
    return low, high


def differences(record: dict[str, Any], tolerance: float = 1e-6) -> list[str]:
    """What the file says and its runs do not. Intervals of three seeds only: there all draws that
    are possible are few enough for those that were made to have the same ends."""
    seeds, wanted = record["rules"]["seeds"], record["rules"]["wanted"]
    told, found = record["judgement"], []
    every_draw = [list(seeds), *map(list, itertools.product(seeds, repeat=len(seeds)))]
    drawn: dict[str, list[float]] = {}
    for topology in record["rules"]["sides"]:
        counts = counts_of(record, topology)
        if not counts:
            continue
        goodputs = [crossing(falling_shares(counts, draw), wanted) for draw in every_draw]
        drawn[topology] = goodputs
        tried = min(counts), max(counts)
        found += _compared(topology, told["goodputs"].get(topology), goodputs, tolerance, tried)
    if told["ratio"] is not None:
        ratios = [p / a for p, a in zip(drawn[told["pd"]], drawn[told["agg"]], strict=True)]
        found += _compared("ratio", told["ratio"], ratios, tolerance)
    return [*found, *_wrong_counts(record)]


def _compared(
    name: str,
    told: Sequence[float] | None,
    values: Sequence[float],
    tolerance: float,
    tried: tuple[float, float] = (0.0, float("inf")),
) -> list[str]:
    """`tried`: between which an interval lies."""
    if told is None:
        return [f"{name}: missing"]
    value, *draws = values
    num_seeds = next(num for num in T_975 if num**num == len(draws))
    low, high = interval(draws, value, num_seeds)
    again = (value, max(low, tried[0]), min(high, tried[1]))
    return [
        f"{name}: {one} is told, {other} comes of the runs"
        for one, other in zip(told, again, strict=True)
        if abs(one / other - 1) > tolerance
    ]


def _wrong_counts(record: dict[str, Any]) -> list[str]:
    wrong = []
    for run in record["runs"]:
        good = sum(is_good(one, record["limits"]) for one in run["requests"])
        if (run["num_good"], run["num_sent"]) != (good, len(run["requests"])):
            wrong.append(f"turn {run['turn']}: {run['num_good']} good are told, {good} are there")
    return wrong


def missing_on_page(record: dict[str, Any], page: str) -> list[str]:
    """Rows of runs and goodputs that the page does not have."""
    rows = [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in page.split("<tr>")]
    wanted = [
        [str(run[name]) for name in ("turn", "topology", "rate", "seed", "num_sent")]
        for run in record["runs"]
    ]
    wanted += [
        [topology, _bound(record, topology) + f"{value:.3f}", f"{low:.3f}", f"{high:.3f}"]
        for topology, (value, low, high) in record["judgement"]["goodputs"].items()
    ]
    return [str(row) for row in wanted if not any(_same(row, one) for one in rows)]


def _bound(record: dict[str, Any], topology: str) -> str:
    """By the counts alone: it was held at each rate, or at none."""
    wanted, counts = record["rules"]["wanted"], counts_of(record, topology)
    shares = [
        sum(good for good, _ in rate.values()) / sum(sent for _, sent in rate.values())
        for rate in counts.values()
    ]
    if min(shares) >= wanted:
        return "at least "
    return "at most " if max(shares) < wanted else ""


def _same(row: list[str], shown: list[str]) -> bool:
    """4.0 is shown as 4."""
    return [one.removesuffix(".0") for one in row] == shown[: len(row)]


def main() -> int:
    record = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    found = differences(record)
    if len(sys.argv) > 2:
        page = Path(sys.argv[2]).read_text(encoding="utf-8")
        found += [f"not on the page: {row}" for row in missing_on_page(record, page)]
    sys.stdout.write("".join(f"{line}\n" for line in found) or "the same\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
