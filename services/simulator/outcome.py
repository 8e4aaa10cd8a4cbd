"""What one run came to, in numbers that can be compared and drawn."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.autoscaler.view import Role
from services.simulator.cell import SimulatedCell
from services.simulator.request import Request

MINUTE_S = 60.0
NEVER_S = 1e9
"""the wait of a prompt that was not computed by the end"""


@dataclass(frozen=True)
class Outcome:
    """Of one policy on one load."""

    policy: str
    load: str
    seed: int
    num_requests: int
    """that are judged"""
    attainment: float
    """share of them that was given what is promised"""
    pods: float
    """with GPUs, on average"""
    pod_hours: float
    num_reversals: int
    judged_hours: float
    orders: dict[Role, list[tuple[float, int]]]
    path: list[tuple[float, dict[Role, int]]]
    """(second, pods with GPUs)"""
    waits_p99_s: list[tuple[float, float]]
    """(minute in seconds, p99 of the waits of what came in it)"""

    @property
    def reversals_an_hour(self) -> float:
        return self.num_reversals / self.judged_hours if self.judged_hours else 0.0


def outcome_of(cell: SimulatedCell, policy: str, load: str) -> Outcome:
    """Of a run that is over."""
    setup, tally = cell.setup, cell.tally
    until_s = tally.until_s or 0.0
    decodes = "decode" in cell.pods
    judged = [item for item in cell.requests if setup.warm_s <= item.arrival.at_s < until_s]
    in_time = sum(item.is_in_time(setup.promise, decodes=decodes) for item in judged)
    hours = tally.judged_s / 3600
    return Outcome(
        policy=policy,
        load=load,
        seed=setup.seed,
        num_requests=len(judged),
        attainment=in_time / len(judged) if judged else 1.0,
        pods=tally.pod_hours() / hours if hours else 0.0,
        pod_hours=tally.pod_hours(),
        num_reversals=tally.num_reversals(),
        judged_hours=hours,
        orders=tally.orders,
        path=tally.path,
        waits_p99_s=_waits_by_minute(cell.requests),
    )


def _waits_by_minute(requests: Sequence[Request]) -> list[tuple[float, float]]:
    by_minute: dict[int, list[float]] = {}
    for item in requests:
        wait_s = NEVER_S if item.wait_s is None else item.wait_s
        by_minute.setdefault(int(item.arrival.at_s // MINUTE_S), []).append(wait_s)
    return [
        (minute * MINUTE_S, sorted(waits)[int(0.99 * (len(waits) - 1))])
        for minute, waits in sorted(by_minute.items())
    ]
