"""What the policy sees, and what it decides. Data only: no I/O, no clock.

All moments are seconds of one clock, that of the process that made the view. Costs are those that
workers measure of themselves (`shared.protocol.StepCosts`).
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from shared.message_parts.step_costs import NO_COSTS, StepCosts
from shared.queue.backlog import Waiting

LOOK_S = 900.0
"""of arrivals that are judged: less is chance, and would bring workers back that just went"""
KNOWN_S = 1000.0
"""of arrivals that are known: answers that began before what is judged run into it"""

Role = Literal["prefill", "decode"]
ROLES: tuple[Role, Role] = ("prefill", "decode")


@dataclass(frozen=True)
class Promise:
    """What users are promised."""

    wait_s: float = 1.0
    """a prompt waits for its first token at most this long, the prompt's own computing apart"""
    gap_s: float = 0.05
    """an answer's mean time from token to token"""
    target: float = 0.99
    """the share of requests that is to be within both"""


@dataclass(frozen=True)
class Arrival:
    """A request that came. One that was refused, or still runs, counts too."""

    at_s: float
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    """of its prompt, that nobody had to compute"""
    num_output_tokens: int = 0
    ttft_s: float | None = None
    """after which it had its first token; None: it has had none, or it is not known"""
    age_s: float | None = None
    """after which it ended; None: it runs"""

    @property
    def token_s(self) -> float | None:
        """From token to token of its answer, on average; None: not known."""
        num_gaps = self.num_output_tokens - 1
        if self.ttft_s is None or self.age_s is None or num_gaps < 1:
            return None
        return max(0.0, self.age_s - self.ttft_s) / num_gaps


def moment(arrival: Arrival) -> float:
    return arrival.at_s


@dataclass(frozen=True)
class WorkerView:
    """A worker that is registered."""

    name: str
    """in a cluster that of its pod"""
    incarnation: str
    age_s: float
    """since this incarnation was first seen"""
    is_draining: bool = False
    num_attempts: int = 0
    """requests it works on, or holds KV of"""
    num_queued_tokens: int = 0
    """of prompts that it took and has not computed"""
    num_held_blocks: int = 0
    """whose KV is sealed here and not pulled yet"""
    num_free_blocks: int = 0
    """that hold nothing, or only what a cache may lose"""
    num_blocks: int = 0
    num_unreserved_tokens: int = 0
    """of prompts whose KV waits for blocks here"""
    costs: StepCosts = NO_COSTS
    step_tokens: int = 2048
    """of prompts that one step computes at most"""
    block_size: int = 16
    """positions of a KV block"""


@dataclass(frozen=True)
class PodView:
    """A pod that the cluster has for a role."""

    name: str
    is_ready: bool
    age_s: float
    """since it was created"""
    unschedulable_s: float | None = None
    """since the cluster says that it has no place for it"""


@dataclass(frozen=True)
class RoleView:
    """The pool of one role."""

    replicas: int
    """that are ordered now"""
    least: int
    most: int
    workers: tuple[WorkerView, ...] = ()
    pods: tuple[PodView, ...] = ()
    num_gpus: int = 0
    """of one worker"""

    @property
    def num_draining(self) -> int:
        """Of the workers."""
        return sum(worker.is_draining for worker in self.workers)


@dataclass(frozen=True)
class View:
    """Everything one decision is made from."""

    now_s: float
    roles: Mapping[Role, RoleView]
    arrivals: tuple[Arrival, ...] = ()
    """of the last KNOWN_S, oldest first"""
    waiting: Waiting = field(default_factory=Waiting)
    promise: Promise = Promise()
    look_s: float = LOOK_S
    """how far back arrivals are judged"""
    start_s: float = 60.0
    """from the order of a worker to its first step, as measured or as assumed"""
    max_gpus: int | None = None
    """of all roles together"""
    trouble: str = ""
    """why nothing may be done now, whatever the numbers say: somebody cannot be asked, or what two
    say does not fit together"""

    @property
    def is_aggregated(self) -> bool:
        """Its decode workers compute prompts too: nobody else is there for them."""
        return "prefill" not in self.roles

    @cached_property
    def judged(self) -> tuple[Arrival, ...]:
        """The arrivals that are."""
        return self.latest(self.look_s)

    @property
    def judged_s(self) -> float:
        """How far back they reach: less than `look_s` where no earlier arrival is known."""
        if not self.arrivals:
            return self.look_s
        return min(self.look_s, max(0.0, self.now_s - self.arrivals[0].at_s))

    def latest(self, last_s: float) -> tuple[Arrival, ...]:
        """Those of the last seconds."""
        first = bisect_left(self.arrivals, self.now_s - last_s, key=moment)
        return self.arrivals[first:]


@dataclass(frozen=True)
class RoleDecision:
    """What is to become of one role."""

    replicas: int
    """to order"""
    drain: tuple[str, ...] = ()
    """incarnations that are to take no new work; any other is to serve"""
    reason: str = ""
    """one sentence for a person, with its numbers"""


@dataclass(frozen=True)
class Decision:
    """The same replicas as before and nobody drained: nothing is to be done."""

    roles: Mapping[Role, RoleDecision]
    holds: str = ""
    """why nothing is done although something might be needed; empty: the numbers decided"""


@dataclass(frozen=True)
class RoleMemory:
    """What the policy remembers of one role from one decision to the next."""

    grew_s: float | None = None
    """when more workers were needed than there were; None: a new process begins to count"""
    victim: str = ""
    """the incarnation that drains, so that its pod can go"""
    is_going: bool = False
    """replicas are lowered already: the victim's pod is about to go, and takes nothing new till
    then"""
    need: int = 0
    """what the last replay asked for; the next begins its search there. 0: none was"""
    placeable: int = 0
    """workers that the cluster had a place for when it had none for more"""
    no_place_s: float | None = None
    """when it was last seen to have no place"""


@dataclass(frozen=True)
class Memory:
    """What the policy remembers. A new process starts with an empty one, and loses only time.

    It belongs to its decision: where that was not carried out, the memory from before it is kept.
    """

    roles: Mapping[Role, RoleMemory] = field(default_factory=dict)
