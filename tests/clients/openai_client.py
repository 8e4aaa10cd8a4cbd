"""The `openai` client: models, chat and completions, whole and streamed. Arguments: URL, model."""

import sys
from typing import Any

import openai


def main(url: str, model: str) -> None:
    """Raises on any error."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    assert model in [card.id for card in client.models.list()]
    chat = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "What is 47 + 38?"}], max_tokens=16
    )
    assert chat.choices[0].message.content
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Tell me a story"}],
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert chunks[-1].usage is not None
    whole = client.completions.create(model=model, prompt="Once upon a time", max_tokens=16)
    assert whole.choices[0].text
    parts = client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=16, stream=True
    )
    assert "".join(part.choices[0].text for part in parts)
    more_fields(client, model)


def more_fields(client: openai.OpenAI, model: str) -> None:
    """What is sent besides OpenAI's own fields, what is echoed, and a prompt that is too long."""
    question: Any = {"role": "user", "content": "What is 47 + 38?"}
    chosen = client.chat.completions.create(
        model=model,
        messages=[question],
        max_tokens=100_000,
        reasoning_effort="none",
        verbosity="low",
        prompt_cache_key="conversation",
        safety_identifier="me",
        extra_body={
            "guided_choice": ["yes", "no"],
            "chat_template_kwargs": {"enable_thinking": False},
            "return_token_ids": True,
            "nobody_knows": 1,
        },
    )
    choice: Any = chosen.choices[0]
    assert choice.message.content in ("yes", "no")
    assert choice.token_ids and choice.stop_reason is None
    echoed: Any = choice.message.model_dump()
    again = [question, echoed, question]
    assert client.chat.completions.create(model=model, messages=again, max_tokens=8).choices
    try:
        client.completions.create(model=model, prompt=[5] * 100_000)
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded"
    else:
        raise AssertionError("a prompt of 100,000 tokens was taken")


if __name__ == "__main__":
    main(*sys.argv[1:])
