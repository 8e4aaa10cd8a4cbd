"""`baton bench ablation` and `baton bench sweep` as a user runs them, on a CPU with small cells.

Guarded against: a way without KV that has some, one at a time that is several, ways that differ and
are not told, and bad flags that show a traceback. How fast anything is is not judged here.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from services.cli.__main__ import main
from services.cli.bench.ablation import measurement, session
from services.cli.bench.ablation.load import Load
from services.cli.bench.ablation.row import Row
from services.cli.bench.ablation.ways import Answers, continued, recomputed
from services.cli.bench.engine.baton_subject import BatonSubject
from services.cli.bench.engine.model_choice import choose_model
from services.cli.bench.engine.workload import Workload
from shared.engine.engine import Engine
from shared.engine.handover.output import StepOutput
from shared.settings.load import load_settings
from tests.support.models.tiny_model import TINY, write_checkpoint

LOAD = Load(num_requests=4, width=3, num_shared=33, num_own=5, output=(2, 6))
SMALL = ("--requests", "4", "--batch", "3", "--shared", "33", "--own", "5", "--output", "2-6")
ABLATION = ("bench", "ablation", "--device", "cpu", *SMALL)
SWEEP = ("bench", "sweep", "--device", "cpu", "--batches", "1,4", "--prompt", "20", "--steps", "4")


def make_subject(folder: Path, *, prefix_cache: bool) -> BatonSubject:
    write_checkpoint(folder, TINY)
    choice = choose_model(str(folder), random_weights=False)
    given = {
        "device": "cpu",
        "dtype": "float32",
        "max_model_len": 64,
        "max_num_seqs": LOAD.width,
        "prefix_cache": prefix_cache,
    }
    return BatonSubject(choice, *load_settings(given, {}).of_engine)


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[BatonSubject]:
    subject = make_subject(tmp_path, prefix_cache=False)
    yield subject
    subject.close()


class Watched:
    """How many sequences got a token in one step of a run, and how many prompt tokens were
    computed."""

    def __init__(self, subject: BatonSubject) -> None:
        self.most = 0
        self._counters = subject.engine.counters
        self._before = self._num_prompt_tokens

    def __call__(self, _: Engine, output: StepOutput) -> None:
        self.most = max(self.most, len(output.tokens))

    @property
    def _num_prompt_tokens(self) -> int:
        counters = self._counters
        return counters.prefix_query_tokens - counters.prefix_hit_tokens

    @property
    def num_prompt_tokens(self) -> int:
        return self._num_prompt_tokens - self._before


def test_without_kv_each_token_computes_its_whole_sequence_again(subject: BatonSubject) -> None:
    workload = LOAD.workload(subject.vocab_size)
    watched = Watched(subject)
    with subject.watched(watched):
        answers = recomputed(subject, workload, 1)
    lengths = [(len(one.token_ids), one.num_output) for one in workload.requests]
    again = sum(prompt * output + output * (output - 1) // 2 for prompt, output in lengths)
    assert watched.num_prompt_tokens == again
    assert answers.kept.most == 0
    assert answers.kept.filled_share is None


def test_with_kv_each_prompt_is_computed_once_and_its_blocks_are_kept(
    subject: BatonSubject,
) -> None:
    workload = LOAD.workload(subject.vocab_size)
    watched = Watched(subject)
    with subject.watched(watched):
        answers = continued(subject, workload, 1)
    assert watched.num_prompt_tokens == workload.num_prompt_tokens
    assert watched.most == 1
    assert answers.kept.most == 3  # of 16 positions, for 38 tokens of prompt and up to 6 of answer
    filled = answers.kept.filled_share
    assert filled is not None
    assert 38 / 48 <= filled <= 43 / 48


def test_all_ways_give_the_same_tokens_as_many_at_once_as_they_say(subject: BatonSubject) -> None:
    workload = LOAD.workload(subject.vocab_size)
    found = []
    for way, width in ((recomputed, 1), (recomputed, 3), (continued, 1), (continued, 3)):
        watched = Watched(subject)
        with subject.watched(watched):
            found.append(way(subject, workload, width).token_ids)
        assert watched.most == width
    assert found[0] == found[1] == found[2] == found[3]
    assert [len(one) for one in found[0]] == [one.num_output for one in workload.requests]


def test_what_the_warm_up_left_in_the_prefix_cache_does_not_count(tmp_path: Path) -> None:
    subject = make_subject(tmp_path, prefix_cache=True)
    try:
        found = []
        for seed_vocab in (subject.vocab_size, subject.vocab_size - 1):  # other prompts
            answers = continued(subject, LOAD.workload(seed_vocab), LOAD.width)
            found.append((answers.kept.most, answers.num_prefix_hits))
    finally:
        subject.close()
    assert found[0] == found[1]
    assert found[0][1] >= 32  # the one that waited for a place found two blocks


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_ablation_shows_and_writes_every_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, plot = tmp_path / "a.jsonl", tmp_path / "a.svg"
    assert main([*ABLATION, "--json", str(lines), "--plot", str(plot)]) == 0
    text = capsys.readouterr().out
    environment, *found = read_lines(lines)
    assert (environment["kind"], environment["batch"]) == ("environment", 3)
    names = ["none", "batch", "KV", "both", "+ prefix cache"]
    assert [one["name"] for one in found] == [*names, "base", "parallel", "cache", "memory"]
    rows = {one["name"]: one for one in found[:5]}
    assert rows["none"]["speed_up"] == 1
    assert {(row["quality"], row["usd_per_million_tokens"]) for row in rows.values()} == {(1, None)}
    assert rows["none"]["kv_bytes"] == rows["batch"]["kv_bytes"] == 0
    assert 0 < rows["KV"]["kv_bytes"] < rows["both"]["kv_bytes"]
    assert rows["both"]["prefix_hit_share"] == 0
    assert "+ CUDA graphs: not run, as there is no GPU" in text
    ElementTree.fromstring(plot.read_text())  # noqa: S314


def test_a_second_run_says_how_it_moved_and_a_damaged_history_stops_the_third(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history, lines = tmp_path / "h.jsonl", tmp_path / "a.jsonl"
    flags = [*ABLATION, "--history", str(history), "--price", "2", "--json", str(lines)]
    assert main(flags) == 0
    assert "the first run of demo on CPU with this load in the history" in capsys.readouterr().out
    assert main(flags) == 0
    out = capsys.readouterr().out
    assert "against the last of 1 run of demo on CPU (" in out
    row, doubt = out.splitlines()[-2:]
    assert row.startswith("+ prefix cache ")
    assert doubt.startswith("one run is no proof")
    first, second = read_lines(history)
    assert (second["device"], second["model"]) == ("CPU", "demo")
    assert first["conditions"] == second["conditions"]
    rows = {one["name"]: one for one in read_lines(lines) if one["kind"] == "row"}
    for name, figures in second["rows"].items():
        assert figures.items() <= rows[name].items()
        assert figures["usd_per_million_tokens"] == pytest.approx(
            2 / (figures["tok_s"] * 3600 / 1e6), rel=1e-3
        )
    moved = [one for one in read_lines(lines) if one["kind"] == "movement"]
    assert [one["figure"] for one in moved] == ["tok_s", "ms_per_token", "kv_bytes"] * 5
    change = second["rows"]["both"]["tok_s"] / first["rows"]["both"]["tok_s"] - 1
    assert moved[9]["name"] == "both"
    assert moved[9]["against_last"] == moved[9]["against_best"] == pytest.approx(change, abs=1e-4)
    history.write_text(history.read_text()[:-20])
    assert main(flags) == 2
    assert f"--history {history}: line 2 is damaged" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_takes_no_result_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history, lines, plot = tmp_path / "h.jsonl", tmp_path / "a.jsonl", tmp_path / "a.svg"
    lines.mkdir()

    def measure_and_spoil(*arguments: Any) -> Iterator[Row]:
        yield from measurement.measure(*arguments)
        history.mkdir()

    monkeypatch.setattr(session, "measure", measure_and_spoil)
    flags = ("--history", str(history), "--json", str(lines), "--plot", str(plot))
    assert main([*ABLATION, *flags]) == 1
    out, err = capsys.readouterr()
    assert "+ prefix cache" in out and plot.exists()
    assert f"--json {lines}: cannot be written" in err
    assert f"--history {history}: cannot be written" in err
    assert '"rows": {"none": {"tok_s": ' in err, "the line can be added by hand"


def test_a_way_that_answers_otherwise_fails_loudly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(subject: BatonSubject, workload: Workload, width: int) -> Answers:
        answers = continued(subject, workload, width)
        *others, last = answers.token_ids
        return replace(answers, token_ids=(*others, (*last[:-1], last[-1] + 1)))

    monkeypatch.setattr(measurement, "continued", wrong)
    assert main([*ABLATION]) == 1
    out, err = capsys.readouterr()
    assert "+ prefix cache" in out  # what was measured is shown all the same
    assert "the ways do not give the same tokens: KV: answer 3 differs" in err


def test_a_sweep_shows_and_writes_every_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, plot = tmp_path / "s.jsonl", tmp_path / "s.svg"
    assert main([*SWEEP, "--json", str(lines), "--plot", str(plot)]) == 0
    environment, *points, knee = read_lines(lines)
    assert environment["copy_gb_s"] > 0
    assert [(one["kind"], one["batch"]) for one in points] == [("point", 1), ("point", 4)]
    assert knee["kind"] == "knee"
    assert knee["batch"] in (1, 4)
    for one in points:
        assert one["tok_s"] == pytest.approx(one["batch"] / one["ms_per_token"] * 1e3, rel=0.01)
        assert one["utilisation"] > 0
    assert "utilisation: the least time" in capsys.readouterr().out
    ElementTree.fromstring(plot.read_text())  # noqa: S314


def test_a_sweep_ends_where_the_kv_memory_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(BatonSubject, "num_kv_tokens", property(lambda self: 60))
    assert main([*SWEEP, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line).get("batch") for line in out.splitlines()] == [None, 1, 1]
    assert "batches of 4 and more left out: 100 positions, 60 fit" in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((*ABLATION, "--batch", "9"), "--batch 9: there are 4 requests"),
        ((*ABLATION, "--own", "0"), "--own 0: at least 1"),
        ((*ABLATION, "--output", "9-3"), "--output 9-3: "),
        ((*ABLATION, "--output", "x"), "--output x: lengths like"),
        ((*ABLATION, "--own", "5000"), "demo has no room for 5039 tokens"),
        ((*ABLATION, "--plot", "a.png"), "--plot a.png: "),
        ((*ABLATION, "--price", "0"), "'0' is not above zero"),
        ((*ABLATION, "--history", "/nowhere/h.jsonl"), "there is no folder /nowhere"),
        ((*ABLATION, "--history", "/"), "--history /: cannot be read: "),
        ((*SWEEP, "--batches", "0,2"), "at least 1"),
        ((*SWEEP, "--batches", "few"), "--batches few: numbers like"),
        ((*SWEEP, "--json", "/nowhere/s.jsonl"), "--json /nowhere/s.jsonl: "),
    ],
)
def test_a_bad_flag_is_named(
    flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(flags)) == 2
    assert said in capsys.readouterr().err
