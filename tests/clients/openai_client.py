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
    responses(client, model)


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


def responses(client: openai.OpenAI, model: str) -> None:
    """The helpers of the newer API: whole, streamed, what is echoed, and what is not kept."""
    question: Any = {"role": "user", "content": "What is 47 + 38?"}
    whole = client.responses.create(model=model, input=[question], max_output_tokens=16)
    assert whole.output_text
    with client.responses.stream(model=model, input=[question], temperature=0) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(pieces) == stream.get_final_response().output_text
    echoed: Any = [question, *[item.model_dump() for item in whole.output], question]
    assert client.responses.create(model=model, input=echoed, max_output_tokens=8).output_text
    try:
        client.responses.create(model=model, input="And?", previous_response_id=whole.id)
    except openai.BadRequestError as error:
        assert error.param == "previous_response_id"
    else:
        raise AssertionError("an earlier response was taken for stored")


if __name__ == "__main__":
    main(*sys.argv[1:])
