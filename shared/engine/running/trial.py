"""How fast steps are here: a trial of the model before the first request.

Routing and time limits start from it instead of from a guess; what requests really take replaces
it. It also takes the first run's costs (lazy initialisation, pages) out of the first request.
"""

import time
from dataclasses import dataclass

from shared.engine.running.model_runner import Runner
from shared.engine.scheduling.batch import ScheduledSequence, pack_batch
from shared.engine.scheduling.sequence import Sequence, SequenceSpec
from shared.kv.layout import num_blocks_for
from shared.message_parts.step_costs import StepCosts
from shared.protocol import Attempt, Sampling, Work

NUM_RUNS = 2
"""the first one warms up"""
MOST_ON_HOST = 64
"""tokens of the prompt on a CPU, where a whole step of prompts would take seconds"""
LEAST_SHARE = 0.1
"""of a prompt's step that is taken for its tokens' part, however long the shortest step was"""
CONTEXT_SHARE, PAIR_SHARE = 1e-3, 1e-4
"""of a prompt token's cost, for a position that a row or a chunk's token attends to: about what
models of some thousand dimensions take"""


@dataclass(frozen=True)
class Trial:
    """Seconds of two steps, each the last of its runs."""

    shortest_s: float
    """one sequence of one token"""
    prompt_s: float
    """one prompt of `num_tokens`"""
    num_tokens: int

    @property
    def prefill_token_s(self) -> float:
        """Seconds per token of the prompt."""
        return self.prompt_s / self.num_tokens

    @property
    def costs(self) -> StepCosts:
        """What to predict steps by until some were seen. Only the cost of a step and that of a
        chunk's token are measured."""
        rest_s = max(self.prompt_s - self.shortest_s, LEAST_SHARE * self.prompt_s)
        token_s = rest_s / self.num_tokens
        return StepCosts(
            step_s=self.shortest_s,
            row_s=token_s,
            context_token_s=CONTEXT_SHARE * token_s,
            chunk_token_s=token_s,
            chunk_pair_s=PAIR_SHARE * token_s,
        )


def try_steps(runner: Runner, most_tokens: int, block_size: int) -> Trial:
    """Run the two steps, the longer one with a prompt of `most_tokens`, or of MOST_ON_HOST.

    Writes K and V into the first blocks of the pool, so none of them may hold anything yet.
    """
    num_tokens = most_tokens if runner.runs_ahead else min(MOST_ON_HOST, most_tokens)
    prompt_s = _prompt_s(runner, num_tokens, block_size)
    return Trial(_prompt_s(runner, 1, block_size), prompt_s, num_tokens)


def _prompt_s(runner: Runner, num_tokens: int, block_size: int) -> float:
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
    return seconds_s
