"""Launches every kernel of later steps once, for that is when it is compiled or read from disk."""

from kernels.skinny_tiles import MAX_ROWS
from shared.engine.decode_graphs import graph_sizes
from shared.engine.device_runner import DeviceRunner
from shared.engine.device_sampler import DeviceSampler
from shared.engine.empty_steps import decode_step, mixed_step
from shared.engine.sample_row import SampleRow
from shared.engine.token_counts import TokenCounts
from shared.protocol import Sampling

CHUNK = 2
"""tokens of the shortest prompt that is no decode step"""
SAMPLINGS = (
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
    """Run steps of all kinds, and each way of choosing a token: decode steps of every size, as many
    sequences beside a prompt, and prompts of up to `longest` tokens, `max_tokens` in all. No graph
    is captured.

    What a kernel is compiled for depends on how many sequences decode, or on how many rows there
    are in all, never on both.
    """
    sizes = runner.graphs.sizes
    for size in sizes:
        logits = runner.run_eagerly(decode_step(size))
        for sampling in SAMPLINGS:
            counts = TokenCounts((0,), ()) if sampling.repetition_penalty != 1.0 else None
            sampler.sample(logits, [SampleRow(sampling, 1, 0, counts=counts)] * size).wait()
    for num_decoding in sizes[:-1]:
        runner.run_eagerly(mixed_step(num_decoding, CHUNK, longest, block_size))
    largest = min(max_tokens, sizes[-1] * longest)
    totals = {CHUNK, *graph_sizes(MAX_ROWS), largest}
    for num_tokens in sorted(total for total in totals if CHUNK <= total <= largest):
        runner.run_eagerly(mixed_step(0, num_tokens, longest, block_size))
