"""How fast a prompt is computed here: a trial of the model before the first request.

Routing and time limits start from it instead of from a guess; what requests really take replaces
it. It also takes the first run's costs (lazy initialisation, pages) out of the first request.
"""

import time
from typing import Protocol

import torch

from shared.engine.batch import BatchTensors, ScheduledSequence, build_batch
from shared.engine.sequence import Sequence, SequenceSpec
from shared.kv_layout import num_blocks_for
from shared.protocol import Attempt, Sampling

NUM_TOKENS = 64
NUM_RUNS = 2
"""the first one warms up"""


class Runner(Protocol):
    """What computes a batch, as `shared.engine.engine` knows it."""

    @property
    def device(self) -> torch.device:
        """Where batches are built."""

    def run(self, batch: BatchTensors) -> torch.Tensor:
        """Logits, f32[1, vocab]."""


def prefill_token_s(runner: Runner, num_blocks: int, block_size: int) -> float:
    """Seconds per prompt token, of the last of the runs.

    Writes K and V into the first blocks of the pool, so none of them may hold anything yet.
    """
    num_tokens = min(NUM_TOKENS, num_blocks * block_size)
    sampling = Sampling(max_tokens=1)
    attempt, token_ids = Attempt("trial", 0), (0,) * num_tokens
    spec = SequenceSpec(attempt, token_ids, num_tokens, (), b"", sampling, "full")
    sequence = Sequence(spec, arrival=0)
    sequence.block_table.extend(range(num_blocks_for(num_tokens, block_size)))
    whole = ScheduledSequence(sequence, 0, num_tokens, samples=True, prefill=True)
    seconds_s = 0.0
    for _ in range(NUM_RUNS):
        start_s = time.perf_counter()
        runner.run(build_batch([whole], (), block_size, runner.device)).argmax().cpu()
        seconds_s = time.perf_counter() - start_s
    return seconds_s / num_tokens
