"""How full an engine is, as it says after every step."""

from dataclasses import dataclass

from shared.protocol import NO_COSTS, StepCosts


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
