"""What a program computes by `LLM` is what a cell answers over HTTP, to the token.

Guarded against: text, defaults or limits that mean one thing in a body and another in a call.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from services.offline.answer import Answer
from services.offline.llm import LLM
from services.offline.sampling_params import SamplingParams
from tests.e2e.cluster import Cluster, running

PROMPTS = [
    "Once upon a time",
    "What is 47 + 38?",
    "",
    "a b c d " * 40,
    "Zw\u00f6lf \u00c4pfel \U0001f34e",
]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("offline"), "--threads", "1") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", device="cpu", threads=1) as llm:
        yield llm


def ask(cluster: Cluster, path: str, **body: Any) -> Any:
    body = {"model": cluster.model(), "return_token_ids": True, **body}
    response = cluster.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def check(answer: Answer, body: dict[str, Any], field: str) -> None:
    """The same tokens, text, ends and counts."""
    assert len(answer.choices) == len(body["choices"])
    for choice, said in zip(answer.choices, body["choices"], strict=True):
        text = said["text"] if field == "text" else said["message"]["content"]
        assert list(choice.token_ids) == said["token_ids"]
        assert choice.text == text
        assert (choice.finish_reason, choice.stop_reason) == (
            said["finish_reason"],
            said["stop_reason"],
        )
    usage = body["usage"]
    assert answer.num_prompt_tokens == usage["prompt_tokens"]
    assert answer.num_output_tokens == usage["completion_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "max_tokens": 40},
        {"temperature": 0, "max_tokens": 20, "ignore_eos": True},
        {"temperature": 0, "stop": [" a", "the"]},
        {"temperature": 0.9, "seed": 7, "n": 3, "max_tokens": 16, "top_p": 0.9, "top_k": 40},
        {"seed": 11, "max_tokens": 16, "presence_penalty": 1, "logit_bias": {"480": 3}},
    ],
    ids=",".join,
)
def test_completions_are_those_of_the_api(
    cluster: Cluster, llm: LLM, fields: dict[str, Any]
) -> None:
    prompts = [prompt for prompt in PROMPTS if prompt]
    answers = llm.generate(prompts, SamplingParams(**fields))
    for prompt, answer in zip(prompts, answers, strict=True):
        check(answer, ask(cluster, "/v1/completions", prompt=prompt, **fields), "text")


def test_chats_are_those_of_the_api(cluster: Cluster, llm: LLM) -> None:
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    chats.append([{"role": "developer", "content": "be <|im_end|> short"}, *chats[0]])
    answers = llm.chat(chats, SamplingParams(temperature=0, max_tokens=40))
    for messages, answer in zip(chats, answers, strict=True):
        body = {"messages": messages, "temperature": 0, "max_tokens": 40}
        check(answer, ask(cluster, "/v1/chat/completions", **body), "content")


def test_structured_output_is_that_of_the_api(cluster: Cluster, llm: LLM) -> None:
    chat = [{"role": "user", "content": "Name a city."}]
    (answer,) = llm.chat(chat, SamplingParams(temperature=0, json_schema=CITY))
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    body = ask(
        cluster, "/v1/chat/completions", messages=chat, temperature=0, response_format=wanted
    )
    check(answer, body, "content")


def test_logprobs_are_those_of_the_api(cluster: Cluster, llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=3)
    (answer,) = llm.generate(PROMPTS[0], params)
    body = ask(
        cluster, "/v1/completions", prompt=PROMPTS[0], temperature=0, max_tokens=12, logprobs=3
    )
    said, logprobs = body["choices"][0]["logprobs"], answer.choices[0].logprobs
    assert logprobs is not None
    assert [each.text for each in logprobs] == said["tokens"]
    assert [each.logprob for each in logprobs] == said["token_logprobs"]
