"""The `anthropic` client: messages whole and streamed, counts, structured output, errors.
Arguments: URL, model."""

import json
import sys
from typing import Any

import anthropic

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def main(url: str, model: str) -> None:
    """Raises on any error."""
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    question: Any = {
        "model": model,
        "max_tokens": 16,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "What is 47 + 38?"}],
    }
    answer = client.messages.create(**question)
    assert answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    counted = client.messages.count_tokens(
        model=model, system=question["system"], messages=question["messages"]
    )
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    with client.messages.stream(**question) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(pieces) == message.content[0].text
    assert message.usage.output_tokens > 0
    echoed = [*question["messages"], {"role": "assistant", "content": answer.content}]
    again = question | {"messages": [*echoed, {"role": "user", "content": "And 1 + 1?"}]}
    assert client.messages.create(**again).content
    form = {"type": "json_schema", "schema": CITY}
    chosen = client.messages.create(**question | {"max_tokens": 64}, output_config={"format": form})
    assert json.loads(chosen.content[0].text)["city"] in ("Paris", "Rome")
    refused(client, question)


def refused(client: anthropic.Anthropic, question: Any) -> None:
    """Errors by the classes that the client has for them."""
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    long = [{"role": "user", "content": "long " * 50_000}]
    wrong = (
        ({"messages": [{"role": "user", "content": [image]}]}, "image", anthropic.BadRequestError),
        ({"messages": long}, "prompt is too long", anthropic.BadRequestError),
        ({"model": "other"}, "no such model", anthropic.NotFoundError),
    )
    for fields, words, kind in wrong:
        try:
            client.messages.create(**question | fields)
        except kind as error:
            assert words in str(error)
        else:
            raise AssertionError(f"{words}: was taken")


if __name__ == "__main__":
    main(*sys.argv[1:])
