"""With whom a canary may be moved, and what is said where none could be."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shared.state.registry import WorkerEntry

MOST_NAMED = 3
"""peers in one reason; of more, how many"""


@dataclass(frozen=True)
class Peer:
    """A worker, and where its link server is dialled."""

    name: str
    incarnation: str
    host: str
    port: int

    @classmethod
    def of(cls, entry: WorkerEntry) -> "Peer":
        return cls(entry.worker_id, entry.incarnation, entry.host, entry.port)


def peers_of(own: WorkerEntry, listed: Iterable[WorkerEntry]) -> list[Peer]:
    """Those of the other role. One that drains takes no prompt, and counts as none. In random
    order: many newcomers do not all ask the same one first."""
    peers = [Peer.of(entry) for entry in listed if entry.role != own.role and not _drains(entry)]
    random.shuffle(peers)
    return peers


def reason_of(failures: Mapping[str, str], ways: Sequence[str]) -> str:
    """Why no canary has come. `failures`: what went wrong, by whom it was tried with."""
    named = [f"with {name}: {problem}" for name, problem in failures.items()][:MOST_NAMED]
    if len(failures) > MOST_NAMED:
        named.append(f"nor with {len(failures) - MOST_NAMED} more")
    return f"no KV canary comes by {' or '.join(ways)} {'; '.join(named)}"


def _drains(entry: WorkerEntry) -> bool:
    return entry.load is not None and entry.load.state == "draining"
