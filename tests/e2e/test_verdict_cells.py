"""`baton bench verdict` over cells of its own: real gateways and workers, the demo model."""

import json
from pathlib import Path

import pytest

from services.cli.__main__ import main
from services.cli.cluster.run_file import live_records
from shared.runtime_folder import runtime_folder
from tests.support.oracles.verdict_by_hand import differences, missing_on_page

pytestmark = [pytest.mark.alone, pytest.mark.clock]

LOAD = ("--input", "16-32", "--output", "4", "--ignore-eos", "--duration", "1.5", "--rate", "7")
JUDGED = ("--ttft-limit-ms", "500", "--attainment", "0.8", "--points", "3", "--max-lag-ms", "1000")


def test_cells_are_started_loaded_in_turn_judged_and_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "verdict.json", tmp_path / "verdict.html"
    cells = ("--workers", "2", "--device", "cpu", "--threads", "1", "--kv-blocks", "512")
    files = ("--json", str(path), "--report", str(page))
    code = main(["bench", "verdict", *cells, *LOAD, *JUDGED, *files])
    record = json.loads(path.read_text())
    decision = record["judgement"]["decision"]
    assert code == (3 if decision == "no verdict" else 0)
    told = record["environment"]["cells"]
    assert list(told) == ["1P1D", "2 aggregated workers"]
    roles = [[one["role"] for one in cell["status"]["workers"]] for cell in told.values()]
    assert [sorted(each) for each in roles] == [["decode", "prefill"], ["decode", "decode"]]
    assert {cell["model"] for cell in told.values()} == {"demo"}
    runs = [run for run in record["runs"] if run["rate"] == 7.0 and not run["invalid"]]
    assert {run["topology"] for run in runs} == set(told)
    assert all(request[0] > 0 for run in runs for request in run["requests"])
    assert differences(record) == []
    assert missing_on_page(record, page.read_text()) == []
    assert record["judgement"]["sentence"] in capsys.readouterr().out
    assert live_records(runtime_folder()) == []
