"""What may be asked of sampling, field by field, and the reader of each."""

from typing import Any

from shared.fields.readers import (
    Reader,
    flag,
    integer,
    invalid,
    logit_bias,
    number,
    stop,
    stop_token_ids,
)

MAX_TOKENS = 2**31 - 1
MAX_N = 128
MAX_LOGPROBS = 20
MIN_REPETITION_PENALTY = 0.01
"""a logit divided by less could leave the range of a float"""
MAX_REPETITION_PENALTY = 2.0
"""a logit is at most halved, or doubled where negative, for having been there before"""


def kept_tokens(value: Any, param: str) -> int:
    """How many of a prompt; -1: as many as fit next to the answer."""
    if type(value) is not int or not (value == -1 or 1 <= value <= MAX_TOKENS):
        raise invalid(param, f"-1 or from 1 to {MAX_TOKENS}")
    return value


SAMPLING_READERS: dict[str, Reader] = {
    "max_tokens": integer(1, MAX_TOKENS),
    "n": integer(1, MAX_N),
    "temperature": number(0.0, 2.0),
    "top_p": number(0.0, 1.0, above_low=True),
    "top_k": integer(-1, MAX_TOKENS),
    "min_p": number(0.0, 1.0),
    "presence_penalty": number(-2.0, 2.0),
    "frequency_penalty": number(-2.0, 2.0),
    "repetition_penalty": number(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
    "logit_bias": logit_bias,
    "seed": integer(-(2**63), 2**63 - 1),
    "stop": stop,
    "stop_token_ids": stop_token_ids,
    "min_tokens": integer(0, MAX_TOKENS),
    "truncate_prompt_tokens": kept_tokens,
    "ignore_eos": flag,
}
