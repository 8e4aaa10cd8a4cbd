"""The judgement over modelled cells: planted winners are told, equals are not told apart."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.bench.serve.report.goodput import ServiceLimits
from services.cli.bench.verdict.curve import Curve, falling, goodput
from services.cli.bench.verdict.judgement import Decision, Entry, judge, widening
from tests.support.models.load_cell import LoadCell
from tests.support.verdict_contest import verdict_of

QUIET = 0.02
AGG = LoadCell(0, 2, noise=QUIET)
PD = LoadCell(1, 1, noise=QUIET)
SEEDS = (0, 1, 2)


@pytest.mark.parametrize(
    ("gap_ms", "wanted", "decision", "says"),
    [
        # A prompt of another stops an answer for 60 ms: only apart can gaps stay below 40.
        (40.0, 0.9, "disaggregate", "Disaggregate: 1P1D serves "),
        # Gaps matter to nobody: the second worker computes no prompts.
        (500.0, 0.99, "do not disaggregate", "Do not disaggregate for this load: 1P1D serves 0."),
    ],
)
def test_a_planted_winner_is_told(
    gap_ms: float, wanted: float, decision: Decision, says: str
) -> None:
    limits = ServiceLimits(ttft_ms=300.0, gap_ms=gap_ms)
    verdict = verdict_of({"1P1D": PD, "2 agg": AGG}, limits=limits, wanted=wanted)
    assert verdict.judgement.decision == decision
    assert verdict.sentence.startswith(says)
    assert f"of 2 agg within TTFT <= 300 ms, gap p99 <= {gap_ms:g} ms" in verdict.sentence


def test_what_is_given_up_by_not_disaggregating_is_said() -> None:
    limits = ServiceLimits(ttft_ms=300.0, gap_ms=500.0)
    sentence = verdict_of({"1P1D": PD, "2 agg": AGG}, limits=limits).sentence
    assert "; its longest gaps are " in sentence
    assert "x shorter (" in sentence


def test_of_the_splits_the_best_one_is_named() -> None:
    cells = {"1P3D": LoadCell(1, 3), "2P2D": LoadCell(2, 2), "3P1D": LoadCell(3, 1)}
    verdict = verdict_of({**cells, "4 agg": LoadCell(0, 4)}, num_seeds=3)
    assert verdict.judgement.pd == "3P1D"
    tried = Counter(run.topology for run in verdict.contest.runs)
    assert tried["1P3D"] < tried["3P1D"], "a split that is beaten is not searched to its end"


def test_the_same_topology_under_two_names_makes_no_difference() -> None:
    decisions = Counter(
        verdict_of({"one": AGG, "other": AGG}, f"repetition {number}").judgement.decision
        for number in range(20)
    )
    assert decisions["no difference"] >= 19, decisions


def test_prompts_that_take_a_sixth_less_time_are_seen() -> None:
    """The judgement can fail: it does not call everything equal."""
    faster = LoadCell(0, 2, prefill_ms=50.0, noise=QUIET)
    decisions = Counter(
        verdict_of({"one": faster, "other": AGG}, f"luck {number}", wanted=0.9).judgement.decision
        for number in range(5)
    )
    assert decisions["disaggregate"] == 5, decisions


def test_a_difference_that_is_not_sure_is_said_to_be_possible() -> None:
    faster = LoadCell(0, 2, prefill_ms=50.0, noise=QUIET)
    verdict = verdict_of({"one": faster, "other": AGG}, "repetition 0")
    assert verdict.judgement.decision == "no difference"
    assert verdict.sentence.startswith("No difference worth the second pool: one serves 1.1")
    assert verdict.sentence.endswith("; with more --seeds there may be one.")


def test_invalid_points_are_no_verdict_and_the_reason_is_said() -> None:
    verdict = verdict_of({"1P1D": PD, "2 agg": AGG}, late_above=7.0)
    assert verdict.judgement.decision == "no verdict"
    assert verdict.sentence.startswith("No verdict: 1P1D held the limits up to 6/s, the highest")
    assert "INVALID, at 12/s sends were late" in verdict.sentence
    invalid = [run for run in verdict.contest.runs if run.invalid]
    assert {run.rate for run in invalid} == {12.0}
    assert len(invalid) == 2 * 3 * 3, "each run is tried three times"


def curve(shares: dict[float, float], num: int = 100) -> Curve:
    counts = dict.fromkeys(SEEDS, 1)
    return Curve(
        {
            rate: {seed: (round(share * num), num) for seed in counts}
            for rate, share in shares.items()
        }
    )


def decided(pd: dict[float, float], agg: dict[float, float]) -> tuple[str, str]:
    entries = [Entry("1P1D", "pd", curve(pd)), Entry("2 agg", "agg", curve(agg))]
    found = judge(entries, SEEDS, 0.9)
    return found.decision, found.bound or found.why


def test_the_rule() -> None:
    base = {10.0: 1.0, 10.4: 0.8}
    assert decided(base, base) == ("no difference", "")
    assert decided({10.4: 1.0, 10.8: 0.8}, base)[0] == "no difference"
    assert decided({11.0: 1.0, 11.4: 0.8}, base)[0] == "disaggregate"
    assert decided(base, {11.0: 1.0, 11.4: 0.8})[0] == "do not disaggregate"


def test_a_side_that_holds_nothing_is_a_bound() -> None:
    nothing, base = {2.0: 0.1, 1.0: 0.2}, {10.0: 1.0, 10.4: 0.8}
    assert decided(base, nothing) == ("disaggregate", "at least")
    assert decided(nothing, base) == ("do not disaggregate", "at most")
    decision, why = decided(nothing, nothing)
    assert decision == "no verdict"
    assert why.startswith("1P1D and 2 agg held the limits at no rate: wider limits")
    # agg can only be worse than its lowest rate, which is no reason to keep it
    assert decided(base, {20.0: 0.5})[0] == "no verdict"


@pytest.mark.parametrize(
    ("agg", "why"),
    [
        ({10.0: 1.0}, "2 agg held the limits up to 10/s"),
        ({10.0: 1.0, 14.0: 0.1}, "the goodput of 2 agg is only known to lie from 10 to 14/s"),
        ({}, "2 agg has no valid point"),
    ],
)
def test_too_little_is_no_verdict(agg: dict[float, float], why: str) -> None:
    decision, said = decided({10.0: 1.0, 10.4: 0.8}, agg)
    assert decision == "no verdict"
    assert said.startswith(why)


def test_seeds_that_disagree_are_no_verdict() -> None:
    points = {
        rate: {seed: (100 if rate < 8 + 4 * seed else 0, 100) for seed in SEEDS}
        for rate in (7.0, 9.0, 11.0, 13.0, 15.0, 15.5, 17.0)
    }
    agg = {rate: dict.fromkeys(SEEDS, (100 if rate < 15.2 else 0, 100)) for rate in points}
    entries = [Entry("1P1D", "pd", Curve(points)), Entry("2 agg", "agg", Curve(agg))]
    assert judge(entries, SEEDS, 0.3).decision == "no verdict"


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_shares_fall_and_keep_their_sum(shares: list[float]) -> None:
    found = [share for _, share in falling([(float(at), one) for at, one in enumerate(shares)])]
    assert all(one >= other - 1e-12 for one, other in itertools.pairwise(found))
    assert sum(found) == pytest.approx(sum(shares), abs=1e-9)


def test_goodput_lies_on_the_line_between_two_rates() -> None:
    assert goodput([(10.0, 1.0), (12.0, 0.8)], 0.9) == pytest.approx(11.0)
    assert goodput([(10.0, 1.0), (12.0, 0.95)], 0.9) == 12.0
    assert goodput([(10.0, 0.5), (12.0, 0.4)], 0.9) == 10.0


def test_few_seeds_make_intervals_wide() -> None:
    assert widening(3) == pytest.approx(2.69, abs=0.01)
    assert widening(3) > widening(5) > widening(10) == pytest.approx(widening(11), rel=0.01)


def test_a_goodput_is_told_between_the_rates_that_were_tried() -> None:
    """Chance makes draws of few seeds differ; beyond the rates nothing is known."""
    counts = {4.0: (40, 45, 47), 8.0: (47, 44, 40), 12.0: (20, 46, 10)}
    points = {rate: dict(enumerate((good, 50) for good in row)) for rate, row in counts.items()}
    entries = [Entry("1P1D", "pd", Curve(points)), Entry("2 agg", "agg", Curve(points))]
    for wanted, bound in ((0.3, "at least 12/s"), (0.95, "at most 4/s"), (0.85, "")):
        judgement = judge(entries, (0, 1, 2), wanted)
        value, low, high = judgement.goodputs["1P1D"]
        assert 4.0 <= low <= value <= high <= 12.0
        text = judgement.goodput_text("1P1D")
        assert text == bound or (not bound and text == f"{value:.3g}/s ({low:.3g}-{high:.3g})")
