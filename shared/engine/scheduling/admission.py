"""Refuses what an engine could never finish, or not without waiting where nobody is to wait for KV
blocks, before anything is queued."""

from collections.abc import Iterable

from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.kv_pressure import may_be_refused, would_wait
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import Sequence, SequenceSpec, SequenceState, max_blocks
from shared.errors import OutOfBlocksError, RequestError

_QUEUED = (SequenceState.COMPILING, SequenceState.WAITING)


def check_fits(spec: SequenceSpec, pool: BlockPool, max_model_len: int) -> None:
    """RequestError if this sequence cannot end properly even with the whole pool for itself."""
    work = spec.work
    num_tokens = len(work.token_ids)
    if not 0 < work.num_prompt_tokens <= num_tokens:
        raise RequestError("the prompt is empty", param="prompt")
    if num_tokens >= max_model_len:
        raise RequestError(
            f"{num_tokens} tokens leave no room for an answer in a context of {max_model_len}",
            code="context_length_exceeded",
        )
    if num_tokens - work.num_prompt_tokens >= work.sampling.max_tokens:
        raise RequestError("max_tokens are delivered already", param="max_tokens")
    if len(spec.block_hashes) > num_tokens // pool.block_size:
        raise RequestError("more block hashes than full blocks")
    needed = max_blocks(spec, max_model_len, pool.block_size)
    if needed > pool.num_blocks:
        raise RequestError(
            f"needs {needed} KV blocks of the {pool.num_blocks} this worker has",
            code="context_length_exceeded",
        )


def check_room(sequence: Sequence, known: Iterable[Sequence], scheduler: Scheduler) -> None:
    """OutOfBlocksError if it would have to wait for KV blocks and is to be refused instead.
    `known`: the sequences that this engine has taken."""
    if not may_be_refused(scheduler.on_kv_pressure, sequence):
        return
    pool, limit = scheduler.pool, scheduler.max_model_len
    queued = (one for one in known if one.state in _QUEUED)
    if would_wait(sequence, queued, scheduler.running, pool, limit):
        needed = max_blocks(sequence.spec, limit, pool.block_size)
        raise OutOfBlocksError(
            f"prompt and answer need {needed} KV blocks, and a worker has {pool.num_available} of "
            f"its {pool.num_blocks} available, some for those that came before"
        )
