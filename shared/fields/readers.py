"""Readers of single request fields: (JSON value, name) -> checked value, or a RequestError.

A reader never coerces: "10" is not 10, 1 is not true, true is not 1.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from shared.errors import RequestError
from shared.fields.client_text import shown

Reader = Callable[[Any, str], Any]

MAX_STOPS = 4
MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 128
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_TOKEN_ID_DIGITS = 10
MAX_MEANT_CHARS = 64
"""of a name that is compared with those there are: clients may send any"""
NEAR = 0.7
"""of 1: how alike two names are of which one may be meant"""


def invalid(param: str, needed: str) -> RequestError:
    return RequestError(f"{shown(param)}: must be {needed}", code="invalid_value", param=param)


def unsupported(param: str, neutral: Sequence[Any] = ()) -> RequestError:
    """`neutral`: the values under which it would have been accepted."""
    values = "".join(f" or give {json.dumps(value)}" for value in neutral)
    return RequestError(
        f"{shown(param)}: not supported; leave it out{values}",
        code="unsupported_parameter",
        param=shown(param),
    )


def unknown(param: str, known: Iterable[str] = ()) -> RequestError:
    """`known`: names of fields, one of which may have been meant."""
    given = param if len(param) <= MAX_MEANT_CHARS else ""
    near = get_close_matches(given, known, n=1, cutoff=NEAR)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return RequestError(
        f"{shown(param) or repr(param)}: unknown field{meant}; leave it out",
        code="unsupported_parameter",
        param=shown(param),
    )


def integer(low: int, high: int) -> Reader:
    """low <= value <= high."""

    def read(value: Any, param: str) -> int:
        if type(value) is not int or not low <= value <= high:
            raise invalid(param, f"an integer from {low} to {high}")
        return value

    return read


def number(low: float, high: float, *, above_low: bool = False) -> Reader:
    """low <= value <= high, or low < value with `above_low`."""

    def read(value: Any, param: str) -> float:
        fits = type(value) in (int, float) and low <= value <= high
        if not fits or (above_low and value == low):
            raise invalid(param, f"a number {'above' if above_low else 'from'} {low} to {high}")
        return float(value)

    return read


def flag(value: Any, param: str) -> bool:
    if type(value) is not bool:
        raise invalid(param, "true or false")
    return value


def text(value: Any, param: str) -> str:
    if type(value) is not str:
        raise invalid(param, "a string")
    return value


def stop(value: Any, param: str) -> tuple[str, ...]:
    """A string or up to four; each 1 to 256 characters."""
    stops = [value] if type(value) is str else value
    if type(stops) is not list or len(stops) > MAX_STOPS:
        raise invalid(param, f"a string or a list of at most {MAX_STOPS}")
    for item in stops:
        if type(item) is not str or not 1 <= len(item) <= MAX_STOP_CHARS:
            raise invalid(param, f"made of strings of 1 to {MAX_STOP_CHARS} characters")
    return tuple(stops)


def token_ids(value: Any, param: str) -> tuple[int, ...]:
    """Non-negative integers; whether they are in the vocabulary is checked with the model."""
    if type(value) is not list or not set(map(type, value)) <= {int} or min(value, default=0) < 0:
        raise invalid(param, "a list of token ids")
    return tuple(value)


def stop_token_ids(value: Any, param: str) -> tuple[int, ...]:
    if type(value) is list and len(value) > MAX_STOP_TOKEN_IDS:
        raise invalid(param, f"at most {MAX_STOP_TOKEN_IDS} token ids")
    return token_ids(value, param)


def logit_bias(value: Any, param: str) -> tuple[tuple[int, float], ...]:
    """An object from token ids, as decimal strings, to numbers; in the order it was given."""
    if type(value) is not dict or len(value) > MAX_BIASES:
        raise invalid(param, f"an object of at most {MAX_BIASES} entries")
    biases = []
    for key, bias in value.items():
        digits = key.isascii() and key.isdigit() and len(key) <= MAX_TOKEN_ID_DIGITS
        if not digits or key != str(int(key)):
            raise invalid(param, f"keyed by token ids, not by {shown(key)!r}")
        if type(bias) not in (int, float) or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise invalid(param, f"made of numbers from {-MAX_BIAS} to {MAX_BIAS} ({key})")
        biases.append((int(key), float(bias)))
    return tuple(biases)


def stream_options(value: Any, param: str) -> dict[str, bool]:
    known = ("include_usage", "continuous_usage_stats")
    if type(value) is not dict:
        raise invalid(param, "an object")
    for name, item in value.items():
        if name == "include_obfuscation" and item in (None, False):
            continue
        if name not in known:
            raise RequestError(
                f"{param}.{shown(name)}: not supported", code="unsupported_parameter", param=param
            )
        if item is not None and type(item) is not bool:
            raise invalid(param, f"made of true or false ({name})")
    return {name: value[name] for name in known if value.get(name) is not None}


def same(value: Any, neutral: Any) -> bool:
    """JSON equality: 1 equals 1.0, true does not equal 1."""
    if isinstance(value, bool) or isinstance(neutral, bool):
        return value is neutral
    return bool(value == neutral)
