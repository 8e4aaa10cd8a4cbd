"""`baton up --detach` and `baton down`: found by port, stopped completely, nobody else hit."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.cluster.run_file import RunRecord, live_records, read_record, start_ticks
from tests.integration.cli.up_process import FakeBaton, alive, until


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeBaton]:
    """Whatever a test left running is killed: a detached `up` is nobody's child."""
    fake = FakeBaton(tmp_path)
    yield fake
    for record in live_records(folder_of(fake)):
        os.kill(record.pid, signal.SIGKILL)


def folder_of(fake: FakeBaton) -> Path:
    return fake.folder / "run" / "baton"


def test_detached_up_returns_when_ready_and_down_stops_it(fake: FakeBaton) -> None:
    up = fake.run("up", "--detach", "--port", "0")
    assert up.returncode == 0, up.stderr
    assert "\nready http://127.0.0.1:" in up.stdout
    (record,) = live_records(folder_of(fake))
    assert f"\noperator's page {record.admin_url}/ui\n" in up.stdout
    assert record.url in up.stdout
    down = fake.run("down")
    assert (down.returncode, down.stdout) == (0, f"stopped {record.url}\n")
    assert not alive(record.pid)
    assert live_records(folder_of(fake)) == []


def test_detached_up_that_fails_says_why(fake: FakeBaton) -> None:
    failures = json.dumps({"decode-0": [3, "baton: error: no such library"]})
    up = fake.run("up", "--detach", "--port", "0", FAKE_FAILURES=failures)
    assert up.returncode == 3
    assert up.stderr == "baton: error: no such library\n"
    assert live_records(folder_of(fake)) == []


def test_detached_up_says_at_once_that_there_is_no_model(fake: FakeBaton) -> None:
    up = fake.run("up", "--detach", "--port", "0", "--model", "/nope")
    assert (up.returncode, up.stdout) == (2, "")
    assert "'/nope' is neither a directory nor a hub id" in up.stderr
    assert list(folder_of(fake).glob("log-*")) == []


def test_down_must_know_which(fake: FakeBaton) -> None:
    for _ in range(2):
        assert fake.run("up", "--detach", "--port", "0", "--topology", "agg").returncode == 0
    first, second = live_records(folder_of(fake))
    assert fake.run("down").returncode == 2
    assert fake.run("down", "--port", str(first.port)).returncode == 0
    assert live_records(folder_of(fake)) == [second]
    assert fake.run("down", "--all").returncode == 0
    assert live_records(folder_of(fake)) == []
    assert fake.run("down").returncode == 4


def test_reused_pid_is_never_signalled(fake: FakeBaton) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        until(lambda: start_ticks(bystander.pid) is not None)
        ticks = start_ticks(bystander.pid)
        assert ticks is not None
        stale = RunRecord(8000, "http://127.0.0.1:8000", bystander.pid, ticks - 1)
        folder_of(fake).mkdir(mode=0o700)
        path = folder_of(fake) / "up-8000.json"
        path.write_text(json.dumps(vars(stale)), encoding="utf-8")
        assert read_record(folder_of(fake), 8000) == stale
        assert fake.run("down", "--port", "8000").returncode == 4
        assert bystander.poll() is None
        assert not path.exists()
    finally:
        bystander.kill()
        bystander.wait()
