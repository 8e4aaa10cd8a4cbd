"""The unmodified `openai` client against the gateway."""

from collections.abc import AsyncIterator

import openai
import pytest

from shared.errors import AttemptError
from tests.support.fakes.served_app import ServedApp, delta
from tests.support.models.text_models import MODEL_NAME

pytestmark = pytest.mark.anyio


@pytest.fixture
async def api(app: ServedApp) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=20
    ) as made:
        yield made


async def test_chat(app: ServedApp, api: openai.AsyncOpenAI) -> None:
    answer = await api.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": "hi"}],
        logprobs=True,
        top_logprobs=1,
    )
    assert answer.choices[0].message.content == "hello world"
    assert answer.choices[0].logprobs is not None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer._request_id == app.door.requests[0].rid


async def test_streamed_chat(api: openai.AsyncOpenAI) -> None:
    stream = await api.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == "hello world"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-2].choices[0].finish_reason == "stop"


async def test_completions_whole_and_streamed(api: openai.AsyncOpenAI) -> None:
    whole = await api.completions.create(model=MODEL_NAME, prompt="hi", logprobs=1)
    assert whole.choices[0].text == "hello world"
    stream = await api.completions.create(model=MODEL_NAME, prompt=[5, 6, 7], stream=True)
    assert "".join([c.choices[0].text async for c in stream]) == "hello world"


async def test_models(api: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in api.models.list()] == [MODEL_NAME]


async def test_errors_are_the_client_s_own(app: ServedApp, api: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await api.completions.create(model=MODEL_NAME, prompt="hi", temperature=9)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        await api.embeddings.create(model=MODEL_NAME, input="hi")
    app.door.script = lambda _: [delta((70,)), AttemptError("lost", code="worker_lost")]
    stream = await api.completions.create(model=MODEL_NAME, prompt="hi", stream=True)
    with pytest.raises(openai.APIError, match="lost"):
        async for _ in stream:
            pass
