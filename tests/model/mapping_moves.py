"""What decode worker d may do with the pools of prefill workers that it maps, and what it reads."""

from collections.abc import Iterator

from tests.model.search import Move
from tests.model.world import Decode, Mapping, Pool, Read, Scope, World, with_decode


def mapping_moves(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    """A mapping is made for a pull and stays for the next. It ends with its owner's connection,
    which may break while the owner lives; R19: when the owner is gone it does end."""
    worker = world.decode[index]
    if worker.state in ("pulling", "verifying") and not worker.quarantined:
        yield from _map(world, index)
    for mapping in worker.mappings:
        busy = worker.reading is not None and mapping_of(worker, worker.reading) == mapping
        lost = mapping.left is not None
        forgotten = lost and "unmap forgotten" in scope.mutants
        if scope.fault_free or forgotten or (busy and "unmap amid a copy" not in scope.mutants):
            continue
        unmapped = worker._replace(mappings=worker.mappings - {mapping})
        name = f"d{index} unmaps p{mapping.source}"
        yield Move(name, with_decode(world, index, unmapped), environment=not lost)


def _map(world: World, index: int) -> Iterator[Move[World]]:
    """The incarnation that the pull names must be there to pass its pool."""
    worker = world.decode[index]
    if world.prefill[worker.source].incarnation == worker.source_incarnation:
        mapping = Mapping(worker.source, worker.source_incarnation)
        mapped = worker._replace(mappings=worker.mappings | {mapping})
        if mapped != worker:
            yield Move(f"d{index} maps p{worker.source}", with_decode(world, index, mapped))


def left_to_mappings(world: World, source: int) -> World:
    """Prefill worker `source` dies: whoever maps its pool still sees it as it is now."""
    owner = world.prefill[source]
    dying = Mapping(source, owner.incarnation)
    for index, worker in enumerate(world.decode):
        if dying in worker.mappings:
            mappings = worker.mappings - {dying} | {dying._replace(left=owner.pool)}
            world = with_decode(world, index, worker._replace(mappings=mappings))
    return world


def mapping_of(worker: Decode, read: Read) -> Mapping | None:
    """Which mapping a copy goes through; None if it is not there (any more)."""
    wanted = worker.source, read.tag.incarnation
    return next((mapping for mapping in worker.mappings if mapping[:2] == wanted), None)


def readable(world: World, scope: Scope, worker: Decode, read: Read) -> Pool | None:
    """The pool that a read or a look into the table sees now; None where it would see nothing.
    Over a connection that takes the living owner, through a mapping the mapping alone."""
    owner = world.prefill[worker.source]
    if scope.mapped:
        mapping = mapping_of(worker, read)
        return mapping and (mapping.left or owner.pool)
    lives = owner.incarnation == read.tag.incarnation or "no incarnation" in scope.mutants
    return owner.pool if lives else None
