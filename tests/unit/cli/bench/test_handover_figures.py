"""What `baton bench handover` makes of answers and receipts: all against arithmetic by hand."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import pytest

from services.cli.bench.handover.figures import find_figures
from services.cli.bench.handover.measurement import Answer, Answers, CellRun, token_times_s
from services.cli.bench.handover.timeline import read_timeline, render_svg, render_text
from services.cli.bench.measure.findings import Finding, faults
from services.cli.bench.serve.sample import RequestSample
from shared.errors import BatonError

MS = 1_000_000
STAGES: Sequence[Mapping[str, Any]] = (
    {"name": "read", "start_ns": 1000 * MS, "end_ns": 1001 * MS},
    {
        "name": "prefill",
        "start_ns": 1002 * MS,
        "end_ns": 1090 * MS,
        "events": [["chunk", 1040 * MS], ["chunk", 1090 * MS]],
    },
    {
        "name": "kv_transfer",
        "start_ns": 1040 * MS,
        "end_ns": 1095 * MS,
        "events": [["sealed", 1091 * MS]],
    },
    {"name": "decode", "start_ns": 1096 * MS, "end_ns": 1200 * MS, "events": []},
)
RECEIPT: Mapping[str, Any] = {
    "prompt_tokens": 1024,
    "cached_tokens": 1023,
    "received_ns": 1000 * MS,
    "first_token_ns": 1092 * MS,
    "bytes": 11_000_000,
    "transport": "tcp",
    "stages": STAGES,
}


def answer(
    *times_s: float, receipt: Mapping[str, Any] = RECEIPT, tokens: Sequence[int] = ()
) -> Answer:
    sample = RequestSample(0, 0.0, 1024, len(times_s), status=200, counted_from="continuous")
    sample.chunk_times_s = list(times_s)
    sample.chunk_tokens = list(tokens) or [1] * len(times_s)
    sample.completion_tokens = sum(sample.chunk_tokens)
    return Answer(sample, receipt)


def answers(*all: Answer, late_s: float = 0.0) -> Answers:
    return Answers(all, [late_s] * 100)


PD = answer(0.100, 0.112, 0.116, 0.120, 0.124)
AGG = answer(0.100, 0.104, 0.108, 0.112, 0.116, receipt={})


def figures(pd_idle: Answers, agg_idle: Answers) -> dict[str, Finding]:
    pair = answers(PD, PD)
    late = answer(0.1, 0.12, 0.124, 0.128, 0.132)
    pd = CellRun({1024: pd_idle}, {1024: pair}, {1024: answers(late, late)}, {1024: pair})
    return {one.name.strip(): one for one in find_figures(pd, CellRun({1024: agg_idle}))}


def test_what_a_hand_over_adds_and_its_goal() -> None:
    found = figures(answers(PD, PD), answers(AGG, AGG))
    added = found["time added to token 2, 1024 tokens, p50"]
    assert added.value == pytest.approx(8.0)
    assert added.goal == pytest.approx(0.01 * 100.0 + 1.0)
    assert added.met is False
    gap = found["gap 1-2 / median gap, idle, 1024 tokens, p50"]
    assert gap.value == pytest.approx(3.0)
    assert (gap.goal, gap.met) == (1.3, False)
    assert found["with agg, 1024 tokens, p50"].value == pytest.approx(1.0)
    assert found["gap 1-2 / median gap, loaded, 1024 tokens, p50"].goal is None
    behind = found["gap 1-2 / median gap, prompt behind it, 1024 tokens, p50"]
    assert behind.value == pytest.approx(5.0)
    rate = found["KV of 11 MB, p50"]
    assert rate.value == pytest.approx(11e6 / 55e6)
    assert "over tcp" in rate.note


def test_a_hand_over_that_adds_nothing_meets_its_goals() -> None:
    quick = answer(0.1, 0.104, 0.108, 0.112, 0.116)
    found = figures(answers(quick, quick), answers(AGG, AGG))
    assert found["time added to token 2, 1024 tokens, p50"].met
    assert found["gap 1-2 / median gap, idle, 1024 tokens, p50"].met
    assert faults(list(found.values()), strict=True) == []


@pytest.mark.parametrize("late", ["pd", "agg"])
def test_times_of_a_late_client_are_invalid(late: str) -> None:
    pd = answers(PD, PD, late_s=0.05 if late == "pd" else 0.0)
    agg = answers(AGG, AGG, late_s=0.05 if late == "agg" else 0.0)
    found = figures(pd, agg)
    added = found["time added to token 2, 1024 tokens, p50"]
    assert "loop was late" in added.invalid
    assert added.met is None
    (fault,) = faults(list(found.values()), strict=False)
    assert added.name in fault
    assert not found["KV of 11 MB, p50"].invalid  # receipts do not depend on the client


def test_requests_that_were_not_handed_over_are_no_hand_overs() -> None:
    local = answer(0.1, 0.101, 0.102, 0.103, 0.104, receipt={**RECEIPT, "bytes": 0})
    found = figures(answers(PD, PD, local), answers(AGG, AGG))
    assert found["time added to token 2, 1024 tokens, p50"].n == 2
    with pytest.raises(BatonError, match="no request was handed over"):
        figures(answers(local, local), answers(AGG, AGG))


def test_a_rate_of_prompts_that_were_not_cached_is_invalid() -> None:
    """Prefill computed meanwhile: that was no transfer at once."""
    cold = answer(0.1, 0.112, 0.116, 0.12, 0.124, receipt={**RECEIPT, "cached_tokens": 0})
    pair = {1024: answers(PD, PD)}
    run = CellRun(pair, pair, pair, {1024: answers(PD, cold)})
    found = find_figures(run, CellRun({1024: answers(AGG, AGG)}))
    assert [one.part for one in found if one.invalid] == ["rate"]


def test_tokens_that_came_together_are_not_timed() -> None:
    together = answer(0.1, 0.104, 0.108, tokens=(2, 1, 1))
    assert token_times_s(together.sample) == []
    unknown = answer(0.1, 0.104).sample
    unknown.counted_from = "total"
    assert token_times_s(unknown) == []
    with pytest.raises(BatonError, match="only 0 of the answers"):
        figures(answers(together, together), answers(AGG, AGG))


def test_a_token_2_that_came_with_token_3_was_as_late() -> None:
    held = answer(0.1, 0.112, 0.116, 0.12, tokens=(1, 2, 1, 1))
    found = figures(answers(held, held), answers(AGG, AGG))
    assert found["gap 1-2 / median gap, idle, 1024 tokens, p50"].value == pytest.approx(3.0)


def moments(receipt: Mapping[str, Any]) -> dict[str, float | None]:
    return {one.name: one.at_ms for one in read_timeline(receipt, 1112 * MS).moments}


def test_the_moments_of_a_hand_over_are_in_its_receipt() -> None:
    assert moments(RECEIPT) == {
        "prefill begins": 2.0,
        "first chunk computed and published": 40.0,
        "last chunk computed and published": 90.0,
        "token 1 at the gateway": 92.0,
        "published, as decode read it": None,
        "sealed, as decode read it": 91.0,
        "copied": None,
        "verified": 95.0,
        "adopted": None,
        "first decode step begins": 96.0,
        "prefill's copy released": None,
        "token 2 at the client": 112.0,
    }


def test_the_moments_that_decode_saw_are_shown() -> None:
    stages = [dict(stage) for stage in STAGES]
    stages[2]["events"] = [["published", 1090 * MS], ["sealed", 1091 * MS], ["copied", 1093 * MS]]
    found = moments({**RECEIPT, "stages": stages})
    assert (found["published, as decode read it"], found["copied"]) == (90.0, 93.0)
    assert found["adopted"] is None


def test_a_missing_moment_is_named() -> None:
    text = render_text(read_timeline(RECEIPT, 1112 * MS))
    assert "         -  copied: not in the receipt\n" in text
    assert "     95.00  verified\n" in text
    record = read_timeline(RECEIPT, 1112 * MS).record()
    assert record["moments_ms"]["copied"] is None
    assert record["prompt_tokens"] == 1024


@pytest.mark.parametrize("receipt", [RECEIPT, {}])
def test_the_picture_is_svg_whatever_is_missing(receipt: Mapping[str, Any]) -> None:
    drawn = render_svg(read_timeline(receipt, 1112 * MS))
    assert ElementTree.fromstring(drawn).tag.endswith("svg")  # noqa: S314 our own text
    assert ("hand-over" in drawn) and ("token 2 at the client" in drawn)
