"""What a release says is read by the one before it and by the one after it."""

import re
import typing
from dataclasses import field, fields, is_dataclass, make_dataclass
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.codec import Codec, PackedIds, field_names
from shared.errors import ProtocolError, UnknownMessageError
from shared.protocol import (
    CODEC,
    SPOKEN,
    WORKER_CODEC,
    Assign,
    Attempt,
    Message,
    Sampling,
    Work,
    encode,
)
from shared.state.registry import WorkerEntry
from shared.transfer import frames
from shared.transfer.frames import Frame
from tests.support.spoken_schema import (
    KINDS,
    all_objections,
    objections,
    read_schema,
    schema_of,
)

ENTRIES = Codec((WorkerEntry,))
CODECS = ((CODEC, typing.get_args(Message)), (frames.CODEC, typing.get_args(Frame)))
SPOKEN_KINDS = [(codec, kind) for codec, kinds in CODECS for kind in kinds]
SPOKEN_KINDS += [(ENTRIES, WorkerEntry)]

TOKEN_IDS = st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple)
NEW_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(max_size=3), TOKEN_IDS
)


class Nested(NamedTuple):
    """What a later release may add: a fact of its own."""

    words: tuple[str, ...] = ("new",)
    number: int = 7


SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    PackedIds: TOKEN_IDS,
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=4),
    bytes: st.binary(max_size=4),
}


def of_hint(hint: Any) -> st.SearchStrategy[Any]:
    """Small values of a field's type, all of which travel."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in SCALARS:
        return SCALARS[hint]
    if origin is tuple:
        several = st.lists(of_hint(args[0]), max_size=2).map(tuple)
        return several if Ellipsis in args else st.tuples(*map(of_hint, args))
    if origin is dict:
        return st.dictionaries(st.text(max_size=4), of_hint(args[1]), max_size=2)
    if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, tuple)):
        hints = typing.get_type_hints(hint, include_extras=True)
        return st.builds(hint, *(of_hint(hints[name]) for name in field_names(hint)))
    if args and origin is not typing.Literal:
        return st.one_of([of_hint(arg) for arg in args])
    choices: st.SearchStrategy[Any] = st.from_type(hint)
    return choices


def grown(value: Any, values: st.DataObject) -> Any:
    """The same as a later release says it: every fact in it has more fields, at the end."""
    if is_dataclass(value):
        hints = typing.get_type_hints(type(value), include_extras=True)
        named = [(item.name, hints[item.name]) for item in fields(value)]
        kind = make_dataclass(type(value).__name__, [*named, ("more", object), ("most", object)])
        known = [grown(getattr(value, name), values) for name, _ in named]
        return kind(*known, values.draw(NEW_VALUES), values.draw(st.just(Nested()) | NEW_VALUES))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return (*(grown(item, values) for item in value), values.draw(NEW_VALUES))
    return tuple(grown(item, values) for item in value) if isinstance(value, tuple) else value


@pytest.mark.parametrize(
    ("codec", "kind"), SPOKEN_KINDS, ids=[kind.__name__ for _, kind in SPOKEN_KINDS]
)
@settings(max_examples=20, deadline=None)
@given(values=st.data())
def test_known_fields_of_a_later_release_s_message_are_read(
    codec: Codec, kind: type, values: st.DataObject
) -> None:
    message = values.draw(of_hint(kind))
    assert codec.decode(codec.encode(grown(message, values))) == message


@pytest.mark.parametrize(
    ("codec", "kind"), SPOKEN_KINDS, ids=[kind.__name__ for _, kind in SPOKEN_KINDS]
)
@settings(max_examples=20, deadline=None)
@given(values=st.data())
def test_a_later_release_fills_in_what_an_earlier_one_does_not_say(
    codec: Codec, kind: type, values: st.DataObject
) -> None:
    hints = typing.get_type_hints(kind, include_extras=True)
    more: list[Any] = [(name, hints[name]) for name in field_names(kind)]
    more += [("more", Nested, field(default=Nested())), ("most", int, field(default=5))]
    later = Codec((make_dataclass(kind.__name__, more, frozen=True),))
    message = values.draw(of_hint(kind))
    read = later.decode(codec.encode(message))
    assert [getattr(read, name) for name in field_names(kind)] == [
        getattr(message, name) for name in field_names(kind)
    ]
    assert (read.more, read.most) == (Nested(), 5)


def test_a_kind_that_is_not_known_is_told_from_damage() -> None:
    migrate = make_dataclass("Migrate", [("attempt", object)])(Attempt("r", 0))
    body = encode(migrate)
    for codec in (CODEC, WORKER_CODEC, frames.CODEC):
        with pytest.raises(UnknownMessageError, match="'migrate'"):
            codec.decode(body)
        with pytest.raises(ProtocolError, match="not a msgpack frame"):
            codec.decode(body[:-1])


def test_a_worker_s_bounds_hold_for_fields_that_it_does_not_know() -> None:
    """They are read before they are left out."""
    work = Work(Attempt("r", 0), (1,), 1, bytes(32), Sampling(8))
    name, *known = msgpack.unpackb(encode(Assign(work, "p.1", "prefill")))
    read = WORKER_CODEC.decode(msgpack.packb([name, *known, "more"]))
    assert read == Assign(work, "p.1", "prefill")
    unknown: list[Any] = [[[]] * 5000, ["x"] * 1025, {"a": 1}]
    for more in unknown:
        with pytest.raises(ProtocolError, match="not a msgpack frame"):
            WORKER_CODEC.decode(msgpack.packb([name, *known, more]))


def test_what_is_said_is_written_down_and_fits_every_version_that_is_spoken() -> None:
    """If this fails after a change: `python -m tests.support.spoken_schema`."""
    assert SPOKEN.newest - SPOKEN.oldest <= 1
    now = schema_of(KINDS)
    assert all_objections(now) == []
    assert now == read_schema(SPOKEN.newest)


BEFORE = {"Say": ["text: str", "tone: Literal['low', 'high'] ="]}


@pytest.mark.parametrize(
    ("now", "objection"),
    [
        ({"Say": [*BEFORE["Say"], "to: str ="]}, ""),
        ({**BEFORE, "Hear": ["text: str"]}, ""),
        ({"Say": ["text: str =", BEFORE["Say"][1]]}, ""),
        ({"Say": [*BEFORE["Say"], "to: str"]}, "Say: `to: str` is new and has no default"),
        ({"Say": BEFORE["Say"][:1]}, "Say: `nothing` is where `tone: .*` was"),
        ({"Say": ["to: str =", *BEFORE["Say"]]}, "Say: `to: str =` is where `text: str` was"),
        ({"Say": ["text: bytes", BEFORE["Say"][1]]}, "Say: `text: bytes` is where"),
        ({"Say": ["text: str", "tone: Literal['low', 'high']"]}, "Say: `tone: .*` is where"),
        ({"Hear": ["text: str"]}, "Say is gone"),
    ],
)
@pytest.mark.parametrize("same_version", [True, False])
def test_what_would_be_misread_is_found(
    now: dict[str, list[str]], objection: str, same_version: bool
) -> None:
    found = objections(BEFORE, now, same_version=same_version)
    if objection:
        assert len(found) >= 1
        assert re.match(objection, found[0])
    else:
        assert found == []


def test_a_field_of_sampling_needs_a_new_version() -> None:
    before = {"Sampling": ["max_tokens: int"]}
    now = {"Sampling": ["max_tokens: int", "top_a: float ="]}
    assert len(objections(before, now)) == 1
    assert objections(before, now, same_version=False) == []


def test_a_new_word_needs_a_new_version() -> None:
    now = {"Say": ["text: str", "tone: Literal['low', 'high', 'flat'] ="]}
    assert len(objections(BEFORE, now)) == 1
    assert objections(BEFORE, now, same_version=False) == []
    assert len(objections(now, BEFORE, same_version=False)) == 1
