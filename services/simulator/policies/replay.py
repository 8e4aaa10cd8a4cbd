"""The product's own policy, unchanged."""

from services.autoscaler.planning.policy import decide
from services.autoscaler.view import Decision, Memory
from services.simulator.policies.policy import Seen


class ReplayPolicy:
    """`services.autoscaler.planning`, asked as the autoscaler asks it."""

    every_s = 15.0

    def __init__(self) -> None:
        self._memory = Memory()

    def decide(self, seen: Seen) -> Decision:
        decision, self._memory = decide(seen.view, self._memory)
        return decision
