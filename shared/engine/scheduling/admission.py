"""Refuses what an engine could never finish, before anything is queued."""

from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.sequence import SequenceSpec, max_blocks
from shared.errors import RequestError


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
