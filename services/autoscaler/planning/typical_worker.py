"""What a worker of a role is like, as far as they know it themselves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from services.autoscaler.view import WorkerView
from shared.message_parts.step_costs import NO_COSTS, StepCosts

WARM_S = 20.0
"""a worker's first steps compile kernels and fill caches: what they cost says nothing of later"""


@dataclass(frozen=True)
class TypicalWorker:
    """All workers of a role are taken to be like it."""

    costs: StepCosts
    step_tokens: int
    num_blocks: int
    block_size: int

    @classmethod
    def of(cls, workers: Sequence[WorkerView]) -> "TypicalWorker | None":
        """The median of the warm ones, which one that is wrong does not move; of all while none is
        warm; None while none knows its costs."""
        known = [worker for worker in workers if worker.costs != NO_COSTS]
        warm = [worker for worker in known if worker.age_s >= WARM_S] or known
        if not warm:
            return None

        def middle(number: Callable[[WorkerView], float]) -> float:
            return median(number(worker) for worker in warm)

        return cls(
            costs=StepCosts(*map(median, zip(*(worker.costs for worker in warm), strict=True))),
            step_tokens=round(middle(lambda worker: worker.step_tokens)),
            num_blocks=round(middle(lambda worker: worker.num_blocks)),
            block_size=round(middle(lambda worker: worker.block_size)),
        )
