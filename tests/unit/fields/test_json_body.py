"""Strict JSON: agrees with the standard parser on everything that is not refused on purpose."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import RequestError
from shared.fields.json_body import MAX_DEPTH, MAX_KEYS, MAX_NUMBERED_KEYS, load_object

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(codec="utf-8")),
        st.sampled_from(['[{"', "\\", '"', "}]"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=5),
    ),
    max_leaves=30,
)


@settings(max_examples=300)
@given(value=VALUES, ascii_only=st.booleans())
def test_reads_what_json_writes(value: object, ascii_only: bool) -> None:
    text = json.dumps({"x": value}, ensure_ascii=ascii_only)
    assert load_object(text.encode()) == {"x": value}


@settings(max_examples=500)
@given(body=st.one_of(st.binary(max_size=60), st.text('{}[]":,\\u0d8ae1 ').map(str.encode)))
def test_anything_else_is_a_refusal_and_never_another_exception(body: bytes) -> None:
    try:
        expected = json.loads(body)
    except (ValueError, RecursionError):
        with pytest.raises(RequestError):
            load_object(body)
        return
    try:
        assert load_object(body) == expected
    except RequestError as error:
        assert error.status == 400


def test_row_33_a_surrogate_pair_is_its_character() -> None:
    assert load_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_row_34_nul_is_a_character() -> None:
    assert load_object(b'{"a": "x\\u0000y"}') == {"a": "x\0y"}


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1])
def test_row_27_depth_limit_is_exact(depth: int) -> None:
    body = b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
    if depth > MAX_DEPTH:
        with pytest.raises(RequestError, match="nesting"):
            load_object(body)
    else:
        load_object(body)


def test_brackets_in_strings_are_not_depth() -> None:
    text = "[{" * 100 + '"' + "]" * 3 + "\\"
    assert load_object(json.dumps({"a": text, "b": [[text]]}).encode())["a"] == text


@pytest.mark.parametrize("num_keys", [MAX_KEYS, MAX_KEYS + 1])
def test_row_35_key_limit_is_exact(num_keys: int) -> None:
    body = json.dumps({f"k{index}": 0 for index in range(num_keys)}).encode()
    if num_keys > MAX_KEYS:
        with pytest.raises(RequestError) as caught:
            load_object(body)
        assert caught.value.code == "too_many_fields"
    else:
        assert len(load_object(body)) == num_keys


@pytest.mark.parametrize("num_keys", [MAX_NUMBERED_KEYS, MAX_NUMBERED_KEYS + 1])
def test_row_74_an_object_of_token_ids_has_a_limit_of_its_own(num_keys: int) -> None:
    body = json.dumps({"logit_bias": {str(index): 0 for index in range(num_keys)}}).encode()
    if num_keys > MAX_NUMBERED_KEYS:
        with pytest.raises(RequestError) as caught:
            load_object(body)
        assert caught.value.param == "logit_bias"
    else:
        assert len(load_object(body)["logit_bias"]) == num_keys


def test_the_depth_scan_is_linear_in_unterminated_strings() -> None:
    """Quadratic here would be minutes."""
    with pytest.raises(RequestError):
        load_object(b"[" * 33 + b'"' + b'\\"' * 1_000_000)
    with pytest.raises(RequestError):
        load_object(b'{"a":"' + b"[" * 100 + b'\\"' * 1_000_000)
