"""What a campaign prints and keeps."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from services.cli.chaos.asks import Ask
from services.cli.chaos.attempt import Attempt
from services.cli.chaos.campaign import Outcome
from services.cli.chaos.fault import Injected
from services.cli.chaos.kinds import KINDS, chosen_kinds, possible
from services.cli.chaos.load import Asked
from services.cli.chaos.memory import Growth
from services.cli.chaos.oracle import Verdict
from services.cli.chaos.report import explain, is_clean, read_runs, record, render
from shared.errors import SettingsError

FAULT = Injected("kill engine", "decode-0", 1.2, 1.3)


def outcome(*problems: str, times_s: tuple[float, ...] = (1.0, 1.1, 1.9, 2.0)) -> Outcome:
    attempt = Attempt(0, 0.5, 200, "r1", times_s=list(times_s), finish_reason="length", done=True)
    asked = Asked(Ask((1,), 8, None), "key", [attempt])
    verdict = Verdict("answered", problems, hit=True)
    return Outcome(faults=[FAULT], verdicts=[(asked, verdict)], num_histories=1)


def test_a_run_as_a_line() -> None:
    line = record(outcome(), 7)
    assert (line["seed"], line["faults"], line["kinds"]) == (7, 1, {"kill engine": 1})
    assert line["outcomes"] == {"answered": 1, "hit": 1}
    assert line["stalls_s"] == {"killed": [pytest.approx(0.8)]}
    assert is_clean(line)
    assert not is_clean({**line, "histories": 0}), "nobody asked what happened"


@pytest.mark.parametrize(
    ("faults", "group"),
    [
        ([Injected("freeze engine", "", 1.2, 1.3)], "frozen or cut"),
        (
            [Injected("freeze engine", "", 0.5, 1.05), Injected("kill worker", "", 1.8, 3.0)],
            "killed",
        ),
        ([Injected("wire cut one way", "", 1.2, 1.3)], "frozen or cut"),
        ([Injected("Redis killed", "", 1.2, 1.3), FAULT], "other faults"),
        ([Injected("kill worker", "", 2.0, 3.0)], "other faults"),
    ],
)
def test_a_stall_is_put_down_to_the_first_fault_in_it(faults: list[Injected], group: str) -> None:
    line = record(replace(outcome(), faults=faults), 1)
    assert list(line["stalls_s"]) == [group]
    assert f"{group}: p50 0.80 s, p99 0.80 s, n 1" in render([line])


def test_a_line_of_an_older_release_has_no_stalls() -> None:
    line = record(outcome(), 1)
    del line["stalls_s"], line["memory"]
    assert "stall" not in render([line])


def test_how_spared_processes_grow() -> None:
    growth = Growth("gateway", 80 * 2**20, -1e5, 4.2e6, 7200)
    text = render([record(replace(outcome(), growths=[growth]), 1)])
    assert (
        "memory of gateway: 80.0 MiB, then -0.10 MB an hour, below 4.20 (95 %), over 2.00 h" in text
    )


@pytest.mark.parametrize(
    "unclean",
    [
        outcome("lost: 500"),
        replace(outcome(), not_injected=["x"]),
        replace(outcome(), violations=["x"]),
        Outcome(faults=[FAULT]),
    ],
)
def test_every_finding_makes_a_run_unclean(unclean: Outcome) -> None:
    assert not is_clean(record(unclean, 1))


def test_a_fault_in_fifty_may_not_be_seen() -> None:
    line = record(outcome(), 1) | {"faults": 100}
    assert is_clean(line | {"not_injected": 2})
    assert not is_clean(line | {"not_injected": 3})
    few = {"not_injected": 2, "unseen": {"kill engine": 2}}
    assert not is_clean(line | few)
    assert is_clean(line | few | {"kinds": {"kill engine": 2}})


def test_runs_are_added_up() -> None:
    lines = [record(outcome(), 1), record(outcome("lost: 500"), 2)]
    text = render(lines)
    assert "2 faults of 1 kinds in 2 runs, 0 not injected; 2 requests, 2 hit: 1 lost" in text
    assert "no request was hit" not in text
    spared = [{**line, "outcomes": {**line["outcomes"], "hit": 0}} for line in lines]
    assert "no request was hit" in render(spared)
    assert "0 billed twice" in text
    assert "killed: p50 0.80 s, p99 0.80 s, n 2" in text


def test_problems_are_told_in_words_up_to_a_number() -> None:
    many = outcome(*(f"lost: {number}" for number in range(30)))
    told = list(explain(many))
    assert told[0].startswith("lost: 0; request r1 at gateway 1: 200")
    assert told[-1] == "and 10 more"


def test_a_file_of_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert read_runs(path) == []
    path.write_text(json.dumps({"seed": 1}) + "\n")
    assert read_runs(path) == [{"seed": 1}]
    path.write_text("no JSON\n")
    with pytest.raises(SettingsError, match="--resume"):
        read_runs(path)


def test_kinds_by_name() -> None:
    assert chosen_kinds(None) == KINDS
    assert [kind.name for kind in chosen_kinds("poison, Redis killed")] == [
        "poison",
        "Redis killed",
    ]
    with pytest.raises(SettingsError, match="no 'flood'; there are kill engine"):
        chosen_kinds("flood")
    assert len({kind.name for kind in KINDS}) == len(KINDS)


def test_a_kind_that_the_machine_cannot_have_is_named() -> None:
    cut = next(kind for kind in KINDS if kind.name == "a connection is cut")
    can, missing = possible([cut])
    assert bool(can) != bool(missing)
