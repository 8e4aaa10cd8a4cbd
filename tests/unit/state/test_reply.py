"""A reply that is not what was asked for is no answer at all, never a wrong value."""

from collections.abc import Callable

import pytest

from shared.errors import StateUnavailableError
from shared.state.reply import Reply, as_bytes, as_fields, as_int, as_list, as_text


def test_replies_narrow_to_what_they_are() -> None:
    assert as_int(7) == as_int(b"7") == 7
    assert as_bytes(b"\xff") == b"\xff"
    assert as_text("ä".encode()) == "ä"
    assert as_list([1, None]) == [1, None]
    assert as_fields([b"a", b"1", b"b", 2]) == {"a": b"1", "b": 2}


@pytest.mark.parametrize(
    ("narrow", "reply"),
    [
        (as_int, b"x"),
        (as_int, None),
        (as_int, []),
        (as_bytes, 1),
        (as_text, None),
        (as_text, b"\xff"),
        (as_list, b""),
        (as_fields, [b"a"]),
    ],
)
def test_other_replies_are_refused(narrow: Callable[[Reply], object], reply: Reply) -> None:
    with pytest.raises(StateUnavailableError, match="redis"):
        narrow(reply)
