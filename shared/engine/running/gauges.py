"""What an engine says of itself besides its load and its totals: shares, and bytes of memory."""

from collections.abc import Callable, Iterable

from shared.engine.running.step_figures import StepFigures
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import Sequence


class Gauges:
    """Of one engine; read about once a second."""

    def __init__(self, figures: StepFigures, scheduler: Scheduler) -> None:
        self.memory: Callable[[], dict[str, int]] = dict
        """bytes by what they are for, as they are now"""
        self.num_ranks = 1
        self._figures = figures
        self._scheduler = scheduler

    def values(self) -> dict[str, float]:
        """By metric name; a part after a colon is the value of the metric's label."""
        block_size = self._scheduler.pool.block_size
        unused = unused_share(self._scheduler.running, block_size)
        memory = {f"memory_bytes:{kind}": size for kind, size in self.memory().items()}
        return {
            **self._figures.values(),
            "kv_internal_fragmentation_ratio": unused,
            "worker_ranks": self.num_ranks,
            **memory,
        }


def unused_share(running: Iterable[Sequence], block_size: int) -> float:
    """Of the KV positions that these hold and have begun to fill, those without a token: the ends
    of blocks, and what is kept for the tokens to come."""
    filled = [sequence for sequence in running if sequence.num_computed_tokens]
    num_tokens = sum(sequence.num_computed_tokens for sequence in filled)
    num_positions = sum(len(sequence.block_table) for sequence in filled) * block_size
    return max(0.0, 1 - num_tokens / num_positions) if num_positions else 0.0
