"""What the steps of a worker's engine take, as the engine fits it."""

from math import inf
from typing import NamedTuple


class StepCosts(NamedTuple):
    """What a step of an engine takes on its device, in seconds, and each of what it computes; see
    shared.engine.running.step_size."""

    step_s: float = 0.0
    """a step whatever it computes"""
    row_s: float = 0.0
    """a sequence that computes one token"""
    context_token_s: float = 0.0
    """a position that such a token attends to"""
    chunk_token_s: float = 0.0
    """a token of a chunk of a prompt"""
    chunk_pair_s: float = 0.0
    """a chunk's token and one position it attends to"""

    @property
    def credible(self) -> bool:
        """Each is a time that something may take."""
        return all(0 <= cost < inf for cost in self)

    def prompt_s(self, num_tokens: int, num_cached: int = 0) -> float:
        """What a prompt's tokens after the cached ones add to the steps that compute them, however
        they are cut into chunks: token i attends to i positions, its own included."""
        num_uncached = num_tokens - num_cached
        num_pairs = num_uncached * (num_tokens + num_cached + 1) / 2
        return self.chunk_token_s * num_uncached + self.chunk_pair_s * num_pairs


NO_COSTS = StepCosts()
"""nobody knows them"""
