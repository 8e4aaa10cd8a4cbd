"""What is asked of a cell: single requests when it is idle, the same next to short streams and with
another prompt behind them, and prompts whose KV is there already, so that it moves at once.

Cells that are compared are asked in turn, with prompts that share nothing.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from services.cli.bench.handover.asked_cell import AskedCell
from services.cli.bench.measure.loop_lag import LoopLag
from services.cli.bench.measure.progress_line import announce
from services.cli.bench.serve.prompts import PromptSource
from services.cli.bench.serve.sample import RequestSample

NUM_OUTPUT = 16
"""tokens of a measured request: enough for a median of its later gaps"""
NUM_WARM = 1
"""requests of each length that are not measured"""
MOST_TRIES = 4
"""requests for one that can be timed"""
SHORT_INPUT, SHORT_OUTPUT = 64, 48
SETTLE_S = 0.5
"""until short streams decode"""


@dataclass(frozen=True)
class Amounts:
    """How much is asked."""

    lengths: Sequence[int]
    """prompt tokens"""
    num_requests: int
    """measured of each length, idle and again under load"""
    num_moves: int
    """of each length, with the KV in prefill's cache"""
    num_streams: int
    """short streams at every moment of the load"""


@dataclass(frozen=True)
class Answer:
    """One request: what its client saw, and its receipt."""

    sample: RequestSample
    receipt: Mapping[str, Any]
    clock_offset_ns: int = 0
    """added to the client's monotonic time it gives wall-clock time"""


@dataclass(frozen=True)
class Answers:
    """Of requests of one length."""

    all: Sequence[Answer]
    lateness_s: Sequence[float]
    """of the benchmark's own loop meanwhile"""


@dataclass(frozen=True)
class CellRun:
    """What came of one cell, by prompt length."""

    idle: dict[int, Answers] = field(default_factory=dict)
    loaded: dict[int, Answers] = field(default_factory=dict)
    followed: dict[int, Answers] = field(default_factory=dict)
    moved: dict[int, Answers] = field(default_factory=dict)


def token_times_s(sample: RequestSample) -> list[float]:
    """When tokens 1 and 2 and the later ones arrived; empty if the first two came together, or
    one of them was not seen. Token 3 may have come with token 2: that was as late."""
    counts = sample.chunk_tokens
    known = sample.counted_from == "continuous" and len(counts) >= 2
    return sample.chunk_times_s if known and counts[0] == 1 else []


async def measure_idle(
    cells: Sequence[AskedCell], prompts: PromptSource, amounts: Amounts
) -> list[CellRun]:
    """One request at a time, of each cell in turn."""
    runs = [CellRun() for _ in cells]
    for length in amounts.lengths:
        announce(f"{length} tokens, idle")
        answers = await _ask_each(cells, prompts, length, amounts.num_requests)
        for run, of_cell in zip(runs, answers, strict=True):
            run.idle[length] = of_cell
    return runs


async def measure_more(
    cell: AskedCell, prompts: PromptSource, amounts: Amounts, run: CellRun
) -> None:
    """Of a cell that hands over, into `run`: next to short streams, then with prefill going on to
    another prompt, then with the KV in prefill's cache."""
    async with _short_streams(cell, prompts, amounts.num_streams):
        for length in amounts.lengths:
            announce(f"{length} tokens, next to {amounts.num_streams} short streams")
            [run.loaded[length]] = await _ask_each([cell], prompts, length, amounts.num_requests)
    for length in amounts.lengths:
        announce(f"{length} tokens, another prompt behind it")
        [run.followed[length]] = await _ask_each(
            [cell], prompts, length, amounts.num_requests, followed=True
        )
    for length in amounts.lengths:
        announce(f"{length} tokens, moved at once")
        run.moved[length] = await _move_each(cell, prompts, length, amounts.num_moves)


async def _ask_each(
    cells: Sequence[AskedCell],
    prompts: PromptSource,
    length: int,
    num: int,
    *,
    followed: bool = False,
) -> list[Answers]:
    """Until `num` of each cell can be timed token by token: where other work delays this process,
    tokens come together. Receipts are read after the last answer: they disturb none. `followed`:
    a prompt of the same length, which ends with its token 1, waits behind each."""
    for _ in range(NUM_WARM):
        for cell in cells:
            await cell.ask(prompts.cold(length), length, NUM_OUTPUT)
    samples: list[list[RequestSample]] = [[] for _ in cells]
    lag = LoopLag()
    lag.start()
    for number in range(MOST_TRIES * num):
        turn = list(zip(cells, samples, strict=True))
        for cell, of_cell in turn if number % 2 == 0 else reversed(turn):
            if _num_timed(of_cell) < num:
                of_cell.append(await _ask(cell, prompts, length, followed=followed))
    lag.stop()
    return [
        await _with_receipts(cell, of_cell, lag)
        for cell, of_cell in zip(cells, samples, strict=True)
    ]


def _num_timed(samples: Sequence[RequestSample]) -> int:
    return sum(bool(token_times_s(sample)) for sample in samples)


async def _ask(
    cell: AskedCell, prompts: PromptSource, length: int, *, followed: bool
) -> RequestSample:
    asked = [cell.ask(prompts.cold(length), length, NUM_OUTPUT)]
    if followed:
        asked.append(cell.ask(prompts.cold(length), length, 1))
    return (await asyncio.gather(*asked))[0]


async def _move_each(cell: AskedCell, prompts: PromptSource, length: int, num: int) -> Answers:
    """An answer of one token ends on the prefill worker and leaves the prompt in its cache: the
    next one with that prompt computes one token and moves all blocks at once."""
    samples = []
    for _ in range(num):
        prompt = prompts.cold(length)
        await cell.ask(prompt, length, 1)
        samples.append(await cell.ask(prompt, length, 2))
    return await _with_receipts(cell, samples, None)


async def _with_receipts(
    cell: AskedCell, samples: Sequence[RequestSample], lag: LoopLag | None
) -> Answers:
    offset_ns = time.time_ns() - time.monotonic_ns()
    answers = [Answer(sample, await cell.receipt(sample), offset_ns) for sample in samples]
    return Answers(answers, lag.late_s if lag is not None else ())


@asynccontextmanager
async def _short_streams(
    cell: AskedCell, prompts: PromptSource, num_streams: int
) -> AsyncIterator[None]:
    """`num_streams` at every moment. Raises what ended one of them."""

    async def keep_busy() -> None:
        while True:
            await cell.ask(prompts.cold(SHORT_INPUT), SHORT_INPUT, SHORT_OUTPUT)

    tasks = [asyncio.create_task(keep_busy()) for _ in range(num_streams)]
    try:
        await asyncio.sleep(SETTLE_S)
        yield
    finally:
        for task in tasks:
            task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
