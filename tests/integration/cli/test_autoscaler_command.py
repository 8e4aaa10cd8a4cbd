"""`baton autoscaler` as an operator runs it: one process next to a Redis, and what it answers."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from services.cli.autoscaler import chosen, rendered
from services.cli.cluster.run_file import RunRecord, write_record
from shared.errors import SettingsError
from shared.runtime_folder import runtime_folder
from shared.state.embedded import EmbeddedRedis
from tests.rules.sources import ROOT


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cell runs here but those that a test says."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("BATON_URL", raising=False)


def baton(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603
        [sys.executable, "-m", "services.cli", "autoscaler", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def running(*flags: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The process, and the URL that its log names."""
    command = [sys.executable, "-m", "services.cli", "autoscaler", "run", "--port", "0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"(http://\S+)/explain", line):
                yield process, found[1]
                break
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_it_advises_next_to_a_redis_explains_itself_and_ends_when_told() -> None:
    with EmbeddedRedis() as server, running("--redis", server.url) as (process, url):
        told = baton("explain", "--url", url)
        assert told.returncode == 0, told.stderr
        assert told.stdout.startswith("autoscaler: mode advise, does not act\nholds: ")
        assert '"mode": "advise"' in baton("explain", "--url", url, "--json").stdout
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_it_finds_the_redis_of_a_cell_that_runs_here_and_its_password() -> None:
    """It would hold forever on a Redis that it may not ask."""
    with EmbeddedRedis() as server:
        write_record(runtime_folder(), 8123, "http://127.0.0.1:8123", redis=server.url)
        with running() as (_, url):
            until_s, told = time.monotonic() + 30, ""
            while "pools with workers: none" not in told:  # it has not looked yet
                assert time.monotonic() < until_s, told
                told = baton("explain", "--url", url).stdout


def test_of_several_cells_one_is_named_by_its_gateway() -> None:
    one, two = (RunRecord(port, f"http://h:{port}", 1, 1, redis="unix:///x") for port in (1, 2))
    assert chosen([], "") is None
    assert chosen([replace(one, redis="")], "") is None, "of an earlier release"
    assert chosen([one], "") == one
    assert chosen([one, two], "http://h:2") == two
    assert chosen([one], "http://h:2") is None
    with pytest.raises(SettingsError, match=r"http://h:1, http://h:2\): name one in BATON_URL"):
        chosen([one, two], "")


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (("explain", "--url", "http://127.0.0.1:9"), 4, "no autoscaler answers"),
        (("run",), 2, "--redis: an autoscaler needs the URL"),
        (("run", "--redis", "redis://127.0.0.1:9", "--mode", "builtin"), 2, "--mode builtin"),
        (("run", "--slo-target", "2"), 2, "--slo-target"),
        ((), 2, "ACTION"),
    ],
)
def test_what_cannot_be_is_one_line(flags: tuple[str, ...], code: int, text: str) -> None:
    ended = baton(*flags)
    assert ended.returncode == code
    assert text in ended.stderr and "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_an_explanation_is_a_paragraph_for_each_role() -> None:
    prefill = {"wanted": 3, "replicas": 2, "registered": 2, "drain": [], "reason": "because"}
    decode = {**prefill, "wanted": 1, "drain": ["d-1.x"], "reason": ""}
    answer = {
        "mode": "builtin",
        "acts": True,
        "holds": "a prefill worker starts",
        "roles": {"prefill": prefill, "decode": decode},
    }
    assert rendered(answer) == (
        "autoscaler: mode builtin\n"
        "holds: a prefill worker starts\n"
        "prefill: 3 wanted, 2 ordered, 2 registered\n"
        "because\n"
        "decode: 1 wanted, 2 ordered, 2 registered; d-1.x drains\n"
    )
