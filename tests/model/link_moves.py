"""What the gateways, the worker, the registry and the network of `links.py` may do next."""

from collections.abc import Iterator
from functools import partial

from tests.model.links import (
    ASSIGN,
    CANCEL,
    CLOSED,
    END,
    HELLO,
    Connection,
    Gateway,
    Held,
    Message,
    Rules,
    Worker,
    World,
    broken,
    close_gateway_end,
    close_worker_end,
    initial,
    link_of,
    note_hit,
    settled,
    to_gateway,
    to_worker,
    with_connection,
    with_gateway,
)
from tests.model.search import Model, Move, Verdict, search


def explore(rules: Rules) -> Verdict:
    return search(Model(initial(rules), partial(moves, rules=rules), broken, settled))


def moves(world: World, rules: Rules) -> Iterator[Move[World]]:
    for index, gateway in enumerate(world.gateways):
        if gateway.state != "dead":
            yield from _gateway_moves(world, rules, index)
    for slot, connection in enumerate(world.connections):
        if connection is not None:
            yield from _connection_moves(world, rules, slot)
    yield from _worker_moves(world, rules)
    for incarnation in world.registry - {world.worker.incarnation}:
        expired = world._replace(registry=world.registry - {incarnation})
        yield Move(f"entry {incarnation} expires", expired)


# Gateways


def _gateway_moves(world: World, rules: Rules, index: int) -> Iterator[Move[World]]:
    gateway = world.gateways[index]
    listed = gateway._replace(
        entries=world.registry - gateway.strangers, strangers=gateway.strangers & world.registry
    )
    if listed != gateway:
        yield Move(f"g{index} polls", with_gateway(world, index, listed))
    for incarnation in gateway.entries:
        yield from _dial(world, rules, index, incarnation)
    if gateway.state == "queued":
        yield from _assign(world, index)
    if gateway.state in ("queued", "running"):
        yield Move(f"g{index}'s client leaves", _left(world, index), environment=True)
    deaths = sum(other.state == "dead" for other in world.gateways)
    if deaths < rules.max_gateway_deaths:
        yield Move(f"g{index} dies", _dead(world, index), environment=True)


def _dial(world: World, rules: Rules, index: int, incarnation: int) -> Iterator[Move[World]]:
    """Whoever lives at the address answers, and speaks first. One dial at a time."""
    dialling = sum(
        (c.gateway, c.to, c.gateway_end) == (index, incarnation, "dialling")
        for c in world.connections
        if c is not None
    )
    most = 2 if "two dials at once" in rules.mutants else 1
    linked = link_of(world, index, incarnation) is not None
    free = None in world.connections
    if linked or dialling >= most or not world.worker.alive or not free:
        return
    gateway = world.gateways[index]
    runs_there = gateway.state == "running" and gateway.at == incarnation
    named = frozenset({gateway.epoch} if runs_there else ())
    dials = [c.dial for c in world.connections if c is not None and c.gateway == index]
    made = Connection(
        index, world.worker.incarnation, incarnation, named, 1 + max(dials, default=0)
    )
    slot = world.connections.index(None)
    yield Move(f"g{index} dials {incarnation}", with_connection(world, slot, made))


def _assign(world: World, index: int) -> Iterator[Move[World]]:
    gateway = world.gateways[index]
    for slot, connection in enumerate(world.connections):
        if connection is None or (connection.gateway, connection.gateway_end) != (index, "linked"):
            continue
        running = gateway._replace(state="running", at=connection.incarnation)
        if Message(CLOSED) in connection.to_gateway:
            running = running._replace(num_hits=gateway.num_hits + 1)  # it is lost already
        assigned = with_gateway(world, index, running)
        yield Move(
            f"g{index} assigns to {connection.incarnation}",
            to_worker(assigned, slot, Message(ASSIGN, gateway.epoch)),
        )


def _left(world: World, index: int) -> World:
    gateway = world.gateways[index]
    slot = link_of(world, index, gateway.at)
    left = with_gateway(world, index, gateway._replace(state="left", at=-1))
    return left if slot is None else to_worker(left, slot, Message(CANCEL, gateway.epoch))


def _dead(world: World, index: int) -> World:
    for slot, connection in enumerate(world.connections):
        own = connection is not None and connection.gateway == index
        if own and connection is not None and connection.gateway_end != "closed":
            world = close_gateway_end(world, slot)
    epoch, num_hits = world.gateways[index].epoch, world.gateways[index].num_hits
    return with_gateway(world, index, Gateway("dead", epoch, num_hits=num_hits))


def _hear_worker(world: World, rules: Rules, slot: int) -> Move[World]:
    """The gateway's end reads the next message."""
    connection = world.connections[slot]
    assert connection is not None
    message, *rest = connection.to_gateway
    index, name = connection.gateway, f"g{connection.gateway} hears {connection.to_gateway[0].kind}"
    read = with_connection(world, slot, connection._replace(to_gateway=tuple(rest)))
    if message.kind == CLOSED:
        return Move(name, _lost(read, rules, slot))
    if message.kind == HELLO:
        return Move(name, _met(read, rules, slot))
    gateway = world.gateways[index]
    place = gateway.state, gateway.epoch, gateway.at
    if place == ("running", message.epoch, connection.incarnation):
        read = with_gateway(read, index, gateway._replace(state="done", at=-1))
    return Move(name, read)


def _met(world: World, rules: Rules, slot: int) -> World:
    """The worker has named its incarnation. Another than was dialled is told nothing."""
    connection = world.connections[slot]
    assert connection is not None
    index, there = connection.gateway, connection.incarnation
    if there != connection.to and "gateway tells whoever answers" not in rules.mutants:
        gateway = world.gateways[index]
        wary = gateway._replace(
            entries=gateway.entries - {connection.to}, strangers=gateway.strangers | {connection.to}
        )
        return close_gateway_end(with_gateway(world, index, wary), slot)
    hello = Message(HELLO, to=connection.to, named=connection.named)
    told = to_worker(world, slot, hello)
    if link_of(world, index, there) is not None:
        return close_gateway_end(told, slot)
    connection = told.connections[slot]
    assert connection is not None
    return with_connection(told, slot, connection._replace(gateway_end="linked"))


def _lost(world: World, rules: Rules, slot: int) -> World:
    """The gateway's end is closed. What ran over a link is given up: the worker does the same when
    it hears of it, and nobody can tell whether it has."""
    connection = world.connections[slot]
    assert connection is not None
    closed = close_gateway_end(world, slot)
    gateway = world.gateways[connection.gateway]
    ran_here = gateway.state == "running" and gateway.at == connection.incarnation
    kept = "attempts outlive a link" in rules.mutants
    if connection.gateway_end != "linked" or not ran_here or kept:
        return closed
    again = gateway._replace(state="queued", epoch=gateway.epoch + 1, at=-1)
    return with_gateway(closed, connection.gateway, again)


# The network


def _connection_moves(world: World, rules: Rules, slot: int) -> Iterator[Move[World]]:
    connection = world.connections[slot]
    assert connection is not None
    if connection.to_gateway:
        yield _hear_worker(world, rules, slot)
    if connection.to_worker and world.worker.alive:
        yield _hear_gateway(world, rules, slot)
    if world.num_breaks >= rules.max_breaks:
        return
    world = world._replace(num_breaks=world.num_breaks + 1)
    if "closed" not in (connection.gateway_end, connection.worker_end):
        yield Move(f"connection {slot} breaks", _broken_off(world, slot), environment=True)
    if connection.gateway_end == "linked":
        silent = _lost(note_hit(world, slot), rules, slot)
        yield Move(f"g{connection.gateway} hears nothing for too long", silent, environment=True)


def _broken_off(world: World, slot: int) -> World:
    world = note_hit(world, slot)
    connection = world.connections[slot]
    assert connection is not None
    ends = connection._replace(to_gateway=(Message(CLOSED),), to_worker=(Message(CLOSED),))
    return with_connection(world, slot, ends)


# The worker


def _worker_moves(world: World, rules: Rules) -> Iterator[Move[World]]:
    worker = world.worker
    if not worker.alive:
        reborn = Worker(worker.incarnation + 1)
        yield Move("the worker is back", world._replace(worker=reborn))
        return
    if worker.incarnation not in world.registry:
        listed = world._replace(registry=world.registry | {worker.incarnation})
        yield Move("the worker registers", listed)
    for held in worker.held:
        done = _without(world, held)
        name = f"the worker ends g{held.gateway}'s epoch {held.epoch}"
        yield Move(name, to_gateway(done, held.connection, Message(END, held.epoch)))
    if worker.incarnation + 1 < rules.max_incarnations:
        yield Move("the worker dies", _fallen(world), environment=True)


def _fallen(world: World) -> World:
    for slot, connection in enumerate(world.connections):
        if connection is not None and connection.worker_end != "closed":
            world = close_worker_end(note_hit(world, slot), slot)
    return world._replace(worker=Worker(world.worker.incarnation, alive=False))


def _hear_gateway(world: World, rules: Rules, slot: int) -> Move[World]:
    """The worker's end reads the next message."""
    connection = world.connections[slot]
    assert connection is not None
    message, *rest = connection.to_worker
    read = with_connection(world, slot, connection._replace(to_worker=tuple(rest)))
    index, name = connection.gateway, f"the worker hears {message.kind} of g{connection.gateway}"
    if message.kind == CLOSED:
        return Move(name, _gone(read, rules, slot))
    if message.kind == HELLO:
        return Move(name, _admitted(read, rules, slot, message))
    mine = [held for held in world.worker.held if held.gateway == index]
    if message.kind == CANCEL:
        for held in mine:
            read = _without(read, held) if held.epoch == message.epoch else read
    elif all(held.epoch < message.epoch for held in mine):
        for held in mine:
            read = _without(read, held)
        read = _with(read, Held(index, message.epoch, slot))
    return Move(name, read)


def _admitted(world: World, rules: Rules, slot: int, hello: Message) -> World:
    """HELLO for this incarnation: what it does not name is dropped, the rest goes on over this
    connection, and a former one of the same gateway is hung up on. Of an earlier dial than the
    link there is, it is late: that dial was given up."""
    connection = world.connections[slot]
    assert connection is not None
    late = any(
        (other.gateway, other.worker_end) == (connection.gateway, "peer")
        and other.dial > connection.dial
        for other in world.connections
        if other is not None
    )
    if late and "a late HELLO counts" not in rules.mutants:
        return close_worker_end(world, slot)
    if hello.to != world.worker.incarnation and "worker takes any HELLO" not in rules.mutants:
        return close_worker_end(world, slot)
    for held in world.worker.held:
        own = held.gateway == connection.gateway
        if not own and "HELLO is for all gateways" not in rules.mutants:
            continue
        world = _without(world, held)
        if held.epoch in hello.named or (own and "HELLO drops nothing" in rules.mutants):
            world = _with(world, held._replace(connection=slot))
    for former, other in enumerate(world.connections):
        if other is not None and (other.gateway, other.worker_end) == (connection.gateway, "peer"):
            world = close_worker_end(world, former)
    return with_connection(world, slot, connection._replace(worker_end="peer"))


def _gone(world: World, rules: Rules, slot: int) -> World:
    """The connection is closed, and what came over it has no owner any more."""
    for held in world.worker.held:
        if held.connection == slot and "worker keeps what has no link" not in rules.mutants:
            world = _without(world, held)
    return close_worker_end(world, slot)


def _with(world: World, held: Held) -> World:
    worker = world.worker
    return world._replace(worker=worker._replace(held=worker.held | {held}))


def _without(world: World, held: Held) -> World:
    worker = world.worker
    return world._replace(worker=worker._replace(held=worker.held - {held}))
