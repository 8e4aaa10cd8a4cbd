"""Whose turn it is where some sequences are computed alone (`Work.alone`): a step computes one of
those, or all others. Pure."""

from collections import deque
from collections.abc import Iterable, Iterator

from shared.engine.scheduling.sequence import Sequence


class Turns:
    """Of one scheduler; each of those that are computed alone, in any state, and all others
    together, in a circle."""

    def __init__(self) -> None:
        self._order: deque[Sequence | None] = deque([None])

    @property
    def any(self) -> bool:
        """Some sequence is computed alone."""
        return len(self._order) > 1

    def add(self, sequence: Sequence) -> None:
        """Nothing happens if it is computed with others."""
        if sequence.work.alone:
            self._order.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        if sequence in self._order:
            self._order.remove(sequence)

    def next(self) -> Iterator[Sequence | None]:
        """One to be computed alone, or None: all others. Should there be nothing to compute, the
        one after that, until all have had their turn."""
        for _ in range(len(self._order)):
            self._order.rotate(-1)
            yield self._order[-1]

    def parts(self, running: Iterable[Sequence], alone: Sequence | None) -> tuple[Sequence, ...]:
        """Those that take part in that turn."""
        if not self.any:
            return tuple(running)
        return tuple(
            sequence
            for sequence in running
            if sequence is alone or not (alone or sequence.work.alone)
        )
