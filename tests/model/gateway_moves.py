"""What the owning gateway, the client and the reaper may do next."""

from collections.abc import Iterator

from tests.model.search import Move
from tests.model.world import Gateway, Record, Scope, Token, World, send


def gateway_moves(world: World, scope: Scope) -> Iterator[Move[World]]:
    gateway = world.gateway
    if gateway.alive:
        if gateway.state == "running":
            yield from _run(world, scope)
        elif gateway.state == "finishing":
            yield from _finish(world, scope)
        if world.num_crashes < scope.max_crashes:
            yield Move("gateway crashes", _crashed(world), environment=True)
    if world.record.state == "-" and not scope.fault_free:
        yield from _reap(world, scope)


def _run(world: World, scope: Scope) -> Iterator[Move[World]]:
    gateway = world.gateway
    if gateway.next_index == scope.num_tokens:
        yield _to_finishing(world, scope)
        return
    if gateway.phase == "queued":
        yield from _assign(world, scope)
    for message in world.network:
        if message[0] == "START":
            yield from _pick_decode(world, scope, message)
        elif message[0] == "TOKEN":
            yield from _sequence(world, scope, message)
    if not scope.fault_free:
        yield from _retry(world, scope)
    left = gateway._replace(state="finishing", client="LEFT", outcome="CANCELLED")
    yield Move("client leaves", world._replace(gateway=left), environment=True)


def _to_finishing(world: World, scope: Scope) -> Move[World]:
    """All tokens are there. R4: FINISH is attempted first, and retried until acknowledged."""
    gateway = world.gateway
    if "done first" in scope.mutants:
        ended = gateway._replace(state="ended", client="DONE", outcome="DONE")
        return Move("told DONE, no FINISH", world._replace(gateway=ended))
    finishing = gateway._replace(state="finishing", outcome="DONE")
    return Move("all tokens delivered", world._replace(gateway=finishing))


def _assign(world: World, scope: Scope) -> Iterator[Move[World]]:
    """R14: ASSIGN names the incarnation it is for."""
    gateway = world.gateway
    for index, worker in enumerate(world.prefill):
        assigned = world._replace(gateway=gateway._replace(phase="assigned"))
        message = ("ASSIGN", gateway.epoch, index, worker.incarnation)
        for after in send(assigned, scope, message):
            yield Move(f"ASSIGN to p{index}", after)


def _pick_decode(world: World, scope: Scope, start: tuple[object, ...]) -> Iterator[Move[World]]:
    """R2, R17: one decode incarnation per epoch, and only after START."""
    gateway = world.gateway
    _, epoch, source, source_inc = start
    open_phases = {"assigned"} | ({"received"} if "two decodes" in scope.mutants else set())
    if epoch != gateway.epoch or gateway.phase not in open_phases:
        return
    for index, worker in enumerate(world.decode):
        received = world._replace(gateway=gateway._replace(phase="received"))
        message = ("RECEIVE", epoch, index, worker.incarnation, source, source_inc)
        for after in send(received, scope, message):
            if after != world:
                yield Move(f"RECEIVE to d{index}", after)


def _sequence(world: World, scope: Scope, message: tuple[object, ...]) -> Iterator[Move[World]]:
    """R3: of the current epoch, exactly the next index; later ones are kept."""
    gateway = world.gateway
    token = message[1]
    assert isinstance(token, Token)
    current = token.epoch == gateway.epoch or "no epoch" in scope.mutants
    expected = token.position == gateway.next_index or "no index" in scope.mutants
    unbuffered = "no reorder buffer" in scope.mutants
    if current and expected:
        delivered = gateway._replace(
            next_index=gateway.next_index + 1, delivered=(*gateway.delivered, token)
        )
        network = world.network - {message} if unbuffered else world.network
        yield Move(
            f"token {token.position} delivered", world._replace(gateway=delivered, network=network)
        )
    elif unbuffered and current and token.position > gateway.next_index:
        yield Move(
            f"token {token.position} dropped", world._replace(network=world.network - {message})
        )


def _retry(world: World, scope: Scope) -> Iterator[Move[World]]:
    """A failure, lost link, hand-back or timeout may be suspected at any moment."""
    gateway = world.gateway
    if gateway.epoch == scope.max_epochs - 1:
        failed = gateway._replace(state="finishing", outcome="FAILED")
        yield Move("gives up", world._replace(gateway=failed))
        return
    again = gateway._replace(epoch=gateway.epoch + 1, phase="queued")
    first_index = (*world.first_index, gateway.next_index)
    requeued = world._replace(gateway=again, first_index=first_index)
    for after in send(requeued, scope, ("CANCEL", gateway.epoch)):
        yield Move("retries", after)


def _finish(world: World, scope: Scope) -> Iterator[Move[World]]:
    gateway = world.gateway
    written = _finished(world.record, gateway.outcome, scope)
    told = _told(gateway, gateway.outcome)
    ended = world._replace(gateway=told._replace(state="ended"), record=written)
    for after in send(ended, scope, ("CANCEL", gateway.epoch)):
        yield Move("FINISH acknowledged", after)
    if written != world.record:
        yield Move("FINISH written, answer lost", world._replace(record=written))
    if told != gateway:
        yield Move("told before the answer (250 ms)", world._replace(gateway=told))


def _told(gateway: Gateway, outcome: str) -> Gateway:
    if gateway.client != "-":
        return gateway
    return gateway._replace(client="DONE" if outcome == "DONE" else "ERROR")


def _finished(record: Record, outcome: str, scope: Scope) -> Record:
    """The record after FINISH by its owner: terminal once; ABANDONED is provisional."""
    if "no terminal guard" in scope.mutants:
        return Record(outcome, min(record.num_billed + 1, 2))
    if record.state in ("-", "ABANDONED"):
        return Record(outcome, 1)
    return record


def _reap(world: World, scope: Scope) -> Iterator[Move[World]]:
    """Another gateway takes the owner for dead, rightly or not."""
    abandoned = world._replace(record=Record("ABANDONED", world.record.num_billed + 1))
    cancels = [("CANCEL", epoch) for epoch in range(len(world.first_index))]
    for after in send(abandoned, scope, *cancels):
        yield Move("reaped", after, environment=world.gateway.alive)


def _crashed(world: World) -> World:
    gateway = world.gateway
    client = "LEFT" if gateway.client == "-" else gateway.client
    dead = gateway._replace(alive=False, state="ended", client=client)
    return world._replace(gateway=dead, num_crashes=world.num_crashes + 1)
