"""`tool_choice: required` on a random tiny model: every answer is a call with valid arguments,
through the gateway's own reading of the request and of the answer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from services.gateway.answer.choice import WholeParts
from services.gateway.answer.parted_text import PartedText
from services.gateway.answer.shape import ChatShape
from services.gateway.owner.generation import Delta
from services.gateway.prompt.prepared import PreparedRequest
from services.gateway.prompt.prompt_reader import PromptReader
from services.gateway.prompt.served_model import ServedModel
from services.gateway.prompt.text_work.text_worker import TEXT_CODEC
from shared.text.answer_text import AnswerText
from tests.support.models.structured_model import (
    MAX_MODEL_LEN,
    VOCAB_SIZE,
    StructuredModel,
    run_all,
    spec_of,
    structured_model,
    tokens_of,
)
from tests.support.models.tool_models import TEMPLATES, WEATHER

NUM_ANSWERS = 20
SECOND: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "move",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
            "required": ["to"],
            "additionalProperties": False,
        },
    },
}
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, SECOND)}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> StructuredModel:
    return structured_model(tmp_path_factory.mktemp("tools"))


def reader_of(model: StructuredModel, name: str) -> PromptReader:
    """Without reasoning: a random model that begins to think never ends."""
    directory: Path = model.checkpoint.path
    config = {"chat_template": TEMPLATES[name], "bos_token": "", "eos_token": ""}
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    served = ServedModel(
        "m", MAX_MODEL_LEN, VOCAB_SIZE, model.eos_token_ids, reasoning_parser="none"
    )
    return PromptReader.load(directory, served, 16)


def request_body(seed: int, **fields: Any) -> bytes:
    asked = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [WEATHER, SECOND],
        "tool_choice": "required",
        "parallel_tool_calls": seed % 2 == 0,
        "temperature": (1.0, 0.6, 0.0)[seed % 3],
        "max_tokens": 300,
        "seed": seed,
        **fields,
    }
    return json.dumps(asked).encode()


def answered(
    model: StructuredModel, reader: PromptReader, prepared: list[PreparedRequest]
) -> list[dict[str, Any]]:
    """The choices of a batch of requests, as the API shows them."""
    specs = [
        spec_of(f"r{at}", request.prompts[0].token_ids, request.sampling)
        for at, request in enumerate(prepared)
    ]
    runs = run_all(model.engine(num_blocks=1024), specs)
    choices = []
    for at, request in enumerate(prepared):
        tokenizer, form = reader.tokenizer, request.form
        shown = AnswerText(tokenizer, request.sampling, request.stop, form.visible_ids)
        text = PartedText(shown, form, f"r{at}")
        output = runs[f"r{at}"]
        text.push(Delta(tuple(tokens_of(output)), (), output[-1].finish_reason))
        choices.append(WholeParts(text, ChatShape(tokenizer), with_logprobs=False).body())
    return choices


@pytest.mark.parametrize(
    ("name", "tools"),
    [("hermes", [WEATHER, SECOND]), ("llama", [SECOND]), ("mistral", [WEATHER, SECOND])],
)
def test_required_calls_are_valid_20_of_20(
    model: StructuredModel, name: str, tools: list[dict[str, Any]]
) -> None:
    reader = reader_of(model, name)
    bodies = [request_body(seed, tools=tools) for seed in range(NUM_ANSWERS)]
    prepared = [reader.prepare("chat", body) for body in bodies]
    num_valid = 0
    for choice in answered(model, reader, prepared):
        calls = choice["message"].get("tool_calls", [])
        for call in calls:
            function = call["function"]
            jsonschema.validate(json.loads(function["arguments"]), SCHEMAS[function["name"]])
        assert not choice["message"]["content"]
        num_valid += bool(calls) and choice["finish_reason"] == "tool_calls"
    assert num_valid == NUM_ANSWERS


def test_what_was_prepared_survives_the_way_from_another_process(model: StructuredModel) -> None:
    prepared = reader_of(model, "hermes").prepare("chat", request_body(1))
    assert prepared.form.functions == ("weather", "move")
    assert TEXT_CODEC.decode(TEXT_CODEC.encode(prepared)) == prepared


def test_a_named_function_is_the_one_called(model: StructuredModel) -> None:
    reader = reader_of(model, "hermes")
    named = {"type": "function", "function": {"name": "move"}}
    prepared = [reader.prepare("chat", request_body(seed, tool_choice=named)) for seed in (1, 3)]
    for choice in answered(model, reader, prepared):
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["move"]


def test_without_the_grammar_this_model_calls_nothing(model: StructuredModel) -> None:
    reader = reader_of(model, "hermes")
    prepared = [
        reader.prepare("chat", request_body(seed, tools=[SECOND], tool_choice="auto"))
        for seed in range(4)
    ]
    for choice in answered(model, reader, prepared):
        assert "tool_calls" not in choice["message"]
