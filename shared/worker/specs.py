"""What the engine is told of an attempt, from the gateway's frames.

The names of the blocks are computed here, from the root and the tokens: a gateway cannot store one
prompt's KV under the name of another's. It costs 1 us a block.
"""

from shared.block_hash import chain_hashes
from shared.engine.sequence import SequenceSpec
from shared.protocol import Assign, Attempt, Receive


def assigned_sequence(message: Assign, block_size: int) -> SequenceSpec:
    """A prompt to compute here, for a hand-over or to keep."""
    return SequenceSpec(
        attempt=Attempt(message.rid, message.epoch),
        token_ids=message.token_ids,
        num_prompt_tokens=message.num_prompt_tokens,
        block_hashes=tuple(chain_hashes(message.hash_root, message.token_ids, block_size)),
        hash_root=message.hash_root,
        sampling=message.sampling,
        mode="prefill" if message.mode == "prefill" else "full",
        reason=message.reason,
    )


def received_sequence(message: Receive, block_size: int) -> SequenceSpec:
    """A sequence whose KV another worker computes."""
    return SequenceSpec(
        attempt=Attempt(message.rid, message.epoch),
        token_ids=message.token_ids,
        num_prompt_tokens=message.num_prompt_tokens,
        block_hashes=tuple(chain_hashes(message.hash_root, message.token_ids, block_size)),
        hash_root=message.hash_root,
        sampling=message.sampling,
        mode="decode",
    )
