"""The engine through random lives of many sequences, where a thread carries KV to and from the
memory that transfers see: nothing depends on when it does."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import rule
from numpy.typing import NDArray

from shared.engine.handover.hand_overs import HandOvers
from shared.engine.handover.staging import HostStaging
from shared.engine.scheduling.sequence import Sequence
from tests.unit.engine.engine_lives import SETTINGS, EngineLivesAhead, assert_found
from tests.unit.engine.fake_runner import BLOCK_SIZE, LAYOUT
from tests.unit.engine.handover.staged_worker import stage


class HeldFuture(Future[None]):
    """Asking for its result runs everything up to it."""

    def __init__(self, run_one: Callable[[], None]) -> None:
        super().__init__()
        self._run_one = run_one

    def result(self, timeout: float | None = None) -> None:
        while not self.done():
            self._run_one()
        super().result(timeout)


class HeldThread(Executor):
    """Runs what was submitted when it is told to."""

    def __init__(self) -> None:
        self.tasks: deque[tuple[Future[None], Callable[[], None]]] = deque()

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future = HeldFuture(self.run_one)
        self.tasks.append((future, partial(call, *args, **kwargs)))
        return future

    def run_one(self) -> None:
        future, call = self.tasks.popleft()
        if future.set_running_or_notify_cancel():
            future.set_result(call())


class EngineLivesStaged(EngineLivesAhead):
    """The same where transfers see other memory than the model; it is copied at any later time."""

    def _stage(self) -> None:
        self.thread = HeldThread()
        staging = stage(self.engine, self.runner, keep_bytes=3 * LAYOUT.block_bytes)
        staging._thread = self.thread  # type: ignore[assignment]

    @rule(count=st.integers(1, 4))
    def copy(self, count: int) -> None:
        for _ in range(min(count, len(self.thread.tasks))):
            self.thread.run_one()

    def _transferred(self) -> NDArray[np.int64]:
        memory = self.engine.memory
        blocks = np.frombuffer(memory.blocks, np.int64)[: memory.num_blocks * 2 * BLOCK_SIZE]
        return blocks.reshape(-1, BLOCK_SIZE, 2)

    def _end_copies(self) -> None:
        while self.thread.tasks:
            self.thread.run_one()


EngineLivesStaged.TestCase.settings = SETTINGS
TestEngineLivesStaged = EngineLivesStaged.TestCase


def _forget_arrivals_only(self: HandOvers, sequence: Sequence) -> None:
    """What departs of a sequence that is gone is still reported."""
    self._arriving.pop(sequence.attempt, None)


def _done_at_once(copy: Callable[..., object]) -> Callable[..., "Future[None]"]:
    """As if what was ordered were copied."""

    def order(*arguments: object) -> "Future[None]":
        copy(*arguments)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    return order


def _keep_nothing(self: HostStaging, block_ids: Iterable[int]) -> None:
    for block in block_ids:
        self._discard(block)
        self._staged[block] = self._memory.generations[block]


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (HandOvers, "forget", _forget_arrivals_only),
        (HostStaging, "publish", _done_at_once(HostStaging.publish)),
        (HostStaging, "adopt", _done_at_once(HostStaging.adopt)),
        (HostStaging, "retire", _keep_nothing),
    ],
)
def test_the_machine_with_staging_finds_planted_faults(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, mutant: object
) -> None:
    assert_found(EngineLivesStaged, monkeypatch, owner, name, mutant)
