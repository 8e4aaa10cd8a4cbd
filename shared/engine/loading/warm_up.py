"""Launches every kernel of later steps once, for that is when it is compiled or read from disk."""

from kernels.linear.skinny_tiles import MAX_ROWS
from shared.engine.layers.row_sizes import graph_sizes
from shared.engine.running.device_runner import DeviceRunner
from shared.engine.running.empty_steps import decode_step, prompt_step
from shared.engine.sampling.device_sampler import DeviceSampler
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.token_counts import TokenCounts
from shared.protocol import Sampling

SHORTEST = 2
"""tokens of a prompt that is no decode step"""
SAMPLINGS: tuple[Sampling, ...] = (
    Sampling(1, temperature=0.0),
    Sampling(1, temperature=1.0),
    Sampling(1, temperature=1.0, top_p=0.9),
    Sampling(1, temperature=0.0, repetition_penalty=1.1),
    Sampling(1, temperature=1.0, repetition_penalty=1.1),
    Sampling(1, temperature=1.0, top_p=0.9, repetition_penalty=1.1),
)


def warm_up(
    runner: DeviceRunner, sampler: DeviceSampler, max_tokens: int, longest: int, block_size: int
) -> None:
    """Run decode steps of every size, each way of choosing a token, and prompts of as many tokens,
    each of up to `longest`, `max_tokens` in all. No graph is captured.

    What a kernel is compiled for depends on how many sequences decode, or on how many rows there
    are in all, never on both: so a step of both has nothing new.
    """
    sizes = runner.graphs.sizes
    for size in sizes:
        logits = runner.run_eagerly(decode_step(size))
        for sampling in SAMPLINGS:
            counts = TokenCounts((0,), ()) if sampling.repetition_penalty != 1.0 else None
            sampler.sample(logits, [SampleRow(sampling, 1, 0, counts=counts)] * size).wait()
    largest = min(max_tokens, sizes[-1] * longest)
    totals = {SHORTEST, *graph_sizes(MAX_ROWS), largest}
    for num_tokens in sorted(total for total in totals if SHORTEST <= total <= largest):
        runner.run_eagerly(prompt_step(num_tokens, 1, longest, block_size))
