"""The `x-baton-receipt` header: where the receipt is in an answer, and which answers have none."""

import math
from typing import Any

import httpx
import openai
import pytest

from tests.support.cases.http_bodies import (
    CHAT,
    MESSAGES,
    TEXT,
    chat_body,
    events_of,
    message_body,
    named_events_of,
    text_body,
)
from tests.support.fakes.served_app import ServedApp
from tests.support.models.text_models import MODEL_NAME

pytestmark = pytest.mark.anyio
HEADER = {"x-baton-receipt": "1"}
PATH_MS = {
    "queue": 0.4,
    "prefill": 60.0,
    "handover": 1.6,
    "decode": 900.0,
    "other": 2.0,
    "total": 964.0,
}
BODY = {
    "id": "r",
    "prompt_tokens": 40,
    "cached_tokens": 16,
    "completion_tokens": 9,
    "ended_ns": 10**18,
    "critical_path_ms": PATH_MS,
    "route": "prefill prefix estimated_ttft_ms=1.0 uncached=24 candidates=2",
    "workers": {"prefill": "p0", "decode": "d1"},
    "attempts": [
        {
            "epoch": 0,
            "route": "x",
            "prefill": "p0",
            "decode": "d1",
            "end": "done",
            "mode": "prefill",
        }
    ],
    "transport": "tcp",
    "bytes": 4096,
    "blocks": 3,
    "gpu_ms": 961.5,
    "saved_gpu_ms": 12.25,
    "tenant": "default",
}
STAGES = ["read", "queue", "prefill", "handover", "decode", "deliver"]


class AnyReceipt(dict[str, dict[str, Any]]):
    """A door's receipts: the same for every id."""

    def get(self, key: str, default: Any = None) -> Any:
        return BODY


@pytest.fixture
def receipts(app: ServedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.door, "receipts", AnyReceipt())


@pytest.mark.usefixtures("receipts")
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_in_a_whole_answer(client: httpx.AsyncClient, path: str) -> None:
    body = chat_body() if path == CHAT else text_body()
    answer = (await client.post(path, json=body, headers=HEADER)).json()
    receipt = answer["baton"]
    assert list(receipt["stages_ms"]) == STAGES
    assert math.isclose(sum(receipt["stages_ms"].values()), receipt["total_ms"], rel_tol=1e-6)
    assert receipt["stages_ms"]["read"] == 2.0
    assert (receipt["route"], receipt["workers"]) == (BODY["route"], BODY["workers"])
    assert (receipt["transport"], receipt["bytes"], receipt["blocks"]) == ("tcp", 4096, 3)
    assert (receipt["gpu_ms"], receipt["saved_gpu_ms"]) == (961.5, 12.25)
    assert receipt["attempts"] == [
        {"epoch": 0, "route": "x", "prefill": "p0", "decode": "d1", "end": "done"}
    ]


@pytest.mark.usefixtures("receipts")
@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("with_usage", [False, True])
async def test_in_the_last_chunk_of_a_stream(
    client: httpx.AsyncClient, path: str, n: int, with_usage: bool
) -> None:
    body = chat_body(n=n, stream=True) if path == CHAT else text_body(n=n, stream=True)
    if with_usage:
        body["stream_options"] = {"include_usage": True}
    events = events_of((await client.post(path, json=body, headers=HEADER)).text)
    assert events.pop() == "[DONE]"
    assert [event for event in events if "baton" in event] == events[-1:]
    assert (events[-1]["choices"] == []) == with_usage
    assert (events[-1].get("usage") is not None) == with_usage


@pytest.mark.usefixtures("receipts")
@pytest.mark.parametrize("headers", [{}, {"x-baton-receipt": "0"}])
@pytest.mark.parametrize("streaming", [True, False])
async def test_nobody_gets_one_unasked(
    client: httpx.AsyncClient, headers: dict[str, str], streaming: bool
) -> None:
    response = await client.post(CHAT, json=chat_body(stream=streaming), headers=headers)
    assert response.status_code == 200
    assert "baton" not in response.text


@pytest.mark.parametrize("value", ["", "2", "true", "yes", "1, 1"])
async def test_other_values_are_refused(
    app: ServedApp, client: httpx.AsyncClient, value: str
) -> None:
    response = await client.post(CHAT, json=chat_body(), headers={"x-baton-receipt": value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-baton-receipt"
    assert app.door.requests == []


@pytest.mark.usefixtures("receipts")
async def test_openai_s_client_reads_choices_and_receipts(app: ServedApp) -> None:
    """The member is an extra field to it, whole and streamed."""
    async with openai.AsyncOpenAI(base_url=app.url + "/v1", api_key="any") as client:
        messages: list[Any] = [{"role": "user", "content": "hello"}]
        whole = await client.chat.completions.create(
            model=MODEL_NAME, messages=messages, n=2, extra_headers=HEADER
        )
        assert [choice.message.content for choice in whole.choices] == ["hello world"] * 2
        assert whole.model_extra is not None
        assert whole.model_extra["baton"]["workers"] == BODY["workers"]
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model=MODEL_NAME, messages=messages, n=2, stream=True, extra_headers=HEADER
            )
        ]
        texts = ["", ""]
        for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert texts == ["hello world"] * 2
        assert chunks[-1].model_extra is not None
        assert list(chunks[-1].model_extra["baton"]["stages_ms"]) == STAGES


@pytest.mark.usefixtures("receipts")
async def test_a_message_has_it_next_to_its_usage(client: httpx.AsyncClient) -> None:
    whole = (await client.post(MESSAGES, json=message_body(), headers=HEADER)).json()
    assert list(whole["baton"]["stages_ms"]) == STAGES
    stream = await client.post(MESSAGES, json=message_body(stream=True), headers=HEADER)
    *_, end, _ = named_events_of(stream.text)
    assert (end["type"], list(end["baton"]["stages_ms"])) == ("message_delta", STAGES)


async def test_an_answer_without_a_known_receipt_has_none(client: httpx.AsyncClient) -> None:
    """The last thousand are kept; an answer is not lost with its receipt."""
    answer = (await client.post(CHAT, json=chat_body(), headers=HEADER)).json()
    assert "baton" not in answer
