"""Breadth-first search of every reachable world, and what it proves."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.decode_moves import decode_moves
from tests.model.gateway_moves import gateway_moves
from tests.model.invariants import broken, settled
from tests.model.prefill_moves import prefill_moves
from tests.model.world import Move, Scope, World, initial


@dataclass(frozen=True)
class Verdict:
    """`violation` and `stuck` are None when everything holds; else what, and how to get there."""

    num_worlds: int
    violation: str | None = None
    stuck: str | None = None
    trace: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        return self.violation is None and self.stuck is None

    def __str__(self) -> str:
        found = self.violation or self.stuck or "all invariants hold"
        return f"{found} after {self.num_worlds} worlds: {' > '.join(self.trace)}"


def moves(world: World, scope: Scope) -> Iterator[Move]:
    """Everything that may happen next."""
    yield from gateway_moves(world, scope)
    for index in range(scope.num_prefill):
        yield from prefill_moves(world, scope, index)
    for index in range(scope.num_decode):
        yield from decode_moves(world, scope, index)


def explore(scope: Scope, max_worlds: int = 3_000_000) -> Verdict:
    """Visit every reachable world once; stop at the first that breaks an invariant.

    Then walk the system's own moves backwards from the settled worlds: a world that is not met
    is one the system can never leave by itself.
    """
    start = initial(scope)
    numbers = {start: 0}
    worlds = [start]
    parents = array("q", [-1])
    edges = array("q")
    """system moves as (from, to) pairs"""
    for number, world in enumerate(worlds):
        for move in moves(world, scope):
            if move.environment and scope.fault_free:
                continue
            target = numbers.get(move.world)
            if target is None:
                target = numbers[move.world] = len(worlds)
                worlds.append(move.world)
                parents.append(number)
                violation = broken(move.world, scope)
                if violation is not None:
                    trace = _trace(worlds, parents, target, scope)
                    return Verdict(len(worlds), violation=violation, trace=trace)
            if not move.environment:
                edges.extend((number, target))
        assert len(worlds) <= max_worlds, f"more than {max_worlds} worlds: not exhaustive"
    stranded = _stranded(worlds, edges, scope)
    if stranded is not None:
        trace = _trace(worlds, parents, stranded, scope)
        return Verdict(len(worlds), stuck="a world the system cannot leave", trace=trace)
    return Verdict(len(worlds))


def _stranded(worlds: list[World], edges: "array[int]", scope: Scope) -> int | None:
    """The first world from which no settled one is reachable by system moves."""
    counts = array("q", bytes(8 * (len(worlds) + 1)))
    for target in edges[1::2]:
        counts[target + 1] += 1
    for number in range(len(worlds)):
        counts[number + 1] += counts[number]
    sources = array("q", bytes(8 * (len(edges) // 2)))
    place = array("q", counts)
    for at in range(0, len(edges), 2):
        target = edges[at + 1]
        sources[place[target]] = edges[at]
        place[target] += 1
    met = bytearray(len(worlds))
    stack = [number for number, world in enumerate(worlds) if settled(world, scope)]
    for number in stack:
        met[number] = 1
    while stack:
        target = stack.pop()
        for source in sources[counts[target] : counts[target + 1]]:
            if not met[source]:
                met[source] = 1
                stack.append(source)
    missing = met.find(0)
    return None if missing < 0 else missing


def _trace(
    worlds: list[World], parents: "array[int]", number: int, scope: Scope
) -> tuple[str, ...]:
    """Names of the moves that lead to a world, found again along its ancestors."""
    names: list[str] = []
    while parents[number] >= 0:
        parent = worlds[parents[number]]
        names.append(next(m.name for m in moves(parent, scope) if m.world == worlds[number]))
        number = parents[number]
    return tuple(reversed(names))
