"""`litellm` with an OpenAI-compatible server: chat and completions, whole and streamed.
Arguments: URL, model."""

import sys

import litellm


def main(url: str, model: str) -> None:
    """Raises on any error."""
    server = {"api_base": f"{url}/v1", "api_key": "none", "num_retries": 0}
    question = [{"role": "user", "content": "What is 47 + 38?"}]
    chat = litellm.completion(model=f"openai/{model}", messages=question, max_tokens=16, **server)
    assert chat.choices[0].message.content
    assert chat.usage.completion_tokens > 0
    chunks = litellm.completion(
        model=f"openai/{model}",
        messages=question,
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
        **server,
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    name = f"text-completion-openai/{model}"
    prompt = "Once upon a time"
    whole = litellm.text_completion(model=name, prompt=prompt, max_tokens=16, **server)
    assert whole.choices[0].text
    parts = litellm.text_completion(model=name, prompt=prompt, max_tokens=16, stream=True, **server)
    assert "".join(part.choices[0].text or "" for part in parts)
    # An answer comes back with fields of LiteLLM's own in it.
    echoed = [*question, chat.choices[0].message.model_dump(), *question]
    again = litellm.completion(model=f"openai/{model}", messages=echoed, max_tokens=8, **server)
    assert again.choices[0].message.content
    long = [{"role": "user", "content": "long " * 50_000}]
    try:
        litellm.completion(model=f"openai/{model}", messages=long, **server)
    except litellm.ContextWindowExceededError:
        pass
    else:
        raise AssertionError("a prompt that is too long was taken")


if __name__ == "__main__":
    main(*sys.argv[1:])
