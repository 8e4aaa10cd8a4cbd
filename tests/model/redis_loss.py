"""Redis loses all its data at any moment: what two requests with one Idempotency-Key are then.

Request 0 belongs to gateway 0. The client repeats it, as request 1, at gateway 1. Commands are on
their way together, each runs when it arrives, and once more where its answer was lost; what a
gateway that died has sent may still run, what a living one no longer waits for does not. A gateway
that beats sees whether Redis has lost its earlier beats, and admits again what it has. Another one,
that never dies, reaps what the dead have left. Of time nothing is known but that FINISH is waited
for 250 ms, and that a gateway has beaten once before it serves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tests.model.search import Model, Move, Verdict, search

ADMIT, FINISH = "ADMIT", "FINISH"
FINAL = ("done", "void", "superseded")
"""states of a record that has ended; only done has usage to bill"""


@dataclass(frozen=True)
class Rules:
    """Size of one search, and the rules taken out."""

    max_losses: int = 1
    max_deaths: int = 1
    max_false_reaps: int = 1
    """gateways that are reaped while they live"""
    mutants: frozenset[str] = frozenset()


class Key(NamedTuple):
    request: int
    state: str
    """live, abandoned, done"""


class Store(NamedTuple):
    """What Redis has."""

    records: tuple[str, ...] = ("", "")
    """live, abandoned, or how it ended"""
    key: Key | None = None
    owned: frozenset[int] = frozenset()
    """live requests by gateway, which has the request's number"""
    slots: frozenset[int] = frozenset()
    """live requests of the tenant, whose number is limited"""
    beats: tuple[int | None, ...] = (1, 1)
    """0: only ADMIT has left an entry; 1: any number"""
    num_listed: tuple[int, ...] = (0, 0)
    """entries of each request in the list of those that ended"""


EMPTY = Store(beats=(None, None))


class Request(NamedTuple):
    """In the memory of its gateway."""

    state: str = "new"
    """new, asked (ADMIT), running, finishing (the client waits for FINISH), ended, dead"""
    outcome: str = ""
    """done, or void: nothing was delivered"""
    num_told: int = 0
    """times that the client heard how it ended"""
    recorded: bool = False
    """Redis says so, and has not lost its data since"""


class World(NamedTuple):
    requests: tuple[Request, ...] = (Request(), Request())
    store: Store = Store()
    commands: frozenset[tuple[str, int]] = frozenset()
    """on their way to Redis, or their answers back"""
    num_losses: int = 0
    num_false_reaps: int = 0


def explore(rules: Rules) -> Verdict:
    return search(Model(World(), partial(moves, rules=rules), broken, settled))


def broken(world: World) -> str | None:
    """The first invariant this world breaks, or None."""
    store = world.store
    if any(request.num_told > 1 for request in world.requests):
        return "R1 a client hears of two ends"
    if max(store.num_listed) > 1 or store.records.count("done") > 1:
        return "R2 one key is billed twice"
    if any(
        request.recorded and record not in FINAL
        for request, record in zip(world.requests, store.records, strict=True)
    ):
        return "R3 Redis has said that it has an outcome, and has none"
    if any(_forgotten(world, index) for index in range(len(world.requests))):
        return "R4 a gateway has beaten, and what it has is not in Redis"
    return None


def settled(world: World) -> bool:
    """Each client has had one answer, nothing is on its way, and nobody counts as live."""
    store = world.store
    over = all(
        request.state in ("new", "dead") or (request.state == "ended" and request.num_told == 1)
        for request in world.requests
    )
    return over and not (world.commands or store.owned or store.slots)


def moves(world: World, rules: Rules) -> Iterator[Move[World]]:
    num_dead = 0
    for index, request in enumerate(world.requests):
        if request.state == "dead":
            num_dead += 1
            yield from _reap(world, rules, index)
        else:
            yield from _gateway_moves(world, rules, index)
            if world.num_false_reaps < rules.max_false_reaps:
                wrongly = world._replace(num_false_reaps=world.num_false_reaps + 1)
                for move in _reap(wrongly, rules, index):
                    yield move._replace(environment=True)
    for command in world.commands:
        yield from _run(world, rules, command)
    if world.num_losses < rules.max_losses:
        yield Move("Redis loses its data", _lost(world), environment=True)
    if num_dead < rules.max_deaths:
        for index in range(len(world.requests)):
            dead = _with(world, index, state="dead", recorded=False)
            yield Move(f"g{index} dies", dead, environment=True)


def _forgotten(world: World, index: int) -> bool:
    """Where the repeat has come, it may have the key instead."""
    store, request = world.store, world.requests[index]
    alone = all(other.state == "new" for at, other in enumerate(world.requests) if at != index)
    quiet = request.state == "running" and not world.commands and store.beats[index] == 1
    return quiet and alone and not store.records[index]


def _lost(world: World) -> World:
    requests = tuple(request._replace(recorded=False) for request in world.requests)
    return world._replace(requests=requests, store=EMPTY, num_losses=world.num_losses + 1)


# Gateways


def _gateway_moves(world: World, rules: Rules, index: int) -> Iterator[Move[World]]:
    state, name = world.requests[index].state, f"r{index}"
    if state == "new":
        asked = _sent(_with(world, index, state="asked"), ADMIT, index)
        yield Move(f"{name} comes", asked, environment=True)
    if state == "asked":
        silent = world._replace(commands=world.commands - {(ADMIT, index)})
        yield Move(f"{name}: ADMIT has no answer", _over(silent, index, "void"), environment=True)
    if state == "running":
        yield Move(f"{name} is done", _over(world, index, "done"))
        yield Move(f"{name}'s client leaves at once", _over(world, index, "void"), True)
    if state == "finishing":
        yield Move(f"{name}: FINISH is late", _told(world, index))
    yield from _beat(world, rules, index)


def _over(world: World, index: int, outcome: str) -> World:
    return _sent(_with(world, index, state="finishing", outcome=outcome), FINISH, index)


def _told(world: World, index: int) -> World:
    num_told = min(world.requests[index].num_told + 1, 2)
    return _with(world, index, state="ended", num_told=num_told)


def _beat(world: World, rules: Rules, index: int) -> Iterator[Move[World]]:
    """It counts the beats; fewer than it knows of, or as many, are those of a Redis that forgot
    some. What FINISH has not ended for the client is admitted again."""
    store = world.store
    if store.beats[index] == 1:
        return
    lost = "as many beats are no loss" not in rules.mutants
    beats = tuple(1 if at == index else count for at, count in enumerate(store.beats))
    after = world._replace(store=store._replace(beats=beats))
    if lost and world.requests[index].state in ("asked", "running", "finishing"):
        after = _sent(after, ADMIT, index)
    yield Move(f"g{index} beats", after)


# Redis


def _reap(world: World, rules: Rules, index: int) -> Iterator[Move[World]]:
    """Of a gateway whose beats stand still; one without beats is not known to anybody."""
    store = world.store
    if store.beats[index] is None:
        return
    if index not in store.owned:
        if world.requests[index].state == "dead":
            beats = tuple(None if at == index else count for at, count in enumerate(store.beats))
            yield Move(f"g{index} is forgotten", world._replace(store=store._replace(beats=beats)))
        return
    store = store._replace(owned=store.owned - {index})
    if store.records[index] == "live":
        store = _recorded(store, index, "abandoned")._replace(slots=store.slots - {index})
        if store.key is not None and store.key.request == index:
            store = store._replace(key=Key(index, "abandoned"))
    yield Move(f"r{index} is reaped", world._replace(store=store))


def _run(world: World, rules: Rules, command: tuple[str, int]) -> Iterator[Move[World]]:
    """It runs and is answered; or it runs, and will again. A dead gateway repeats nothing."""
    kind, index = command
    gone = world._replace(commands=world.commands - {command})
    store, answer = (_admit if kind == ADMIT else _finish)(world, rules, index)
    if world.requests[index].state == "dead":
        yield Move(f"{kind} of r{index} is lost", gone)
        yield Move(f"{kind} of r{index} comes late", gone._replace(store=store))
        return
    yield Move(f"{kind} of r{index}'s answer is lost", world._replace(store=store), True)
    answered = _answered(gone._replace(store=store), rules, command, answer)
    yield Move(f"{kind} of r{index}", answered)


def _answered(world: World, rules: Rules, command: tuple[str, int], answer: str) -> World:
    kind, index = command
    state = world.requests[index].state
    if kind == FINISH:
        tells = state == "finishing" or "told at each answer" in rules.mutants
        world = _told(world, index) if tells else world
        return _with(world, index, recorded=True)
    if state in ("finishing", "ended") and "a late ADMIT is left" not in rules.mutants:
        return _sent(world, FINISH, index)
    if state != "asked":
        return world
    return _with(world, index, state="running") if answer == "admitted" else _told(world, index)


def _admit(world: World, rules: Rules, index: int) -> tuple[Store, str]:
    store = world.store
    ended = store.records[index] in FINAL and "what has ended is admitted" not in rules.mutants
    taken = store.key is not None and store.key.request != index and store.key.state != "abandoned"
    if ended or taken:
        return store, "refused"
    beats = list(store.beats)
    if beats[index] is None and "ADMIT leaves no beat" not in rules.mutants:
        beats[index] = 0
    live = _recorded(store, index, "live")._replace(
        key=Key(index, "live"),
        owned=store.owned | {index},
        slots=store.slots | {index},
        beats=tuple(beats),
    )
    return live, "admitted"


def _finish(world: World, rules: Rules, index: int) -> tuple[Store, str]:
    """Written whole, whatever is left of its record: at most once, and billed nothing where the
    repeat has its key."""
    store, outcome = world.store, world.requests[index].outcome
    missing = not store.records[index] and "FINISH needs its record" in rules.mutants
    again = store.records[index] in FINAL and "written at each FINISH" not in rules.mutants
    if missing or again:
        return store, ""
    key, known = store.key, "FINISH knows no keys" not in rules.mutants
    if key is not None and key.request != index and known:
        outcome = "superseded"
    else:
        key = None if outcome == "void" else Key(index, "done")
    num_listed = list(store.num_listed)
    num_listed[index] = min(num_listed[index] + 1, 2)
    ended = _recorded(store, index, outcome)._replace(
        key=key,
        owned=store.owned - {index},
        slots=store.slots - {index},
        num_listed=tuple(num_listed),
    )
    return ended, ""


def _recorded(store: Store, index: int, state: str) -> Store:
    records = store.records
    return store._replace(records=(*records[:index], state, *records[index + 1 :]))


def _with(world: World, index: int, **changes: str | int | bool) -> World:
    requests = world.requests
    changed = requests[index]._replace(**changes)  # type: ignore[arg-type]
    return world._replace(requests=(*requests[:index], changed, *requests[index + 1 :]))


def _sent(world: World, kind: str, index: int) -> World:
    return world._replace(commands=world.commands | {(kind, index)})
