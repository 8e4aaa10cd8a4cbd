"""How full an engine is, as it says after every step."""

from dataclasses import dataclass

from shared.engine.scheduling.scheduler import Scheduler
from shared.message_parts.step_costs import NO_COSTS, StepCosts


@dataclass(frozen=True)
class EngineLoad:
    """Sequences, KV blocks (free + cached + held == total), and what steps take."""

    running: int
    waiting: int
    total: int
    free: int
    cached: int
    held: int
    step_costs: StepCosts = NO_COSTS
    step_error: float = 0.0
    """of the costs; see shared.protocol.Load"""

    @classmethod
    def of(cls, scheduler: Scheduler, step_costs: StepCosts, step_error: float) -> "EngineLoad":
        pool = scheduler.pool
        return cls(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            total=pool.num_blocks,
            free=pool.num_free,
            cached=pool.num_cached,
            held=pool.num_held,
            step_costs=step_costs,
            step_error=step_error,
        )
