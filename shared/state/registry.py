"""Worker registry: where the workers of a pool are.

A pool is everything that can exchange KV and serve the same requests: model, revision and
layout fingerprint in one string. An entry says where to dial; it is a hint. The link's HELLO
decides which worker really answers there, and a worker whose link lives is alive, listed or not:
absence from the list is no death (Redis may have lost it, or its clock may have jumped).
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from shared.codec import Codec
from shared.errors import ProtocolError
from shared.protocol import Load
from shared.repeats import Repeats

logger = logging.getLogger(__name__)

REFRESH_INTERVAL_S = 1.0
"""a worker registers again this often, also to come back after Redis lost its data"""
POLL_INTERVAL_S = 0.5
"""a gateway lists a pool this often; polling needs no repair after a restart of Redis"""


@dataclass(frozen=True)
class WorkerEntry:
    """One incarnation of one worker, as it announces itself. Other releases read it too: a new
    field comes last and has a default. Entries that differ in their work alone are equal: they
    name the same worker at the same address."""

    worker_id: str
    incarnation: str
    role: Literal["prefill", "decode"]
    host: str
    port: int
    """of its link server"""
    pool: str
    pid: int
    """of its io process"""
    version: str
    """Baton release"""
    model: str
    """name clients use"""
    max_model_len: int
    block_size: int
    load: Load | None = field(default=None, compare=False)
    """as of this refresh"""
    num_attempts: int = field(default=0, compare=False)
    """requests it works on, or holds KV of"""
    step_tokens: int = 0
    """of prompts that one step computes at most"""
    unready: str = field(default="", compare=False)
    """why its probe says no, where KV moves between it and nobody; it serves all the same"""


class WorkerRegistry(Protocol):
    """One round trip a call; all may be repeated. Entries go stale WORKER_TTL_S after the last
    `register`. Raises StateUnavailableError within a bounded time."""

    async def register(self, entry: WorkerEntry) -> bool:
        """Adds or refreshes the entry of `entry.incarnation`; whether it is asked to drain."""

    async def drain(self, pool: str, incarnation: str, for_s: float) -> None:
        """Asks a worker to take no new work for so long, from now on; 0 ends that. A drain that
        nobody renews ends by itself, so one that forgot about it takes nothing away for good."""

    async def remove(self, pool: str, incarnation: str) -> None:
        """Withdraws an entry; not there is fine."""

    async def list(self, pool: str) -> tuple[WorkerEntry, ...]:
        """Entries of a pool that are not stale, ordered by (worker_id, inc)."""

    async def pools(self) -> frozenset[str]:
        """Pools that may have workers."""


_CODEC = Codec((WorkerEntry,))
_ignored = Repeats()
"""of this process: what it cannot read is there again at the next poll"""


def encode_entry(entry: WorkerEntry) -> bytes:
    return _CODEC.encode(entry)


def decode_entries(bodies: Iterable[bytes], pool: str) -> tuple[WorkerEntry, ...]:
    """The valid entries of `pool`; anything else somebody wrote there is left out and logged."""
    entries = []
    for body in bodies:
        try:
            entry = _CODEC.decode(body)
        except ProtocolError as error:
            if count := _ignored.due("entry"):
                logger.warning("registry entry ignored (%d so far): %s", count, error)
            continue
        if entry.pool == pool:
            entries.append(entry)
    return tuple(sorted(entries, key=lambda entry: (entry.worker_id, entry.incarnation)))
