"""What `baton bench handover` asks of cells: in turn, and as much as it takes to have the answers
it times."""

import asyncio
from typing import Any, cast

import pytest

from services.cli.bench.handover.asked_cell import AskedCell
from services.cli.bench.handover.measurement import MOST_TRIES, Amounts, CellRun, measure_idle
from services.cli.bench.serve.prompts import TokenPrompts
from services.cli.bench.serve.sample import RequestSample

AMOUNTS = Amounts(lengths=(8,), num_requests=3, num_moves=0, num_streams=0)


class Cell:
    """Answers at once; the first tokens of some answers come together."""

    def __init__(self, num_together: int, turns: list["Cell"] | None = None) -> None:
        """`turns`: gets this cell once for each request."""
        self.num_asked = -1
        """the one that warms it not counted"""
        self._num_together = num_together
        self._turns = turns if turns is not None else []

    async def ask(self, prompt: bytes, num_input: int, num_output: int) -> RequestSample:
        del prompt, num_input, num_output
        self._turns.append(self)
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
    [run] = measure(cell)
    assert cell.num_asked == len(run.idle[8].all) == num_asked


def test_two_cells_are_asked_in_turn_and_neither_always_first() -> None:
    turns: list[Cell] = []
    first, second = Cell(0, turns), Cell(0, turns)
    runs = measure(first, second)
    assert turns[2:] == [first, second, second, first, first, second]
    assert [len(run.idle[8].all) for run in runs] == [3, 3]


def test_a_cell_whose_answers_are_all_timed_is_asked_no_more() -> None:
    first, second = Cell(0), Cell(2)
    measure(first, second)
    assert (first.num_asked, second.num_asked) == (3, 5)


def measure(*cells: Cell) -> list[CellRun]:
    asked = [cast(AskedCell, cell) for cell in cells]
    return asyncio.run(measure_idle(asked, TokenPrompts(range(9), 1), AMOUNTS))
