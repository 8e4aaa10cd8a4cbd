"""A test judged by the clock runs again if it failed while the machine stood still, only then."""

import os
import subprocess
import sys
from pathlib import Path

from tests.clock import LATE_S, MAX_RUNS
from tests.rules.sources import ROOT

CONFTEST = """
from tests.clock import ClockTests

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
    assert False

@pytest.mark.clock
def test_wrong(name):
    runs.append(name)
    assert False

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
    assert "4 failed, 1 passed" in done.stdout
    names = [
        *["test_disturbed_once[case]"] * 2,
        *["test_disturbed_always[case]"] * MAX_RUNS,
        "test_wrong[case]",
        "test_of_no_clock[case]",
    ]
    assert f"runs: {' '.join(names)}\n" in done.stdout
    said = [line for line in done.stdout.splitlines() if "ran again" in line]
    assert [line.split()[0].rpartition(":")[2] for line in said] == [
        names[0],
        *names[3:5],
        names[2],
    ]
