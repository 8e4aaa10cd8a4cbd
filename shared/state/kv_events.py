"""KV events: what a worker's prefix cache holds, told to every gateway.

A worker publishes the chain hashes at depths that are multiples of the stride (16 blocks), not
all of them: a sixteenth of the volume, and routing needs no finer view. Each change is an event
with the next number; Redis keeps the last EVENTS_KEPT of them and their sum, the snapshot.
A reader that finds a gap in the numbers drops what it knew of that worker and reads the
snapshot. Everything is keyed by incarnation, so a restarted worker starts with nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.kv.block_hash import HASH_BYTES

EVENTS_KEPT = 1024
MAX_EVENTS_READ = 256
"""per worker and read; the rest comes with the next one"""
MAX_EVENT_HASHES = 1024


@dataclass(frozen=True)
class KVEvent:
    """One numbered change. A hash is in `stored` or in `removed`, not in both."""

    incarnation: str
    seq: int
    """1, 2, 3, ... per incarnation"""
    stored: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    reset: bool = False
    """the worker wrote a new snapshot at this number, which includes the change itself"""


@dataclass(frozen=True)
class KVSnapshot:
    """All hashes a worker holds after event `seq`; 0 and none if it never published."""

    incarnation: str
    seq: int
    held: frozenset[bytes]


class KVEvents(Protocol):
    """One atomic step and one round trip a call. Raises StateUnavailableError within a bounded
    time. Only the worker `incarnation` itself writes under its name."""

    async def publish(self, event: KVEvent) -> bool:
        """Appends the event that follows the last one. Repeating the last one changes nothing
        and keeps the keys from expiring. False: Redis stands at another number (it lost
        data), and the caller must `reset`."""

    async def reset(self, snapshot: KVSnapshot) -> None:
        """Writes the whole state under `snapshot.seq`, a number not used before."""

    async def read(self, after: Mapping[str, int]) -> Sequence[KVEvent]:
        """Events of many workers past the given numbers, in order for each worker; at
        most MAX_EVENTS_READ of each."""

    async def snapshot(self, incarnation: str) -> KVSnapshot:
        """The sum of a worker's events."""


def join_hashes(hashes: Sequence[bytes]) -> bytes:
    assert all(len(item) == HASH_BYTES for item in hashes)
    return b"".join(hashes)


def split_hashes(joined: bytes) -> tuple[bytes, ...]:
    return tuple(joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES))
