"""SamplingParams: the limits of requests, what becomes of each field, what excludes what."""

from typing import Any

import pytest

from services.offline.sampling_params import SamplingParams, one_for_each
from shared.errors import RequestError
from shared.protocol import Sampling
from shared.text.choice_seed import choice_seed


def sampling(**fields: Any) -> Sampling:
    (only,) = SamplingParams(**fields).samplings(9, "", (2,))
    return only


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {5: 101}}, "logit_bias"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"json_schema": 5}, "json_schema"),
        ({"regex": "a", "choice": ["a"]}, "choice"),
    ],
)
def test_a_field_beyond_its_limits_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(**fields)
    assert refused.value.param == named


def test_each_field_reaches_the_engine() -> None:
    made = sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={5: 1.5},
        seed=3,
        stop_token_ids=(7, 8),
        min_tokens=2,
        ignore_eos=True,
        logprobs=4,
    )
    assert made == Sampling(
        max_tokens=9,
        temperature=0.5,
        top_k=7,
        top_p=0.9,
        seed=3,
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=(7, 8),
        eos_token_ids=(2,),
        logprobs=4,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.5,
        logit_bias=((5, 1.5),),
    )


def test_without_fields_it_is_a_request_without_fields() -> None:
    made = sampling(seed=0)
    assert made == Sampling(max_tokens=9, eos_token_ids=(2,))


def test_a_seed_is_drawn_for_each_prompt_where_none_is_given() -> None:
    params = SamplingParams()
    first, second = params.samplings(9, "", ()), params.samplings(9, "", ())
    assert first[0].seed != second[0].seed


def test_choices_have_the_seeds_that_they_have_over_http() -> None:
    made = SamplingParams(n=3, seed=7).samplings(9, "", ())
    assert [each.seed for each in made] == [7, choice_seed(7, 1), choice_seed(7, 2)]


def test_the_wanted_output_is_a_grammar_and_its_field() -> None:
    grammar, field = SamplingParams(choice=("Paris", "Rome")).wanted
    assert (field, '"Paris" | "Rome"' in grammar) == ("choice", True)
    assert SamplingParams(json_schema={"type": "object"}).wanted[1] == "json_schema"
    assert SamplingParams(json_schema='{"type": "object"}').wanted[1] == "json_schema"
    assert SamplingParams(json_object=False).wanted == ("", "")


def test_one_for_all_or_one_for_each() -> None:
    params = SamplingParams(seed=1)
    assert list(one_for_each(params, 3)) == [params] * 3
    assert one_for_each([params], 1) == [params]
    assert len(one_for_each(None, 2)) == 2
    with pytest.raises(RequestError, match="1 for 2 prompts"):
        one_for_each([params], 2)
