"""The hand-over's worlds, all of them: see `world.py` for what one is."""

from collections.abc import Iterator
from functools import partial

from tests.model.decode_moves import decode_moves
from tests.model.gateway_moves import gateway_moves
from tests.model.invariants import broken, settled
from tests.model.prefill_moves import prefill_moves
from tests.model.search import Model, Move, Verdict, search
from tests.model.world import Scope, World, initial


def explore(scope: Scope) -> Verdict:
    """Search the worlds of a scope. Without faults, only what the system does by itself."""
    return search(
        Model(
            initial(scope),
            partial(_system_moves if scope.fault_free else moves, scope=scope),
            partial(broken, scope=scope),
            partial(settled, scope=scope),
        )
    )


def moves(world: World, scope: Scope) -> Iterator[Move[World]]:
    """Everything that may happen next."""
    yield from gateway_moves(world, scope)
    for index in range(scope.num_prefill):
        yield from prefill_moves(world, scope, index)
    for index in range(scope.num_decode):
        yield from decode_moves(world, scope, index)


def _system_moves(world: World, scope: Scope) -> Iterator[Move[World]]:
    return (move for move in moves(world, scope) if not move.environment)
