"""Small views of a cell, for tests of the autoscaler's policy."""

import random
from collections.abc import Sequence

from services.autoscaler.view import Arrival, PodView, RoleView, View, WorkerView
from shared.message_parts.step_costs import StepCosts
from shared.queue.backlog import Waiting

NOW_S = 10_000.0
NOBODY = Waiting()
COSTS = StepCosts(step_s=0.004, row_s=2e-4, context_token_s=2e-8, chunk_token_s=1e-4)
"""a prompt of 2,000 tokens takes 0.2 s, a step of 32 answers 12 ms"""


def worker(name: str = "w-0", **fields: object) -> WorkerView:
    """Warm, and idle unless `fields` say otherwise."""
    idle: dict[str, object] = {
        "incarnation": f"{name}.0",
        "age_s": 1000.0,
        "num_blocks": 4000,
        "num_free_blocks": 4000,
        "costs": COSTS,
    }
    return WorkerView(name=name, **{**idle, **fields})  # type: ignore[arg-type]


def pool(
    workers: Sequence[WorkerView],
    pods: Sequence[PodView] = (),
    *,
    replicas: int | None = None,
    least: int = 1,
    most: int = 16,
) -> RoleView:
    """As many are ordered as there are workers, unless `replicas` says otherwise."""
    ordered = len(workers) if replicas is None else replicas
    return RoleView(ordered, least, most, tuple(workers), tuple(pods), num_gpus=1)


def workers(prefix: str, number: int, **fields: object) -> list[WorkerView]:
    return [worker(f"{prefix}-{index}", **fields) for index in range(number)]


def pods(of: Sequence[WorkerView], unready: Sequence[str] = ()) -> list[PodView]:
    return [PodView(item.name, item.name not in unready, item.age_s) for item in of]


def cell(
    prefill: RoleView | None = None,
    decode: RoleView | None = None,
    arrivals: Sequence[Arrival] = (),
    waiting: Waiting = NOBODY,
    **fields: object,
) -> View:
    """One worker of each role unless given."""
    roles = {
        "prefill": prefill or pool(workers("p", 1)),
        "decode": decode or pool(workers("d", 1)),
    }
    return View(
        now_s=fields.pop("now_s", NOW_S),  # type: ignore[arg-type]
        roles=roles,  # type: ignore[arg-type]
        arrivals=tuple(arrivals),
        waiting=waiting,
        **fields,  # type: ignore[arg-type]
    )


def poisson(
    rate_s: float,
    length_s: float = 900.0,
    *,
    num_output: int = 10,
    seed: int = 1,
    until_s: float = NOW_S,
    swing: float = 0.0,
) -> list[Arrival]:
    """Prompts of 1,000 to 3,000 tokens in the `length_s` before `until_s`. Each minute has a rate
    of its own, at most `swing` of `rate_s` away from it."""
    found: list[Arrival] = []
    dice, minute, rate_now = random.Random(seed), -1, rate_s  # noqa: S311
    at_s = until_s - length_s
    while True:
        if swing and int(at_s // 60) != minute:
            minute, rate_now = int(at_s // 60), rate_s * (1 + dice.uniform(-swing, swing))
        at_s += dice.expovariate(rate_now)
        if at_s >= until_s:
            return found
        found.append(
            Arrival(at_s, dice.randrange(1000, 3000), 0, 1 + int(dice.expovariate(1 / num_output)))
        )
