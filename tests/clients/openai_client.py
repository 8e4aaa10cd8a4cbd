"""The `openai` client: models, chat and completions, whole and streamed. Arguments: URL, model."""

import sys

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


if __name__ == "__main__":
    main(*sys.argv[1:])
