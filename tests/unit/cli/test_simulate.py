"""`baton autoscaler simulate`: what it prints and writes.

Guarded against: a report that needs another host, one without a figure or a policy, and a bad flag
that shows a traceback.
"""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from services.cli.__main__ import main

SHORT = ("autoscaler", "simulate", "--trace", "mooncake", "--hours", "0.05")


def simulated(folder: Path, *more: str) -> str:
    path = folder / "report.html"
    assert main([*SHORT, *more, "--out", str(path)]) == 0
    return path.read_text()


def test_the_report_is_one_file_with_every_policy_and_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = simulated(tmp_path, "--policy", "replay", "--policy", "hpa-0.7", "--policy", "static-6")
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["replay", "hpa-0.7", "static-6"]
    assert len(err.splitlines()) == 4
    for policy in ("replay", "hpa-0.7", "static-6"):
        assert f'<th scope="row">{policy}</th>' in page
    assert page.count("<figure>") == 5
    assert not re.search(r"https?://|<script|src=|@import|url\(", page)
    assert "prefers-color-scheme:dark" in page
    for drawn in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(drawn)  # noqa: S314
    used = set(re.findall(r'class="([sf]\d)"', page))
    assert used <= set(re.findall(r"\.([sf]\d)\{", page))


def test_a_budget_shows_the_pairs_and_json_the_outcomes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = simulated(tmp_path, "--policy", "replay", "--budget", "6", "--json")
    found = json.loads(capsys.readouterr().out)
    (outcome,) = found["outcomes"]
    assert outcome["policy"] == "replay"
    assert set(outcome["orders"]) == {"prefill", "decode"}
    assert all(sum(pods.values()) <= 6 for _, pods in outcome["path"])
    assert "6 GPUs" in page


def test_workers_that_do_both_are_one_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = ("replay", "foresight", "static-9", "hpa-0.5", "keda", "keda-hpa")
    named = [word for policy in policies for word in ("--policy", policy)]
    page = simulated(tmp_path, "--topology", "agg", *named, "--budget", "9", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [one["policy"] for one in found["outcomes"]] == list(policies)
    for outcome in found["outcomes"]:
        assert set(outcome["orders"]) == {"decode"}
        assert all(sum(pods.values()) <= 9 for _, pods in outcome["path"])
        assert outcome["num_requests"] > 0
    assert "do both" in page and "Prefill and decode pods over time" not in page


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--policy", "magic"), "--policy magic: there are"),
        (("--trace", "nowhere"), "--trace nowhere: "),
        (("--swing", "2"), "--swing: "),
        (("--budget", "1"), "--budget: "),
        (("--topology", "agg", "--policy", "planner"), "--policy planner: it knows no workers"),
        (("--topology", "agg", "--policy", "static-2x3"), "this cell takes static-N"),
        (("--topology", "agg", "--decode"), "--decode: workers of topology agg decode anyway"),
        (("--hours", "0"), "'0' is not above zero"),
        (("--out", "/nowhere/report.html", "--policy", "static-3"), "--out /nowhere/report.html: "),
    ],
)
def test_a_bad_flag_is_named(
    flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SHORT, *flags]) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith("baton: error: ")
    assert said in err[-1]
