"""What a step takes on the simulated device: linear in what it computes.

    step_s + rows x row_s + positions they attend to x context_token_s
           + tokens of prompts x chunk_token_s + pairs (token, position) x chunk_pair_s

These are the five costs that each worker fits of its own steps (`shared.protocol.StepCosts`), so
those that `baton status --json` shows of a worker can be given here.
"""

from collections.abc import Iterable

from shared.message_parts.step_costs import StepCosts

H200_8B = StepCosts(
    step_s=3.6e-3,
    row_s=1.5e-5,
    context_token_s=3.2e-8,
    chunk_token_s=1.85e-5,
    chunk_pair_s=1.5e-9,
)
"""Llama 3.1 8B in bfloat16 on an H200: a line through the table "A whole engine" of
kernels/README.md, none of whose decode steps and prompts up to 8k it misses by more than 10 %"""

Chunk = tuple[int, int]
"""(first position, tokens) of a prompt that one step computes"""


def step_s(costs: StepCosts, contexts: Iterable[int], chunks: Iterable[Chunk] = ()) -> float:
    """Seconds. `contexts`: for each sequence that decodes, the positions its token attends to."""
    takes_s = costs.step_s
    for context in contexts:
        takes_s += costs.row_s + context * costs.context_token_s
    for start, num_tokens in chunks:
        num_pairs = num_tokens * (start + (num_tokens + 1) / 2)
        takes_s += num_tokens * costs.chunk_token_s + num_pairs * costs.chunk_pair_s
    return takes_s
