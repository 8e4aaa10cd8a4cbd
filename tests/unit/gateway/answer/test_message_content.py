"""The arguments of a call as the object that a message shows.

The failures guarded: an answer that is no JSON, or none at all, for what a model wrote in a call.
"""

import pytest

from services.gateway.answer.messages.content import call_input

UNSHOWN = {
    "cut": '{"days": ',
    "no object": "[1]",
    "overflow": '{"days": 1e999}',
    "nan": '{"days": NaN}',
    "infinity": '{"days": -Infinity}',
    "many digits": f'{{"days": {"7" * 5000}}}',
    "deep": f'{{"days": {"[" * 5000}{"]" * 5000}}}',
    "deep enough to be read and not written": f'{{"days": {"[" * 900}{"]" * 900}}}',
}


@pytest.mark.parametrize("arguments", UNSHOWN.values(), ids=UNSHOWN)
def test_what_no_answer_can_hold_is_an_empty_object(arguments: str) -> None:
    assert call_input(arguments) == {}


def test_repeated_keys_are_what_a_client_makes_of_them() -> None:
    assert call_input('{"days": 1, "days": 2.5}') == {"days": 2.5}
