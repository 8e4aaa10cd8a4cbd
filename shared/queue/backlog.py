"""Backlog of one pool: the order of requests that found no worker with room.

It is used under saturation only; otherwise a request goes straight to a worker. Order is by
class, then by the tenant's virtual time: start-time fair queuing, P. Goyal, H. Vin, H. Cheng,
"Start-time Fair Queuing: A Scheduling Algorithm for Integrated Services Packet Switching
Networks", SIGCOMM 1996, with the request as packet and, as its length, the tokens it is served:

    start(r)  = max(v, finish of the tenant's previous request)
    finish(r) = start(r) + charge(r)
    charge(r) = (prompt tokens + answer tokens expected) / weight + what the tenant owes, at least 0
    v         = start tag at the head of the queue when a request was last taken

all per class. What a request is served is known at its end: FINISH, which is written then anyway,
adds what it was served beyond its charge, or less, to what its tenant owes, and the tenant's next
request is charged that. What came without waiting was charged nothing, so all of it is owed. While
nobody of a class waits nobody is served at another's expense: finish tags and debts mean nothing
then and are forgotten. Equal tags go by arrival.

Workers serve D requests at once, so the bound is that of W. Jin, J. Chase, J. Kaur, "Interposed
Proportional Sharing for a Storage Service Utility", SIGMETRICS 2004: what two tenants that both
wait are served, each by its weight, differs by (D + 1) longest requests of each at most, whatever
the time is. Where an answer is not as long as expected, the difference is added for those requests
that were charged and have not ended, and for those of a tenant that wait while it is owed.

A request that has as many others of its class and earlier ones before it as may wait finds the
backlog full. So each tenant has its share of the places, and one that fills them all keeps no other
out; it may have to be emptied to its share first, and until then more wait.

A worker that pops names the prefixes it holds and gets, among the first WINDOW of the head's
class, the request of which it holds the longest prefix. The head is passed over at most
MAX_PASSES times in a row, so nobody starves by that.

One without a place for long prompts gets one of those that may pass the long ones at the front
(`shared.queue.turn`), by the same rule among them: their first is passed over at most MAX_PASSES
times in a row by such workers. v stays the head's tag meanwhile, so that a tenant that comes later
may pass it too. It then goes before other tenants by one longest request at most; before the head's
own by what that was charged for the head, and for what of it has passed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from shared.protocol import DEFAULT_PRIORITY
from shared.queue.room import Room

WINDOW = 16
MAX_PASSES = 16
MAX_PRIORITY = 7
MAX_HEADS = 4
HEAD_DEPTHS = (1, 4, 16, 64)
"""depths, in blocks, of the chain hashes that stand for a prompt's prefix"""
ANY_ROOM = Room.whole(1)
"""of a worker that has a place for any prompt"""
MOST_PASSED = 256
"""long prompts that a short one passes at most, so that a look at a queue takes milliseconds"""


def is_early(priority: int) -> bool:
    """The default one or an earlier: of its requests later ones take no room of a worker."""
    return priority <= DEFAULT_PRIORITY


@dataclass(frozen=True)
class BacklogEntry:
    """One waiting request: its owner, what it costs, what it starts with."""

    rid: str
    gateway_incarnation: str
    """the gateway to ask for it"""
    tenant: str
    num_tokens: int
    """of its prompt"""
    priority: int = DEFAULT_PRIORITY
    """its class; lower goes first, always"""
    heads: tuple[bytes, ...] = ()
    """chain hashes at HEAD_DEPTHS, as far as the prompt reaches"""
    weight: int = field(default=1, compare=False)
    """of its tenant; only `put` needs it, and what follows"""
    num_expected_tokens: int = field(default=0, compare=False)
    """of its answer"""

    @property
    def charge(self) -> int:
        """By its tenant's weight, without what that owes."""
        return by_weight(self.num_tokens + self.num_expected_tokens, self.weight)

    def __post_init__(self) -> None:
        if not 0 <= self.priority <= MAX_PRIORITY:
            raise ValueError(f"priority {self.priority} is not in 0..{MAX_PRIORITY}")
        if self.num_tokens < 1 or self.weight < 1 or len(self.heads) > MAX_HEADS:
            raise ValueError("a backlog entry has a token and a weight, and at most four heads")


def by_weight(num_tokens: int, weight: int) -> int:
    """What a tenant of this weight is charged for them."""
    return -(-num_tokens // weight)


def heads_of(block_hashes: Sequence[bytes]) -> tuple[bytes, ...]:
    """The heads of a prompt with these chain hashes."""
    return tuple(block_hashes[depth - 1] for depth in HEAD_DEPTHS if depth <= len(block_hashes))


class PutStatus(StrEnum):
    QUEUED = "queued"
    FULL = "full"
    TOO_LATE = "too_late"


@dataclass(frozen=True)
class Placement:
    """Answer to `put`. Not QUEUED: nothing was written."""

    status: PutStatus
    num_ahead: int
    """requests that go before it; for FULL those that would"""
    tokens_ahead: int
    """their prompt tokens; divided by the pool's rate this is the wait"""
    start: int = 0
    """its start tag"""


@dataclass(frozen=True)
class Waiting:
    """Requests that no worker has taken yet."""

    num_requests: int = 0
    num_tokens: int = 0
    """of their prompts"""


class Backlog(Protocol):
    """One pool's queue. Each call is one atomic step and one round trip. Raises
    StateUnavailableError within a bounded time."""

    async def put(
        self, entry: BacklogEntry, max_tokens_ahead: int | None = None, start: int | None = None
    ) -> Placement:
        """Queues a request unless as many would go before it as may wait, or more than
        `max_tokens_ahead` prompt tokens: its deadline cannot be met. A full backlog first drops
        what gateways without a beat left in it.

        Idempotent by rid: a request that waits already keeps its place. The owner repeats it
        now and then for what it thinks is waiting; that covers lost data, and a popper that
        died before it asked. With the start tag that it had, in `start`, it gets its place back
        and its tenant is not charged again.
        """

    async def pop(self, held: Collection[bytes] = (), room: Room = ANY_ROOM) -> BacklogEntry | None:
        """Takes one request; `held`: heads the worker has in its cache. `room`: of the worker; of
        long prompts that it has no place for, those that `Turn.may_pass` them go first. Without a
        token of room it gets long prompts only, those before the first short one. None if empty,
        or nothing may go.

        A request whose answer is lost on the way is gone from here; see `put`.
        """

    async def cancel(self, rid: str) -> bool:
        """Takes a request out; False if it was not there."""

    async def drop_orphans(self) -> int:
        """Takes out what gateways without a beat left in it; returns how many requests."""

    async def length(self) -> int:
        """Number of waiting requests."""

    async def waiting(self) -> Waiting:
        """How many requests wait, with their prompt tokens."""
