"""What the fuzzing of bodies calls a fault, and what it sends."""

import itertools
import json
import random

import pytest

from tests.campaigns.body_fuzz import Seen, _Answer, figures
from tests.campaigns.odd_bodies import BODIES, OddRequest, odd_heads, odd_requests

SENT = OddRequest("/v1/completions", b"{}")
REFUSAL = b'{"error": {"message": "prompt: missing"}}'


def answer(status: int, body: bytes = REFUSAL) -> _Answer:
    found = _Answer()
    found.on_head(status, {})
    found.on_body(body)
    return found


@pytest.mark.parametrize(
    ("status", "body", "num_odd"),
    [(200, b"{}", 0), (400, REFUSAL, 0), (413, b"no", 1), (500, REFUSAL, 1), (302, b"", 1)],
)
def test_only_answers_and_refusals_with_a_reason_are_right(
    status: int, body: bytes, num_odd: int
) -> None:
    seen = Seen()
    seen.note(SENT, answer(status, body), 0.001)
    assert len(seen.odd) == num_odd


@pytest.mark.parametrize(
    ("come", "num_odd"),
    [
        (b"", 0),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", 0),
        (b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 400 Bad Request\r\n\r\n", 0),
        (b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 500 Error\r\n\r\n", 1),
        (b"Traceback", 1),
    ],
)
def test_a_head_is_refused_or_the_connection_ends(come: bytes, num_odd: int) -> None:
    seen = Seen()
    seen.note_head(b"GET", come)
    assert len(seen.odd) == num_odd


def test_each_finding_misses_a_figure() -> None:
    def missed(seen: Seen) -> list[str]:
        return [figure.name for figure in figures(seen, 3) if not figure.met]

    def clean() -> Seen:
        seen = Seen(probes_s=[0.001])
        for status in (400, 400, 200):
            seen.note(SENT, answer(status), 0.001)
        return seen

    assert missed(clean()) == []
    seen = clean()
    seen.note(SENT, answer(503), 0.001)
    assert missed(seen) == ["answers that must not be"]
    seen = clean()
    seen.rejects_s.append(0.2)
    assert missed(seen) == ["refusal, p99"]
    seen = clean()
    seen.probes_s.append(0.2)
    assert missed(seen) == ["probe meanwhile, p99"]
    seen = clean()
    seen.num_left = 1
    assert missed(seen) == ["bodies that were not waited for"]
    seen = clean()
    seen.grown_mib = 17
    assert missed(seen) == ["growth of the gateway"]
    seen = clean()
    seen.num_restarts = 1
    assert missed(seen) == ["restarts of the gateway"]


def test_what_is_sent_follows_from_the_seed_and_is_of_every_path() -> None:
    def first(seed: int) -> list[OddRequest]:
        return list(itertools.islice(odd_requests(random.Random(seed)), 400))  # noqa: S311

    assert first(1) == first(1) != first(2)
    assert {sent.path for sent in first(1)} == set(BODIES)
    assert any(_is_no_json(sent.body) for sent in first(1))
    heads = list(itertools.islice(odd_heads(random.Random(1)), 20))  # noqa: S311
    assert len(set(heads)) > 10


def _is_no_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return True
    return False
