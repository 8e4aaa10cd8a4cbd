"""Whom a request stays away from, as long as there is somebody else. Pure.

A key names what has failed: a worker, or a prefill and a decode worker between which a hand-over
broke. There it is not known which end was to blame, so the pair is closed and its two ends are
mere suspects: a second choice, but a choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

Key = tuple[str, ...]
"""(worker incarnation,) or (prefill incarnation, decode incarnation)"""


class _Worker(Protocol):
    inc: str


W = TypeVar("W", bound=_Worker)


@dataclass(frozen=True, slots=True)
class Avoidance:
    """What a request knows of failures: its own, and those of others a moment ago."""

    closed: frozenset[Key] = frozenset()
    suspects: frozenset[str] = frozenset()
    """had a part in a failure of this very request"""

    def open(self, workers: Sequence[W], source: str = "") -> Sequence[W]:
        """Without those that are closed, alone or as readers from `source`; all if none is left."""
        if not self.closed:
            return workers
        return [w for w in workers if self._is_open(w, source)] or workers

    def unsuspected(self, workers: Sequence[W]) -> Sequence[W]:
        """Without the suspects; all if none is left."""
        if not self.suspects:
            return workers
        return [w for w in workers if w.inc not in self.suspects] or workers

    def connected(self, sources: Sequence[W], readers: Sequence[W]) -> Sequence[W]:
        """The prefill workers from which some decode worker can pull; [] when no pair is left.
        With no decode worker at all it is not known, so all of them."""
        if not self.closed or not readers:
            return sources
        return [
            source
            for source in sources
            if any(self._is_open(reader, source.inc) for reader in readers)
        ]

    def _is_open(self, worker: _Worker, source: str) -> bool:
        return (worker.inc,) not in self.closed and (source, worker.inc) not in self.closed


NOBODY = Avoidance()
