"""What a step leaves out for a prompt that ends in it."""

import pytest

from shared.engine.scheduling.light_steps import LightSteps
from shared.engine.scheduling.prompt_order import PromptTurn
from shared.engine.scheduling.sequence import Sequence
from shared.protocol import Sampling
from tests.unit.engine.fake_runner import make_prompt, make_spec

SHORT, LONG = 0, 2
INTERACTIVE, BULK = 3, 5


def a_sequence(bucket: int, priority: int = INTERACTIVE) -> Sequence:
    spec = make_spec("a", make_prompt(4), Sampling(max_tokens=1), "prefill", priority=priority)
    sequence = Sequence(spec, 0)
    sequence.turn = PromptTurn(bucket)
    return sequence


@pytest.mark.parametrize(
    ("ended", "later", "waits"),
    [
        ((SHORT, INTERACTIVE), (LONG, INTERACTIVE), True),
        ((SHORT, INTERACTIVE), (SHORT, INTERACTIVE), False),
        ((LONG, INTERACTIVE), (LONG, INTERACTIVE), False),
        ((LONG, INTERACTIVE), (SHORT, BULK), True),
        ((SHORT, BULK), (SHORT, BULK), False),
    ],
)
def test_what_can_wait(ended: tuple[int, int], later: tuple[int, int], waits: bool) -> None:
    steps = LightSteps()
    steps.begin()
    steps.note(a_sequence(*ended), ends=False)
    assert not steps.leave_out(a_sequence(*later)), "nothing ends yet"
    steps.note(a_sequence(*ended), ends=True)
    assert steps.leave_out(a_sequence(*later)) is waits


def test_never_two_steps_in_a_row() -> None:
    steps, short, long = LightSteps(), a_sequence(SHORT), a_sequence(LONG)
    left_out = []
    for _ in range(4):
        steps.begin()
        steps.note(short, ends=True)
        left_out.append([steps.leave_out(long), steps.leave_out(long)])
    assert left_out == [[True] * 2, [False] * 2] * 2


def test_a_step_is_only_light_if_something_was_left_out() -> None:
    steps = LightSteps()
    steps.begin()
    steps.note(a_sequence(SHORT), ends=True)
    steps.begin()
    steps.note(a_sequence(SHORT), ends=True)
    assert steps.leave_out(a_sequence(LONG))
