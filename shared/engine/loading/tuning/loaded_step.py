"""Steps as a loaded engine has them: sequences that decode, and with them chunks of prompts. They
store nothing, and read blocks all over the pool."""

import numpy as np

from shared.engine.running.empty_steps import empty_step
from shared.engine.scheduling.batch import HostBatch
from shared.kv.layout import num_blocks_for


def decode_step(num_seqs: int, context: int, num_blocks: int, block_size: int) -> HostBatch:
    """A token for each of the sequences, which attend to `context` positions."""
    return _step([1] * num_seqs, [context] * num_seqs, num_blocks, block_size)


def full_step(
    num_tokens: int, num_seqs: int, context: int, longest: int, num_blocks: int, block_size: int
) -> tuple[HostBatch, int]:
    """A step of `num_tokens` of `num_seqs` sequences, as far as they can fill it, and how many of
    the tokens are of prompts. As few as can be are prompts, of up to `longest` tokens each, begun
    in this step; the others decode, as above."""
    num_prompts = min(num_seqs, -(-num_tokens // longest))
    num_decoding = num_seqs - num_prompts
    whole, rest = divmod(min(num_tokens - num_decoding, num_prompts * longest), longest)
    prompts = [longest] * whole + [rest] * bool(rest)
    lengths = [1] * num_decoding + prompts
    contexts = [context] * num_decoding + prompts
    return _step(lengths, contexts, num_blocks, block_size), sum(prompts)


def _step(lengths: list[int], contexts: list[int], num_blocks: int, block_size: int) -> HostBatch:
    """Logits: of the last token of each."""
    num_seqs, width = len(lengths), num_blocks_for(max(contexts), block_size)
    tables = (np.arange(num_seqs * width) % num_blocks).reshape(-1, width)
    return empty_step(lengths, contexts, np.cumsum(lengths) - 1, tables)
