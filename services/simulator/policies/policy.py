"""What a policy is given, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from services.autoscaler.view import Decision, Role, View


@dataclass(frozen=True)
class Seen:
    """The cell as a scaler may see it."""

    view: View
    busy: Mapping[Role, float]
    """share of the time since the last turn that ready workers computed prompts, of the role that
    does"""
    used: float
    """KV blocks of decode workers that are taken, in whole pools"""


class Policy(Protocol):
    """Asked each `every_s`. The same policy must not run two cells: it may remember."""

    every_s: float

    def decide(self, seen: Seen) -> Decision:
        """Replicas of each role of the view, and whoever is to drain."""
