"""Every field of ASSIGN and RECEIVE: what an engine could not compute, or keep, is not taken."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from shared.errors import ProtocolError
from shared.protocol import Assign, Hello, Receive, Sampling
from shared.transfer_address import TransferAddress
from shared.worker.acceptance import Acceptance
from shared.worker.sessions import MAX_SESSIONS, Sessions
from tests.unit.worker.fake_parts import make_assign, make_receive

ACCEPTANCE = Acceptance(vocab_size=100, max_model_len=64)
TRACE = f"00-{'1' * 32}-{'2' * 16}-01"
GOOD = Sampling(
    8,
    temperature=0.0,
    top_p=0.5,
    seed=2**63 - 1,
    stop_token_ids=(99,),
    eos_token_ids=(0,),
    logit_bias=((99, -100.0),),
    logprobs=20,
)


def assign(**changes: Any) -> Assign:
    return make_assign(**{"sampling": GOOD, "traceparent": TRACE, **changes})


def receive(**changes: Any) -> Receive:
    return make_receive(**{"sampling": GOOD, **changes})


def test_what_a_gateway_may_send_is_taken() -> None:
    assert ACCEPTANCE.rejection(assign()) is None
    assert ACCEPTANCE.rejection(assign(token_ids=tuple(range(64)))) is None
    assert ACCEPTANCE.rejection(assign(mode="local", reason="agg", ticket="")) is None
    assert ACCEPTANCE.rejection(receive()) is None
    assert ACCEPTANCE.rejection(receive(source=TransferAddress("[::1]:65535"))) is None
    assert ACCEPTANCE.rejection(receive(source=TransferAddress("h:1", "/kv.sock"))) is None
    assert ACCEPTANCE.rejection(receive(source=TransferAddress(socket="/kv/1.sock"))) is None


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"token_ids": (1, 100, 2, 3, 4)}, "token_ids"),
        ({"token_ids": (), "num_prompt_tokens": 0}, "token_ids"),
        ({"num_prompt_tokens": 6}, "num_prompt_tokens"),
        ({"num_prompt_tokens": 0}, "num_prompt_tokens"),
        ({"hash_root": bytes(31)}, "hash_root"),
        ({"rid": ""}, "rid"),
        ({"rid": "r" * 129}, "rid"),
        ({"rid": "r\n"}, "rid"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": 2**31}, "epoch"),
        ({"ticket": "t" * 257}, "ticket"),
        ({"traceparent": "00-1-2-01"}, "traceparent"),
        ({"prompt_logprobs": -2}, "prompt_logprobs"),
        ({"prompt_logprobs": 129}, "prompt_logprobs"),
    ],
)
def test_a_bad_field_is_refused_by_its_name(change: dict[str, Any], place: str) -> None:
    for message in (assign(**change), receive(**change)):
        rejection = ACCEPTANCE.rejection(message)
        assert rejection is not None and rejection.reason == "invalid"
        assert place in rejection.text


@pytest.mark.parametrize(
    "source",
    [
        TransferAddress(),
        *map(TransferAddress, ("host", "host:", ":1", "host:0", "host:65536", "h:x", "/a")),
        *(TransferAddress("h:1", path) for path in ("a/b", "/a\0", "h:1")),
    ],
)
def test_a_source_is_an_address(source: TransferAddress) -> None:
    rejection = ACCEPTANCE.rejection(receive(source=source))
    assert rejection is not None and "source" in rejection.text


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 0},
        {"min_tokens": -1},
        {"temperature": nan},
        {"temperature": -0.1},
        {"temperature": inf},
        {"top_k": -1},
        {"top_p": 1.1},
        {"min_p": nan},
        {"seed": 2**63},
        {"logprobs": -2},
        {"logprobs": 10**6},
        {"presence_penalty": inf},
        {"frequency_penalty": nan},
        {"repetition_penalty": 0.0},
        {"logit_bias": ((100, 1.0),)},
        {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((1, nan),)},
        {"stop_token_ids": (100,)},
        {"eos_token_ids": (-1,)},
        {"grammar": "x" * 2**17},
    ],
)
def test_sampling_stays_in_its_ranges(change: dict[str, Any]) -> None:
    sampling = replace(GOOD, **change)
    for message in (assign(sampling=sampling), receive(sampling=sampling)):
        rejection = ACCEPTANCE.rejection(message)
        assert rejection is not None and rejection.reason == "invalid"
        assert f"sampling.{next(iter(change))}" in rejection.text


def test_more_tokens_than_fit_is_no_fault_of_the_gateway() -> None:
    rejection = ACCEPTANCE.rejection(assign(token_ids=(1,) * 65))
    assert rejection is not None and rejection.reason == "too_long"


def test_a_gateway_is_who_showed_its_secret_first() -> None:
    sessions = Sessions()

    def hello(incarnation: str, session: str) -> Hello:
        return Hello("gateway", incarnation, "pool", session=session)

    sessions.admit(hello("g.1", "a"))
    sessions.admit(hello("g.1", "a"))
    sessions.admit(hello("g.2", "b"))
    with pytest.raises(ProtocolError, match="session secret"):
        sessions.admit(hello("g.1", ""))
    for number in range(MAX_SESSIONS):
        sessions.admit(hello(f"h.{number}", "c"))
    sessions.admit(hello("g.1", "new"))  # forgotten: memory is bounded


def test_a_hello_of_an_earlier_dial_than_the_last_is_refused() -> None:
    sessions = Sessions()

    def hello(incarnation: str, dial: int) -> Hello:
        return Hello("gateway", incarnation, "pool", session="a", dial=dial)

    for dial in (2, 4, 4):
        sessions.admit(hello("g.1", dial))
    sessions.admit(hello("g.2", 1))  # whose dials are its own
    with pytest.raises(ProtocolError, match="dialled again"):
        sessions.admit(hello("g.1", 3))
    sessions.admit(hello("g.1", 4))  # a refusal changes nothing
