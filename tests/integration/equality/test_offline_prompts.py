"""What `LLM` makes of a prompt is what a gateway makes of the body that means it, field by field.

Guarded against: two readings of one template, one stop string, one grammar. Models here are texts
alone: byte-level and SentencePiece-like tokenizers, templates that think and that do not.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from services.gateway.prompt import prompt_reader as gateway
from services.offline import prompt_reader as offline
from services.offline.sampling_params import SamplingParams
from shared.errors import RequestError
from shared.grammar.matcher import GrammarVocabulary
from shared.model.checkpoint import Checkpoint
from shared.model.config import parse_config
from tests.support.models.text_models import (
    CHATML,
    MAX_MODEL_LEN,
    MODEL_NAME,
    byte_level_tokenizer,
    metaspace_tokenizer,
    sentencepiece_tokenizer,
    served_text_model,
    write_text_model,
)
from tests.support.models.tiny_model import TINY

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
WANTED = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
THINKS = CHATML + "{# </think> #}"
"""a template that knows the tag; answers may begin with it"""
OPENS = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
SHUT = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}")
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hello world"}],
    [{"role": "developer", "content": "be <|im_end|> short"}, {"role": "user", "content": "dog"}],
    [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
]
FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"stop": ["x", "yz"], "stop_token_ids": [5]}, {"stop": ("x", "yz"), "stop_token_ids": (5,)}),
    ({"response_format": WANTED}, {"json_schema": SCHEMA}),
    ({"regex": "[ab]+"}, {"regex": "[ab]+"}),
    (
        {"truncate_prompt_tokens": 4, "max_tokens": 9},
        {"truncate_prompt_tokens": 4, "max_tokens": 9},
    ),
    ({"max_tokens": 10**6, "logit_bias": {"7": 2}}, {"max_tokens": 10**6, "logit_bias": {7: 2}}),
]
"""of a body, and the same of a call"""


def special_think() -> Tokenizer:
    """Both tags are special tokens, which are left out of a text unless somebody wants them."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken("<think>"), AddedToken("</think>")])
    return tokenizer


MODELS = {
    "bytes": (byte_level_tokenizer, CHATML),
    "pieces": (sentencepiece_tokenizer, CHATML),
    "metaspace": (metaspace_tokenizer, CHATML),
    "thinks": (byte_level_tokenizer, THINKS),
    "opens": (special_think, OPENS),
    "shut": (special_think, SHUT),
}


class Readers:
    """Both, for one model."""

    def __init__(self, folder: Path, name: str) -> None:
        make, template = MODELS[name]
        tokenizer = make()
        directory = write_text_model(folder, tokenizer, template)
        served = served_text_model(tokenizer)
        config = parse_config({**TINY, "vocab_size": served.vocab_size})
        checkpoint = Checkpoint(directory, MODEL_NAME, config, served.eos_token_ids, "")
        vocabulary = GrammarVocabulary.load(directory, served.vocab_size, served.eos_token_ids)
        self._gateway = gateway.PromptReader.load(directory, served, block_size=16)
        self._offline = offline.PromptReader(
            checkpoint, MAX_MODEL_LEN, MAX_MODEL_LEN, vocabulary, thinking="auto"
        )

    def chats(self, messages: Any, body: dict[str, Any], call: dict[str, Any]) -> list[Any]:
        full = {"model": MODEL_NAME, "messages": messages, "seed": 3, "n": 2, **body}
        prepared = self._gateway.prepare("chat", json.dumps(full).encode())
        params = SamplingParams(seed=3, n=2, **call)
        prompt = self._offline.read_chat(messages, params, "messages", {})
        called = (prompt.token_ids, prompt.samplings[0], prompt.stops)
        return [_told(prepared), called, prepared.form.visible_ids, prompt.visible_ids]

    def texts(self, text: Any, body: dict[str, Any], call: dict[str, Any]) -> list[Any]:
        full = {"model": MODEL_NAME, "prompt": text, "seed": 3, **body}
        prepared = self._gateway.prepare("text", json.dumps(full).encode())
        prompt = self._offline.read(text, SamplingParams(seed=3, **call), "prompt")
        return [_told(prepared), (prompt.token_ids, prompt.samplings[0], prompt.stops)]

    def refusals(self, field: str, value: Any) -> list[str]:
        """What each says of a prompt that it does not take."""
        said = []
        body = json.dumps({"model": MODEL_NAME, field: value}).encode()
        with pytest.raises(RequestError) as refused:
            self._gateway.prepare("chat" if field == "messages" else "text", body)
        said.append(refused.value.message)
        with pytest.raises(RequestError) as refused:
            if field == "messages":
                self._offline.read_chat(value, SamplingParams(), "messages", {})
            else:
                self._offline.read(value, SamplingParams(), "prompt")
        return [*said, refused.value.message]


def _told(prepared: Any) -> tuple[Any, ...]:
    return prepared.prompts[0].token_ids, prepared.sampling, prepared.stop


@pytest.fixture(params=MODELS)
def readers(request: pytest.FixtureRequest, tmp_path: Path) -> Readers:
    return Readers(tmp_path, request.param)


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: ",".join(fields[0]) or "none")
def test_chats_are_read_alike(
    readers: Readers, fields: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    for messages in CHATS:
        served, called, seen, visible = readers.chats(messages, *fields)
        assert called == served
        assert visible == seen


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: ",".join(fields[0]) or "none")
def test_texts_are_read_alike(
    readers: Readers, fields: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    for text in ("the quick brown fox", " <s> \u00e9\U0001f34e", [5, 6, 7]):
        served, called = readers.texts(text, *fields)
        assert called == served


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", "dog " * 9000),
        ("prompt", [5, 10**6]),
        ("prompt", [5] * MAX_MODEL_LEN),
        ("messages", []),
        ("messages", [{"role": "x", "content": "y"}]),
        ("messages", [{"role": "user", "content": "dog " * 9000}]),
    ],
)
def test_refusals_are_the_same(readers: Readers, field: str, value: Any) -> None:
    served, called = readers.refusals(field, value)
    assert called == served
