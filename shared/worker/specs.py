"""What the engine is told of an attempt, from the gateway's frames."""

from shared.engine.sequence import SequenceSpec
from shared.protocol import Assign, Attempt, Receive


def assigned_sequence(message: Assign) -> SequenceSpec:
    """A prompt to compute here, for a hand-over or to keep."""
    return SequenceSpec(
        attempt=Attempt(message.rid, message.epoch),
        token_ids=message.token_ids,
        num_prompt_tokens=message.num_prompt_tokens,
        block_hashes=message.block_hashes,
        hash_root=message.hash_root,
        sampling=message.sampling,
        mode="prefill" if message.mode == "prefill" else "full",
        reason=message.reason,
    )


def received_sequence(message: Receive) -> SequenceSpec:
    """A sequence whose KV another worker computes."""
    return SequenceSpec(
        attempt=Attempt(message.rid, message.epoch),
        token_ids=message.token_ids,
        num_prompt_tokens=message.num_prompt_tokens,
        block_hashes=message.block_hashes,
        hash_root=message.hash_root,
        sampling=message.sampling,
        mode="decode",
    )
