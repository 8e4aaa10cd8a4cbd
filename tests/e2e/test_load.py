"""The load test as it is run by hand: locust without a page, against real processes."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cluster import running
from tests.support.measured import Measured
from tests.support.yardstick import slowness

pytestmark = [pytest.mark.alone, pytest.mark.clock]

LOCUST = str(Path(sys.executable).with_name("locust"))
LOCUSTFILE = Path(__file__).resolve().parents[2] / "loadtest" / "locustfile.py"
NAMES = {"chat turn", "summary", "code"}
AGREED_MS = 5.0


def run_locust(url: str, folder: Path) -> str:
    """What it printed; it exits 0 only if no request failed."""
    load = "--headless -u 10 -r 10 -t 12s -s 20 --answer-tokens 24 --document-tokens 300"
    result = subprocess.run(  # noqa: S603
        [LOCUST, "-f", str(LOCUSTFILE), "-H", url, *load.split(), "--csv", "load"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    printed = result.stdout + result.stderr
    sys.stdout.write(printed)
    assert result.returncode == 0, printed
    return printed


def test_locust_reports_what_the_gateway_measured(tmp_path: Path, measured: Measured) -> None:
    """Every kind of request has its whole time, first token and gaps in locust's CSV, and their
    means are the gateway's within 5 ms, on a machine of the yardstick's speed."""
    with running(tmp_path, "--prefill", "1", "--decode", "1") as cluster:
        printed = run_locust(cluster.url, tmp_path)
        cluster.wait_blocks_back()
    with (tmp_path / "load_stats.csv").open(newline="") as table:
        rows = {(row["Type"], row["Name"]): row for row in csv.DictReader(table)}
    asked = {name for kind, name in rows if kind == "POST"}
    assert asked == NAMES
    for name in NAMES:
        assert rows["POST", name]["Request Count"] == rows["TTFT", name]["Request Count"]
        assert int(rows["GAP", name]["Request Count"]) > 0
        assert float(rows["GAP", name]["Average Response Time"]) > 0
    assert "the row Aggregated mixes all three" in printed
    for kind in ("TTFT", "GAP"):
        means = re.search(rf"{kind} mean: ([\d.]+) ms here, ([\d.]+) ms at the gateway", printed)
        assert means, printed
        here_ms, gateway_ms = float(means[1]), float(means[2])
        measured.near(f"{kind} mean at locust", here_ms, gateway_ms, AGREED_MS * slowness(), "ms")
