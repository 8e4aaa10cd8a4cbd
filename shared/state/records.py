"""Request records: a request's owner, how it ended, what it used.

The accepting gateway decides in memory and writes here; the record is for admission, audit and
for finding requests whose gateway died. It is never on the path of a token. A request is an HTTP
request here, of one choice or of many: quotas count it once.

    (none) --admit--> LIVE --finish--> DONE | FAILED | CANCELLED
                       |  ^
                     reap | admit again by the owner
                       v  |
                    ABANDONED --finish by the owner--> DONE | FAILED | CANCELLED

ABANDONED is provisional: the owner may have been paused, not dead. The other three are final.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from shared.protocol import DEFAULT_PRIORITY

POOL_ID_BYTES = 6
MAX_CONVICTED = 1000
"""the oldest goes"""


def pool_id(pool: str) -> str:
    """Short name of a pool for records: a value over 64 bytes would quadruple their size."""
    return hashlib.blake2b(pool.encode(), digest_size=POOL_ID_BYTES).hexdigest()


class RequestState(StrEnum):
    LIVE = "live"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"


FinalState = Literal[RequestState.DONE, RequestState.FAILED, RequestState.CANCELLED]
UNFINISHED = (RequestState.LIVE, RequestState.ABANDONED)


@dataclass(frozen=True)
class ClientKey:
    """The client's word that a request is the same as another: of all with this key one is computed
    and billed, unless its gateway died."""

    name: str
    """hash of the tenant and what the client named"""
    body: str
    """hash of what it asks for"""


@dataclass(frozen=True)
class AdmittedRequest:
    """What the owner says of a request when it starts; the same on every call about it."""

    rid: str
    gateway_incarnation: str
    """incarnation of the gateway that owns it"""
    tenant: str
    pool: str
    """its `pool_id`"""
    num_prompt_tokens: int
    """of all its prompts, each counted once"""
    received_ns: int
    """wall clock of the gateway, for audit only"""
    client_key: ClientKey | None = None
    backlog: str = field(default="", compare=False)
    """where it would have to wait: the pool's whole name; it is not recorded, nor is its class"""
    priority: int = field(default=DEFAULT_PRIORITY, compare=False)


@dataclass(frozen=True)
class Outcome:
    """How a request ended and what is billed for it; also what one choice of it adds."""

    state: FinalState
    """of the choice that ended worst"""
    code: str
    """its finish reason or error code"""
    num_output_tokens: int
    """delivered to the client, of all choices"""
    num_cached_tokens: int
    """that the first choice of each prompt found in a cache"""
    num_attempts: int = 1
    """of the choice that took most"""
    owed: int = field(default=0, compare=False)
    """what it was served beyond its charge in the pool's backlog, or less, in tokens by weight; it
    is not recorded"""
    ttft_s: float = field(default=-1.0, compare=False)
    """from its arrival to its first token, below 0 without one; it is not recorded either"""


class Admission(StrEnum):
    """Answer to `admit`."""

    ADMITTED = "admitted"
    OVER_QUOTA = "over_quota"
    """the tenant has as many live requests as it may; nothing was written"""
    ENDED = "ended"
    """the owner already finished it; nothing was written"""
    TAKEN = "taken"
    """another gateway owns this rid; nothing was written"""
    REFUSES_WRITES = "refuses_writes"
    """the store writes nothing now, as a full one does"""


@dataclass(frozen=True)
class KeyTaken:
    """Answer to `admit`: another request has the client's key; nothing was written."""

    rid: str
    """its id"""
    same_body: bool
    outcome: Outcome | None
    """None: it has not ended"""


@dataclass(frozen=True)
class Finish:
    """Answer to `finish`. `outcome` is what the record says now; None if another owns it."""

    outcome: Outcome | None
    written: bool
    """False: the record was final before, by an earlier call"""


class ReapVerdict(StrEnum):
    REAPED = "reaped"
    """the record is ABANDONED, by this call or one before"""
    ENDED = "ended"
    GONE = "gone"
    """no record of this rid under this owner"""
    ALIVE = "alive"
    """the owner beat since, or its beats were lost; nothing was written"""


@dataclass(frozen=True)
class RequestRecord:
    """The record as stored."""

    request: AdmittedRequest
    state: RequestState
    code: str
    num_output_tokens: int
    """final: delivered; before that: the last progress mark, never more than delivered"""
    num_cached_tokens: int
    num_attempts: int


class RequestRecords(Protocol):
    """Each call is one atomic step and one round trip, and may be repeated by its caller:
    the second answer equals the first unless a later step came between.

    All raise StateUnavailableError within a bounded time; then the step may or may not have
    happened, and repeating it is the way to find out.
    """

    async def admit(self, request: AdmittedRequest, max_live: int = 0) -> Admission | KeyTaken:
        """Makes the request LIVE. `max_live` > 0 limits the live requests of its tenant.

        After a loss of Redis data the owner calls this again for what lives, without limit.
        """

    async def mark(self, gateway_incarnation: str, progress: Mapping[str, int]) -> None:
        """Notes tokens delivered so far, rid -> count, of live requests of `gateway_incarnation`.

        What `reap` would report; requests it does not own or that ended are left alone.
        """

    async def finish(self, request: AdmittedRequest, outcome: Outcome) -> Finish:
        """Writes outcome and usage in one step, at most once, only by the owner, and has its tenant
        owe the rest of its charge to those who wait (`shared.queue.backlog`).

        A missing record (Redis lost it, or ADMIT has not arrived yet) is written whole. One whose
        client key another request got meanwhile is billed nothing: CANCELLED, `superseded`. One
        that ends undone, with nothing delivered, leaves its client key to the next.
        """

    async def reap(self, rid: str, gateway_incarnation: str, beat: int) -> ReapVerdict:
        """Any gateway, about a gateway it saw silent at beat number `beat`: ABANDONED.

        Nothing happens unless `gateway_incarnation` owns the request and is still at that beat.
        """

    async def convict(self, fingerprints: Collection[str], life_s: int) -> Mapping[str, float]:
        """Notes requests, at most MAX_CONVICTED, that no gateway shall take for so long. All that
        are noted, by anybody, and for how many seconds still."""

    async def read(self, rid: str) -> RequestRecord | None:
        """The record, for audit."""
