"""One request, its gateway, its record, the workers' blocks and everything in flight.

A hand-over of two pieces: piece 0 is published (WM) while prefill still computes piece 1, SEAL
comes after it. Every worker has one block that other requests may want too. Messages are a set:
they may arrive late, twice, in any order or never. A worker may crash and return under a new
incarnation with an empty block. Ranks of prefill compute their shares of a piece one by one. Decode
reads over a connection, or maps prefill's pool and copies: then a dead incarnation's pool is there
for as long as somebody maps it.
"""

from dataclasses import dataclass
from typing import NamedTuple

RIGHT, STALE, FOREIGN = "right", "stale", "foreign"
"""what a piece of a block holds: this request's KV, something older, another request's"""


@dataclass(frozen=True)
class Scope:
    """Size of one exhaustive search, and the rules taken out of the protocol."""

    num_prefill: int = 1
    num_decode: int = 1
    num_ranks: int = 1
    """of each prefill worker"""
    mapped: bool = False
    """decode copies out of prefill's pool and verifies in prefill's table, both mapped"""
    max_epochs: int = 1
    num_tokens: int = 2
    max_crashes: int = 0
    max_lost: int = 0
    max_reruns: int = 0
    """times a prefill may be run again inside its epoch"""
    max_generation: int = 2
    fault_free: bool = False
    """only what the system does by itself: liveness then means the answer arrives"""
    mutants: frozenset[str] = frozenset()


class Lineage(NamedTuple):
    """Which run of which incarnation computed something."""

    worker: int
    incarnation: int
    run: int = 0


class Token(NamedTuple):
    """A token on its way to the gateway, and after it, in what the client saw."""

    epoch: int
    position: int
    """index of the token in the answer"""
    right: bool
    """computed from this request's KV only"""
    prefill: Lineage
    decode: Lineage | None
    """None for token 1"""


class Gateway(NamedTuple):
    alive: bool = True
    epoch: int = 0
    phase: str = "queued"
    """of the epoch: queued, assigned, received"""
    next_index: int = 0
    delivered: tuple[Token, ...] = ()
    state: str = "running"
    """running, finishing (FINISH not acknowledged), ended"""
    client: str = "-"
    """what the client was told: -, DONE, ERROR; or LEFT"""
    outcome: str = "-"


class Record(NamedTuple):
    """The request's row in Redis."""

    state: str = "-"
    num_billed: int = 0


class Pool(NamedTuple):
    """What a prefill worker's memory holds: its block, and the block's entry of the table."""

    generation: int
    piece0: str
    piece1: str


class Prefill(NamedTuple):
    incarnation: int = 0
    last_epoch: int = -1
    """highest epoch accepted by this incarnation"""
    state: str = "free"
    """of its block: free, other, writing, held"""
    epoch: int = -1
    generation: int = 0
    piece0: str = STALE
    piece1: str = STALE
    marks: tuple[int, ...] = ()
    """by rank, while it writes: pieces of which the rank's share is computed"""
    preempted: int = -1
    """epoch to be computed again inside itself"""
    run: int = 0

    @property
    def pool(self) -> Pool:
        return Pool(self.generation, self.piece0, self.piece1)


class Tag(NamedTuple):
    incarnation: int
    generation: int


class Read(NamedTuple):
    """A transfer in flight: the piece and what it was authorised under."""

    piece: int
    tag: Tag


class Mapping(NamedTuple):
    """Of the pool of one incarnation of a prefill worker."""

    source: int
    incarnation: int
    left: Pool | None = None
    """what that incarnation left when it died; None while it lives"""


class Decode(NamedTuple):
    incarnation: int = 0
    last_epoch: int = -1
    state: str = "idle"
    """idle, pulling, verifying, decoding"""
    epoch: int = -1
    source: int = -1
    source_incarnation: int = -1
    tag0: Tag | None = None
    tag1: Tag | None = None
    piece0: str = STALE
    piece1: str = STALE
    reading: Read | None = None
    owner: str = "free"
    """of its block: free, this, other"""
    quarantined: bool = False
    next_index: int = 0
    prefill: Lineage | None = None
    sealed: Tag | None = None
    mappings: frozenset[Mapping] = frozenset()


class World(NamedTuple):
    gateway: Gateway = Gateway()
    record: Record = Record()
    prefill: tuple[Prefill, ...] = ()
    decode: tuple[Decode, ...] = ()
    network: frozenset[tuple[object, ...]] = frozenset()
    first_index: tuple[int, ...] = (0,)
    """per epoch: index of the first token it owes"""
    num_lost: int = 0
    num_crashes: int = 0


def initial(scope: Scope) -> World:
    return World(prefill=(Prefill(),) * scope.num_prefill, decode=(Decode(),) * scope.num_decode)


def send(world: World, scope: Scope, *messages: tuple[object, ...]) -> list[World]:
    """The worlds after sending: each message arrives some time or, within the scope, never."""
    worlds = [world]
    for message in messages:
        kept = [w._replace(network=w.network | {message}) for w in worlds]
        lost = [w._replace(num_lost=w.num_lost + 1) for w in worlds if w.num_lost < scope.max_lost]
        worlds = kept + lost
    return worlds


def with_prefill(world: World, index: int, worker: Prefill) -> World:
    workers = world.prefill
    return world._replace(prefill=(*workers[:index], worker, *workers[index + 1 :]))


def with_decode(world: World, index: int, worker: Decode) -> World:
    workers = world.decode
    return world._replace(decode=(*workers[:index], worker, *workers[index + 1 :]))
