"""The prompt whose KV is the canary: one block of tokens that everybody knows."""

import secrets

from shared.kv.block_hash import HASH_BYTES
from shared.protocol import Attempt, Sampling, Work

NUM_OUTPUT_TOKENS = 2
"""with one, prefill would end the request itself and hand nothing over"""


def canary_prompt(block_size: int, max_model_len: int, vocab_size: int) -> Work:
    """A new one. Its root is nobody's, so no prefix cache has its block already: KV has to be
    computed there and has to come here."""
    num_tokens = max(1, min(block_size, max_model_len - NUM_OUTPUT_TOKENS))
    return Work(
        Attempt(f"canary-{secrets.token_hex(8)}", 0),
        tuple(position % vocab_size for position in range(num_tokens)),
        num_tokens,
        secrets.token_bytes(HASH_BYTES),
        Sampling(NUM_OUTPUT_TOKENS, temperature=0.0, ignore_eos=True),
        priority=0,  # a newcomer helps all that wait
    )
