"""The file and the page of a verdict: each figure is what the runs say."""

import copy
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from services.cli.__main__ import main
from services.cli.bench.verdict.report.page import rendered
from services.cli.bench.verdict.verdict import Verdict
from tests.support.models.load_cell import LoadCell
from tests.support.oracles.verdict_by_hand import differences, missing_on_page
from tests.support.verdict_contest import verdict_of


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return verdict_of({"1P1D": LoadCell(1, 1), "2 agg": LoadCell(0, 2)})


@pytest.fixture
def record(verdict: Verdict) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(verdict.record()))
    return copied


def test_a_second_script_finds_the_same_numbers(verdict: Verdict, record: dict[str, Any]) -> None:
    assert differences(record) == []
    assert missing_on_page(record, rendered(verdict)) == []


def test_the_second_script_sees_a_wrong_number(record: dict[str, Any]) -> None:
    for damage in ("share", "goodput", "ratio", "interval"):
        wrong = copy.deepcopy(record)
        told = wrong["judgement"]
        if damage == "share":
            wrong["runs"][3]["num_good"] -= 1
        elif damage == "goodput":
            told["goodputs"]["1P1D"][0] *= 1.001
        elif damage == "ratio":
            told["ratio"][0] *= 1.001
        else:
            told["ratio"][2] *= 1.01
        assert len(differences(wrong)) == 1, damage
    page = rendered(verdict_of({"1P1D": LoadCell(1, 1), "2 agg": LoadCell(0, 2)}, "other luck"))
    assert missing_on_page(record, page)


class Tags(HTMLParser):
    """Which tags are open, and what the page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_one_whole_file_light_and_dark(verdict: Verdict) -> None:
    text, tags = rendered(verdict), Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.counts["svg"] == 4
    assert tags.links == ["data:,"]
    assert "prefers-color-scheme:dark" in text
    assert f"<h1>{verdict.sentence.replace('<', '&lt;')}</h1>" in text
    assert "<dd>baton bench verdict</dd>" in text


def test_the_file_is_judged_again(
    verdict: Verdict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again, page = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.html"
    first.write_text(verdict.json)
    flags = ("--from", str(first), "--json", str(again), "--report", str(page))
    assert main(["bench", "verdict", *flags]) == 0
    assert again.read_text() == first.read_text()
    assert page.read_text() == rendered(verdict)
    assert capsys.readouterr().out.splitlines()[-1] == verdict.sentence


def test_no_verdict_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = {"1P1D": LoadCell(1, 1), "2 agg": LoadCell(0, 2)}
    first = tmp_path / "a.json"
    first.write_text(verdict_of(cells, late_above=7.0).json)
    assert main(["bench", "verdict", "--from", str(first), "--json", "-"]) == 3
    said = capsys.readouterr()
    assert said.out == first.read_text(), "the file alone, so that a log can be cut"
    assert "No verdict: " in said.err


def test_a_page_of_no_valid_run_says_why() -> None:
    cells = {"1P1D": LoadCell(1, 1), "2 agg": LoadCell(0, 2)}
    text = rendered(verdict_of(cells, late_above=0.1))
    assert "<h1>No verdict: 1P1D has no valid point: at 6/s sends were late" in text


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "a verdict needs a limit"),
        (("--ttft-limit-ms", "9", "--seeds", "2"), "--seeds 2: at least 3"),
        (("--ttft-limit-ms", "9", "--points", "1"), "--points 1: at least 3"),
        (("--ttft-limit-ms", "9", "--attainment", "99"), "--attainment 99: from 0.5"),
        (("--ttft-limit-ms", "9", "--workers", "1"), "--workers 1: at least 2"),
        (("--ttft-limit-ms", "9", "--rate", "0"), "is not above zero"),
        (("--ttft-limit-ms", "9", "--url-pd", "http://a"), "--url-agg is missing"),
        (("--ttft-limit-ms", "9", "--report", "x.svg"), "name it .html"),
        (("--ttft-limit-ms", "9", "--json", "no/such/x"), "no folder no/such"),
        (("--ttft-limit-ms", "9", "--duration", "0"), "--duration: more than 0"),
        (("--from", "no-such-file"), "--from no-such-file: a file that"),
        (("--from", "pyproject.toml"), "--from pyproject.toml: a file that"),
        (("--topology", "auto"), "--topology"),
        (
            ("--ttft-limit-ms", "9", "--url-pd", "http://a/v1", "--url-agg", "http://a"),
            "--url-pd and --url-agg are both http://a",
        ),
        (
            (
                *("--ttft-limit-ms", "9", "--url-pd", "http://a", "--url-agg", "http://b"),
                *("--kv-blocks", "9"),
            ),
            "--kv-blocks is for cells that are started here",
        ),
    ],
)
def test_a_bad_flag_starts_nothing(
    flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "verdict", *flags]) == 2
    assert says in capsys.readouterr().err
