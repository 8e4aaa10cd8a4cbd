"""How much of the prompts a server did not compute, because its prefix cache had it.

The formula is that of N requests which begin with the same S tokens and go on with U of their own,
one after the other: all but the first find the S. A cache shares whole blocks, so what it can find
of the S are those that fill blocks: of 500, in blocks of 16, 496.
"""

from dataclasses import dataclass

from loadtest.answer_stream import AnswerTimes

BLOCK_SIZE = 16
"""Baton's, unless --block-size names another"""


@dataclass
class PrefixSaving:
    """By the usage of the answers; those without one do not count."""

    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0

    def note(self, times: AnswerTimes) -> None:
        """One answer is complete."""
        if times.num_prompt_tokens:
            self.num_requests += 1
            self.num_prompt_tokens += times.num_prompt_tokens
            self.num_cached_tokens += times.num_cached_tokens

    def clear(self) -> None:
        """A test begins."""
        self.num_requests = self.num_prompt_tokens = self.num_cached_tokens = 0

    @property
    def share(self) -> float:
        """Of all prompt tokens; 0 of none."""
        return self.num_cached_tokens / max(1, self.num_prompt_tokens)

    @property
    def text(self) -> str:
        return (
            f"prefix cache: {self.num_cached_tokens:,} of {self.num_prompt_tokens:,} prompt tokens "
            f"were not computed, {self.share:.1%}"
        )


def expected_share(num_requests: int, num_shared: int, num_own: int, block_size: int = 1) -> float:
    """By the formula, in whole blocks of that many tokens."""
    found = num_shared // block_size * block_size
    return (num_requests - 1) * found / (num_requests * (num_shared + num_own))


def compared(saving: PrefixSaving, num_shared: int, num_own: int) -> str:
    """What was saved next to the formula at this number of requests, in words."""
    num = max(1, saving.num_requests)
    exact, blocks = (expected_share(num, num_shared, num_own, size) for size in (1, BLOCK_SIZE))
    return (
        f"{num} requests that share {num_shared} of {num_shared + num_own} tokens: "
        f"by the formula {exact:.2%} are saved, in whole blocks of {BLOCK_SIZE} {blocks:.2%}; "
        f"it was {saving.share:.2%}, {100 * abs(saving.share - exact):.2f} points off the formula"
    )
