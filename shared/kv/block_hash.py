"""The name of a block's content: SHA-256 over its parent's name and its token ids.

The root is HMAC(secret, tenant), so one tenant's blocks never match another's, and the chain
is the same in every process that knows the secret. Full digests only: a truncated or
per-process hash has let engines serve one prompt with another's cache.
"""

import hashlib
import hmac
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

HASH_BYTES = 32
STRIDE = 16
"""blocks of a prefix from one whose name workers tell to the next: routing needs no finer view"""


@dataclass(frozen=True)
class BlockHashing:
    """How a gateway names the blocks of its prompts."""

    secret: bytes = field(repr=False)
    block_size: int

    def root(self, tenant: str) -> bytes:
        return root_hash(self.secret, tenant)


def root_hash(secret: bytes, tenant: str) -> bytes:
    """Parent of a sequence's first block, 32 bytes."""
    return hmac.new(secret, tenant.encode(), hashlib.sha256).digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Name of one full block, 32 bytes. Token ids are hashed as little-endian uint32."""
    words = array("I", token_ids)
    assert words.itemsize == 4
    return hashlib.sha256(parent + words.tobytes()).digest()


def chain_hashes(root: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Names of all full blocks of a sequence, in order; the partial last block has none."""
    hashes: list[bytes] = []
    parent = root
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = block_hash(parent, token_ids[start : start + block_size])
        hashes.append(parent)
    return hashes
