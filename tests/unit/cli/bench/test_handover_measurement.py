"""What `baton bench handover` asks of a cell: as much as it takes to have the answers it times."""

import asyncio
from typing import Any, cast

import pytest

from services.cli.bench.handover.asked_cell import AskedCell
from services.cli.bench.handover.measurement import MOST_TRIES, Amounts, measure_idle
from services.cli.bench.serve.prompts import TokenPrompts
from services.cli.bench.serve.sample import RequestSample

AMOUNTS = Amounts(lengths=(8,), num_requests=3, num_moves=0, num_streams=0)


class Cell:
    """Answers at once; the first tokens of some answers come together."""

    def __init__(self, num_together: int) -> None:
        self.num_asked = -1
        """the one that warms it not counted"""
        self._num_together = num_together

    async def ask(self, prompt: bytes, num_input: int, num_output: int) -> RequestSample:
        del prompt, num_input, num_output
        together = 0 <= self.num_asked < self._num_together
        self.num_asked += 1
        sample = RequestSample(0, 0.0, 8, 3, status=200, counted_from="continuous")
        sample.chunk_tokens = [2, 1] if together else [1, 1, 1]
        sample.chunk_times_s = [0.1] * len(sample.chunk_tokens)
        return sample

    async def receipt(self, sample: RequestSample) -> dict[str, Any]:
        del sample
        return {}


@pytest.mark.parametrize(("num_together", "num_asked"), [(0, 3), (4, 7), (99, 3 * MOST_TRIES)])
def test_answers_that_cannot_be_timed_are_asked_again(num_together: int, num_asked: int) -> None:
    cell = Cell(num_together)
    run = asyncio.run(measure_idle(cast(AskedCell, cell), TokenPrompts(range(9), 1), AMOUNTS))
    assert cell.num_asked == len(run.idle[8].all) == num_asked
