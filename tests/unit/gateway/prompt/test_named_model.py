"""The model that a body names, found without reading the body.

The failure guarded: a request that is given to another model than the one it names.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.prompt.named_model import named_model


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (body(model="demo", prompt="x"), "demo"),
        (body(prompt="x", model="org/other"), "org/other"),
        (rb'{"model" : "org\/other"}', "org/other"),
        (b'{"model":\n\t"demo"}', "demo"),
        (rb'{"model":"dem\u006f"}', "demo"),
        (body(model="third"), "third"),
        (body(prompt="x"), None),
        (body(model=["demo"]), None),
        (body(model="demo", prompt='say {"model": "org/other"}'), "demo"),
        (body(metadata={"model": "org/other"}, model="demo"), "demo"),
        (body(model="demo", messages=[{"model": "org/other"}]), "demo"),
        (body(metadata={"model": "demo"}, tools=[{"model": "org/other"}]), None),
        (b'[{"model": "demo"}, {"model": "org/other"}]', None),
        (b'{"model": "demo"', "demo"),
        (rb'{"model": "\q"}', None),
        (b'{"model": "demo", "x": {"model": "y"}', None),
        (b"\xff\xfe", None),
        (b"[" * 100_000 + b'"model":"a","model":"b"', None),
    ],
)
def test_the_model_of_a_body(content: bytes, name: str | None) -> None:
    assert named_model(content) == name


NAMES = st.sampled_from(["demo", "org/other", 'a"b', "\\", "model"])
JSON = st.recursive(
    st.none() | st.integers() | NAMES | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "prompt", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["model", "messages", "prompt", "x"]), JSON), st.booleans())
def test_whoever_parses_finds_the_same(fields: dict[str, Any], ascii_only: bool) -> None:
    """But for a body without the field at its top, of which the reader says so itself."""
    found = named_model(json.dumps(fields, ensure_ascii=ascii_only).encode())
    if isinstance(fields.get("model"), str):
        assert found == fields["model"]
