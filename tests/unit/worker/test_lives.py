"""A worker goes on after an engine that served; one whose engines end at once does not."""

import pytest

from shared.worker.engine_client import ExitCause
from shared.worker.lives import MAX_SHORT_LIVES, STEADY_S, Lives


class Engines:
    """Of one worker, one after the other, on a clock of their own."""

    def __init__(self) -> None:
        self._lives = Lives()
        self._now_s = 0.0

    def end(self, served_s: float, cause: ExitCause = "itself") -> bool:
        """Whether the worker goes on after the next one."""
        self._lives.begin(self._now_s)
        self._now_s += served_s
        return self._lives.goes_on(cause, self._now_s)


@pytest.mark.parametrize("cause", ["itself", "killed"])
def test_engines_that_served_are_replaced_without_end(cause: ExitCause) -> None:
    engines = Engines()
    assert all(engines.end(STEADY_S, cause) for _ in range(100))


def test_a_wave_of_poison_is_outlived_and_forgotten() -> None:
    """One request ends four engines at most, so two that follow each other end eight."""
    engines = Engines()
    for _ in range(5):
        assert all(engines.end(0.5) for _ in range(8))
        assert engines.end(STEADY_S)


def test_engines_that_end_at_once_again_and_again_take_the_worker_with_them() -> None:
    engines = Engines()
    outlived = [engines.end(0.5) for _ in range(MAX_SHORT_LIVES)]
    assert outlived == [True] * (MAX_SHORT_LIVES - 1) + [False]


def test_one_that_hung_takes_the_worker_with_it() -> None:
    assert not Engines().end(1000.0, "unknown")
