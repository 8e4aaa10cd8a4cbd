"""What a campaign says of its figures, and of the streams they are made of."""

import json

import pytest

from tests.campaigns.figures import Figure, at_least, at_most, exactly, judge, quantile
from tests.campaigns.load import Ask, Asked, describe_lost, num_wrong
from tests.e2e.sse_load import LoadedStream

ASK = Ask((5, 6, 7), 2)


def stream(text: str, attempts: int = 1, **fields: object) -> LoadedStream:
    """A whole answer of two tokens, unless `fields` say otherwise."""
    events: list[dict[str, object]] = [
        {"choices": [{"text": text}]},
        {"choices": [], "usage": {"completion_tokens": 2}, "baton": {"attempts": [{}] * attempts}},
    ]
    lines = [f"data: {json.dumps(event, separators=(',', ':'))}" for event in events]
    body = "\n\n".join([*lines, "data: [DONE]", ""]).encode()
    facts = {"status": 200, "tail": body, "times_s": [0.1, 0.9, 1.0], **fields}
    return LoadedStream(0.0, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("figure", "met", "wanted"),
    [
        (exactly("lost", 0), True, "0"),
        (exactly("lost", 1), False, "0"),
        (at_most("stall", 1.0, 1.0), True, "<= 1"),
        (at_most("stall", 1.01, 1.0), False, "<= 1"),
        (at_least("share", 0.9, 0.9), True, ">= 0.9"),
        (at_least("share", 0.89, 0.9), False, ">= 0.9"),
        (Figure("ratio", 1.01, 0.995, 1.005), False, ">= 0.995, <= 1.005"),
    ],
)
def test_a_figure_is_met_within_its_limits(figure: Figure, met: bool, wanted: str) -> None:
    assert (figure.met, figure.wanted) == (met, wanted)
    assert str(figure).startswith("PASS" if met else "FAIL")
    assert judge([figure]) == (not met)


def test_one_missed_figure_is_the_exit_status() -> None:
    assert judge([exactly("lost", 0), exactly("wrong", 2), exactly("leaked", 0)]) == 1


def test_quantiles() -> None:
    assert [quantile([3, 1, 2], share) for share in (0.0, 0.5, 0.99)] == [1, 2, 3]
    assert quantile([], 0.5) == 0


def test_a_whole_stream() -> None:
    asked = Asked(ASK, [stream("so")])
    assert (asked.accepted, asked.lost, asked.answer) == (True, False, ("so", 2))
    assert asked.longest_wait_s == pytest.approx(0.8)
    assert len(Asked(ASK, [stream("so", attempts=2)]).attempts) == 2


@pytest.mark.parametrize(
    ("faults_s", "stall_s"),
    [((), 3.0), ((11.0,), 2.0), ((11.0, 12.5), 2.0), ((12.9,), 1.5), ((9.0, 13.5), 3.0)],
)
def test_a_stall_before_the_first_token_begins_with_the_fault(
    faults_s: tuple[float, ...], stall_s: float
) -> None:
    """What it waited before was no fault's doing; of a wait between two tokens all counts."""
    asked = Asked(ASK, [LoadedStream(10.0, times_s=[3.0, 4.5, 4.6])])
    assert asked.stall_s(faults_s) == pytest.approx(stall_s)


def test_refused_is_not_lost_and_cut_off_is() -> None:
    refused = Asked(ASK, [LoadedStream(0.0, status=429, tail=b'{"error": {}}')])
    assert (refused.accepted, refused.lost) == (False, False)
    cut = Asked(ASK, [stream("so", tail=b'data: {"choices":[{"text":"so"}]}\n\n')])
    never = Asked(ASK, [LoadedStream(0.0, tail=b"ConnectionResetError()")])
    failed = Asked(ASK, [stream("so", tail=b'data: {"error": {}}\n\ndata: [DONE]\n\n')])
    assert [item.lost for item in (cut, never, failed)] == [True, True, True]
    assert describe_lost([refused, never]) == "lost: 0 ConnectionResetError()"
    assert describe_lost([cut]).startswith('lost: 200 data: {"choices"')


def test_an_answer_that_is_not_the_known_one_is_wrong() -> None:
    asked = [Asked(ASK, [stream("so")]), Asked(ASK, [stream("no")])]
    assert num_wrong(asked, {ASK: ("so", 2)}) == 1
    assert num_wrong(asked[:1], {ASK: ("so", 3)}) == 1
