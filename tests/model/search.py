"""Breadth-first search of every world that moves lead to, and what it proves of any model."""

from array import array
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

W = TypeVar("W", bound=Hashable)


class Move(NamedTuple, Generic[W]):
    """One atomic step. The environment's moves may happen, the system's must be enough."""

    name: str
    world: W
    environment: bool = False


@dataclass(frozen=True)
class Model(Generic[W]):
    """What is searched, and what is asked of each world."""

    start: W
    moves: Callable[[W], Iterable[Move[W]]]
    """everything that may happen next"""
    broken: Callable[[W], str | None]
    """the first invariant that a world breaks"""
    settled: Callable[[W], bool]
    """all is over, as it should be: the system must be able to get here from every world"""


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


def search(model: Model[W], max_worlds: int = 3_000_000) -> Verdict:
    """Visit every reachable world once; stop at the first that breaks an invariant.

    Then walk the system's own moves backwards from the settled worlds: a world that is not met
    is one the system can never leave by itself.
    """
    numbers = {model.start: 0}
    worlds = [model.start]
    parents = array("q", [-1])
    edges = array("q")
    """system moves as (from, to) pairs"""
    for number, world in enumerate(worlds):
        for _, after, environment in model.moves(world):
            target = numbers.setdefault(after, len(worlds))
            if target == len(worlds):
                worlds.append(after)
                parents.append(number)
                violation = model.broken(after)
                if violation is not None:
                    trace = _trace(model, worlds, parents, target)
                    return Verdict(len(worlds), violation=violation, trace=trace)
            if not environment:
                edges.extend((number, target))
        assert len(worlds) <= max_worlds, f"more than {max_worlds} worlds: not exhaustive"
    stranded = _stranded(model, worlds, edges)
    if stranded is not None:
        trace = _trace(model, worlds, parents, stranded)
        return Verdict(len(worlds), stuck="a world the system cannot leave", trace=trace)
    return Verdict(len(worlds))


def _stranded(model: Model[W], worlds: list[W], edges: "array[int]") -> int | None:
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
    stack = [number for number, world in enumerate(worlds) if model.settled(world)]
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


def _trace(model: Model[W], worlds: list[W], parents: "array[int]", number: int) -> tuple[str, ...]:
    """Names of the moves that lead to a world, found again along its ancestors."""
    names: list[str] = []
    while parents[number] >= 0:
        parent = worlds[parents[number]]
        moves = model.moves(parent)
        names.append(next(name for name, world, _ in moves if world == worlds[number]))
        number = parents[number]
    return tuple(reversed(names))
