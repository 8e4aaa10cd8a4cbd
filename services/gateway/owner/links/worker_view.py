"""What the gateway knows of a worker when it decides."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shared.message_parts.step_costs import StepCosts
from shared.protocol import Incoming
from shared.queue.room import Room

GUESS = StepCosts(chunk_token_s=1e-4)
"""of a worker that says nothing of its steps"""
TYPICAL_TOKENS = 1024
"""of a prompt"""


class Pace(NamedTuple):
    """At which a worker decodes."""

    incarnation: str
    role: Literal["prefill", "decode"]
    gap_s: float | None
    """between two tokens; None: it has decoded too little to tell"""


@dataclass(slots=True)
class WorkerView:
    """What the gateway knows of a worker; its link keeps it up to date, the router only reads
    it (64 fresh copies a decision would cost more than the decision)."""

    incarnation: str
    role: Literal["prefill", "decode"]
    ready: bool
    room: Room
    """for prompts, less what is on its way to it"""
    idle: bool
    """nothing waits there: it takes a prompt of any length"""
    queued_tokens: int
    """prompt tokens there or on the way, not yet computed"""
    num_sequences: int
    """running, waiting and on the way"""
    spare_blocks: int
    """free or cached KV blocks"""
    queued_s: float = 0.0
    """until one that comes now has its turn: that those tokens add to its steps, or `place_s`"""
    costs: StepCosts = GUESS
    """of its steps"""
    trial_token_s: float = 0.0
    """seconds that a prompt token took in a trial at its start; 0: nothing is known"""
    place_s: float = 0.0
    """that a sequence of the default priority or a later one waits there for a place at least"""
    stalled: bool = False
    """its engine stands still; it will be back, or be replaced"""
    unpulled_tokens: int = 0
    """prompt tokens, on the way here too, whose KV nobody pulls yet; prefill workers only"""
    incoming: dict[str, Incoming] = field(default_factory=dict)
    """what it pulls, by prefill worker; one that it pulls nothing from keeps its last rate"""
    unreserved_tokens: dict[str, int] = field(default_factory=dict)
    """prompt tokens whose KV lacks blocks there, by prefill worker"""


def tokens_per_s(worker: WorkerView) -> float:
    """Prompt tokens that it computes of prompts of middle length."""
    costs = worker.costs
    return TYPICAL_TOKENS / (costs.step_s + costs.prompt_s(TYPICAL_TOKENS))
