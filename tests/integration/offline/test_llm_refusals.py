"""What `LLM` takes for a prompt and for messages, and what it says of anything else."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from services.offline.llm import LLM
from services.offline.sampling_params import SamplingParams
from shared.errors import BatonError, RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=12)
QUESTION = [{"role": "user", "content": "What is 47 + 38?"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", device="cpu", max_num_seqs=4, kv_blocks=96, max_model_len=512) as llm:
        yield llm


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda llm: llm.generate(5), "prompts: must be a text"),
        (lambda llm: llm.generate(text for text in "ab"), "prompts: must be a text"),
        (lambda llm: llm.generate("a", {"max_tokens": 2}), "SamplingParams"),
        (lambda llm: llm.generate(["a", "b"], [SamplingParams(), 2]), "SamplingParams"),
        (lambda llm: llm.generate(b"hi"), "prompts: must be a text"),
        (lambda llm: llm.generate(bytearray(b"hi")), "prompts: must be a text"),
        (lambda llm: llm.generate([True]), r"prompts\[0\]: must be a list of token ids"),
        (lambda llm: llm.stream(b"hi"), "prompt: must be a string or a list of token ids"),
        (lambda llm: llm.chat("hi"), "messages: must be a list"),
        (lambda llm: llm.chat(b"hi"), "messages: must be a list"),
        (lambda llm: llm.chat([None]), r"^messages\[0\]: must be a list of at least one message"),
        (lambda llm: llm.chat([[None]]), r"^messages\[0\]\[0\]: must be an object"),
        (lambda llm: llm.chat(QUESTION, template_kwargs=5), "template_kwargs: must be an object"),
        (lambda llm: llm.stream(5), "prompt: must be a text"),
    ],
)
def test_what_is_of_another_type_is_told_in_words(
    llm: LLM, call: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        call(llm)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"threads": 0}, "threads: 0 is below 1"),
        ({"threads": "2"}, "threads: '2' is not an integer"),
        ({"device": "gpu"}, "device: 'gpu' is not auto, cpu, cuda or cuda:N"),
        ({"profile": "--threads"}, "profile: '--threads' is not one of "),
        ({"model": "/no/--threads"}, "model '/no/--threads' is neither "),
        ({"max_model_len": 9999}, "max_model_len 9999 is above the model's 4096"),
        ({"model": "llama-3.1-8b"}, "model llama-3.1-8b is a shape without weights: add random_w"),
        ({"kv_memory_mib": 1, "block_size": 256}, "kv_memory_mib leaves room for "),
        ({"thread": 2}, "thread: no setting of an LLM; these are: "),
    ],
)
def test_a_setting_is_called_as_the_argument_is(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BatonError) as refused:
        LLM(**{"device": "cpu", **settings})
    assert str(refused.value).startswith(said)


def test_an_argument_of_another_function_is_python_s_own_error(llm: LLM) -> None:
    wrong: dict[str, Any] = {"temprature": 1}
    with pytest.raises(TypeError, match="temprature"):
        llm.generate("a", **wrong)
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(**wrong)


HALF = "a\ud800"
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": HALF}}


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda llm: llm.generate(HALF), "prompts[0]"),
        (lambda llm: llm.stream(HALF), "prompt"),
        (lambda llm: llm.chat([{"role": "user", "content": HALF}]), "messages[0].content"),
        (
            lambda llm: llm.chat([QUESTION, [{"role": "assistant", "tool_calls": (CALL,)}]]),
            "messages[1][0].tool_calls[0].function.arguments",
        ),
        (lambda llm: llm.chat(QUESTION, template_kwargs={"a": HALF}), "template_kwargs.a"),
        (lambda llm: llm.generate("a", SamplingParams(stop=["b", HALF])), "stop[1]"),
        (lambda llm: llm.generate("a", SamplingParams(regex=HALF)), "regex"),
        (lambda llm: llm.generate("a", SamplingParams(json_schema={HALF: {}})), "json_schema.a?"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_where_it_stands(
    llm: LLM, call: Callable[[Any], Any], named: str
) -> None:
    with pytest.raises(RequestError, match="half of a surrogate pair") as refused:
        call(llm)
    assert (refused.value.param, refused.value.code) == (named, "invalid_unicode")
    assert str(refused.value).startswith(f"{named}: ")


def test_integers_of_numpy_are_token_ids(llm: LLM) -> None:
    (wanted,) = llm.generate([5, 6], GREEDY)
    given: list[Any] = [[np.int64(5), np.int32(6)], (np.uint8(5), 6), [np.array([5, 6])]]
    for prompt in given:
        (answer,) = llm.generate(prompt, GREEDY)
        assert (answer.prompt_token_ids, answer.token_ids) == ((5, 6), wanted.token_ids)
