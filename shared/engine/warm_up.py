"""Launches every kernel of decode steps once, for that is when it is compiled or read from disk."""

from shared.engine.device_runner import DeviceRunner
from shared.engine.device_sampler import DeviceSampler
from shared.engine.empty_steps import decode_step
from shared.engine.sample_row import SampleRow
from shared.engine.token_counts import TokenCounts
from shared.protocol import Sampling

DECODING = (1, 8, 16, 32, 64, 128, 256)
"""sequences of a decode step, one for every choice of kernels there is"""
SAMPLINGS = (
    Sampling(1, temperature=0.0),
    Sampling(1, temperature=1.0),
    Sampling(1, temperature=1.0, top_p=0.9),
    Sampling(1, temperature=0.0, repetition_penalty=1.1),
    Sampling(1, temperature=1.0, repetition_penalty=1.1),
    Sampling(1, temperature=1.0, top_p=0.9, repetition_penalty=1.1),
)


def warm_up(runner: DeviceRunner, sampler: DeviceSampler, max_seqs: int) -> None:
    """Run decode steps of all kinds once, and each way of choosing a token."""
    for num_rows in sorted({min(size, max_seqs) for size in DECODING}):
        logits = runner.run(decode_step(num_rows))
        rows = [
            SampleRow(sampling, 1, 0, counts=TokenCounts((0,), ()))
            if sampling.repetition_penalty != 1.0
            else SampleRow(sampling, 1, 0)
            for sampling in SAMPLINGS
        ]
        for row in rows:
            sampler.sample(logits, [row] * num_rows).wait()
