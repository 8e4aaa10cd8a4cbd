"""Whose turn it is where some sequences are computed alone (`Work.alone`): every second step is for
all others, each of those between for one of these. Pure.

One that has got on for ALONE_TOKENS is computed with the others again: if an engine still dies of
it, it comes back alone, and dies at once.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from shared.engine.scheduling.sequence import Sequence
from shared.protocol import ALONE_TOKENS


class Turns:
    """Of the sequences that run in one scheduler."""

    def __init__(self) -> None:
        self._alone: deque[Sequence] = deque()
        """the one that waits longest first"""
        self._others_next = True

    @property
    def any(self) -> bool:
        """Some sequence is computed alone."""
        return bool(self._alone)

    def enter(self, sequence: Sequence) -> None:
        """It runs from now on."""
        if sequence.work.alone:
            self._alone.append(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It runs no more."""
        if sequence in self._alone:
            self._alone.remove(sequence)

    def next(self) -> Iterator[Sequence | None]:
        """One to be computed alone, or None: all others. Should there be nothing to compute, the
        one after that, until all have had their turn."""
        for sequence in tuple(self._alone):
            if len(sequence.token_ids) - len(sequence.work.token_ids) >= ALONE_TOKENS:
                self._alone.remove(sequence)
        others_first = self._others_next or not self._alone
        if others_first:
            self._others_next = False
            yield None
        for sequence in tuple(self._alone):
            if sequence not in self._alone:
                continue  # it gave way to one before it
            self._alone.remove(sequence)
            self._alone.append(sequence)
            self._others_next = True
            yield sequence
        if not others_first:
            self._others_next = False
            yield None

    def parts(self, running: Iterable[Sequence], alone: Sequence | None) -> tuple[Sequence, ...]:
        """Those that take part in that turn."""
        if not self._alone:
            return tuple(running)
        if alone is not None:
            return (alone,)
        return tuple(sequence for sequence in running if sequence not in self._alone)
