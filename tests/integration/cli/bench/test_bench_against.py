"""`baton bench serve --against`: the same requests on two endpoints, in turns."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from services.cli.__main__ import main
from tests.support.fakes.scripted_endpoint import ScriptedEndpoint, scripted

pytestmark = pytest.mark.clock

QUICK = ("--max-lag-ms", "1000", "--warmup", "1", "--no-ideal", "--duration", "60")
SHORT = ("--vocab", "1000", "--input", "50-100", "--output", "5")
NUM = 8


def url_of(endpoint: ScriptedEndpoint) -> str:
    return f"http://127.0.0.1:{endpoint.port}"


def run(
    ours: ScriptedEndpoint, theirs: ScriptedEndpoint, tmp_path: Path, *flags: str, code: int = 0
) -> list[dict[str, Any]]:
    """The JSON lines."""
    path = tmp_path / "bench.jsonl"
    where = ("--url", url_of(ours), "--against", url_of(theirs), "--json", str(path))
    assert main(["bench", "serve", *where, *QUICK, "--num-requests", str(NUM), *flags]) == code
    return [json.loads(line) for line in path.read_text().splitlines()]


def of_kind(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == kind]


def figures(comparison: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {figure["name"]: figure for figure in comparison["figures"]}


def test_both_get_the_same_requests_and_the_quicker_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "run.svg"
    with scripted(first_ms=20.0) as ours, scripted(first_ms=80.0, model="other") as theirs:
        flags = ("--rate", "40,80", *SHORT, "--plot", str(plot))
        lines = run(ours, theirs, tmp_path, *flags)
    assert ours.models == {"scripted"}
    assert theirs.models == {"other"}
    assert len(ours.prompts) == 2 * NUM + 1
    assert sorted(ours.prompts) == sorted(theirs.prompts)
    environment = lines[0]
    assert environment["endpoint"]["url"] == url_of(ours)
    assert environment["against"]["url"] == url_of(theirs)
    requests = of_kind(lines, "request")
    sent = {
        name: [(one["load"], one["scheduled_ms"]) for one in requests if one["endpoint"] == name]
        for name in ("ours", "theirs")
    }
    assert len(sent["ours"]) == 2 * NUM
    assert sent["ours"] == sent["theirs"]
    for comparison in of_kind(lines, "comparison"):
        ttft = figures(comparison)["TTFT from real send p50, ms"]
        assert ttft["better"] == "ours"
        assert ttft["ratio"] == pytest.approx(ttft["ours"] / ttft["theirs"], rel=1e-3)
        assert 0.2 < ttft["ratio"] < 0.7
        assert figures(comparison)["TTFT p99, ms"]["ratio"] is None  # too few requests for it
    said = capsys.readouterr()
    assert said.out.count("ours against theirs, poisson arrivals") == 2
    drawn = plot.read_text()
    ElementTree.fromstring(drawn)  # noqa: S314 our own file
    for title in ("Requests of ours, poisson arrivals 80/s", "Requests of theirs, poisson"):
        assert title in drawn
    order = [line.partition(":")[0] for line in said.err.splitlines() if "answered" in line]
    assert order == [
        "ours, poisson arrivals 40/s",
        "theirs, poisson arrivals 40/s",
        "theirs, poisson arrivals 80/s",
        "ours, poisson arrivals 80/s",
    ]


def test_one_is_never_loaded_while_the_other_answers(tmp_path: Path) -> None:
    with scripted() as ours, scripted() as theirs:
        run(ours, theirs, tmp_path, "--rate", "100,200", *SHORT)
    spans = [[*one.times_s] for one in (ours, theirs)]
    assert all(len(one) == 2 * NUM + 1 for one in spans)
    overlaps = [(a, b) for a in spans[0] for b in spans[1] if max(a[0], b[0]) < min(a[1], b[1])]
    assert overlaps == []


def test_a_closed_loop_asks_both_the_same_whoever_is_quicker(tmp_path: Path) -> None:
    """By time the quick one gets through more of the same list."""
    with scripted(first_ms=5.0, gap_ms=0.0) as ours, scripted(first_ms=40.0) as theirs:
        flags = ("--concurrency", "1,2", "--num-requests", "500", "--duration", "0.5", *SHORT)
        lines = run(ours, theirs, tmp_path, *flags)
    counts = {(one["endpoint"], one["load"]): one["num_sent"] for one in of_kind(lines, "summary")}
    quick, slow = counts["ours", "concurrency 1"], counts["theirs", "concurrency 1"]
    assert quick > slow
    first = [*ours.prompts[1 : 1 + quick]]
    assert theirs.prompts[1 : 1 + slow] == first[:slow]
    num_common = min(counts["ours", "concurrency 2"], counts["theirs", "concurrency 2"])
    ours_second = ours.prompts[1 + quick :][: num_common - 2]
    theirs_second = theirs.prompts[1 + slow :][:num_common]
    assert all(prompt in theirs_second for prompt in ours_second)


def test_prompts_are_of_the_smaller_vocabulary(tmp_path: Path) -> None:
    large, small = tuple(range(100, 200)), tuple(range(10, 60))
    with scripted(token_ids=large) as ours, scripted(token_ids=small) as theirs:
        run(ours, theirs, tmp_path, "--rate", "200", "--input", "50", "--output", "2")
    assert {one for prompt in ours.prompts for one in prompt} <= set(small)


def test_a_second_endpoint_without_tokenizer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(token_ids=tuple(range(100))) as ours, scripted() as theirs:
        where = ("--url", url_of(ours), "--against", url_of(theirs))
        assert main(["bench", "serve", *where]) == 2
    said = capsys.readouterr().err
    assert f"{url_of(theirs)} has no /tokenize" in said
    assert "--vocab" in said
    assert ours.prompts == []


@pytest.mark.parametrize("who", ["ours", "theirs"])
def test_a_refusal_of_either_is_exit_code_1(
    who: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusing = {"refuse_every": 3}
    plain: dict[str, int] = {}
    with (
        scripted(**(refusing if who == "ours" else plain)) as ours,
        scripted(**(refusing if who == "theirs" else plain)) as theirs,
    ):
        lines = run(ours, theirs, tmp_path, "--rate", "200", *SHORT, code=1)
    assert f"{who}, poisson arrivals 200/s: 3 of 8 were refused" in capsys.readouterr().err
    (comparison,) = of_kind(lines, "comparison")
    assert f"{who} answered 5 of 8; its times are of those only" in comparison["notes"]


def test_a_second_endpoint_that_is_not_there_is_noticed_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with scripted() as ours:
        where = ("--url", url_of(ours), "--against", "http://127.0.0.1:1")
        assert main(["bench", "serve", *where, *SHORT]) == 4
    said = capsys.readouterr().err
    assert "nothing answers at http://127.0.0.1:1" in said
    assert "--against" in said
    assert ours.prompts == []


def test_the_same_server_twice_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted() as ours:
        run(ours, ours, tmp_path, "--rate", "200", *SHORT)
    assert "its prefix cache knows every prompt" in capsys.readouterr().out


def test_each_gets_its_own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's key is not told to the second."""
    monkeypatch.setenv("OUR_KEY", "ours3cret")
    with scripted() as ours, scripted() as theirs:
        run(ours, theirs, tmp_path, "--rate", "200", "--api-key-env", "OUR_KEY", *SHORT)
    assert ours.keys == {"bearer ours3cret"}
    assert theirs.keys == {""}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--against-model", "m"), "belong to --against"),
        (("--against", "ftp://x"), "--against 'ftp://x': not a URL"),
    ],
)
def test_a_bad_flag_says_what_to_do(
    flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "--url", "http://127.0.0.1:1", *flags]) == 2
    assert says in capsys.readouterr().err
