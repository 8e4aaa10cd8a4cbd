"""What prefill worker p may do next with its one block."""

from collections.abc import Iterator

from tests.model.mapping_moves import left_to_mappings
from tests.model.search import Move
from tests.model.world import (
    FOREIGN,
    RIGHT,
    STALE,
    Lineage,
    Prefill,
    Scope,
    Token,
    World,
    send,
    with_prefill,
)

NUM_PIECES = 2


def prefill_moves(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    worker = world.prefill[index]
    if worker.state == "free":
        yield from _free(world, scope, index)
    elif worker.state == "other":
        yield from _used_by_another(world, scope, index)
    elif worker.state == "writing":
        yield from _writing(world, scope, index)
    else:
        yield from _held(world, scope, index)
    if world.num_crashes < scope.max_crashes:
        reborn = Prefill(incarnation=worker.incarnation + 1)
        crashed = with_prefill(left_to_mappings(world, index), index, reborn)
        crashed = crashed._replace(num_crashes=world.num_crashes + 1)
        yield Move(f"p{index} crashes", crashed, environment=True)


def _free(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    worker = world.prefill[index]
    if worker.preempted >= 0:
        yield from _resume(world, scope, index)
    else:
        for message in world.network:
            if message[0] == "ASSIGN" and message[2] == index:
                yield from _accept(world, scope, index, message)
    if worker.generation < scope.max_generation and not scope.fault_free:
        other = _bumped(worker, scope)._replace(
            state="other", epoch=-1, piece0=FOREIGN, piece1=FOREIGN
        )
        yield Move(f"p{index} lends its block", with_prefill(world, index, other), True)


def _accept(
    world: World, scope: Scope, index: int, message: tuple[object, ...]
) -> Iterator[Move[World]]:
    """R14, and one attempt per epoch. START is sent as the first chunk is scheduled."""
    worker = world.prefill[index]
    epoch = message[1]
    assert isinstance(epoch, int)
    bound = message[3] == worker.incarnation or "unbound assign" in scope.mutants
    if not bound or epoch <= worker.last_epoch or worker.generation > scope.max_generation:
        return
    writing = _bumped(worker, scope)._replace(
        last_epoch=epoch,
        state="writing",
        epoch=epoch,
        piece0=STALE,
        piece1=STALE,
        marks=(0,) * scope.num_ranks,
        run=0,
    )
    started = with_prefill(world, index, writing)
    for after in send(started, scope, ("START", epoch, index, worker.incarnation)):
        yield Move(f"p{index} starts", after)


def _resume(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    """The prefill is run again inside its epoch: the engine never does (R17), the protocol
    bears it all the same."""
    worker = world.prefill[index]
    epoch = worker.preempted
    if worker.generation <= scope.max_generation:
        again = _bumped(worker, scope)._replace(
            state="writing",
            epoch=epoch,
            piece0=STALE,
            piece1=STALE,
            marks=(0,) * scope.num_ranks,
            preempted=-1,
            run=worker.run + 1,
        )
        yield Move(f"p{index} resumes", with_prefill(world, index, again))
    if ("CANCEL", epoch) in world.network or not scope.fault_free:
        forgotten = worker._replace(preempted=-1, epoch=-1, run=0)
        yield Move(f"p{index} forgets", with_prefill(world, index, forgotten))


def _used_by_another(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    worker = world.prefill[index]
    freed = worker._replace(state="free")
    if "late generation" in scope.mutants:
        freed = freed._replace(generation=worker.generation + 1)
    yield Move(f"p{index} gets its block back", with_prefill(world, index, freed), True)
    if worker.preempted >= 0:
        forgotten = worker._replace(preempted=-1, run=0)
        yield Move(f"p{index} forgets", with_prefill(world, index, forgotten))


def _writing(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    worker = world.prefill[index]
    published = _watermark(worker, index)
    early = "early watermark" in scope.mutants and worker.piece0 == STALE
    if early and published not in world.network:
        for after in send(world, scope, published):
            yield Move(f"p{index} publishes too early", after)
    for rank, num_done in enumerate(worker.marks):
        if num_done < NUM_PIECES:
            yield from _pass_mark(world, scope, index, rank)
    if worker.run < scope.max_reruns and not scope.fault_free:
        preempted = worker._replace(state="free", epoch=-1, marks=(), preempted=worker.epoch)
        yield Move(f"p{index} preempts", with_prefill(world, index, preempted), True)
    if ("CANCEL", worker.epoch) in world.network:
        yield Move(f"p{index} cancels", with_prefill(world, index, _freed(worker)))


def _pass_mark(world: World, scope: Scope, index: int, rank: int) -> Iterator[Move[World]]:
    """A rank's share of its next piece is computed. R11: a piece is published when it is whole,
    so when the last rank has passed its mark."""
    worker = world.prefill[index]
    marks = (*worker.marks[:rank], worker.marks[rank] + 1, *worker.marks[rank + 1 :])
    num_whole = min(marks)
    written = worker._replace(
        marks=marks,
        piece0=RIGHT if num_whole > 0 else worker.piece0,
        piece1=RIGHT if num_whole > 1 else worker.piece1,
    )
    ready = max if "one rank's mark" in scope.mutants else min
    after = with_prefill(world, index, written)
    if ready(marks) == ready(worker.marks):
        yield Move(f"p{index} rank {rank} passes a mark", after)
    elif ready(marks) == NUM_PIECES:
        yield from _seal(after, scope, index)
    else:
        for sent in send(after, scope, _watermark(worker, index)):
            yield Move(f"p{index} publishes piece 0", sent)


def _watermark(worker: Prefill, index: int) -> tuple[object, ...]:
    return "WM", worker.epoch, index, worker.incarnation, worker.generation


def _seal(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    """SEAL to decode and token 1 to the gateway."""
    worker = world.prefill[index]
    generation = worker.generation + ("late generation" in scope.mutants)
    held = worker._replace(state="held", marks=(), generation=generation)
    lineage = Lineage(index, worker.incarnation, worker.run)
    token = Token(worker.epoch, world.first_index[worker.epoch], True, lineage, None)
    seal = ("SEAL", worker.epoch, index, worker.incarnation, generation, worker.run)
    for after in send(with_prefill(world, index, held), scope, seal, ("TOKEN", token)):
        yield Move(f"p{index} seals", after)


def _held(world: World, scope: Scope, index: int) -> Iterator[Move[World]]:
    worker = world.prefill[index]
    free = with_prefill(world, index, _freed(worker))
    if ("RELEASE", worker.epoch, index) in world.network:
        yield Move(f"p{index} released", free)
    if ("CANCEL", worker.epoch) in world.network:
        yield Move(f"p{index} cancels", free)
    if "no lease" not in scope.mutants and not scope.fault_free:
        yield Move(f"p{index} lease ends", free)


def _bumped(worker: Prefill, scope: Scope) -> Prefill:
    """R6: the generation grows before the block is overwritten."""
    if "late generation" in scope.mutants:
        return worker
    return worker._replace(generation=worker.generation + 1)


def _freed(worker: Prefill) -> Prefill:
    return worker._replace(state="free", epoch=-1, marks=(), preempted=-1, run=0)
