"""What must hold in every reachable world, and what every world must be able to reach."""

from tests.model.mapping_moves import mapping_of
from tests.model.world import FOREIGN, Gateway, Scope, World


def broken(world: World, scope: Scope) -> str | None:
    """The first invariant this world breaks, or None."""
    if world.record.num_billed > 1:
        return "I1 usage is written twice"
    return (
        _delivery_broken(world)
        or _outcome_broken(world)
        or _blocks_broken(world)
        or (_mapping_broken(world) if scope.mapped else None)
    )


def _delivery_broken(world: World) -> str | None:
    delivered = world.gateway.delivered
    for place, token in enumerate(delivered):
        if not token.right:
            return "I2 a token computed from foreign or stale KV was delivered"
        if token.position != place:
            return "I3 an index was delivered twice or left out"
        for earlier in delivered[world.first_index[token.epoch] : place]:
            if earlier.epoch != token.epoch:
                return "I4 attempts are mixed"
            if earlier.prefill != token.prefill:
                return "I4p two prefill runs are mixed in one epoch"
            if None not in (earlier.decode, token.decode) and earlier.decode != token.decode:
                return "I4d two decode incarnations are mixed in one epoch"
    return None


def _outcome_broken(world: World) -> str | None:
    gateway, record = world.gateway, world.record
    settled = gateway.alive and gateway.state == "ended"
    if settled and gateway.client == "DONE" and record.state != "DONE":
        return "I5 the client was told DONE and the record never will be"
    if record.state == "DONE" and settled and gateway.client not in ("DONE", "LEFT"):
        return "I6 the record is DONE and the client was told otherwise"
    return None


def _blocks_broken(world: World) -> str | None:
    for worker in world.decode:
        if worker.owner == "other" and (worker.piece0, worker.piece1) != (FOREIGN, FOREIGN):
            return "I7 a transfer wrote into another request's block"
    return None


def _mapping_broken(world: World) -> str | None:
    for worker in world.decode:
        if worker.reading is not None and mapping_of(worker, worker.reading) is None:
            return "I11 a copy reads what is no longer mapped"
    return None


def settled(world: World, scope: Scope) -> bool:
    """I8: the request is terminal, the client answered, every block free, nothing in flight, and
    nobody maps what a dead worker left: that memory is then free too.

    Without faults the client's answer must be DONE.
    """
    gateway = world.gateway
    if scope.fault_free:
        return world.record.state == "DONE" and gateway.client == "DONE"
    return (
        world.record.state != "-"
        and gateway.client != "-"
        and _not_owed(gateway)
        and all(w.state in ("free", "other") and w.preempted < 0 for w in world.prefill)
        and all(w.state == "idle" for w in world.decode)
        and not any(mapping.left for w in world.decode for mapping in w.mappings)
    )


def _not_owed(gateway: Gateway) -> bool:
    return not gateway.alive or gateway.state == "ended"
