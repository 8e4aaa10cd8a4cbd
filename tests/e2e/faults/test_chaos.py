"""`baton chaos` as it is run: a real cell, some faults, a clean report. `make chaos-ci` has more.

Guards: a campaign that breaks nothing, or sees nothing. What it must find is in the unit tests of
its oracle.
"""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.cli.__main__ import main
from services.cli.cluster.run_file import live_records
from shared.runtime_folder import runtime_folder
from tests.e2e.cluster import BATON, process_family

KINDS = (
    "kill engine,kill gateway,Redis killed,clients hang up,stop worker,"
    "wire late,wire stands still,wire cut one way,wire damaged"
)


def test_a_few_faults_cost_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs.jsonl"
    flags = ("--faults", "9", "--seed", "3", "--kinds", KINDS, "--pause-s", "1")
    code = main(["chaos", *flags, "--spare", "gateway,decode-1", "--resume", str(runs)])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert "9 faults of 9 kinds in 1 runs, 0 not injected" in captured.out
    line = json.loads(runs.read_text())
    assert line["kinds"] == dict.fromkeys(sorted(KINDS.split(",")), 1)
    assert line["outcomes"]["answered"] >= 5
    assert line["outcomes"]["left"] >= 1
    assert not re.search(r"gateway: SIG|decode-1: ", captured.err), "they were spared"
    assert live_records(runtime_folder()) == []


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Sockets in it have paths that are short enough."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_a_campaign_that_is_told_to_stop_leaves_nothing(short_folder: Path) -> None:
    command = [*BATON, "chaos", "--faults", "500", "--seed", "1"]
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    with subprocess.Popen(  # noqa: S603
        command, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "is ready" in line:
                break
        family = process_family(process.pid)
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    (runtime,) = short_folder.iterdir()
    assert not list(runtime.iterdir()), "no cell is on record"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--faults", "0"), "--faults: at least 1"),
        (("--kinds", "flood"), "no 'flood'"),
        (("--spare", "router"), "no 'router'; there are gateway, gateway-2, prefill-0"),
        (("--spare", "decode-0, decode-1"), "decode-0 and decode-1 leave nothing to hit"),
        (("--spare", "decode-0", "--kinds", "poison"), "none of them can be had here"),
        (("--resume", __file__), "not a file of this command"),
    ],
)
def test_a_bad_flag_starts_nothing(
    flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chaos", *flags]) == 2
    assert says in capsys.readouterr().err
