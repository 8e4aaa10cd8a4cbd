"""Tests that are judged by the clock, on a machine that may stand still for half a second.

While a test marked `clock` runs, a thread looks whether it wakes up when it wanted to. If the test
fails and the thread was late by more than a busy machine and what the process computed explain, the
failure says nothing about the code: the test is run again, and the last lines of the output say so,
with what the failure was. A fixture of a whole module that failed gets no second try.
"""

import sys
import threading
import time

import pytest
from _pytest.runner import runtestprotocol

TICK_S = 0.02
LATE_S = 0.1
"""of a tick; processes that share a core wait for each other a third of this"""
MAX_RUNS = 4
PROPERTY = "ran again"
TIMED_OUT = "Timeout (>"
"""in what pytest-timeout says, which watches over an item, not over each of its runs"""


class Ticks:
    """Longest time in which nothing of this process ran. Where its own code let no thread run, it
    computed, and that time is not counted."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True, name="ticks")

    def __enter__(self) -> "Ticks":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _tick(self) -> None:
        last_s, stopping = idle_s(), False
        while not stopping:
            stopping = self._stop.wait(TICK_S)
            now_s = idle_s()
            self.longest_s = max(self.longest_s, now_s - last_s - TICK_S)
            last_s = now_s


class ClockTests:
    """A pytest plugin."""

    def __init__(self) -> None:
        self._repeated: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if item.get_closest_marker("clock") is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = _run(item, nextitem)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY and report.when == "teardown":
                self._repeated.append(f"{report.nodeid} {name}: {value}")

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if not hasattr(config, "workerinput"):
            sys.stdout.writelines(line + "\n" for line in self._repeated)


def _run(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Reports of the first run that tells something, or of the last."""
    excused: list[tuple[str, object]] = []
    while True:
        with Ticks() as ticks:
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = [report for report in reports if report.failed]
        timed_out = any(TIMED_OUT in report.longreprtext for report in failed)
        told = not failed or timed_out or ticks.longest_s < LATE_S
        if told or len(excused) == MAX_RUNS - 1:
            break
        why = f"nothing ran for {ticks.longest_s:.2f} s, and then {_message(failed[0])}"
        excused.append((PROPERTY, why))
        item._initrequest()  # type: ignore[attr-defined]
    for report in reports:
        report.user_properties += excused
    return reports


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text: str = report.longreprtext if crash is None else crash.message
    return text.strip().partition("\n")[0]


def idle_s() -> float:
    """Seconds in which this process computed nothing; only differences mean something. A pass of
    the garbage collector, seconds in a process of many tests, is computing and not waiting."""
    return time.monotonic() - time.process_time()
