"""`baton simulate batching`: what it prints and writes.

Guarded against: a report without a policy or with a broken picture, output that is no JSON, a bad
flag that shows a traceback, and a path that imports torch.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from services.cli import simulate
from services.cli.__main__ import main
from services.simulator.batching.device import POLICIES
from tests.rules.sources import ROOT

SHORT = ("simulate", "batching", "--requests", "40", "--output", "4-64", "--slots", "8")


def test_the_report_has_a_row_and_a_timeline_for_each_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.html"
    assert main([*SHORT, "--shown", "12", "--out", str(path)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[1:]] == list(POLICIES)
    page = path.read_text()
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawn) == len(POLICIES)
    for picture in drawn:
        ElementTree.fromstring(picture)  # noqa: S314
        assert {int(number) for number in re.findall(r"<title>request (\d+):", picture)} == {
            *range(12)
        }
        assert "seconds since the first could arrive" in picture
    pale = ['fill-opacity="0.25"' in picture for picture in drawn]
    assert pale == [True, True, True, False]


def test_json_has_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--json", "--out", str(tmp_path / "r.html")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["policy"] for one in found["policies"]] == list(POLICIES)
    for one in found["policies"]:
        assert set(one["latency_s"]) == set(one["ttft_s"]) == {"p50", "p95", "p99"}
        assert one["requests"] == 40


def test_the_page_shows_where_dynamic_and_timed_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its figures are those of the command that it has for them."""
    text = (ROOT / "services/simulator/README.md").read_text(encoding="utf-8")
    (flags,) = re.findall(r"baton (simulate batching .*?) +# where dynamic and timed differ", text)
    assert main([*flags.split(), "--json", "--out", str(tmp_path / "r.html")]) == 0
    found = {one["policy"]: one for one in json.loads(capsys.readouterr().out)["policies"]}
    table = text.rpartition("as with the third command above:")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([\d., ]+) s \|.*s \|.*\|$", table, re.MULTILINE))
    assert rows.keys() == found.keys()
    for policy, cell in rows.items():
        latency = found[policy]["latency_s"]
        assert list(map(float, cell.split(", "))) == pytest.approx(
            [latency["p50"], latency["p99"]], abs=0.006
        )
    p50 = {policy: one["latency_s"]["p50"] for policy, one in found.items()}
    assert p50["dynamic"] < p50["timed"] < p50["static"]


def test_help_names_the_file_that_is_written_and_the_unit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main([*SHORT[:2], "--help"])
    told = capsys.readouterr().out
    assert re.search(r"--out FILE .*batching\.html", told)
    assert re.search(r"--wait-ms T .*milliseconds", told)


def test_steps_last_as_the_costs_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One token each, a step of a second and nothing else: the first is there after a second."""
    flags = ("--step-costs", "1,0,0,0,0", "--rate", "0.001", "--json", "--output", "1")
    assert main([*SHORT[:4], *flags, "--out", str(tmp_path / "r.html")]) == 0
    found = json.loads(capsys.readouterr().out)["policies"][-1]
    assert found["policy"] == "continuous"
    assert found["ttft_s"]["p50"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--requests", "0"), "'0' is no whole number"),
        (("--output", "9-3"), "'9-3': the shortest comes first"),
        (("--step-costs", "1,2"), "5 numbers of seconds"),
        (("--step-costs", "0,0,0,0,0"), "steps would take no time"),
        (("--rate", "-1"), "'-1' is not above zero"),
        (("--slots", "64", "--step-tokens", "64"), "--step-tokens: 64 places need 79"),
        (("--out", "/nowhere/report.html"), "--out /nowhere/report.html: "),
    ],
)
def test_a_bad_flag_is_named(
    flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SHORT, *flags]) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith("baton: error: ")
    assert said in err[-1]


def test_a_missing_numpy_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulate, "find_spec", lambda name: None)
    assert main([*SHORT]) == 3
    assert "simulate batching needs numpy" in capsys.readouterr().err


def test_it_runs_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        "from services.cli.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    )
    flags = [*SHORT, "--out", str(tmp_path / "r.html")]
    subprocess.run([sys.executable, "-c", code, *flags], check=True, capture_output=True)  # noqa: S603
