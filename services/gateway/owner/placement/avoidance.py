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
    incarnation: str


W = TypeVar("W", bound=_Worker)


@dataclass(frozen=True, slots=True)
class Avoidance:
    """What a request knows of failures: its own, and those of others a moment ago."""

    closed: frozenset[Key] = frozenset()
    broken: frozenset[Key] = frozenset()
    """pairs among them that failed again when they were tried again"""
    suspects: frozenset[str] = frozenset()
    """had a part in a failure of this very request"""

    def open(self, workers: Sequence[W], source: str = "") -> Sequence[W]:
        """Without those that are closed, alone or as readers from `source`; if none is left,
        without those that are broken; all if none is left then."""
        if not self.closed:
            return workers
        for keys in (self.closed, self.broken):
            found = [w for w in workers if _is_open(w, source, keys)]
            if found:
                return found
        return workers

    def unsuspected(self, workers: Sequence[W]) -> Sequence[W]:
        """Without the suspects; all if none is left."""
        if not self.suspects:
            return workers
        return [w for w in workers if w.incarnation not in self.suspects] or workers

    def connected(self, sources: Sequence[W], readers: Sequence[W]) -> Sequence[W]:
        """The prefill workers from which some decode worker can pull. If all pairs are closed,
        those with one that may be tried again; [] when every pair is broken. With no decode
        worker at all it is not known, so all of them."""
        if not self.closed or not readers:
            return sources
        for keys in (self.closed, self.broken):
            found = [s for s in sources if any(_is_open(r, s.incarnation, keys) for r in readers)]
            if found:
                return found
        return []


def _is_open(worker: _Worker, source: str, closed: frozenset[Key]) -> bool:
    return (worker.incarnation,) not in closed and (source, worker.incarnation) not in closed


NOBODY = Avoidance()
