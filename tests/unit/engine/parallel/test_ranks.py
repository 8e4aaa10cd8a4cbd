"""One rank alone, and ranks that are threads, keep the contract of ranks."""

import threading

import pytest
import torch

from shared.engine.parallel.ranks import SingleRank
from tests.support.fakes.thread_ranks import Shelf, ThreadRanks
from tests.support.oracles.ranks_contract import check

CPU = torch.device("cpu")


def test_a_single_rank() -> None:
    check(SingleRank(), CPU)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_threads(size: int) -> None:
    shelf = Shelf(size)
    problems: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            check(ThreadRanks(rank, shelf), CPU)
        except BaseException as problem:
            problems.append(problem)
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
