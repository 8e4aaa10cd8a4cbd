"""Blocks of a rank's pool, head by head."""

import numpy as np
from numpy.typing import NDArray

from shared.kv.share import KVShare

Bytes = NDArray[np.uint8]


def heads_of(share: KVShare, rows: Bytes) -> Bytes:
    """[num_blocks, layers, planes, heads of the rank, bytes of a head]: `rows` [num_blocks, bytes
    of the rank's pool], no copy."""
    whole = share.whole
    return rows.reshape(len(rows), whole.num_layers, whole.planes, -1, share.head_bytes)
