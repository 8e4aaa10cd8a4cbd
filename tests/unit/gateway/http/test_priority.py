"""Which priority a request gets, and which key may ask for it."""

import pytest
from starlette.datastructures import Headers

from services.gateway.http.api_keys import Tenant
from services.gateway.http.priority import HEADER, priority_of
from shared.errors import RequestError
from shared.protocol import DEFAULT_PRIORITY

ANYBODY = Tenant("default")
WITH_A_KEY = Tenant("team-a", highest_priority=DEFAULT_PRIORITY)


@pytest.mark.parametrize(
    ("named", "field", "expected"),
    [
        (None, None, DEFAULT_PRIORITY),
        ("interactive", None, DEFAULT_PRIORITY),
        ("bulk", None, 6),
        (None, 7, 7),
        (None, 0, 0),
    ],
)
def test_the_header_names_a_class_and_the_field_a_number(
    named: str | None, field: int | None, expected: int
) -> None:
    headers = Headers({HEADER: named} if named else {})
    assert priority_of(headers, field, ANYBODY) == expected


@pytest.mark.parametrize(("named", "field"), [("urgent", None), ("", None), ("bulk", 3)])
def test_what_cannot_be_meant_is_refused(named: str, field: int | None) -> None:
    with pytest.raises(RequestError, match=HEADER) as refused:
        priority_of(Headers({HEADER: named}), field, ANYBODY)
    assert refused.value.status == 400


def test_a_key_goes_before_others_only_if_it_may() -> None:
    with pytest.raises(RequestError, match="this key may ask for 3 and later") as refused:
        priority_of(Headers(), DEFAULT_PRIORITY - 1, WITH_A_KEY)
    assert (refused.value.status, refused.value.code) == (403, "priority_not_allowed")
    assert priority_of(Headers(), DEFAULT_PRIORITY, WITH_A_KEY) == DEFAULT_PRIORITY
    late = Tenant("bulk", highest_priority=DEFAULT_PRIORITY + 2)
    assert priority_of(Headers(), None, late) == DEFAULT_PRIORITY + 2, "saying nothing is no way"
    later = Tenant("later", highest_priority=7)
    assert priority_of(Headers({HEADER: "bulk"}), None, later) == 7, "nor is a class"
    assert priority_of(Headers(), 1, WITH_A_KEY._replace(highest_priority=1)) == 1
