"""A verdict on scaling policies is as their points are.

Guarded against: a claim that holds whatever was simulated.
"""

from dataclasses import replace

import pytest

from services.simulator.outcome import Outcome
from tests.campaigns.scaling.claims import claims, curve_of, form_of, on_curve

SOME = Outcome("replay-0.99", "azure", 1, 1000, 0.985, 9.0, 27.0, 3, 3.0, {}, [], [])


def outcome(policy: str, pods: float, share: float, num_reversals: int = 0) -> Outcome:
    return replace(SOME, policy=policy, pods=pods, attainment=share, num_reversals=num_reversals)


CURVE = [
    outcome("replay-0.9", 7.0, 0.95),
    outcome("replay-0.99", 9.0, 0.99),
    outcome("replay-0.95", 8.0, 0.94),
]
BOUND = outcome("foresight-0.99", 8.0, 0.995)


def failing(source: str, *more: Outcome) -> list[str]:
    found = claims("load", [*CURVE, BOUND, *more], form_of(source))
    return [claim.text for claim in found if not claim.holds]


def test_the_curve_rises_and_is_a_line_between_its_points() -> None:
    curve = curve_of({one.policy: (one.pods, one.attainment) for one in CURVE})
    assert curve == [(7.0, 0.95), (9.0, 0.99)]
    assert on_curve(curve, 8.0) == pytest.approx(0.97)
    assert on_curve(curve, 6.9) is None


def test_a_good_policy_has_nothing_that_fails() -> None:
    assert failing("azure-code", outcome("hpa-0.7", 8.0, 0.95), outcome("keda", 20.0, 1.0)) == []


@pytest.mark.parametrize(
    ("source", "more", "said"),
    [
        (
            "AzureLLMInferenceTrace_code.csv",
            outcome("hpa-0.7", 8.0, 0.971),
            "hpa-0.7 at most 0 points above",
        ),
        ("azure", outcome("keda", 8.0, 0.965), "keda, under 97 %, at least 1 point below"),
        ("mooncake", outcome("hpa-0.7", 8.0, 0.974), "hpa-0.7 at most 0.3 points above"),
    ],
)
def test_a_rival_above_the_curve_is_seen(source: str, more: Outcome, said: str) -> None:
    assert any(said in text for text in failing(source, more))


@pytest.mark.parametrize("source", ["mooncake", "traces/conversation_trace.jsonl", "any.jsonl"])
def test_mooncake_allows_a_little_more(source: str) -> None:
    assert failing(source, outcome("hpa-0.7", 8.0, 0.972)) == []


def test_a_steady_load_allows_no_reversal_at_all() -> None:
    restless = outcome("replay-0.99", 9.0, 0.99, num_reversals=1)
    assert [claim.holds for claim in claims("steady", [restless])] == [False]
    assert [claim.holds for claim in claims("steady", [SOME])] == [False]
    assert [claim.holds for claim in claims("steady", [CURVE[1]])] == [True]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (outcome("replay-0.99", 9.0, 0.979), "points behind foresight"),
        (outcome("replay-0.99", 10.1, 0.99), "x its GPU-hours"),
        (outcome("replay-0.99", 9.0, 0.99, num_reversals=7), "quick reversals an hour"),
    ],
)
def test_a_policy_that_is_late_dear_or_restless_is_seen(changed: Outcome, said: str) -> None:
    found = [claim for claim in claims("azure", [changed, BOUND]) if not claim.holds]
    assert [said in claim.text for claim in found] == [True]
