"""What decode worker d may do next with its one block."""

from collections.abc import Iterator

from tests.model.mapping_moves import mapping_moves, mapping_of, readable
from tests.model.search import Move
from tests.model.world import (
    FOREIGN,
    RIGHT,
    Decode,
    Lineage,
    Read,
    Scope,
    Tag,
    Token,
    World,
    send,
    with_decode,
)


def decode_moves(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    worker = world.decode[index]
    moves = {"idle": _idle, "pulling": _pulling, "verifying": _verifying, "decoding": _decoding}
    yield from moves[worker.state](world, scope, index)
    if scope.mapped:
        yield from mapping_moves(world, scope, index)
    if world.num_crashes < scope.max_crashes:
        crashed = with_decode(world, index, Decode(incarnation=worker.incarnation + 1))
        crashed = crashed._replace(num_crashes=world.num_crashes + 1)
        yield Move(f"d{index} crashes", crashed, environment=True)


def _idle(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    worker = world.decode[index]
    if worker.owner == "other":
        back = _kept(worker)
        yield Move(f"d{index} gets its block back", with_decode(world, index, back), True)
        return
    for message in world.network:
        if message[0] == "RECEIVE" and message[2] == index:
            yield from _reserve(world, scope, index, message)
    if not scope.fault_free:
        yield Move(f"d{index} lends its block", with_decode(world, index, _lent(worker)), True)


def _reserve(
    world: World, scope: Scope, index: int, message: tuple[object, ...]
) -> Iterator[Move[World]]:
    """R14: bound to this incarnation; one attempt per epoch; all blocks at once."""
    worker = world.decode[index]
    _, epoch, _, inc, source, source_inc = message
    assert isinstance(epoch, int) and isinstance(source, int) and isinstance(source_inc, int)
    bound = inc == worker.incarnation or "unbound assign" in scope.mutants
    if bound and epoch > worker.last_epoch:
        reserved = _kept(worker)._replace(
            last_epoch=epoch,
            state="pulling",
            epoch=epoch,
            source=source,
            source_incarnation=source_inc,
            owner="this",
            next_index=world.first_index[epoch] + 1,
        )
        yield Move(f"d{index} reserves", with_decode(world, index, reserved))


def _pulling(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    worker = world.decode[index]
    if worker.reading is not None:
        yield from _complete_read(world, scope, index)
        if "early verify" in scope.mutants:
            yield from _verify_amid_a_read(world, scope, index)
    elif worker.quarantined:
        yield Move(f"d{index} leaves quarantine", with_decode(world, index, _freed(worker)))
    else:
        yield from _start_reads(world, scope, index)
        yield from _to_verify(world, scope, index)
    if ("CANCEL", worker.epoch) in world.network or not scope.fault_free:
        yield from _drop(world, scope, index)


def _start_reads(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    """R11: only what was published is read, and it is tagged with what it was published as."""
    worker = world.decode[index]
    source = world.prefill[worker.source]
    for message in world.network:
        kind, epoch, published_by = message[0], message[1], message[2:3]
        if kind not in ("WM", "SEAL") or epoch != worker.epoch:
            continue
        if published_by != (worker.source,):
            continue
        if message[3] != source.incarnation and not scope.mapped:
            continue
        if message[3] != worker.source_incarnation and not _unbound(scope):
            continue
        inc, generation = message[3], message[4]
        assert isinstance(inc, int) and isinstance(generation, int)
        tag = Tag(inc, generation)
        if worker.tag0 is None:
            yield from _reading(world, scope, index, Read(0, tag))
        if worker.tag1 is None and kind == "SEAL":
            yield from _reading(world, scope, index, Read(1, tag))
    blind = "no watermark" in scope.mutants and worker.tag0 is None
    if blind and source.incarnation == worker.source_incarnation and source.state == "writing":
        tag = Tag(source.incarnation, source.generation)
        yield from _reading(world, scope, index, Read(0, tag))


def _reading(world: World, scope: Scope, index: int, read: Read) -> Iterator[Move[World]]:
    """R19: a copy begins only while its mapping stands."""
    worker = world.decode[index]
    stands = mapping_of(worker, read) is not None or "copy after unmap" in scope.mutants
    if stands or not scope.mapped:
        begun = with_decode(world, index, worker._replace(reading=read))
        yield Move(f"d{index} reads piece {read.piece}", begun)


def _complete_read(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    """What the source's memory holds at this moment arrives, if it is there."""
    worker = world.decode[index]
    read = worker.reading
    assert read is not None
    source = readable(world, scope, worker, read)
    done = worker._replace(reading=None)
    if source is None:
        yield Move(f"d{index} read fails", with_decode(world, index, done))
    elif read.piece == 0:
        done = done._replace(tag0=read.tag, piece0=source.piece0)
        yield Move(f"d{index} has piece 0", with_decode(world, index, done))
    else:
        done = done._replace(tag1=read.tag, piece1=source.piece1)
        yield Move(f"d{index} has piece 1", with_decode(world, index, done))
    if worker.quarantined and worker.owner == "free":
        taken = worker._replace(owner="other", piece0=FOREIGN, piece1=FOREIGN)
        yield Move(f"d{index} lends its block", with_decode(world, index, taken), True)


def _to_verify(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    """R12: at SEAL a piece tagged with anything but the manifest is read again."""
    worker = world.decode[index]
    if worker.tag0 is None or worker.tag1 is None:
        return
    for message in world.network:
        if message[0] != "SEAL" or message[1:3] != (worker.epoch, worker.source):
            continue
        _, _, source, inc, generation, run = message
        assert isinstance(source, int) and isinstance(inc, int)
        assert isinstance(generation, int) and isinstance(run, int)
        sealed = Tag(inc, generation)
        unchecked = "no tag compare" in scope.mutants
        if worker.tag0 != sealed and not unchecked:
            again = worker._replace(tag0=None)
            yield Move(f"d{index} drops piece 0", with_decode(world, index, again))
        elif worker.tag1 != sealed and not unchecked:
            again = worker._replace(tag1=None)
            yield Move(f"d{index} drops piece 1", with_decode(world, index, again))
        else:
            lineage = Lineage(source, inc, run)
            ready = worker._replace(state="verifying", sealed=sealed, prefill=lineage)
            yield Move(f"d{index} asks to verify", with_decode(world, index, ready))


def _verify_amid_a_read(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    """As if the read in flight had ended."""
    worker = world.decode[index]
    assert worker.reading is not None
    piece, tag = worker.reading
    hasty = worker._replace(tag0=tag) if piece == 0 else worker._replace(tag1=tag)
    for move in _to_verify(with_decode(world, index, hasty), scope, index):
        if move.world.decode[index].state == "verifying":
            yield move


def _drop(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    """CANCEL, a broken link or a higher epoch. R18: a read in flight ends first."""
    worker = world.decode[index]
    if worker.reading is None:
        yield Move(f"d{index} drops", with_decode(world, index, _freed(worker)))
    elif not worker.quarantined:
        owner = "free" if "early free" in scope.mutants else worker.owner
        waiting = worker._replace(quarantined=True, owner=owner)
        yield Move(f"d{index} quarantines", with_decode(world, index, waiting))


def _verifying(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    """R13: one verify, after SEAL and after the last read."""
    worker = world.decode[index]
    if ("CANCEL", worker.epoch) in world.network:
        yield Move(f"d{index} drops", with_decode(world, index, _freed(worker)))
    if not _verified(world, scope, worker):
        yield Move(f"d{index} verify fails", with_decode(world, index, _freed(worker)))
        return
    decoding = with_decode(world, index, worker._replace(state="decoding"))
    for after in send(decoding, scope, ("RELEASE", worker.epoch, worker.source)):
        yield Move(f"d{index} commits", after)


def _verified(world: World, scope: Scope, worker: Decode) -> bool:
    """The sealed generation is the one in force in the source's table."""
    assert worker.sealed is not None
    if "no verify" in scope.mutants:
        return True
    table = readable(world, scope, worker, Read(0, worker.sealed))
    return table is not None and table.generation == worker.sealed.generation


def _decoding(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    worker = world.decode[index]
    if worker.reading is not None:
        yield from _complete_read(world, scope, index)
    elif worker.next_index < scope.num_tokens:
        assert worker.prefill is not None
        right = worker.piece0 == worker.piece1 == RIGHT
        lineage = Lineage(index, worker.incarnation)
        token = Token(worker.epoch, worker.next_index, right, worker.prefill, lineage)
        grown = worker._replace(next_index=worker.next_index + 1)
        for after in send(with_decode(world, index, grown), scope, ("TOKEN", token)):
            yield Move(f"d{index} decodes token {token.position}", after)
    else:
        yield Move(f"d{index} finishes", with_decode(world, index, _freed(worker)))
    if ("CANCEL", worker.epoch) in world.network or not scope.fault_free:
        yield Move(f"d{index} drops", with_decode(world, index, _freed(worker)))


def _unbound(scope: Scope) -> bool:
    return bool({"unbound assign", "no incarnation"} & scope.mutants)


def _freed(worker: Decode) -> Decode:
    if worker.owner == "other":
        return worker._replace(state="idle", epoch=-1, reading=None, quarantined=False)
    return _kept(worker)


def _lent(worker: Decode) -> Decode:
    return _kept(worker)._replace(owner="other", piece0=FOREIGN, piece1=FOREIGN)


def _kept(worker: Decode) -> Decode:
    """What outlives an attempt."""
    return Decode(
        incarnation=worker.incarnation, last_epoch=worker.last_epoch, mappings=worker.mappings
    )
