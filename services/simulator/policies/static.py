"""A number of workers that somebody chose, and that stays."""

from collections.abc import Mapping

from services.autoscaler.view import Decision, Role, RoleDecision
from services.simulator.policies.policy import Seen


class StaticPolicy:
    """Always the same."""

    every_s = 60.0

    def __init__(self, numbers: Mapping[Role, int]) -> None:
        self._numbers = numbers

    def decide(self, seen: Seen) -> Decision:
        return Decision({role: RoleDecision(self._numbers[role]) for role in seen.view.roles})
