"""Prefill times of an idle endpoint: single prompts of a few lengths, one after the other."""

import time
from collections.abc import Callable, Sequence

from services.cli.bench.serve.client.load_client import LoadClient
from services.cli.bench.serve.prompts import PromptSource
from services.cli.bench.serve.report.ideal_replay import QuadraticPrefill, fit_prefill
from services.cli.bench.serve.workload import PlannedRequest
from shared.errors import BatonError

NUM_LENGTHS = 4
NUM_REPEATS = 3


def calibration_lengths(inputs: Sequence[int]) -> list[int]:
    """From the shortest to the longest of a workload; of one length, quarters of it."""
    low, high = min(inputs), max(inputs)
    if low > high // 2:
        low = max(high // NUM_LENGTHS, 1)
    step = (high - low) / (NUM_LENGTHS - 1)
    return sorted({round(low + step * number) for number in range(NUM_LENGTHS)})


async def calibrate(
    client: LoadClient,
    prompts: PromptSource,
    lengths: Sequence[int],
    say: Callable[[str], None],
) -> QuadraticPrefill:
    """Median time to first token per length, fitted. BatonError when a request fails."""
    points = []
    for at, length in enumerate(lengths):
        say(f"idle prefill of {length} tokens ({at + 1} of {len(lengths)})")
        times = []
        for _ in range(NUM_REPEATS):
            planned = PlannedRequest(0, 0.0, length, 1, prompts.cold(length))
            sample = await client.send(planned, time.monotonic())
            if not sample.ok:
                raise BatonError(
                    f"calibration failed ({sample.error}: {sample.error_text}); give the prefill "
                    "times with --prefill-ms-per-1k, or go without with --no-ideal"
                )
            times.append((sample.ttft_sent_s, sample.input_tokens - sample.cached_tokens))
        seconds, num_tokens = sorted(times)[NUM_REPEATS // 2]
        points.append((num_tokens, seconds))
    return fit_prefill(points)
