"""The history of ablations: what a line holds, and how a run moved against those before it.

Guarded against: runs of another device, model or load that count as earlier ones, a row that
answered wrongly and is the best, and a damaged line that is passed over.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from services.cli.bench.ablation.history import Run, add_run, read_runs
from services.cli.bench.ablation.movement import Movements
from shared.errors import BatonError, SettingsError


def row(tok_s: float, ms: float, kv: int, quality: float = 1.0) -> dict[str, float | None]:
    return {
        "tok_s": tok_s,
        "ms_per_token": ms,
        "kv_bytes": kv,
        "quality": quality,
        "usd_per_million_tokens": None,
    }


def run(rows: Mapping[str, Mapping[str, float | None]], date: str = "d0") -> Run:
    return Run(date, "1", "CPU", "demo", {"batch": 8}, rows, {"base": 1.0})


FIRST = run({"none": row(100.0, 10.0, 0), "both": row(400.0, 20.0, 64)}, "d1")
BEST = run({"none": row(125.0, 8.0, 0), "both": row(500.0, 16.0, 32)}, "d2")
LAST = run({"none": row(100.0, 10.0, 0), "both": row(400.0, 25.0, 128)}, "d3")
NOW = run({"none": row(110.0, 9.0, 0), "both": row(450.0, 20.0, 64)}, "d4")


def moves(found: Movements) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    records = [movement.record() for movement in found.all()]
    return {
        (each["name"], each["figure"]): (each["against_last"], each["against_best"])
        for each in records
    }


def test_each_row_is_compared_with_the_last_run_and_with_the_best_figure() -> None:
    """450 tokens/s are 12.5 % more than 400 and 10 % less than 500; of time and memory the best is
    the least."""
    assert moves(Movements(NOW, [FIRST, BEST, LAST])) == {
        ("none", "tok_s"): (0.1, -0.12),
        ("none", "ms_per_token"): (-0.1, 0.125),
        ("none", "kv_bytes"): (0.0, 0.0),
        ("both", "tok_s"): (0.125, -0.1),
        ("both", "ms_per_token"): (-0.2, 0.25),
        ("both", "kv_bytes"): (-0.5, 1.0),
    }


def test_the_table_names_the_last_run_and_shows_per_cent() -> None:
    lines = Movements(NOW, [FIRST, BEST, LAST]).text.splitlines()
    assert lines[0] == (
        "against the last of 3 runs of demo on CPU (d3, release 1), "
        "and against the best figure of all:"
    )
    assert lines[1].split() == ["throughput", "best", "latency", "best", "memory", "best"]
    both = ["both", "+12.5%", "-10.0%", "-20.0%", "+25.0%", "-50.0%", "+100.0%"]
    assert lines[3].split() == both
    assert lines[4].startswith("one run is no proof: speeds of equal runs differ too")
    assert len(lines) == 5


@pytest.mark.parametrize(
    "change", [{"device": "NVIDIA H200"}, {"model": "m"}, {"conditions": {"batch": 4}}]
)
def test_other_runs_are_not_compared(change: dict[str, object]) -> None:
    other = replace(LAST, **change)  # type: ignore[arg-type]
    found = Movements(NOW, [other])
    assert found.all() == []
    assert found.text.startswith("the first run of demo on CPU with this load in the history\n")
    assert ("not compared: 1 with another load" in found.text) == ("conditions" in change)
    assert moves(Movements(NOW, [LAST, other])) == moves(Movements(NOW, [LAST]))


def test_a_row_with_wrong_tokens_is_neither_last_nor_best_nor_compared() -> None:
    wrong = run({"none": row(999.0, 1.0, 0, quality=0.999999), "both": row(450.0, 20.0, 64)})
    assert moves(Movements(NOW, [FIRST, wrong]))["none", "tok_s"] == (None, 0.1)
    assert moves(Movements(wrong, [FIRST]))["none", "tok_s"] == (None, None)
    assert moves(Movements(wrong, [FIRST]))["both", "tok_s"] == (0.125, 0.125)


def test_a_row_that_no_run_had_has_nothing_to_move_against() -> None:
    more = run({**NOW.rows, "+ CUDA graphs": row(900.0, 2.0, 64)})
    found = Movements(more, [LAST])
    assert moves(found)["+ CUDA graphs", "tok_s"] == (None, None)
    assert found.text.splitlines()[-2].split()[-6:] == ["-"] * 6


def test_what_was_nothing_has_no_per_cent() -> None:
    grown = run({"none": row(100.0, 10.0, 64)})
    assert moves(Movements(grown, [FIRST]))["none", "kv_bytes"] == (None, None)


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    assert read_runs(path) == []
    for each in (FIRST, BEST):
        add_run(path, each)
    assert read_runs(path) == [FIRST, BEST]


def test_a_line_without_its_end_is_not_written_on(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(FIRST.line)
    add_run(path, BEST)
    assert read_runs(path) == [FIRST, BEST]


def test_a_later_release_may_say_more(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(json.dumps(json.loads(FIRST.line) | {"power_w": 300}) + "\n\n")
    assert read_runs(path) == [FIRST]


def lacking(**change: object) -> str:
    return json.dumps(json.loads(FIRST.line) | change)


@pytest.mark.parametrize(
    "line",
    [
        FIRST.line[:-9],
        "[]",
        '{"kind": "row"}',
        lacking(date=None),
        lacking(rows=[]),
        lacking(rows={"none": None}),
        lacking(rows={"none": {"tok_s": "fast"}}),
        lacking(rows={"none": {"tok_s": float("nan")}}),
        lacking(conditions=None),
    ],
)
def test_a_damaged_line_is_named_and_the_file_left_as_it_is(tmp_path: Path, line: str) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(f"{FIRST.line}\n{line}\n")
    before = path.read_bytes()
    with pytest.raises(SettingsError, match=r"h\.jsonl: line 2 is damaged \(.*\); repair or"):
        read_runs(path)
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_used_says_so_before_a_run_and_gives_the_line_after_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_runs(tmp_path)
    with pytest.raises(BatonError, match="cannot be written") as told:
        add_run(tmp_path, FIRST)
    assert FIRST.line in str(told.value)
