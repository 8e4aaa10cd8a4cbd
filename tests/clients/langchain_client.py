"""`langchain-openai`: its chat and its completion model, whole, streamed and in a batch.
Arguments: URL, model."""

import sys

from langchain_openai import ChatOpenAI, OpenAI


def main(url: str, model: str) -> None:
    """Raises on any error."""
    server = {"base_url": f"{url}/v1", "api_key": "none", "model": model, "max_retries": 0}
    chat = ChatOpenAI(**server, max_tokens=16)
    answer = chat.invoke([("system", "You are a calculator."), ("user", "What is 47 + 38?")])
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream("Tell me a story"))
    assert all(reply.content for reply in chat.batch(["Hello", "What is 1 + 1?"]))
    completion = OpenAI(**server, max_tokens=16)
    assert completion.invoke("Once upon a time")
    assert "".join(completion.stream("Once upon a time"))
    assert len(completion.generate(["Once upon", "One day"]).generations) == 2


if __name__ == "__main__":
    main(*sys.argv[1:])
