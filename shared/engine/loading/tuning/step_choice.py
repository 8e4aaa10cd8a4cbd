"""The rule by which --tune chooses a size among those that were timed, and which are. Pure.

    gap       --slo-gap-ms x what the profile allows (`Profile.gaps`), though never less than
              PATIENCE times the smallest step, which a reader waits for in any case
    sequences as few as have NEARLY the most tokens a second, of those whose decode step takes at
              most half a gap: the other half is for prompts
    tokens    as few as have NEARLY the most prompt tokens a second, of those whose step, in which
              these sequences decode too, takes at most a gap

Sizes double. What brings hardly more tokens would only make steps longer and the KV pool smaller.
"""

from collections.abc import Sequence
from typing import NamedTuple

NEARLY = 0.95
"""of the best rate"""
DECODE_SHARE = 0.5
"""of a gap"""
LEAST_TOKENS = 64
"""of a step, the first to be timed"""
PATIENCE = 2.0


class TimedStep(NamedTuple):
    """A step that was run."""

    size: int
    """sequences, or tokens"""
    num_useful: int
    """tokens that are counted: of the sequences, or of the prompts"""
    seconds_s: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.num_useful / self.seconds_s


def reachable(wanted_s: float, smallest_s: float) -> float:
    """What a step may take, where the smallest one takes `smallest_s`."""
    return max(wanted_s, PATIENCE * smallest_s)


def choose(steps: Sequence[TimedStep], limit_s: float) -> TimedStep:
    """`steps`: by size; at least one of them keeps the limit."""
    kept = [step for step in steps if step.seconds_s <= limit_s]
    enough = NEARLY * max(step.rate for step in kept)
    return next(step for step in kept if step.rate >= enough)


def doubled(least: int, most: int) -> tuple[int, ...]:
    """`least`, twice that and so on up to `most`, which is in it; `most` alone if it is less."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return (*sizes, most)


def seq_sizes(given: int, most: int, most_tokens: int, block_size: int) -> tuple[int, ...]:
    """How many sequences to time steps of. `given`: what is set, 0 if nothing is. `most_tokens`: of
    a step, which advances all of them together with a block of a prompt."""
    return (given,) if given else doubled(1, max(1, min(most, most_tokens - block_size + 1)))


def token_sizes(given: int, most: int, num_seqs: int, block_size: int) -> tuple[int, ...]:
    """How many tokens to time steps of, in which `num_seqs` advance. `given`: as above."""
    if given:
        return (given,)
    needed = num_seqs - 1 + block_size
    first = LEAST_TOKENS
    while first < needed:
        first *= 2
    return doubled(first, max(first, most))
