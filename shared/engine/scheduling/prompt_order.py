"""In which order an engine computes its prompts. Pure.

Prompts come in buckets by length: those that fit one step, those of up to two steps, of four, and
so on. A lower bucket goes first, of one bucket the prompt that arrived first. Once lower buckets
had PATIENCE times the whole steps of a prompt after it, it is overdue and counts as one that fits
a step. So short prompts do not wait for a long one's end, and no prompt waits forever.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # a sequence has a turn
    from shared.engine.scheduling.sequence import Sequence

PATIENCE = 4
"""short prompts that are up to 4/5 of all tokens never wait for a long one's end"""
NUM_BUCKETS = 16


class PromptTurn(NamedTuple):
    """Of one prompt."""

    bucket: int = 0
    due: int = 0
    """tokens of lower buckets, from the start of the engine, after which it is overdue"""


class PromptOrder:
    """Told of each prompt that arrives."""

    def __init__(self, step_tokens: int) -> None:
        self._step_tokens = step_tokens
        self._num_lower_tokens = [0] * NUM_BUCKETS
        """that arrived in lower buckets, by bucket"""

    def arrive(self, num_tokens: int) -> PromptTurn:
        """`num_tokens`: that it has to compute."""
        whole_steps = (num_tokens - 1) // self._step_tokens
        bucket = min(whole_steps.bit_length(), NUM_BUCKETS - 1)
        patience = PATIENCE * whole_steps * self._step_tokens
        turn = PromptTurn(bucket, self._num_lower_tokens[bucket] + patience)
        for longer in range(bucket + 1, NUM_BUCKETS):
            self._num_lower_tokens[longer] += num_tokens
        return turn

    def place(self, sequence: "Sequence") -> tuple[int, int, int]:
        """The prompt with the lowest is computed first."""
        return sequence.work.priority, self.bucket_of(sequence.turn), sequence.arrival

    def bucket_of(self, turn: PromptTurn) -> int:
        """As it counts now."""
        overdue = turn.bucket > 0 and self._num_lower_tokens[turn.bucket] >= turn.due
        return 0 if overdue else turn.bucket
