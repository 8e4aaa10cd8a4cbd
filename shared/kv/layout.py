"""What a KV block's bytes mean: two workers may exchange blocks only if their layouts agree.

A block is one contiguous run `[layer][K, V][kv_head][position][head_dim]`, so a whole block is
one slice on the wire and a layer group of it is one slice too.
"""

import hashlib
from dataclasses import asdict, dataclass

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class KVLayout:
    """Shape and type of one block. `planes` lets a model store other than K and V later."""

    model: str
    """served weights' identity (hash of config and weights index), not a display name"""
    dtype: str
    num_layers: int
    planes: int
    """values kept per position and head: 2 for K and V"""
    num_kv_heads: int
    """all of the model's, or those of a rank's share (shared.kv.share)"""
    head_dim: int
    block_size: int
    """token positions per block"""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"unknown KV dtype {self.dtype!r}, know {sorted(DTYPE_BYTES)}")

    @property
    def layer_elements(self) -> int:
        """Elements of one layer in one block."""
        return self.planes * self.num_kv_heads * self.block_size * self.head_dim

    @property
    def layer_bytes(self) -> int:
        return self.layer_elements * DTYPE_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return self.num_layers * self.layer_bytes

    def fingerprint(self) -> str:
        """Hex name of the layout; peers compare it before the first byte moves."""
        # The name is the same in every release: a whole block is what a single rank holds.
        text = repr(sorted({**asdict(self), "tp_size": 1}.items()))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` positions."""
    return -(-num_tokens // block_size)


def pool_name(served_model: str, layout: KVLayout) -> str:
    """Name of a pool: workers that serve the same model and revision in the same layout."""
    return f"{served_model}@{layout.model}:{layout.fingerprint()}"
