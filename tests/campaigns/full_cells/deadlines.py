"""`make deadlines`: requests with `x-baton-timeout-s` at a cell that is asked for more than it has.

Each comes with one of DEADLINES_S, from what nobody could keep to what anybody can. What cannot be
answered in time is told so at once; what is accepted is answered in time.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.figures import Figure, at_least, at_most, exactly, judge, quantile, say
from tests.campaigns.full_cells.fair_shares import (
    FLAGS,
    MIDDLE,
    SMALL,
    capacity,
    drawn_asks,
    mean_tokens,
)
from tests.campaigns.load import Asked, Load
from tests.e2e.cluster import Cluster, running

OVERLOAD = 1.5
DEADLINES_S = (0.05, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
CAPACITY_S = 20.0
MOST_REFUSAL_S = 0.05
LEAST_MET = 0.99
LEAST_SERVED = 0.9


@dataclass(frozen=True)
class Group:
    """The requests with one deadline, and what became of them."""

    deadline_s: float
    asked: list[Asked]

    @property
    def refused(self) -> list[Asked]:
        return [one for one in self.asked if not one.accepted]

    @property
    def num_accepted(self) -> int:
        return len(self.asked) - len(self.refused)

    @property
    def ends_s(self) -> list[float]:
        """Of those whose answer was whole in time."""
        return [one.last.end_s for one in self.asked if one.last.complete]

    def tell(self) -> None:
        times = ", ".join(f"p{q * 100:g} {quantile(self.ends_s, q):.2f} s" for q in (0.5, 0.99))
        say(
            f"{self.deadline_s:g} s: {len(self.asked)} asked, {len(self.refused)} refused, "
            f"{len(self.ends_s)} of {self.num_accepted} accepted in time"
            + (f"; {times}" if self.ends_s else "")
        )


async def offer(cluster: Cluster, seconds: float, tokens_per_s: float) -> list[Group]:
    per_s = OVERLOAD * tokens_per_s / mean_tokens(MIDDLE) / len(DEADLINES_S)
    say(f"the cell serves {tokens_per_s:.0f} tokens/s; {per_s:.2f} requests/s of each deadline")
    admin_url = cluster.status()["admin_url"]
    groups = list[Group]()
    async with asyncio.TaskGroup() as tasks:
        for seed, deadline_s in enumerate(DEADLINES_S, 1):
            header = f"x-baton-timeout-s: {deadline_s:g}\r\n"
            load = Load(cluster.url, cluster.model(), header, admin_url)
            asks = drawn_asks(seed, MIDDLE)
            tasks.create_task(load.poisson(asks, per_s, seconds, seed, retries=0))
            groups.append(Group(deadline_s, load.asked))
    for group in groups:
        group.tell()
    return groups


async def run(folder: Path, seconds: float) -> list[Figure]:
    with running(folder, *FLAGS, **SMALL) as cluster:
        groups = await offer(cluster, seconds, await capacity(cluster, CAPACITY_S))
        await asyncio.to_thread(cluster.wait_blocks_back)
    refusals_s = [one.last.end_s for group in groups for one in group.refused]
    num_accepted = sum(group.num_accepted for group in groups)
    longest = groups[-1]
    return [
        exactly("accepted although nobody could", groups[0].num_accepted),
        at_most("refused after, p99", quantile(refusals_s, 0.99), MOST_REFUSAL_S, "s"),
        at_least("in time of those accepted", _num_met(groups) / num_accepted, LEAST_MET),
        at_least("served of the longest", _num_met([longest]) / len(longest.asked), LEAST_SERVED),
    ]


def _num_met(groups: Sequence[Group]) -> int:
    return sum(len(group.ends_s) for group in groups)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the load")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return judge(asyncio.run(run(Path(folder), given.seconds)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
