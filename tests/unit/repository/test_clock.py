"""A test judged by the clock runs again if it failed while the machine stood still, only then."""

import functools
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.rules.sources import ROOT
from tests.support import clock
from tests.support.clock import LATE_S, MAX_RUNS, TICK_S, Ticks

CONFTEST = """
from tests.support.clock import ClockTests

def pytest_configure(config):
    config.addinivalue_line("markers", "clock: by the clock")
    config.pluginmanager.register(ClockTests())
"""
TESTS = """
import os
import subprocess
import sys
import time

import pytest

runs = []
STILL = "import os, signal, time; os.kill({0}, signal.SIGSTOP); time.sleep({1}); "
STILL += "os.kill({0}, signal.SIGCONT)"

def stand_still():
    subprocess.run([sys.executable, "-c", STILL.format(os.getpid(), SECONDS)], check=True)
    time.sleep(0.1)

@pytest.fixture(params=["case"])
def name(request):
    return request.node.name

@pytest.mark.clock
def test_disturbed_once(name):
    runs.append(name)
    if runs.count(name) == 1:
        stand_still()
        assert False

@pytest.mark.clock
def test_disturbed_always(name):
    runs.append(name)
    stand_still()
    assert False, "too late"

@pytest.mark.clock
def test_wrong(name):
    runs.append(name)
    assert False

@pytest.mark.clock
@pytest.mark.timeout(1)
def test_hangs(name):
    runs.append(name)
    stand_still()
    time.sleep(60)

def test_of_no_clock(name):
    runs.append(name)
    stand_still()
    assert False

def test_runs():
    print("runs:", *runs)
    assert False
"""


def test_it_runs_again_only_where_the_machine_is_to_blame(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_planted.py").write_text(TESTS.replace("SECONDS", str(3 * LATE_S)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_planted.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "5 failed, 1 passed" in done.stdout
    once, always = "test_disturbed_once[case]", "test_disturbed_always[case]"
    names = [*[once] * 2, *[always] * MAX_RUNS, "test_wrong[case]", "test_hangs[case]"]
    assert f"runs: {' '.join(names)} test_of_no_clock[case]\n" in done.stdout
    said = [line for line in done.stdout.splitlines() if "ran again: nothing ran for " in line]
    assert [once in line for line in said] == [True] + [False] * (MAX_RUNS - 1)
    assert all(always in line and line.endswith("too late") for line in said[1:])


def test_time_in_which_the_process_computed_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that lets no thread run for a second is not a machine that stands still."""
    for computed_s, wanted_s in ((1.0, -TICK_S), (0.0, 1.0 - TICK_S)):
        walls, own = itertools.count(), itertools.count(step=computed_s)
        clocks = SimpleNamespace(
            monotonic=functools.partial(next, walls), process_time=functools.partial(next, own)
        )
        monkeypatch.setattr(clock, "time", clocks)
        ticks = Ticks()
        ticks.longest_s = -1.0
        with ticks:
            pass
        assert ticks.longest_s == pytest.approx(wanted_s)
