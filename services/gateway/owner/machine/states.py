"""The states of a request, and the events that move it from one to another.

    QUEUED(e) --assign--> RUNNING(e, p, -) --start, choose_decode-->  RUNNING(e, p, d)
        ^                        |                                             |
        +- e+1: tokens, refuse, handback, fail, crash, lose_link, stall, move -+
    RUNNING --tokens, refuse, handback, fail, lose_link, stall--> FINISHING
    QUEUED, RUNNING --stop, cancel, abandon, refused, crash--> FINISHING
    QUEUED, RUNNING, FINISHING --refused--> FAILED
    FINISHING --finish_answered--> DONE, FAILED, CANCELLED
    FINISHING --refused--> CANCELLED

Every event is a method of `RequestMachine`. `e`: epoch; `p`, `d`: prefill and decode incarnation.
"""

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    FINISHING = "finishing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ANY_TIME = frozenset({"excuse"})
_UNTIL_THE_END = _ANY_TIME | {"admitted", "refused", "stop", "cancel", "abandon"}
_FROM_WORKERS = {
    *("start", "tokens", "refuse", "handback", "fail", "crash", "lose_link", "released"),
}
ALLOWED: Mapping[State, frozenset[str]] = {
    State.QUEUED: _UNTIL_THE_END | {"assign", "crash"},
    State.RUNNING: _UNTIL_THE_END | _FROM_WORKERS | {"choose_decode", "stall", "move"},
    State.FINISHING: _ANY_TIME | {"admitted", "refused", "finish_answered"},
    State.DONE: _ANY_TIME,
    State.FAILED: _ANY_TIME,
    State.CANCELLED: _ANY_TIME,
}
"""Events that may change something in a state. Any other changes nothing and has no effects."""
