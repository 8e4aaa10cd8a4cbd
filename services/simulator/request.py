"""One request of a simulated cell, and what became of it."""

from dataclasses import dataclass, field

from services.autoscaler.view import Arrival, Promise
from shared.engine.scheduling.prompt_order import PromptTurn
from shared.message_parts.step_costs import StepCosts


@dataclass(slots=True, eq=False)
class Request:
    """Moments are seconds of the timeline; None: not yet."""

    arrival: Arrival
    alone_s: float
    """what a worker that does nothing else needs for its prompt"""
    num_left: int
    """tokens of its prompt that are still to be computed"""
    turn: PromptTurn = field(default_factory=PromptTurn)
    """in the order of its worker's prompts"""
    computed_s: float | None = None
    """when its prompt was"""
    joined_s: float | None = None
    """when it had its KV blocks and began to decode"""
    num_steps: int = 0
    """that it decodes for"""
    ended_s: float | None = None

    @property
    def num_tokens(self) -> int:
        """Of its prompt, to be computed; the last one always is."""
        return max(1, self.arrival.num_prompt_tokens - self.arrival.num_cached_tokens)

    def seconds(self, costs: StepCosts, num_tokens: int) -> float:
        """What the next `num_tokens` of its prompt add to a step."""
        start = self.arrival.num_prompt_tokens - self.num_left
        return costs.prompt_s(start + num_tokens, start)

    @property
    def wait_s(self) -> float | None:
        """For its first token, the prompt's own computing apart."""
        if self.computed_s is None:
            return None
        return max(0.0, self.computed_s - self.arrival.at_s - self.alone_s)

    def is_in_time(self, promise: Promise, *, decodes: bool) -> bool:
        """Whether it was given what is promised. `decodes`: its answer counts too."""
        wait_s = self.wait_s
        if wait_s is None or wait_s > promise.wait_s:
            return False
        if not decodes:
            return True
        if self.computed_s is None or self.joined_s is None or self.ended_s is None:
            return False
        gap_s = (self.ended_s - self.joined_s) / max(1, self.num_steps)
        return self.joined_s - self.computed_s <= promise.wait_s and gap_s <= promise.gap_s
