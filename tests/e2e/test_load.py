"""The load test as it is run by hand: locust without a page, against real processes."""

import csv
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.cluster import process_family, running
from tests.support.cpu_share import CpuShare
from tests.support.measured import Measured
from tests.support.yardstick import slowness

pytestmark = [pytest.mark.alone, pytest.mark.clock]

LOCUST = str(Path(sys.executable).with_name("locust"))
LOCUSTFILE = Path(__file__).resolve().parents[2] / "loadtest" / "locustfile.py"
SHARED = LOCUSTFILE.with_name("shared_system_prompt.py")
NAMES = {"chat turn", "summary", "code"}
AGREED_MS = 5.0
NUM_WAITS = 3
"""for a core, between locust's begin and end of a first token and the gateway's: locust's before it
writes, the gateway's before it reads, locust's before it reads"""


@dataclass(frozen=True)
class Printed:
    """What locust said, and how it fared."""

    text: str
    wait_ms: float
    """mean time from when it could run to when it had a core"""


def run_locust(url: str, folder: Path) -> Printed:
    """It exits 0 only if no request failed."""
    load = "--headless -u 10 -r 10 -t 12s -s 20 --answer-tokens 24 --document-tokens 300"
    output = folder / "locust.txt"
    with output.open("wb") as sink:
        process = subprocess.Popen(  # noqa: S603
            [LOCUST, "-f", str(LOCUSTFILE), "-H", url, *load.split(), "--csv", "load"],
            cwd=folder,
            stdout=sink,
            stderr=sink,
        )
    with process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _, waited_ns, num_runs = Path(f"/proc/{process.pid}/schedstat").read_text().split()
    printed = output.read_text()
    sys.stdout.write(printed)
    assert process.returncode == 0, printed
    return Printed(printed, int(waited_ns) / max(1, int(num_runs)) / 1e6)


def test_locust_reports_what_the_gateway_measured(tmp_path: Path, measured: Measured) -> None:
    """Every kind of request has its whole time, first token and gaps in locust's CSV, and their
    means are the gateway's within 5 ms and the waits for a core in between, on a machine of
    the yardstick's speed that does nothing else."""
    with running(tmp_path, "--prefill", "1", "--decode", "1") as cluster:
        cpu = CpuShare(process_family(cluster.supervisor.pid))
        printed = run_locust(cluster.url, tmp_path)
        share = cpu.left()
        cluster.wait_blocks_back()
    with (tmp_path / "load_stats.csv").open(newline="") as table:
        rows = {(row["Type"], row["Name"]): row for row in csv.DictReader(table)}
    asked = {name for kind, name in rows if kind == "POST"}
    assert asked == NAMES
    for name in NAMES:
        assert rows["POST", name]["Request Count"] == rows["TTFT", name]["Request Count"]
        assert int(rows["GAP", name]["Request Count"]) > 0
        assert float(rows["GAP", name]["Average Response Time"]) > 0
    assert "the row Aggregated mixes all three" in printed.text
    slack_ms = (AGREED_MS * slowness() + NUM_WAITS * printed.wait_ms) / share
    for kind in ("TTFT", "GAP"):
        means = re.search(
            rf"{kind} mean: ([\d.]+) ms here, ([\d.]+) ms at the gateway", printed.text
        )
        assert means, printed.text
        here_ms, gateway_ms = float(means[1]), float(means[2])
        what = f"{kind} mean at locust with {share:.2f} of the CPU"
        measured.near(what, here_ms, gateway_ms, slack_ms, "ms")


def test_a_shared_system_prompt_is_computed_once(tmp_path: Path) -> None:
    """The saving is within a point of the formula at the run's own number of requests; that of a
    cell without a prefix cache is not."""
    load = ["--headless", "-u", "2", "-r", "1", "-t", "8s", "-s", "20", "--answer-tokens", "4"]
    points = []
    for cache in ("true", "false"):
        settings = {"BATON_PREFIX_CACHE": cache}
        with running(tmp_path, "--prefill", "1", "--decode", "1", **settings) as cluster:
            command = [LOCUST, "-f", str(SHARED), "-H", cluster.url, *load]
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        found = re.search(r"(\d+) requests that .* ([\d.]+) points off the formula", done.stderr)
        assert found, done.stderr
        assert int(found[1]) >= 10
        points.append(float(found[2]))
    assert points[0] <= 1 < points[1]


def test_a_run_with_limits_exits_by_them(tmp_path: Path) -> None:
    kept = ("--ttft-limit-ms", "60000", "--failure-limit", "0")
    with running(tmp_path, "--prefill", "1", "--decode", "1") as cluster:
        load = f"-H {cluster.url} --headless -u 2 -r 2 -t 4s -s 20 --answer-tokens 4".split()
        command = [LOCUST, "-f", str(LOCUSTFILE), *load, "--document-tokens", "100"]
        found = [
            subprocess.run([*command, *limits], capture_output=True, text=True, check=False)  # noqa: S603
            for limits in (kept, ("--ttft-limit-ms", "0.1"))
        ]
    assert [one.returncode for one in found] == [0, 1], found[0].stderr
    assert "`baton bench verdict`" in found[0].stderr
    assert "limit broken" not in found[0].stderr
    assert "limit broken: TTFT p99 is " in found[1].stderr
