"""Which changes would make a model fit. Each that is named was computed again and fits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from services.cli.byte_size import MIB
from services.cli.capacity.estimate import Question, estimate
from shared.errors import ModelError
from shared.kv.layout import DTYPE_BYTES
from shared.kv.share import MAX_RANKS

HOST_SHARE = 0.95
"""of the room in a machine's memory: what others use of it changes from moment to moment"""


def advise(question: Question) -> tuple[tuple[str, ...], ...]:
    """Flags, each item a way of its own: one change where one is enough, else two, else more.
    Nothing where no way leads there."""
    for count in range(1, len(MOVES) + 1):
        found = [_fitting(question, moves) for moves in combinations(MOVES, count)]
        ways = tuple(_flags(question, each) for each in found if each is not None)
        if ways:
            return ways
    return ()


def _fitting(question: Question, moves: Sequence["Move"]) -> Question | None:
    """The first that fits after all of these changes."""
    if not moves:
        return question if _fits(question) else None
    for changed in moves[0](question):
        found = _fitting(changed, moves[1:])
        if found is not None:
            return found
    return None


def _fits(question: Question) -> bool:
    try:
        return estimate(question).fits
    except ModelError:  # it cannot be split over that number
        return False


def _smaller_dtype(question: Question) -> Iterator[Question]:
    if DTYPE_BYTES[question.dtype] > DTYPE_BYTES["bfloat16"]:
        yield replace(question, compute=replace(question.compute, dtype="bfloat16"))


def _more_gpus(question: Question) -> Iterator[Question]:
    tp = 2 * question.compute.tp
    while question.device.on_gpu and tp <= MAX_RANKS:
        yield replace(question, compute=replace(question.compute, tp=tp))
        tp *= 2


def _other_pool(question: Question) -> Iterator[Question]:
    """Where it is as large as a setting says: what is wanted, or nearly all there is room for."""
    capacity = estimate(question)
    share = 1.0 if question.device.on_gpu else HOST_SHARE
    room_bytes = int(share * capacity.room_bytes)
    if question.kv.blocks:
        wanted = capacity.wanted_blocks
        if wanted <= question.kv.blocks:
            wanted = max(wanted, room_bytes // capacity.layout.block_bytes)
        if wanted != question.kv.blocks:
            yield replace(question, kv=replace(question.kv, blocks=wanted))
        return
    if question.device.on_gpu:
        return
    wanted_mib = -(-capacity.wanted_blocks * capacity.layout.block_bytes // MIB)
    if wanted_mib <= question.kv.memory_mib:
        wanted_mib = max(wanted_mib, room_bytes // MIB)
    if wanted_mib != question.kv.memory_mib:
        yield replace(question, kv=replace(question.kv, memory_mib=wanted_mib))


def _shorter_context(question: Question) -> Iterator[Question]:
    """As long as the pool is."""
    wanted = question.compute.max_model_len
    try:
        longest = estimate(question).longest
    except ModelError:
        return
    if 0 < longest < wanted:
        yield replace(question, compute=replace(question.compute, max_model_len=longest))


Move = Callable[[Question], Iterator[Question]]
MOVES: tuple[Move, ...] = (_smaller_dtype, _more_gpus, _other_pool, _shorter_context)
"""in this order: how long a context can be depends on all the others"""


def _flags(before: Question, after: Question) -> tuple[str, ...]:
    """What to add to the command line."""
    changes = {
        "--dtype": (before.compute.dtype, after.compute.dtype),
        "--tp": (before.compute.tp, after.compute.tp),
        "--kv-blocks": (before.kv.blocks, after.kv.blocks),
        "--kv-memory-mib": (before.kv.memory_mib, after.kv.memory_mib),
        "--context": (before.compute.max_model_len, after.compute.max_model_len),
    }
    return tuple(f"{flag} {new}" for flag, (old, new) in changes.items() if old != new)
