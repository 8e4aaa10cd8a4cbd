"""Which prompts' chunks a step leaves out, so that one that ends in it is not late. Pure.

A step takes as long as all that it computes. Where a prompt ends in it, chunks that can wait would
delay its first token: those of a later priority and, for a short prompt, those of long ones. The
step after one that left some out takes all, so they go on however many prompts end.
"""

from shared.engine.scheduling.sequence import Sequence


class LightSteps:
    """Asked for each prompt of a step in turn, in the order of their computation."""

    def __init__(self) -> None:
        self._may_leave_out = self._left_out = False
        self._ended: list[Sequence] = []

    def begin(self, *, alone: bool = False) -> None:
        """A step is put together. `alone`: of one sequence that is computed alone; for all others
        it is none, so those that were left out go on in the next of theirs."""
        self._ended.clear()
        if not alone:
            self._may_leave_out, self._left_out = not self._left_out, False

    def note(self, sequence: Sequence, *, ends: bool) -> None:
        """Its chunk is in this step. `ends`: its prompt ends with it."""
        if ends:
            self._ended.append(sequence)

    def leave_out(self, sequence: Sequence) -> bool:
        """Whether its chunk is to wait for the next step."""
        waits = self._may_leave_out and any(_can_wait(sequence, ended) for ended in self._ended)
        self._left_out |= waits
        return waits


def _can_wait(sequence: Sequence, ended: Sequence) -> bool:
    later = sequence.work.priority > ended.work.priority
    return later or (sequence.turn.bucket > 0 and ended.turn.bucket == 0)
