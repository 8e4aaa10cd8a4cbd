"""How fast a prompt is computed here: a trial of the model before the first request.

Routing and time limits start from it instead of from a guess; what requests really take replaces
it. It also takes the first run's costs (lazy initialisation, pages) out of the first request.
"""

import time

from shared.engine.running.model_runner import Runner
from shared.engine.scheduling.batch import ScheduledSequence, pack_batch
from shared.engine.scheduling.sequence import Sequence, SequenceSpec
from shared.kv.layout import num_blocks_for
from shared.protocol import Attempt, Sampling, Work

NUM_RUNS = 2
"""the first one warms up"""


def prefill_token_s(runner: Runner, num_tokens: int, block_size: int) -> float:
    """Seconds per token of a prompt of `num_tokens`, of the last of the runs.

    Writes K and V into the first blocks of the pool, so none of them may hold anything yet.
    """
    sampling = Sampling(max_tokens=1)
    work = Work(Attempt("trial", 0), (0,) * num_tokens, num_tokens, b"", sampling)
    spec = SequenceSpec(work, (), "full")
    sequence = Sequence(spec, arrival=0)
    sequence.block_table.extend(range(num_blocks_for(num_tokens, block_size)))
    whole = ScheduledSequence(sequence, 0, num_tokens, samples=True, prefill=True)
    seconds_s = 0.0
    for _ in range(NUM_RUNS):
        start_s = time.perf_counter()
        runner.run(pack_batch([whole], (), block_size)).argmax().cpu()
        seconds_s = time.perf_counter() - start_s
    return seconds_s / num_tokens
