"""Frames to messages: what is read back, and which bad value is named where."""

from typing import Any

import msgpack
import pytest

from shared.errors import ProtocolError
from shared.protocol import (
    CODEC,
    WORKER_CODEC,
    Assign,
    Attempt,
    Load,
    Sampling,
    TokenLogprobs,
    TokenRun,
    Tokens,
    Work,
)

LOAD = Load(1, 2, 3, 4, 5, 6, 7, 8)
RUN = TokenRun("r", 2, 7, (5, 6), (TokenLogprobs(-0.5, (1,), (-2.0,)), TokenLogprobs(-1.5)), "stop")
PLAIN = TokenRun("s", 0, 0, (9,))


def test_a_frame_of_tokens_comes_back_with_its_types() -> None:
    read = CODEC.decode(CODEC.encode(Tokens("d.1", (RUN, PLAIN), LOAD)))
    assert read == Tokens("d.1", (RUN, PLAIN), LOAD)
    assert [type(run) for run in read.runs] == [TokenRun, TokenRun]
    assert type(read.runs[0].logprobs[0]) is TokenLogprobs
    assert type(read.runs[0].token_ids) is tuple


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ((1, 0, 0, 7), r"tokens\.runs\.rid: expected str, got int"),
        ((1, 0, 1, True), r"tokens\.runs\.epoch: expected int, got bool"),
        ((1, 0, 3, [5, 6.0]), r"tokens\.runs\.token_ids: expected int, got float"),
        ((1, 0, 3, "ab"), r"tokens\.runs\.token_ids: expected an array"),
        ((1, 0, 4, [[]]), r"tokens\.runs\.logprobs: expected at least 1 fields"),
        ((1, 0, 5, "why"), r"tokens\.runs\.finish_reason: no allowed type"),
        ((1, 0, ["s", 0, 0]), r"tokens\.runs: expected at least 4 fields"),
        ((1, {}), r"tokens\.runs: expected an array"),
        ((2, 8, "tired"), r"tokens\.load\.state: not one of"),
    ],
)
def test_a_bad_value_is_named_by_its_place(change: tuple[Any, ...], place: str) -> None:
    parts = msgpack.unpackb(CODEC.encode(Tokens("d.1", (RUN,), LOAD)), use_list=True)
    *path, last, value = change
    at = parts[1:]
    inner = at
    for step in path:
        inner = inner[step]
    inner[last] = value
    with pytest.raises(ProtocolError, match=place):
        CODEC.decode(msgpack.packb([parts[0], *at]))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ((0, 7), r"assign\.work: expected at least 5 fields"),
        ((0, 0, ["r"]), r"assign\.work\.attempt: expected at least 2 fields"),
        ((0, 0, 1, "0"), r"assign\.work\.attempt\.epoch: expected int, got str"),
        ((0, 1, b"abc"), r"assign\.work\.token_ids: expected packed token ids"),
        ((0, 4, 1, "hot"), r"assign\.work\.sampling\.temperature: expected float, got str"),
        ((2, "both"), r"assign\.mode: not one of"),
    ],
)
def test_a_bad_value_of_the_work_is_named_by_its_place(change: tuple[Any, ...], place: str) -> None:
    work = Work(Attempt("r", 0), (1, 2), 2, bytes(32), Sampling(8))
    name, *parts = msgpack.unpackb(CODEC.encode(Assign(work, "p.1", "prefill")), use_list=True)
    *path, last, value = change
    inner = parts
    for step in path:
        inner = inner[step]
    inner[last] = value
    with pytest.raises(ProtocolError, match=place):
        WORKER_CODEC.decode(msgpack.packb([name, *parts]))
