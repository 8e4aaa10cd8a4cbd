"""Stop strings: found wherever they fall, nothing of them shown, as little held as possible."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.text.stop_strings import StopStrings

SHORT = st.text("ab\ufffd", min_size=1, max_size=4)


def run(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, bool]:
    """What a client would see, and whether a stop string ended it."""
    watch = StopStrings(stops)
    shown = ""
    for piece in pieces:
        text, stopped = watch.push(piece)
        shown += text
        if stopped:
            return shown, True
        assert len(watch.held) < max(map(len, stops))
    return shown + watch.end(), False


@settings(max_examples=500)
@given(
    stops=st.lists(SHORT, min_size=1, max_size=4),
    pieces=st.lists(st.text("abc\ufffd", max_size=3), max_size=12),
)
def test_equals_searching_the_growing_text(stops: list[str], pieces: list[str]) -> None:
    """The oracle looks at the whole text after each piece and cuts at the first find."""
    shown, stopped = run(tuple(stops), pieces)
    for count in range(1, len(pieces) + 1):
        text = "".join(pieces[:count])
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            assert (shown, stopped) == (text[: min(found)], True)
            return
    assert (shown, stopped) == ("".join(pieces), False)


@settings(max_examples=300)
@given(stop=SHORT, pieces=st.lists(st.text("abc", max_size=3), max_size=12))
def test_holds_back_only_what_may_become_the_stop(stop: str, pieces: list[str]) -> None:
    watch = StopStrings((stop,))
    for piece in pieces:
        if watch.push(piece)[1]:
            return
        assert stop.startswith(watch.held)


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (("END",), ["one E", "N", "D two"], ("one ", True)),
        (("END",), ["one E", "N", "X two"], ("one ENX two", False)),
        (("\n\n", "."), ["a\n", "\nb."], ("a", True)),
        (("\ufffd",), ["ab", "\ufffd", "c"], ("ab", True)),
        (("aab",), ["aa", "ab"], ("a", True)),
    ],
)
def test_examples(stops: tuple[str, ...], pieces: list[str], expected: tuple[str, bool]) -> None:
    assert run(stops, pieces) == expected
