"""Events come out whole and in order, wherever their bytes are cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.cli.event_reader import DONE, EventReader

WIRE = (
    b": a comment\n\nevent: chunk\nid: 1\ndata: {}\n\n"
    + 'data:{"text": "\u2028é"} \r\n\r\n'.encode()
    + b"data: 1\ndata: 2\ndata: [DONE]\n\n"
)
EVENTS = [b"{}", '{"text": "\u2028é"}'.encode(), b"1", b"2", DONE]


@given(st.lists(st.integers(0, len(WIRE)), max_size=12))
def test_events_cut_anywhere(cuts: list[int]) -> None:
    reader = EventReader()
    edges = sorted({0, len(WIRE), *cuts})
    assert [event for a, b in pairwise(edges) for event in reader.feed(WIRE[a:b])] == EVENTS


def test_an_event_is_out_with_its_line() -> None:
    reader = EventReader()
    assert reader.feed(b"data: 1") == []
    assert reader.feed(b"\n") == [b"1"]
