"""`baton bench verdict` as it is run, on servers whose times are known."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.cli.__main__ import main
from tests.support.fakes.scripted_endpoint import ScriptedEndpoint, scripted
from tests.support.oracles.verdict_by_hand import differences, missing_on_page

pytestmark = pytest.mark.clock

LOAD = ("--vocab", "1000", "--input", "100", "--output", "4", "--warmup", "0", "--duration", "0.7")
JUDGED = ("--attainment", "0.7", "--points", "5", "--max-lag-ms", "1000")
SLOW = ("--rate", "30", "--ttft-limit-ms", "150")


def run(
    pd: ScriptedEndpoint, agg: ScriptedEndpoint, folder: Path, *flags: str
) -> tuple[int, dict[str, Any]]:
    """Exit code and the file; the report is made from it."""
    where = (f"--url-pd=http://127.0.0.1:{pd.port}", f"--url-agg=http://127.0.0.1:{agg.port}")
    path, page = folder / "verdict.json", folder / "verdict.html"
    files = ("--json", str(path), "--report", str(page))
    code = main(["bench", "verdict", *where, *LOAD, *JUDGED, *files, *flags])
    record: dict[str, Any] = json.loads(path.read_text())
    assert differences(record) == []
    assert missing_on_page(record, page.read_text()) == []
    return code, record


@pytest.mark.parametrize(
    ("pd_ms", "agg_ms", "decision"),
    [(200.0, 1000.0, "disaggregate"), (1000.0, 200.0, "do not disaggregate")],
)
def test_the_server_that_computes_prompts_faster_is_told(
    pd_ms: float, agg_ms: float, decision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts of 100 tokens, one at a time: five times as many a second on one of the two."""
    times = {"first_ms": 1.0, "gap_ms": 1.0}
    with scripted(**times, per_1k_ms=pd_ms) as pd, scripted(**times, per_1k_ms=agg_ms) as agg:
        code, record = run(pd, agg, tmp_path, *SLOW)
    assert code == 0
    assert record["judgement"]["decision"] == decision
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == record["judgement"]["sentence"]
    assert "seed 0: " in said.err, "progress"


def test_both_get_the_same_requests_and_take_turns(tmp_path: Path) -> None:
    with scripted(first_ms=1.0, per_1k_ms=1000.0) as pd, scripted(first_ms=1.0) as agg:
        _, record = run(pd, agg, tmp_path, *SLOW, "--points", "3", "--max-lag-ms", "1000")
    first = [run for run in record["runs"] if run["rate"] == 30.0]
    assert [run["topology"] for run in first] == ["pd", "agg", "agg", "pd", "pd", "agg"]
    assert [run["seed"] for run in first] == [0, 0, 1, 1, 2, 2]
    sent = [Counter(map(str, one.prompts[:63])) for one in (pd, agg)]
    assert sent[0] == sent[1]


def test_a_late_client_is_no_verdict_and_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted(first_ms=1.0) as pd, scripted(first_ms=1.0) as agg:
        code, record = run(pd, agg, tmp_path, *SLOW, "--max-lag-ms", "0.0001")
    assert code == 3
    assert all("late: p99" in run["invalid"] for run in record["runs"])
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("No verdict: pd has no valid point: at 30/s ")
    assert "late: p99" in said


def test_requests_that_fail_are_outside_the_limits(tmp_path: Path) -> None:
    with scripted(first_ms=1.0, refuse_every=2) as pd, scripted(first_ms=1.0) as agg:
        code, record = run(pd, agg, tmp_path, *SLOW, "--points", "3")
    assert code == 3
    of_pd = [run for run in record["runs"] if run["topology"] == "pd"]
    assert all(abs(run["num_good"] / run["num_sent"] - 0.5) < 0.05 for run in of_pd)


def test_nothing_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--url-pd=http://127.0.0.1:9", "--url-agg=http://127.0.0.1:10")
    assert main(["bench", "verdict", *where, *LOAD, *SLOW]) == 4
    assert "nothing answers at http://127.0.0.1:9" in capsys.readouterr().err
