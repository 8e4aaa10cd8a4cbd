"""Tests that measure say what they measured and against what: one line each, in the report's end.

The fixture `measured` of conftest.py records a figure and judges it. The line comes out whether
the figure is met or not, also from a test that runs in another process.
"""

from collections.abc import Callable

import pytest

PROPERTY = "measured"
Record = Callable[[str, object], None]


class Measured:
    """The figures of one test."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def at_most(self, what: str, value: float, limit: float, unit: str = "") -> None:
        """AssertionError with the line if it is more."""
        line = self._note(what, value, f"at most {limit:.4g}", unit)
        assert value <= limit, line

    def at_least(self, what: str, value: float, limit: float, unit: str = "") -> None:
        line = self._note(what, value, f"at least {limit:.4g}", unit)
        assert value >= limit, line

    def near(self, what: str, value: float, wanted: float, slack: float, unit: str = "") -> None:
        """`slack` either way."""
        line = self._note(what, value, f"{wanted:.4g} +- {slack:.4g}", unit)
        assert abs(value - wanted) <= slack, line

    def note(self, line: str) -> None:
        """A line that is judged elsewhere."""
        self._record(PROPERTY, line)

    def _note(self, what: str, value: float, against: str, unit: str) -> str:
        line = f"{what}: {value:.4g}, {against} {unit}".rstrip()
        self.note(line)
        return line


class MeasuredLines:
    """A pytest plugin: the lines of all tests, at the end."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            name = report.nodeid.rpartition("/")[2]
            found = [value for key, value in report.user_properties if key == PROPERTY]
            self._lines += [f"{name}: {line}" for line in found]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._lines:
            terminalreporter.section("measured")
            for line in self._lines:
                terminalreporter.line(line)
