"""Names and digests of KV are the same in every release: workers of two exchange blocks by them,
and gateways of two look them up in one cache. Values that were written down, not computed here."""

import numpy as np

from shared.kv.block_hash import chain_hashes, root_hash
from shared.kv.digest import digest_of
from shared.kv.layer_groups import layer_groups
from shared.kv.layout import KVLayout, pool_name

LAYOUT = KVLayout("demo", "bfloat16", 6, 2, 2, 32, 16)


def test_a_pool_keeps_its_name() -> None:
    """A field more in the layout, whatever it holds, would make it another pool."""
    assert pool_name("m", LAYOUT) == "m@demo:e5c4e1d40e4852f11ae7d0eb45200a6b"


def test_blocks_keep_their_names() -> None:
    root = root_hash(b"secret", "tenant")
    assert [name.hex()[:16] for name in chain_hashes(root, range(5), 2)] == [
        "f988e6c9688473a8",
        "ba624065235d36d4",
    ]


def test_bytes_keep_their_digests_and_layers_their_groups() -> None:
    assert digest_of(np.arange(20, dtype=np.uint8)) == 0xEC073633B9A05A9
    large = KVLayout("llama", "bfloat16", 32, 2, 8, 128, 16)
    assert layer_groups(large).layer_ends == (4, 8, 12, 17, 21, 25, 30, 32)
