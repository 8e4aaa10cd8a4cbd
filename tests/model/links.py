"""Gateways, their links to one worker that restarts at its address, and what HELLO says there.

Each gateway owns one request. It dials what the registry lists, at the address that all of the
worker's incarnations share, so an entry of a dead one leads to the next. The worker greets, then
the gateway names itself and the attempts that it still has there. A connection carries messages in
order; it may break at any moment, and its ends learn of that one by one, what was on its way is
lost. An attempt that a link held is given up with it, at both ends: nothing resumes it.
"""

from dataclasses import dataclass
from typing import NamedTuple

HELLO, ASSIGN, CANCEL, END, CLOSED = "HELLO", "ASSIGN", "CANCEL", "END", "CLOSED"


@dataclass(frozen=True)
class Rules:
    """Size of one search, and the rules taken out."""

    num_gateways: int = 1
    max_incarnations: int = 2
    """of the worker"""
    max_breaks: int = 1
    """links that break, or whose worker is silent for too long"""
    max_gateway_deaths: int = 0
    num_connections: int = 3
    """at one time"""
    mutants: frozenset[str] = frozenset()


class Message(NamedTuple):
    kind: str
    epoch: int = -1
    to: int = -1
    """HELLO of a gateway: the incarnation that it looks for"""
    named: frozenset[int] = frozenset()
    """and the epochs that it still has there"""


class Connection(NamedTuple):
    gateway: int
    incarnation: int
    """that answers"""
    to: int
    """that was dialled"""
    named: frozenset[int]
    """epochs that were running there when it was dialled"""
    dial: int
    """of those of this gateway that there are, the later the higher"""
    gateway_end: str = "dialling"
    """dialling, linked, closed"""
    worker_end: str = "stranger"
    """stranger, peer, closed"""
    to_gateway: tuple[Message, ...] = (Message(HELLO),)
    to_worker: tuple[Message, ...] = ()


class Gateway(NamedTuple):
    """And its one request."""

    state: str = "queued"
    """queued, running, done, left; or dead, with the gateway"""
    epoch: int = 0
    at: int = -1
    """incarnation on which the epoch runs"""
    num_hits: int = 0
    """attempts whose worker died or whose link broke"""
    entries: frozenset[int] = frozenset()
    """as the registry listed them when it was last asked"""
    strangers: frozenset[int] = frozenset()
    """entries where somebody else answers"""


class Held(NamedTuple):
    """An attempt on the worker, and the connection its tokens go over."""

    gateway: int
    epoch: int
    connection: int


class Worker(NamedTuple):
    incarnation: int = 0
    alive: bool = True
    held: frozenset[Held] = frozenset()


class World(NamedTuple):
    gateways: tuple[Gateway, ...]
    connections: tuple[Connection | None, ...]
    worker: Worker = Worker()
    registry: frozenset[int] = frozenset()
    num_breaks: int = 0


def initial(rules: Rules) -> World:
    return World((Gateway(),) * rules.num_gateways, (None,) * rules.num_connections)


def broken(world: World) -> str | None:
    """The first invariant this world breaks, or None."""
    if any(gateway.epoch > gateway.num_hits for gateway in world.gateways):
        return "L1 an attempt is lost though its worker and its link lived"
    if any(not _wanted(world, held) and not _ends(world, held) for held in world.worker.held):
        return "L2 a worker computes for nobody, and nothing on its way says so"
    return None


def settled(world: World) -> bool:
    """All requests have ended, nothing is held for them, and the worker that lives is linked."""
    worker = world.worker
    over = all(gateway.state in ("done", "left", "dead") for gateway in world.gateways)
    return over and worker.alive and not worker.held and _all_linked(world)


def link_of(world: World, gateway: int, incarnation: int) -> int | None:
    """The connection that the gateway takes for its link to that incarnation."""
    for slot, connection in enumerate(world.connections):
        if connection is None or connection.gateway_end != "linked":
            continue
        if (connection.gateway, connection.incarnation) == (gateway, incarnation):
            return slot
    return None


def with_gateway(world: World, index: int, gateway: Gateway) -> World:
    gateways = world.gateways
    return world._replace(gateways=(*gateways[:index], gateway, *gateways[index + 1 :]))


def with_connection(world: World, slot: int, connection: Connection | None) -> World:
    """One that is closed at both ends is gone."""
    if connection is not None and connection.gateway_end == connection.worker_end == "closed":
        connection = None
    known = world.connections
    return world._replace(connections=(*known[:slot], connection, *known[slot + 1 :]))


def to_worker(world: World, slot: int, message: Message) -> World:
    connection = world.connections[slot]
    assert connection is not None
    if connection.worker_end == "closed":
        return world
    sent = connection._replace(to_worker=(*connection.to_worker, message))
    return with_connection(world, slot, sent)


def to_gateway(world: World, slot: int, message: Message) -> World:
    connection = world.connections[slot]
    assert connection is not None
    if connection.gateway_end == "closed":
        return world
    sent = connection._replace(to_gateway=(*connection.to_gateway, message))
    return with_connection(world, slot, sent)


def close_gateway_end(world: World, slot: int) -> World:
    """What was said before is still heard at the other end."""
    told = to_worker(world, slot, Message(CLOSED))
    connection = told.connections[slot]
    assert connection is not None
    return with_connection(told, slot, connection._replace(gateway_end="closed", to_gateway=()))


def close_worker_end(world: World, slot: int) -> World:
    told = to_gateway(world, slot, Message(CLOSED))
    connection = told.connections[slot]
    assert connection is not None
    return with_connection(told, slot, connection._replace(worker_end="closed", to_worker=()))


def note_hit(world: World, slot: int) -> World:
    """Something that is no decision of either end takes the connection away, and the attempt that
    runs over it. Only the first time counts."""
    connection = world.connections[slot]
    assert connection is not None
    gateway = world.gateways[connection.gateway]
    runs_here = gateway.state == "running" and gateway.at == connection.incarnation
    closing = Message(CLOSED) in connection.to_gateway
    if connection.gateway_end != "linked" or closing or not runs_here:
        return world
    hit = gateway._replace(num_hits=gateway.num_hits + 1)
    return with_gateway(world, connection.gateway, hit)


def _wanted(world: World, held: Held) -> bool:
    gateway = world.gateways[held.gateway]
    place = gateway.state, gateway.epoch, gateway.at
    return place == ("running", held.epoch, world.worker.incarnation)


def _ends(world: World, held: Held) -> bool:
    """The worker is about to hear what makes it drop the attempt."""
    for slot, connection in enumerate(world.connections):
        if connection is None or connection.gateway != held.gateway:
            continue
        for message in connection.to_worker:
            if message.kind == CLOSED and slot == held.connection:
                return True
            if message.kind == HELLO or message == Message(CANCEL, held.epoch):
                return True
            if message.kind == ASSIGN and message.epoch > held.epoch:
                return True
    return False


def _all_linked(world: World) -> bool:
    for index, gateway in enumerate(world.gateways):
        slot = link_of(world, index, world.worker.incarnation)
        connection = world.connections[slot] if slot is not None else None
        linked = connection is not None and connection.worker_end == "peer"
        if gateway.state != "dead" and not linked:
            return False
    return True
