"""Sampling fields through a real socket: what is refused, and what reaches the engine.

The failure guarded: a value that crashes an engine or makes its probabilities infinite, an error
that names the wrong field, a field that is accepted and then dropped.
"""

import json
from typing import Any

import httpx
import pytest
import torch

from shared.engine.sampling.sampler import Sampler
from shared.fields.readers import MAX_BIASES
from tests.support.cases.http_bodies import CHAT, TEXT, chat_body, text_body
from tests.support.fakes.served_app import ServedApp
from tests.unit.engine.sampling.plain_sampling import row_of

pytestmark = pytest.mark.anyio
torch.set_num_threads(1)


def case(row: str, name: str, value: Any) -> Any:
    return pytest.param(name, value, id=f"row-{row}")


REFUSED = [
    *(
        case(f"56-{name}-{value}", name, value)
        for name in ("presence_penalty", "frequency_penalty")
        for value in (2.01, -2.01, "1", True)
    ),
    *(
        case(f"56-repetition_penalty-{value}", "repetition_penalty", value)
        for value in (0, -1, 1e9, 2.01, 5e-324, "1", True)
    ),
    *(case(f"min_p-{value}", "min_p", value) for value in (-0.01, 1.01, "0.1", False)),
    case("73-word", "logit_bias", {"abc": 1}),
    case("73-negative", "logit_bias", {"-1": 1}),
    case("73-vocab", "logit_bias", {"100000": 1}),
    case("73-huge", "logit_bias", {"9" * 5000: 1}),
    case("73-padded", "logit_bias", {"07": 1}),
    case("73-float", "logit_bias", {"7.0": 1}),
    case("73-other-digits", "logit_bias", {"\u0667": 1}),
    case("73-superscript", "logit_bias", {"\u00b2": 1}),
    case("73-empty", "logit_bias", {"": 1}),
    case("74-101", "logit_bias", {"7": 101}),
    case("74-low", "logit_bias", {"7": -100.01}),
    case("74-null", "logit_bias", {"7": None}),
    case("74-string", "logit_bias", {"7": "5"}),
    case("74-true", "logit_bias", {"7": True}),
    case("74-list", "logit_bias", [[7, 1]]),
    case("74-number", "logit_bias", 7),
    case("74-1025", "logit_bias", {str(index): 1 for index in range(MAX_BIASES + 1)}),
    case("74-300000", "logit_bias", {str(index): 1 for index in range(300_000)}),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
async def test_is_refused_by_name(
    app: ServedApp, client: httpx.AsyncClient, name: str, value: Any
) -> None:
    for path, body in ((CHAT, chat_body(**{name: value})), (TEXT, text_body(**{name: value}))):
        response = await client.post(path, json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", name)
        assert len(error["message"]) < 300
    assert app.door.requests == []
    assert (await client.post(CHAT, json=chat_body())).status_code == 200


async def test_row_73_the_vocabularys_last_id_is_taken_and_the_next_is_not(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    vocab_size = app.tokenizer.get_vocab_size()
    for token_id, status in ((vocab_size - 1, 200), (vocab_size, 400)):
        response = await client.post(CHAT, json=chat_body(logit_bias={str(token_id): 1}))
        assert response.status_code == status


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body), (TEXT, text_body)])
async def test_every_field_reaches_the_engine(
    app: ServedApp, client: httpx.AsyncClient, path: str, body: Any
) -> None:
    fields = {
        "min_p": 0.25,
        "presence_penalty": -2,
        "frequency_penalty": 2.0,
        "repetition_penalty": 1.25,
        "logit_bias": {"7": -100, "0": 0.5, "12": 100},
    }
    assert (await client.post(path, json=body(**fields))).status_code == 200
    sampling = app.door.requests[0].sampling
    assert (sampling.min_p, sampling.presence_penalty) == (0.25, -2.0)
    assert (sampling.frequency_penalty, sampling.repetition_penalty) == (2.0, 1.25)
    assert sampling.logit_bias == ((7, -100.0), (0, 0.5), (12, 100.0))
    assert all(type(bias) is float for _, bias in sampling.logit_bias)


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1},
        {"logit_bias": {}},
        dict.fromkeys(
            ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias")
        ),
    ],
    ids=["zeros", "no-bias", "nulls"],
)
async def test_neutral_values_ask_nothing_of_the_sampler(
    app: ServedApp, client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    for more in ({}, fields):
        response = await client.post(CHAT, json=chat_body(seed=5, **more))
        assert response.status_code == 200
    plain, neutral = (request.sampling for request in app.door.requests)
    assert neutral == plain
    row = row_of(neutral, (1, 2, 3), 2)
    assert row.bias is None and row.counts is None


async def test_row_75_a_bias_on_every_token_leaves_finite_probabilities(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    """As the gateway passes it on, so the sampler gets it."""
    vocab_size = app.tokenizer.get_vocab_size()
    biases = {str(token_id): -100 for token_id in range(vocab_size)}
    body = chat_body(logit_bias=biases, seed=3, logprobs=True, top_logprobs=20)
    response = await client.post(
        CHAT, content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert response.status_code == 200
    sampling = app.door.requests[0].sampling
    logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(1))
    drawn = []
    for length in range(2, 40):
        [token] = Sampler().sample(logits, [row_of(sampling, (1,) * length, 1)]).wait()
        assert token.logprobs is not None
        values = (token.logprobs.logprob, *token.logprobs.top_logprobs)
        assert torch.tensor(values).isfinite().all()
        drawn.append(token.token_id)
    assert len(set(drawn)) > 5
