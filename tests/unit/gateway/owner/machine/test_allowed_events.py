"""Which events a request's state machine takes in which state: its table, its drawing and what it
does are the same.

Guards: an event that comes at the wrong time and changes something, and a drawing that lies.
"""

import copy
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from services.gateway.owner.machine import states
from services.gateway.owner.machine.effects import Effect, Failure
from services.gateway.owner.machine.request_machine import MAX_RETURNS, RequestMachine
from services.gateway.owner.machine.states import ALLOWED, State
from shared.protocol import Sampling, TokenRun

P, D = "p0.aa", "d0.bb"
FAILURE = Failure("late", "")
DEPTH = 5
Event = Callable[[RequestMachine], list[Effect] | None]


class Step(NamedTuple):
    """One event, and whether it did anything."""

    before: State
    event: str
    after: State
    changed: bool


def run(machine: RequestMachine, index: int, *tokens: int) -> TokenRun:
    return TokenRun("r", machine.epoch, index, tokens)


EVENTS: list[tuple[str, Event]] = [
    ("assign", lambda m: m.assign(P, "prefill")),
    ("assign", lambda m: m.assign(D, "local")),
    ("start", lambda m: m.start(m.epoch, m.prefill_incarnation or P)),
    ("choose_decode", lambda m: m.choose_decode(m.epoch, D)),
    ("tokens", lambda m: m.tokens(m.prefill_incarnation or P, run(m, len(m.token_ids), 7))),
    ("tokens", lambda m: m.tokens(D, run(m, len(m.token_ids), 7, 7))),
    ("tokens", lambda m: m.tokens(D, run(m, 0, 99))),
    ("refuse", lambda m: m.refuse(m.epoch, m.prefill_incarnation or P, "no_room")),
    ("refuse", lambda m: m.refuse(m.epoch, m.prefill_incarnation or P, "too_long")),
    ("handback", lambda m: m.handback(m.epoch, m.prefill_incarnation or P, "draining")),
    ("fail", lambda m: m.fail(m.epoch, m.prefill_incarnation or P, "broken")),
    ("crash", lambda m: m.crash(m.epoch, m.prefill_incarnation or P, alone=True)),
    ("lose_link", lambda m: m.lose_link(m.prefill_incarnation or P)),
    ("excuse", lambda m: m.excuse(P)),
    ("released", lambda m: m.released(m.epoch, m.prefill_incarnation or P)),
    ("stall", lambda m: m.stall(m.epoch)),
    ("move", lambda m: m.move()),
    ("admitted", lambda m: m.admitted()),
    ("refused", lambda m: m.refused(FAILURE, maybe_recorded=True)),
    ("refused", lambda m: m.refused(FAILURE, maybe_recorded=False)),
    ("finish_answered", lambda m: m.finish_answered()),
    ("stop", lambda m: m.stop("stop", 0)),
    ("cancel", lambda m: m.cancel(0)),
    ("abandon", lambda m: m.abandon(FAILURE)),
]


def facts(thing: Any) -> Any:
    """All that an object holds, comparable."""
    if hasattr(thing, "__dict__") and not isinstance(thing, State):
        return {name: facts(value) for name, value in vars(thing).items()}
    return repr(thing)


def openings(kind: type[RequestMachine]) -> Iterator[RequestMachine]:
    """New requests; one with a strike left, one that was given back almost too often."""
    for max_strikes, num_returns in ((2, 0), (1, 0), (2, MAX_RETURNS - 1)):
        machine = kind(Sampling(max_tokens=3), max_strikes)
        machine.num_returns = num_returns
        yield machine


def steps_of(kind: type[RequestMachine]) -> frozenset[Step]:
    """Every event in every state that DEPTH events lead to."""
    found = set()
    frontier, known = list(openings(kind)), set[str]()
    for _ in range(DEPTH):
        reached = []
        for machine in frontier:
            for name, event in EVENTS:
                after = copy.deepcopy(machine)
                effects = event(after)
                held = repr(facts(after))
                changed = bool(effects) or held != repr(facts(machine))
                found.add(Step(machine.state, name, after.state, changed))
                if held not in known:
                    known.add(held)
                    reached.append(after)
        frontier = reached
    return frozenset(found)


@cache
def steps() -> frozenset[Step]:
    return steps_of(RequestMachine)


class AssignsWheneverAsked(RequestMachine):
    def assign(self, *arguments: Any) -> list[Effect]:
        self.state = State.QUEUED
        return super().assign(*arguments)


def test_an_event_that_is_not_allowed_changes_nothing() -> None:
    assert wrong_events(steps()) == set()
    assert "assign" in wrong_events(steps_of(AssignsWheneverAsked)), "the search looks hard enough"


def wrong_events(steps: frozenset[Step]) -> set[str]:
    """Those that changed something in a state that does not allow them."""
    changes = [step for step in steps if step.changed]
    return {step.event for step in changes if step.event not in ALLOWED[step.before]}


def test_every_event_that_is_allowed_does_something() -> None:
    seen = {(step.before, step.event) for step in steps() if step.changed}
    allowed = {(state, event) for state in ALLOWED for event in ALLOWED[state]}
    assert {event for _, event in allowed - seen} <= {"excuse"}, "it is about a worker"


def test_the_table_names_every_event() -> None:
    methods = {
        name
        for name, member in inspect.getmembers(RequestMachine, inspect.isfunction)
        if not name.startswith("_") and name not in ("holds", "decodes_at")
    }
    assert {name for events in ALLOWED.values() for name in events} == methods
    assert {name for name, _ in EVENTS} == methods


def drawn_moves(drawing: str) -> set[tuple[State, str, State]]:
    """(state, event, another state) of each arrow between two states."""
    arrows = re.findall(r"([A-Z, ]+)(?:\([^)]*\))? --([\w, ]+)--> (?=([A-Z, ]+))", drawing)
    (again,) = re.findall(r"e\+1: ([\w, ]+?) -", drawing)
    arrows.append(("RUNNING", again, "QUEUED"))
    return {
        (State[source], event, State[target])
        for sources, events, targets in arrows
        for source in _names(sources)
        for event in _names(events)
        for target in _names(targets)
        if source != target
    }


def _names(text: str) -> list[str]:
    return [name for name in re.split(r"[,\s]+", text) if name]


def test_the_drawing_is_what_the_machine_does() -> None:
    drawing = states.__doc__ or ""
    drawn = drawn_moves(drawing)
    done = {(step.before, step.event, step.after) for step in steps() if step.before != step.after}
    assert drawn == done
    less = drawn_moves(drawing.replace("--assign-->", "--stall-->"))
    assert less - done and done - less, "a wrong drawing is seen"
